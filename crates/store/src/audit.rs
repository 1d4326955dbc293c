//! The audit trail: one row for each decision and state change, append-only, in the transaction that it tells of.

use chrono::{DateTime, Utc};
use domain::{Principal, TenantContext, TenantId};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use crate::db::{Conn, read};
use crate::json::sanitised;
use crate::{Result, Store};

/// A decision to be recorded by a face on its own (a refused scope, say). What the store itself changes it records itself.
#[derive(Debug, Clone)]
pub struct AuditRow {
    /// What was tried, such as `session.create`.
    pub action: &'static str,
    /// On what.
    pub target: Option<String>,
    /// Whether it was allowed.
    pub allowed: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Facts; never secrets.
    pub details: Value,
}

impl AuditRow {
    /// Something that was allowed and done.
    #[must_use]
    pub fn done(action: &'static str, target: impl ToString) -> Self {
        Self {
            action,
            target: Some(target.to_string()),
            allowed: true,
            reason: None,
            details: Value::Object(serde_json::Map::new()),
        }
    }

    /// The same with facts.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

/// One recorded decision.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// Its number.
    pub id: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// Who.
    pub principal: Principal,
    /// What.
    pub action: String,
    /// On what.
    pub target: Option<String>,
    /// Whether it was allowed.
    pub allowed: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Facts.
    pub details: Value,
}

impl Conn {
    /// Records a decision in this transaction.
    pub(crate) async fn audit(
        &mut self,
        tenant: Option<TenantId>,
        principal: &Principal,
        row: &AuditRow,
    ) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO audit_log (tenant_id, principal, action, target, allowed, reason, details)
             VALUES ($1, $2::text::jsonb, $3, $4, $5, $6, $7::text::jsonb)",
        )
        .bind(tenant.map(TenantId::uuid))
        .bind(sanitised("audit", principal)?)
        .bind(row.action)
        .bind(row.target.as_deref().map(crate::json::sanitised_text))
        .bind(row.allowed)
        .bind(row.reason.as_deref().map(crate::json::sanitised_text))
        .bind(sanitised("audit", &row.details)?);
        self.execute(statement).await?;
        Ok(())
    }
}

impl Store {
    /// Records a decision of the tenant's principal.
    pub async fn audit(&self, context: &TenantContext, row: AuditRow) -> Result<()> {
        let mut conn = self.db().tenant("audit", context).await?;
        conn.audit(Some(context.tenant_id()), context.principal(), &row).await?;
        conn.end().await
    }

    /// The tenant's trail, newest first, before a number.
    pub async fn audit_entries(
        &self,
        context: &TenantContext,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>> {
        const OPERATION: &str = "read the audit trail";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT id, at, principal, action, target, allowed, reason, details FROM audit_log
                     WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3",
                )
                .bind(context.tenant_id().uuid())
                .bind(before.unwrap_or(i64::MAX))
                .bind(i64::from(limit.min(1_000))),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, entry)
    }
}

fn entry(row: &PgRow) -> Result<AuditEntry, sqlx::Error> {
    Ok(AuditEntry {
        id: row.try_get("id")?,
        at: row.try_get("at")?,
        principal: row.try_get::<Json<Principal>, _>("principal")?.0,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        allowed: row.try_get("allowed")?,
        reason: row.try_get("reason")?,
        details: row.try_get("details")?,
    })
}
