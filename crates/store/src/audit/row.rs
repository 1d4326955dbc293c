//! An audit row and a hash as they come from the database.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::chain::{Hash, NOTHING, Row};

/// Columns of a row as it is hashed, with `l` as the table.
macro_rules! audit_row_columns {
    () => {
        "l.id, l.tenant_id, l.at, l.principal::text AS principal, l.action, l.target, l.allowed, l.reason,
         l.details::text AS details"
    };
}

pub(super) fn audit_row(row: &PgRow) -> Result<Row, sqlx::Error> {
    Ok(Row {
        id: row.try_get("id")?,
        tenant: row.try_get("tenant_id")?,
        at: row.try_get("at")?,
        principal: row.try_get("principal")?,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        allowed: row.try_get("allowed")?,
        reason: row.try_get("reason")?,
        details: row.try_get("details")?,
    })
}

/// 32 bytes. What is not so long becomes zeros, which are the hash of nothing.
pub(super) fn bytes32(row: &PgRow, column: &str) -> Result<Hash, sqlx::Error> {
    let bytes: Vec<u8> = row.try_get(column)?;
    Ok(bytes.try_into().unwrap_or(NOTHING))
}
