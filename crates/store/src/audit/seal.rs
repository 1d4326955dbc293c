//! The sealer: chains rows that were written a moment ago, and signs where each chain ends.
//!
//! # Design notes
//!
//! * One at a time in an installation: every pass takes an advisory lock for its transaction, and who does not get it leaves
//!   the work to who has it. So it may run in every worker, and through a pooler in transaction mode.
//! * Rows are taken once every transaction as old as theirs is over (their xid lies below the oldest that still runs). So no row
//!   can appear behind the cursor later, and none is looked at twice. A long transaction in the same cluster delays sealing; it loses nothing.
//! * A pass extends a head only when its signature is good: otherwise somebody with write access could set a head of their own
//!   and have it signed. A bad head stops the pass with an error; nothing is sealed until an operator has looked.
//! * Another cluster (a restored dump) counts transactions anew, so that the cursor means nothing there: unsealed rows are then
//!   looked for everywhere, once.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::chain::{AuditHead, Hash, NOTHING, Row, chain_of, tenant_of};
use super::row::{audit_row, bytes32};
use crate::db::{Conn, read, read_found};
use crate::error::translate;
use crate::{Result, Store, StoreError};

const SEAL: &str = "seal the audit trail";
/// Rows that are sealed in one transaction.
const BATCH: i64 = 2_000;
/// Key of the advisory lock.
const LOCK: i64 = 7_450_219_372;

/// What a pass of the sealer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    /// Another process is at it.
    Elsewhere,
    /// So many rows were sealed, and no more were ready.
    Everything(u64),
    /// So many rows were sealed, and more are ready.
    Some(u64),
}

/// How far the sealer has come.
struct Cursor {
    cluster: String,
    same_cluster: bool,
    xid: String,
    entry_id: i64,
    /// The oldest transaction that still ran before rows were read.
    oldest: String,
}

struct Ready {
    row: Row,
    xid: String,
}

impl Store {
    /// Chains rows whose transactions are over, and signs the chains' new ends. Safe to run anywhere at any time.
    pub async fn seal_audit(&self) -> Result<Sealed> {
        let mut conn = self.db().system_transaction(SEAL).await?;
        let lock = conn.one(sqlx::query("SELECT pg_try_advisory_xact_lock($1) AS mine").bind(LOCK)).await?;
        if !read_found(SEAL, Some(lock), |row| row.try_get::<bool, _>("mine"))? {
            conn.end().await?;
            return Ok(Sealed::Elsewhere);
        }
        let cursor = cursor(&mut conn).await?;
        let ready = ready(&mut conn, &cursor).await?;
        let sealed = ready.len() as u64;
        let whole = sealed == BATCH.unsigned_abs();
        if !ready.is_empty() {
            self.extend(&mut conn, &ready).await?;
        }
        // A search through everything has no place of its own: it goes on until nothing is left, then begins at the oldest.
        let next = match (ready.last(), cursor.same_cluster, whole) {
            (Some(last), true, _) => Some((last.xid.clone(), last.row.id)),
            (None, true, _) | (_, false, true) => None,
            (_, false, false) => Some((cursor.oldest.clone(), 0)),
        };
        if let Some((xid, entry_id)) = next {
            advance(&mut conn, &cursor.cluster, &xid, entry_id).await?;
        }
        conn.end().await?;
        self.db().metrics.audit_sealed.inc_by(sealed);
        Ok(if whole { Sealed::Some(sealed) } else { Sealed::Everything(sealed) })
    }

    /// Adds links to the chains of these rows and signs their ends.
    async fn extend(&self, conn: &mut Conn, ready: &[Ready]) -> Result<()> {
        let mut chains: BTreeMap<Uuid, (i64, Hash)> = BTreeMap::new();
        for ready in ready {
            chains.insert(ready.row.tenant.unwrap_or_default(), (0, NOTHING));
        }
        for head in heads(conn, SEAL, Some(chains.keys().copied().collect())).await? {
            if !self.audit_keys().signed(&head) {
                let source = format!(
                    "the head of the audit trail of {} is not signed by a key of ours",
                    head.tenant_id.map_or_else(|| "the installation".to_owned(), |tenant| tenant.to_string())
                );
                return Err(StoreError::Internal { operation: SEAL, source: source.into() });
            }
            chains.insert(chain_of(head.tenant_id), (head.sequence, head.hash));
        }
        let (mut of, mut seqs, mut entries, mut hashes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for Ready { row, .. } in ready {
            let chain = row.tenant.unwrap_or_default();
            let (seq, hash) = chains.entry(chain).or_insert((0, NOTHING));
            *seq += 1;
            *hash = row.link(chain, *seq, hash);
            of.push(chain);
            seqs.push(*seq);
            entries.push(row.id);
            hashes.push(hash.to_vec());
        }
        let links = sqlx::query(
            "INSERT INTO audit_chain (chain, seq, entry_id, hash)
             SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bytea[])",
        )
        .bind(of)
        .bind(seqs)
        .bind(entries)
        .bind(hashes);
        conn.execute(links).await?;
        let signed_at =
            DateTime::from_timestamp_micros(self.clock().now().timestamp_micros()).unwrap_or_default();
        let heads =
            chains.iter().map(|(chain, (seq, hash))| self.audit_keys().sign(*chain, *seq, *hash, signed_at));
        sign(conn, &heads.collect::<Vec<_>>()).await
    }
}

async fn cursor(conn: &mut Conn) -> Result<Cursor> {
    let row = conn
        .one(sqlx::query(
            "SELECT s.xid::text AS xid, s.entry_id, c.system_identifier::text AS cluster,
                    s.cluster = c.system_identifier::text AS same,
                    pg_snapshot_xmin(pg_current_snapshot())::text AS oldest
             FROM audit_sealer s, pg_control_system() c",
        ))
        .await?;
    let cursor = |row: &PgRow| {
        Ok(Cursor {
            cluster: row.try_get("cluster")?,
            same_cluster: row.try_get("same")?,
            xid: row.try_get("xid")?,
            entry_id: row.try_get("entry_id")?,
            oldest: row.try_get("oldest")?,
        })
    };
    cursor(&row).map_err(|error| translate(SEAL, error))
}

/// Rows that can be sealed now.
async fn ready(conn: &mut Conn, cursor: &Cursor) -> Result<Vec<Ready>> {
    let rows = if cursor.same_cluster {
        let statement = sqlx::query(concat!(
            "SELECT ",
            audit_row_columns!(),
            ", l.xid::text AS xid FROM audit_log l
             WHERE (l.xid, l.id) > ($1::text::xid8, $2) AND l.xid < pg_snapshot_xmin(pg_current_snapshot())
               AND NOT EXISTS (SELECT FROM audit_chain c WHERE c.entry_id = l.id)
             ORDER BY l.xid, l.id LIMIT $3"
        ))
        .bind(&cursor.xid)
        .bind(cursor.entry_id)
        .bind(BATCH);
        conn.all(statement).await?
    } else {
        let statement = sqlx::query(concat!(
            "SELECT ",
            audit_row_columns!(),
            ", l.xid::text AS xid FROM audit_log l
             WHERE NOT EXISTS (SELECT FROM audit_chain c WHERE c.entry_id = l.id) ORDER BY l.id LIMIT $1"
        ))
        .bind(BATCH);
        conn.all(statement).await?
    };
    read(SEAL, &rows, |row| Ok(Ready { row: audit_row(row)?, xid: row.try_get("xid")? }))
}

async fn advance(conn: &mut Conn, cluster: &str, xid: &str, entry_id: i64) -> Result<()> {
    let statement = sqlx::query("UPDATE audit_sealer SET cluster = $1, xid = $2::text::xid8, entry_id = $3")
        .bind(cluster)
        .bind(xid)
        .bind(entry_id);
    conn.execute(statement).await?;
    Ok(())
}

async fn sign(conn: &mut Conn, heads: &[AuditHead]) -> Result<()> {
    let statement = sqlx::query(
        "INSERT INTO audit_heads (chain, seq, hash, signed_at, key_id, signature)
         SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bytea[], $4::timestamptz[], $5::text[], $6::bytea[])
         ON CONFLICT (chain) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, signed_at = excluded.signed_at,
             key_id = excluded.key_id, signature = excluded.signature",
    )
    .bind(heads.iter().map(|head| chain_of(head.tenant_id)).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| head.sequence).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| head.hash.to_vec()).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| head.signed_at).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| head.key_id.clone()).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| head.signature.to_vec()).collect::<Vec<_>>());
    conn.execute(statement).await?;
    Ok(())
}

/// Heads of these chains, or of all.
pub(super) async fn heads(
    conn: &mut Conn,
    operation: &'static str,
    chains: Option<Vec<Uuid>>,
) -> Result<Vec<AuditHead>> {
    let statement = sqlx::query(
        "SELECT chain, seq, hash, signed_at, key_id, signature FROM audit_heads
         WHERE $1::uuid[] IS NULL OR chain = ANY ($1) ORDER BY chain",
    )
    .bind(chains);
    let rows = conn.all(statement).await?;
    read(operation, &rows, |row| {
        Ok(AuditHead {
            tenant_id: tenant_of(row.try_get("chain")?),
            sequence: row.try_get("seq")?,
            hash: bytes32(row, "hash")?,
            signed_at: row.try_get::<DateTime<Utc>, _>("signed_at")?,
            key_id: row.try_get("key_id")?,
            signature: bytes32(row, "signature")?,
        })
    })
}
