//! Tenants: who pays and who is isolated. Only operators make and change them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use domain::policy::Policy;
use domain::{OperatorContext, SessionId, TenantContext, TenantId, TenantStatus};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::bus::Hint;
use crate::cancelling::{Cancelled, Withdrawn, withdraw};
use crate::db::{Conn, read, read_found, unknown_word};
use crate::error::{constraint, translate};
use crate::json::{storable, storable_text};
use crate::{AuditRow, Listed, Page, Result, Store, StoreError, TenantRetention};

/// One tenant, as its row says.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Its name, unique in the installation.
    pub name: String,
    /// Whether it may use the service.
    pub status: TenantStatus,
    /// Its policy.
    pub policy: Policy,
    /// The operator's labels.
    pub metadata: BTreeMap<String, String>,
    /// Days that it keeps things, where it is less than the installation's.
    pub retention: TenantRetention,
    /// When it was created.
    pub created_at: DateTime<Utc>,
}

/// A tenant to be created.
#[derive(Debug, Clone, Default)]
pub struct NewTenant {
    /// 1 to 100 characters, unique.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// The operator's labels.
    pub metadata: BTreeMap<String, String>,
}

impl Store {
    /// Creates a tenant. [`crate::StoreError::Conflict`] when the name is taken.
    pub async fn create_tenant(&self, operator: &OperatorContext, new: NewTenant) -> Result<Tenant> {
        const OPERATION: &str = "create tenant";
        storable_text(OPERATION, "name", &new.name)?;
        let id: TenantId = self.clock().new_id();
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let inserted = conn
            .try_one(
                sqlx::query(
                    "INSERT INTO tenants (id, name, policy, metadata) VALUES ($1, $2, $3::text::jsonb, $4::text::jsonb)
                     RETURNING id, name, status, policy, metadata, calls_days, events_days, output_days, created_at",
                )
                .bind(id.uuid())
                .bind(&new.name)
                .bind(storable(OPERATION, "policy", &new.policy)?)
                .bind(storable(OPERATION, "metadata", &new.metadata)?),
            )
            .await?;
        let row = match inserted {
            Ok(row) => row,
            Err(error) => {
                conn.undo().await?;
                return Err(match constraint(&error) {
                    Some("tenants_name_unique") => {
                        StoreError::Conflict { operation: OPERATION, message: "a tenant of this name exists" }
                    }
                    Some("tenants_name_length") => StoreError::Conflict {
                        operation: OPERATION,
                        message: "a name has 1 to 100 characters",
                    },
                    _ => translate(OPERATION, error),
                });
            }
        };
        conn.audit(Some(id), operator.principal(), &AuditRow::done("tenant.create", id)).await?;
        conn.end().await?;
        tenant(&row).map_err(|error| translate(OPERATION, error))
    }

    /// All tenants, newest first.
    pub async fn list_tenants(&self, _operator: &OperatorContext, page: Page) -> Result<Listed<Tenant>> {
        const OPERATION: &str = "list tenants";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT id, name, status, policy, metadata, calls_days, events_days, output_days, created_at FROM tenants
                     WHERE $1::uuid IS NULL OR id < $1 ORDER BY id DESC LIMIT $2",
                )
                .bind(page.after)
                .bind(page.fetch()),
            )
            .await?;
        conn.end().await?;
        Ok(page.cut(read(OPERATION, &rows, tenant)?, |tenant| tenant.id.uuid()))
    }

    /// One tenant.
    pub async fn get_tenant(&self, _operator: &OperatorContext, id: TenantId) -> Result<Tenant> {
        const OPERATION: &str = "get tenant";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT id, name, status, policy, metadata, calls_days, events_days, output_days, created_at FROM tenants WHERE id = $1",
                )
                .bind(id.uuid()),
            )
            .await?;
        conn.end().await?;
        read_found(OPERATION, row, tenant)
    }

    /// One tenant by its name.
    pub async fn find_tenant(&self, _operator: &OperatorContext, name: &str) -> Result<Tenant> {
        const OPERATION: &str = "find tenant";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT id, name, status, policy, metadata, calls_days, events_days, output_days, created_at FROM tenants WHERE name = $1",
                )
                .bind(name.replace('\0', "\u{fffd}")),
            )
            .await?;
        conn.end().await?;
        read_found(OPERATION, row, tenant)
    }

    /// Replaces a tenant's policy. It holds for new requests within seconds.
    pub async fn set_tenant_policy(
        &self,
        operator: &OperatorContext,
        id: TenantId,
        policy: &Policy,
    ) -> Result<Tenant> {
        const OPERATION: &str = "set tenant policy";
        let policy = storable(OPERATION, "policy", policy)?;
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "UPDATE tenants SET policy = $2::text::jsonb WHERE id = $1
                     RETURNING id, name, status, policy, metadata, calls_days, events_days, output_days, created_at",
                )
                .bind(id.uuid())
                .bind(policy),
            )
            .await?;
        if row.is_some() {
            conn.audit(Some(id), operator.principal(), &AuditRow::done("tenant.policy", id)).await?;
        }
        conn.end().await?;
        read_found(OPERATION, row, tenant)
    }

    /// Suspends or reactivates a tenant. Suspension refuses its credentials within seconds, cancels its calls and asks its sessions
    /// to end.
    pub async fn set_tenant_status(
        &self,
        operator: &OperatorContext,
        id: TenantId,
        status: TenantStatus,
    ) -> Result<Tenant> {
        const OPERATION: &str = "set tenant status";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let changed = conn
            .try_one(
                sqlx::query(
                    "UPDATE tenants SET status = $2 WHERE id = $1
                     RETURNING id, name, status, policy, metadata, calls_days, events_days, output_days, created_at",
                )
                .bind(id.uuid())
                .bind(status.as_str()),
            )
            .await?;
        let row = match changed {
            Ok(row) => Some(row),
            Err(sqlx::Error::RowNotFound) => None,
            Err(error) => {
                conn.undo().await?;
                return Err(match constraint(&error) {
                    Some("tenant_is_not_erased") => StoreError::Conflict {
                        operation: OPERATION,
                        message: "the tenant is being erased, or was: make a new one",
                    },
                    _ => translate(OPERATION, error),
                });
            }
        };
        let (mut ending, mut cancelled) = (Vec::new(), Cancelled::default());
        if row.is_some() {
            let details = json!({"status": status});
            conn.audit(Some(id), operator.principal(), &AuditRow::done("tenant.status", id).details(details))
                .await?;
            if status == TenantStatus::Suspended {
                cancelled = withdraw(&mut conn, OPERATION, &[id], Withdrawn::Tenants).await?;
                ending = end_all_sessions(&mut conn, id).await?;
            }
        }
        conn.end().await?;
        // Calls first: what is cancelled says why, what ends with its session does not.
        cancelled.tell(self.bus());
        ending.into_iter().for_each(|session| self.bus().hint(Hint::SessionChanged(session)));
        read_found(OPERATION, row, tenant)
    }

    /// The tenant's own policy.
    pub async fn policy_of_tenant(&self, context: &TenantContext) -> Result<Policy> {
        const OPERATION: &str = "read tenant policy";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query("SELECT policy FROM tenants WHERE id = $1").bind(context.tenant_id().uuid()),
            )
            .await?;
        conn.end().await?;
        read_found(OPERATION, row, |row| Ok(row.try_get::<Json<Policy>, _>("policy")?.0))
    }
}

async fn end_all_sessions(conn: &mut Conn, id: TenantId) -> Result<Vec<SessionId>> {
    let rows = conn
        .all(
            sqlx::query(
                "UPDATE sessions SET end_requested = true, end_wish = 'tenant_suspended'
                 WHERE tenant_id = $1 AND status <> 'ended' AND NOT end_requested RETURNING id",
            )
            .bind(id.uuid()),
        )
        .await?;
    read("end sessions of tenant", &rows, |row| Ok(SessionId::from_uuid(row.try_get("id")?)))
}

fn tenant(row: &PgRow) -> Result<Tenant, sqlx::Error> {
    Ok(Tenant {
        id: TenantId::from_uuid(row.try_get::<Uuid, _>("id")?),
        name: row.try_get("name")?,
        status: status(row.try_get("status")?)?,
        policy: row.try_get::<Json<Policy>, _>("policy")?.0,
        metadata: row.try_get::<Json<BTreeMap<String, String>>, _>("metadata")?.0,
        retention: TenantRetention {
            calls_days: days(row, "calls_days")?,
            events_days: days(row, "events_days")?,
            output_days: days(row, "output_days")?,
        },
        created_at: row.try_get("created_at")?,
    })
}

/// Days of retention from their column.
pub(crate) fn days(row: &PgRow, column: &'static str) -> Result<Option<u32>, sqlx::Error> {
    Ok(row.try_get::<Option<i32>, _>(column)?.and_then(|days| u32::try_from(days).ok()))
}

pub(crate) fn status(word: &str) -> Result<TenantStatus, sqlx::Error> {
    [TenantStatus::Active, TenantStatus::Suspended]
        .into_iter()
        .find(|status| status.as_str() == word)
        .ok_or_else(|| unknown_word("tenants.status"))
}
