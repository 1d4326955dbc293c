//! Roles that tenants define: a name for some scopes and a narrowing of policy. The given ones are no rows.

use chrono::{DateTime, Utc};
use domain::access::GivenRole;
use domain::policy::Policy;
use domain::{OperatorContext, Principal, Scope, TenantContext, TenantId};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use crate::db::{Conn, Lock, read, read_found};
use crate::error::{constraint, translate};
use crate::json::{storable, storable_text};
use crate::keys::scopes;
use crate::{AuditRow, Result, Store, StoreError};

/// Who looks after a tenant's roles and keys: an operator for any, or the tenant for itself.
#[derive(Debug, Clone, Copy)]
pub enum Keeper<'a> {
    /// An operator, for this tenant.
    Operator(&'a OperatorContext, TenantId),
    /// The tenant itself, bound to its rows by the database too.
    Tenant(&'a TenantContext),
}

impl Keeper<'_> {
    /// Whose things.
    #[must_use]
    pub fn tenant_id(&self) -> TenantId {
        match self {
            Self::Operator(_, tenant_id) => *tenant_id,
            Self::Tenant(context) => context.tenant_id(),
        }
    }

    /// Who acts.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        match self {
            Self::Operator(operator, _) => operator.principal(),
            Self::Tenant(context) => context.principal(),
        }
    }
}

/// A role of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Role {
    /// Its name, unique in the tenant.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// Its narrowing of policy.
    pub policy: Option<Policy>,
    /// Whether every tenant has it.
    pub given: bool,
    /// When it was made; `None` for a given one.
    pub created_at: Option<DateTime<Utc>>,
    /// When it was last changed; `None` for a given one.
    pub updated_at: Option<DateTime<Utc>>,
}

/// A role to be made or replaced.
#[derive(Debug, Clone, Default)]
pub struct NewRole {
    /// What it is for.
    pub description: String,
    /// What it may do; never [`Scope::Operator`].
    pub scopes: Vec<Scope>,
    /// Its narrowing of policy.
    pub policy: Option<Policy>,
}

/// Most roles that a tenant may define.
pub const ROLES: u32 = 100;

const LIST: &str = "list roles";
const GET: &str = "get role";
const PUT: &str = "put role";
const DELETE: &str = "delete role";

impl From<GivenRole> for Role {
    fn from(role: GivenRole) -> Self {
        Self {
            name: role.as_str().to_owned(),
            description: role.description().to_owned(),
            scopes: role.scopes(),
            policy: None,
            given: true,
            created_at: None,
            updated_at: None,
        }
    }
}

impl Store {
    /// The given roles and the tenant's own, by name.
    pub async fn list_roles(&self, keeper: Keeper<'_>) -> Result<Vec<Role>> {
        let mut conn = self.keeping(LIST, keeper).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT name, description, scopes, policy, created_at, updated_at FROM roles
                     WHERE tenant_id = $1 ORDER BY name LIMIT $2",
                )
                .bind(keeper.tenant_id().uuid())
                .bind(i64::from(ROLES)),
            )
            .await?;
        conn.end().await?;
        let given = GivenRole::ALL.iter().copied().map(Role::from);
        Ok(given.chain(read(LIST, &rows, role)?).collect())
    }

    /// One role. [`StoreError::NotFound`] when there is none of this name.
    pub async fn get_role(&self, keeper: Keeper<'_>, name: &str) -> Result<Role> {
        if let Some(given) = GivenRole::named(name) {
            return Ok(given.into());
        }
        let mut conn = self.keeping(GET, keeper).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT name, description, scopes, policy, created_at, updated_at FROM roles
                     WHERE tenant_id = $1 AND name = $2",
                )
                .bind(keeper.tenant_id().uuid())
                .bind(name.replace('\0', "\u{fffd}")),
            )
            .await?;
        conn.end().await?;
        read_found(GET, row, role)
    }

    /// Makes a role or replaces it. What holds for its keys changes within seconds.
    pub async fn put_role(&self, keeper: Keeper<'_>, name: &str, new: NewRole) -> Result<Role> {
        storable_text(PUT, "name", name)?;
        storable_text(PUT, "description", &new.description)?;
        let policy = new.policy.as_ref().map(|policy| storable(PUT, "policy", policy)).transpose()?;
        let scopes: Vec<&str> = new.scopes.iter().map(|scope| scope.as_str()).collect();
        let mut conn = self.keeping(PUT, keeper).await?;
        conn.lock(Lock::Roles, keeper.tenant_id().uuid()).await?;
        let written = conn
            .try_one(
                sqlx::query(
                    "INSERT INTO roles (tenant_id, name, description, scopes, policy)
                     SELECT $1, $2, $3, $4, $5::text::jsonb WHERE (SELECT count(*) FROM roles
                         WHERE tenant_id = $1 AND name <> $2) < $6
                     ON CONFLICT (tenant_id, name) DO UPDATE SET description = excluded.description,
                         scopes = excluded.scopes, policy = excluded.policy, updated_at = clock_timestamp()
                     RETURNING name, description, scopes, policy, created_at, updated_at",
                )
                .bind(keeper.tenant_id().uuid())
                .bind(name)
                .bind(&new.description)
                .bind(scopes)
                .bind(policy)
                .bind(i64::from(ROLES)),
            )
            .await?;
        let row = match written {
            Ok(row) => row,
            Err(error) => {
                conn.undo().await?;
                return Err(refusal(error));
            }
        };
        let details = json!({"scopes": new.scopes, "policy": new.policy.is_some()});
        let audit = AuditRow::done("role.put", name).details(details);
        conn.audit(Some(keeper.tenant_id()), keeper.principal(), &audit).await?;
        conn.end().await?;
        self.forget_role(keeper.tenant_id());
        role(&row).map_err(|error| translate(PUT, error))
    }

    /// Deletes a role. [`StoreError::Conflict`] while keys have it that are still valid.
    pub async fn delete_role(&self, keeper: Keeper<'_>, name: &str) -> Result<()> {
        let mut conn = self.keeping(DELETE, keeper).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT EXISTS (SELECT FROM api_keys k WHERE k.tenant_id = r.tenant_id AND k.role = r.name
                         AND k.revoked_at IS NULL AND coalesce(k.expires_at > clock_timestamp(), true)) AS used
                     FROM roles r WHERE r.tenant_id = $1 AND r.name = $2 FOR UPDATE",
                )
                .bind(keeper.tenant_id().uuid())
                .bind(name.replace('\0', "\u{fffd}")),
            )
            .await?;
        if read_found(DELETE, row, |row| row.try_get::<bool, _>("used"))? {
            conn.undo().await?;
            let message = "keys have this role: revoke them, or give them another by making new ones";
            return Err(StoreError::Conflict { operation: DELETE, message });
        }
        conn.execute(
            sqlx::query("DELETE FROM roles WHERE tenant_id = $1 AND name = $2")
                .bind(keeper.tenant_id().uuid())
                .bind(name),
        )
        .await?;
        conn.audit(Some(keeper.tenant_id()), keeper.principal(), &AuditRow::done("role.delete", name))
            .await?;
        conn.end().await?;
        self.forget_role(keeper.tenant_id());
        Ok(())
    }

    /// A transaction of a keeper: a tenant's own under row-level security.
    pub(crate) async fn keeping(&self, operation: &'static str, keeper: Keeper<'_>) -> Result<Conn> {
        match keeper {
            Keeper::Operator(..) => self.db().system_transaction(operation).await,
            Keeper::Tenant(context) => self.db().tenant(operation, context).await,
        }
    }
}

fn refusal(error: sqlx::Error) -> StoreError {
    let message = match constraint(&error) {
        Some("roles_tenant_id_fkey") => return StoreError::NotFound { operation: PUT },
        Some("roles_name_form") => {
            "a role's name is 1 to 50 characters of a-z, 0-9, - and _, and starts with a letter"
        }
        Some("roles_name_not_given") => "this name is a given role's",
        Some("roles_are_below_operators") => "a tenant's role cannot have the scope `operator`",
        Some("tenant_is_not_erased") => "the tenant is being erased, or was",
        Some("roles_description_length") => "a description has at most 500 characters",
        // The limit on roles is part of the statement, which then inserts nothing.
        _ if matches!(error, sqlx::Error::RowNotFound) => "the tenant has as many roles as it may",
        _ => return translate(PUT, error),
    };
    StoreError::Conflict { operation: PUT, message }
}

fn role(row: &PgRow) -> Result<Role, sqlx::Error> {
    Ok(Role {
        name: row.try_get("name")?,
        description: row.try_get("description")?,
        scopes: scopes(row)?,
        policy: row.try_get::<Option<Json<Policy>>, _>("policy")?.map(|policy| policy.0),
        given: false,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
    })
}
