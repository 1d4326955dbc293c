//! Reading the trail: filters, pages, and where each row lies in the chain.

use chrono::{DateTime, Utc};
use domain::{OperatorContext, Principal, TenantContext, TenantId};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::{Conn, read, signed, unsigned};
use crate::{Listed, Page, Result, Store};

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
    /// Its link in the chain; `None` for the second or so until it is sealed.
    pub seal: Option<AuditSeal>,
}

/// A row's link in its tenant's chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSeal {
    /// Its place, from 1, without gaps.
    pub sequence: u64,
    /// SHA-256 over the link before and the row.
    pub hash: Vec<u8>,
}

/// Which rows. Everything that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Recorded at or after this time.
    pub since: Option<DateTime<Utc>>,
    /// Recorded before this time.
    pub until: Option<DateTime<Utc>>,
    /// One of these actions; `call.*` is every action that begins so. Any when empty.
    pub actions: Vec<String>,
    /// The id of the key, or the name, of who did it.
    pub principal: Option<String>,
    /// What it was done to.
    pub target: Option<String>,
    /// Whether it was allowed.
    pub allowed: Option<bool>,
}

/// Whose trail, and by which right it is read.
#[derive(Debug, Clone, Copy)]
pub enum Trail<'a> {
    /// A tenant's, by somebody of its own.
    Own(&'a TenantContext),
    /// By an operator: a tenant's, or (`None`) the installation's own, of what lies above tenants.
    Above(&'a OperatorContext, Option<TenantId>),
}

impl<'a> From<&'a TenantContext> for Trail<'a> {
    fn from(context: &'a TenantContext) -> Self {
        Self::Own(context)
    }
}

impl Trail<'_> {
    fn tenant_id(self) -> Option<TenantId> {
        match self {
            Self::Own(context) => Some(context.tenant_id()),
            Self::Above(_, tenant_id) => tenant_id,
        }
    }
}

/// Rows of one trail. Two statements, as an index serves `=` and `IS NULL` but not what would mean both. The order names the tenant
/// too, as Postgres does not see that `IS NULL` leaves one value, and would sort the whole trail for each page.
macro_rules! rows_of {
    ($tenant:literal) => {
        concat!(
            "SELECT l.id, l.at, l.principal, l.action, l.target, l.allowed, l.reason, l.details, c.seq, c.hash
             FROM audit_log l LEFT JOIN audit_chain c ON c.entry_id = l.id
             WHERE ",
            $tenant,
            " AND (l.at, l.id) < ($2, $3)
               AND ($4::timestamptz IS NULL OR l.at >= $4) AND ($5::timestamptz IS NULL OR l.at < $5)
               AND (cardinality($6::text[] || $7::text[]) = 0 OR l.action = ANY ($6)
                    OR EXISTS (SELECT FROM unnest($7) prefix WHERE starts_with(l.action, prefix)))
               AND ($8::text IS NULL OR l.principal ->> 'name' = $8 OR l.principal ->> 'key_id' = $8)
               AND ($9::text IS NULL OR l.target = $9) AND ($10::boolean IS NULL OR l.allowed = $10)
             ORDER BY l.tenant_id DESC, l.at DESC, l.id DESC LIMIT $11"
        )
    };
}

impl Store {
    /// A page of a trail, newest first.
    pub async fn list_audit<'a>(
        &self,
        trail: impl Into<Trail<'a>>,
        filter: &AuditFilter,
        page: Page,
    ) -> Result<Listed<AuditEntry>> {
        let fetch = u32::try_from(page.fetch()).unwrap_or(u32::MAX);
        let entries = self.audit_rows(trail.into(), filter, page.after, fetch).await?;
        Ok(page.cut(entries, |entry| position(entry.at, entry.id)))
    }

    /// The next stretch of an export, and where the one behind it begins. Longer than a page, as nobody pages through it by hand.
    pub async fn export_audit<'a>(
        &self,
        trail: impl Into<Trail<'a>>,
        filter: &AuditFilter,
        after: Option<Uuid>,
    ) -> Result<Listed<AuditEntry>> {
        const STRETCH: u32 = 1_000;
        let items = self.audit_rows(trail.into(), filter, after, STRETCH).await?;
        let full = items.len() == STRETCH as usize;
        let next = items.last().filter(|_| full).map(|entry| position(entry.at, entry.id));
        Ok(Listed { items, next })
    }

    async fn audit_rows(
        &self,
        trail: Trail<'_>,
        filter: &AuditFilter,
        after: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>> {
        const OPERATION: &str = "read the audit trail";
        let (exact, prefixes): (Vec<_>, Vec<_>) =
            filter.actions.iter().cloned().partition(|action| !action.ends_with('*'));
        let prefixes: Vec<_> =
            prefixes.iter().map(|prefix| prefix.trim_end_matches('*').to_owned()).collect();
        let (at, id) = after.map_or_else(|| (end_of_time(), i64::MAX), place);
        let tenant_id = trail.tenant_id();
        let sql = match tenant_id {
            Some(_) => rows_of!("l.tenant_id = $1"),
            None => rows_of!("l.tenant_id IS NULL AND $1::uuid IS NULL"),
        };
        let statement = sqlx::query(sql)
            .bind(tenant_id.map(TenantId::uuid))
            .bind(at)
            .bind(id)
            .bind(filter.since)
            .bind(filter.until)
            .bind(exact)
            .bind(prefixes)
            .bind(&filter.principal)
            .bind(&filter.target)
            .bind(filter.allowed)
            .bind(i64::from(limit));
        let mut conn = self.reader_of(OPERATION, trail).await?;
        let rows = conn.all(statement).await?;
        conn.end().await?;
        read(OPERATION, &rows, entry)
    }

    /// A tenant's own people read as the tenant, so that row-level security stands behind the statement.
    async fn reader_of(&self, operation: &'static str, trail: Trail<'_>) -> Result<Conn> {
        match trail {
            Trail::Own(context) => self.db().tenant(operation, context).await,
            Trail::Above(_, _) => self.db().system(operation).await,
        }
    }
}

/// Behind everything: later than any row is.
fn end_of_time() -> DateTime<Utc> {
    DateTime::from_timestamp(253_402_300_799, 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// A row's place in the order of the list, as the cursor keeps it: its time in microseconds, then its number.
fn position(at: DateTime<Utc>, id: i64) -> Uuid {
    Uuid::from_u64_pair(unsigned(at.timestamp_micros()), unsigned(id))
}

fn place(position: Uuid) -> (DateTime<Utc>, i64) {
    let (at, id) = position.as_u64_pair();
    (DateTime::from_timestamp_micros(signed(at)).unwrap_or_else(end_of_time), signed(id))
}

fn entry(row: &PgRow) -> Result<AuditEntry, sqlx::Error> {
    let seal = row.try_get::<Option<i64>, _>("seq")?.map(|sequence| -> Result<AuditSeal, sqlx::Error> {
        Ok(AuditSeal { sequence: unsigned(sequence), hash: row.try_get("hash")? })
    });
    Ok(AuditEntry {
        id: row.try_get("id")?,
        at: row.try_get("at")?,
        principal: row.try_get::<Json<Principal>, _>("principal")?.0,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        allowed: row.try_get("allowed")?,
        reason: row.try_get("reason")?,
        details: row.try_get("details")?,
        seal: seal.transpose()?,
    })
}
