//! The audit trail: one row for each decision and state change, append-only, in the transaction that it tells of.

use chrono::{DateTime, Utc};
use domain::{Principal, TenantContext};
use serde_json::Value;

use crate::{Page, Result, Store};

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

impl Store {
    /// Records a decision of the tenant's principal.
    pub async fn audit(&self, context: &TenantContext, row: AuditRow) -> Result<()> {
        todo!()
    }

    /// The tenant's trail, newest first, before a number.
    pub async fn audit_entries(
        &self,
        context: &TenantContext,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>> {
        todo!()
    }
}
