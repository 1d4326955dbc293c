//! The audit trail: one row for each decision and state change, append-only, in the transaction that it tells of.
//!
//! Chaining the rows is [`seal`]'s work, a moment later; telling whether somebody has changed them is [`verify`]'s.

#[macro_use]
mod row;
mod chain;
mod emptied;
mod read;
mod report;
mod seal;
mod verify;

use domain::{OperatorContext, Principal, TenantContext, TenantId};
use serde_json::Value;

pub(crate) use chain::hex;
pub use chain::{AuditHead, AuditKeys};
pub(crate) use emptied::empty_some;
pub use read::{AuditEntry, AuditFilter, AuditSeal, Trail};
pub use report::{AuditReport, Finding};
pub use seal::Sealed;

use crate::db::Conn;
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

    /// Records a decision about an operator, in the installation's own trail.
    pub async fn audit_above(&self, operator: &OperatorContext, row: AuditRow) -> Result<()> {
        let mut conn = self.db().system("audit").await?;
        conn.audit(None, operator.principal(), &row).await?;
        conn.end().await
    }
}
