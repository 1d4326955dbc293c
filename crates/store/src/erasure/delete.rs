//! What an erasure deletes: calls with what belongs to them first, then every table of the catalogue that has rows of tenants.

use std::collections::{BTreeMap, BTreeSet};

use domain::TenantId;
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::ERASE;
use crate::db::{Conn, read, signed};
use crate::{Result, StoreError};

/// Tables whose rows of a tenant stay.
const KEPT: [&str; 4] = ["tenants", "tenant_erasures", "audit_log", "usage_hours"];
/// Tables that are found by the ids of calls, as they have no index of tenants.
const OF_CALLS: [&str; 3] = ["calls", "call_events", "output_chunks"];
/// Calls, and rows of other tables, that one transaction deletes.
const CALLS: i64 = 50;
const ROWS: i64 = 2_000;

/// Adds to what was deleted, in the transaction that deletes it.
pub(super) async fn count(
    conn: &mut Conn,
    tenant: TenantId,
    table: &str,
    rows: u64,
    bytes: i64,
) -> Result<()> {
    let statement = sqlx::query(
        "UPDATE tenant_erasures SET object_bytes = object_bytes + $4,
             deleted = deleted || jsonb_build_object($2::text, coalesce((deleted ->> $2)::bigint, 0) + $3) WHERE tenant_id = $1",
    );
    conn.execute(statement.bind(tenant.uuid()).bind(table).bind(signed(rows)).bind(bytes)).await?;
    Ok(())
}

/// What a batch has deleted.
pub(super) enum Deleted {
    Rows,
    /// No artifact is left; objects are.
    ArtifactsAreNext,
    Nothing,
}

/// Deletes the next rows of the tenant.
pub(super) async fn delete_some(conn: &mut Conn, tenant: TenantId) -> Result<Deleted> {
    if delete_calls(conn, tenant).await? {
        return Ok(Deleted::Rows);
    }
    for table in tables_of_tenants(conn).await? {
        if table == "artifact_objects" {
            let left = sqlx::query("SELECT FROM artifact_objects WHERE tenant_id = $1 LIMIT 1");
            if conn.optional(left.bind(tenant.uuid())).await?.is_some() {
                return Ok(Deleted::ArtifactsAreNext);
            }
            continue;
        }
        // Names come from the catalogue, quoted by it.
        let delete = format!(
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE tenant_id = $1 LIMIT $2)) AND tenant_id = $1"
        );
        let rows = conn.execute(sqlx::query(AssertSqlSafe(delete)).bind(tenant.uuid()).bind(ROWS)).await?;
        if rows > 0 {
            count(conn, tenant, &table, rows, 0).await?;
            return Ok(Deleted::Rows);
        }
    }
    Ok(Deleted::Nothing)
}

/// Some calls with their output and events, output first; then shells whose calls are gone, with theirs.
async fn delete_calls(conn: &mut Conn, tenant: TenantId) -> Result<bool> {
    let calls = sqlx::query("SELECT id FROM calls WHERE tenant_id = $1 ORDER BY id LIMIT $2");
    let calls = conn.all(calls.bind(tenant.uuid()).bind(CALLS)).await?;
    let calls: Vec<Uuid> = read(ERASE, &calls, |row| row.try_get("id"))?;
    let shells = sqlx::query(
        "SELECT output_owner FROM shells WHERE tenant_id = $1 AND ($3 OR call_id = ANY ($2)) ORDER BY id LIMIT $4",
    );
    let shells = shells.bind(tenant.uuid()).bind(&calls).bind(calls.is_empty()).bind(ROWS);
    let mut owners: Vec<Uuid> = read(ERASE, &conn.all(shells).await?, |row| row.try_get("output_owner"))?;
    owners.extend(&calls);
    // Rows of partitions have no place of their own that could name them, but a key.
    for (table, key, of, ids) in [
        ("output_chunks", "owner, log_offset", "owner", &owners),
        ("shells", "id", "output_owner", &owners),
        ("call_events", "call_id, seq", "call_id", &calls),
        ("calls", "id", "id", &calls),
    ] {
        let delete = format!(
            "DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE tenant_id = $1 AND {of} = ANY ($2)
                 AND {of} >= $3 AND {of} <= $4 LIMIT $5) AND {of} >= $3 AND {of} <= $4 AND tenant_id = $1"
        );
        let (first, last) = (ids.iter().min().copied(), ids.iter().max().copied());
        let statement = sqlx::query(AssertSqlSafe(delete)).bind(tenant.uuid()).bind(ids);
        let statement = statement.bind(first.unwrap_or_default()).bind(last.unwrap_or_default()).bind(ROWS);
        let rows = conn.execute(statement).await?;
        if rows > 0 {
            count(conn, tenant, table, rows, 0).await?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Tables with rows of tenants that are to go, those that refer to others first.
async fn tables_of_tenants(conn: &mut Conn) -> Result<Vec<String>> {
    let rows = conn
        .all(
            sqlx::query(
                "SELECT c.oid::regclass::text AS name, coalesce(array_agg(DISTINCT k.confrelid::regclass::text)
                     FILTER (WHERE k.confrelid <> c.oid), '{}') AS refers_to
                 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
                 LEFT JOIN pg_constraint k ON k.conrelid = c.oid AND k.contype = 'f'
                 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                   AND c.relname <> ALL ($1)
                 GROUP BY c.oid ORDER BY 1",
            )
            .bind([KEPT.as_slice(), &OF_CALLS].concat()),
        )
        .await?;
    let found = read(ERASE, &rows, |row| {
        Ok((row.try_get::<String, _>("name")?, row.try_get::<Vec<String>, _>("refers_to")?))
    })?;
    let mut left: BTreeMap<String, BTreeSet<String>> =
        found.into_iter().map(|(name, refers_to)| (name, refers_to.into_iter().collect())).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        // A table that nothing left refers to can go.
        let next =
            left.keys().find(|name| !left.values().any(|refers_to| refers_to.contains(*name))).cloned();
        let Some(next) = next else {
            let source = "tables of tenants refer to each other in a circle".into();
            return Err(StoreError::Internal { operation: ERASE, source });
        };
        left.remove(&next);
        order.push(next);
    }
    Ok(order)
}
