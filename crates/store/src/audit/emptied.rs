//! What the trail of an erased tenant keeps: when what was done and allowed, and the hash of every link; who did it to what goes.
//!
//! # Design notes
//!
//! * A link's hash covers the whole row, so that a row without its content cannot be checked against it. In its place stands a digest over
//!   all links and over what their rows keep, signed with the key of the heads, which the database does not know. It is written before the first
//!   row is emptied: a trail that is emptied half way, by a process that was killed, is as good as a whole one.
//! * Whoever has the database can then empty rows that the digest covers, and nothing more; that is what was asked for. Rows behind
//!   the last link of the digest are checked as ever.
//! * The chain is verified once, before its digest is signed, and the digest's row keeps what was found, under the signature too: an erasure
//!   must not hide a tampering.

use domain::TenantId;
use sha2::{Digest as _, Sha256};
use sqlx::Row as _;
use uuid::Uuid;

use super::chain::{AuditKeys, Hash, Row, chain_of};
use super::row::{audit_row, bytes32};
use super::seal::heads;
use crate::db::{Conn, read, read_found, unsigned};
use crate::error::translate;
use crate::{Result, Store, StoreError};

/// Purpose of the signature.
const PURPOSE: &[u8] = b"toolhost audit erasure 1\0";
/// Rows that are read, or emptied, at once.
const BATCH: i64 = 2_000;
/// Who did what, when that is nobody's business any more.
const NOBODY: &str = r#"{"key_id": null, "name": "erased", "address": null}"#;

/// The signed digest of a part of a chain, from its first link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Emptied {
    pub(super) chain: Uuid,
    /// Its last link.
    pub(super) seq: i64,
    pub(super) digest: Hash,
    /// What was wrong with the chain before rows lost their content.
    pub(super) findings: i64,
    pub(super) key_id: String,
    pub(super) signature: Hash,
}

impl Emptied {
    fn text(&self) -> Vec<u8> {
        let numbers = (self.seq.to_be_bytes(), self.findings.to_be_bytes());
        [self.chain.as_bytes().as_slice(), &numbers.0, &self.digest, &numbers.1].concat()
    }

    pub(super) fn is_signed(&self, keys: &AuditKeys) -> bool {
        keys.has_signed(PURPOSE, &self.text(), &self.key_id, &self.signature)
    }
}

/// A digest that is being made.
#[derive(Clone)]
pub(super) struct Digest(Sha256);

impl Digest {
    pub(super) fn of(chain: Uuid) -> Self {
        Self(Sha256::new().chain_update(PURPOSE).chain_update(chain.as_bytes()))
    }

    /// The next link, with what its row keeps.
    pub(super) fn link(&mut self, seq: i64, hash: &Hash, row: &Row) {
        self.0.update(seq.to_be_bytes());
        self.0.update(hash);
        self.0.update(row.id.to_be_bytes());
        self.0.update(row.at.timestamp_micros().to_be_bytes());
        self.0.update([u8::from(row.allowed)]);
        self.0.update((row.action.len() as u64).to_be_bytes());
        self.0.update(&row.action);
    }

    pub(super) fn finish(self) -> Hash {
        self.0.finalize().into()
    }
}

impl Row {
    /// Whether it says nothing of anybody any more.
    pub(super) fn is_emptied(&self) -> bool {
        let empty = self.target.is_none() && self.reason.is_none() && self.details == "{}";
        empty
            && serde_json::from_str::<serde_json::Value>(&self.principal).ok()
                == serde_json::from_str(NOBODY).ok()
    }
}

/// What became of a trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EmptiedTrail {
    /// Links whose rows have lost their content.
    pub(crate) links: u64,
    /// Their digest.
    pub(crate) digest: [u8; 32],
    /// What was wrong with them before.
    pub(crate) findings: u64,
}

impl From<&Emptied> for EmptiedTrail {
    fn from(emptied: &Emptied) -> Self {
        Self { links: unsigned(emptied.seq), digest: emptied.digest, findings: unsigned(emptied.findings) }
    }
}

impl Store {
    /// Signs what the trail of a tenant keeps, unless that is done already. Everything of it has to be sealed.
    pub(crate) async fn sign_emptied(
        &self,
        operation: &'static str,
        tenant: TenantId,
    ) -> Result<EmptiedTrail> {
        let chain = chain_of(Some(tenant));
        let mut conn = self.db().system(operation).await?;
        let head = heads(&mut conn, operation, Some(vec![chain])).await?.pop();
        let before = emptied(&mut conn, operation, chain).await?;
        conn.end().await?;
        if before.as_ref().is_some_and(|before| !before.is_signed(self.audit_keys())) {
            let source =
                "the digest of the tenant's emptied audit trail is not signed by a key of ours".into();
            return Err(StoreError::Internal { operation, source });
        }
        let to = match &head {
            Some(head) if !self.audit_keys().signed(head) => {
                let source = "the head of the tenant's audit trail is not signed by a key of ours".into();
                return Err(StoreError::Internal { operation, source });
            }
            Some(head) => head.sequence,
            None => 0,
        };
        if let Some(before) = before.as_ref().filter(|before| before.seq >= to) {
            return Ok(before.into());
        }
        let report = self.verify_audit(Some(tenant), None).await?;
        let found = i64::try_from(report.findings.len() as u64 + report.more).unwrap_or(i64::MAX);
        let findings = before.map_or(found, |before| found.max(before.findings));
        let digest = self.digest(operation, chain, to).await?;
        let mut signed =
            Emptied { chain, seq: to, digest, findings, key_id: String::new(), signature: digest };
        (signed.key_id, signed.signature) = self.audit_keys().sign_text(PURPOSE, &signed.text());
        let mut conn = self.db().system(operation).await?;
        let statement = sqlx::query(
            "INSERT INTO audit_erasures (chain, seq, digest, key_id, signature, findings) VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (chain) DO UPDATE SET seq = excluded.seq, digest = excluded.digest, key_id = excluded.key_id,
                 signature = excluded.signature, findings = excluded.findings WHERE audit_erasures.seq < excluded.seq",
        );
        let statement = statement.bind(chain).bind(to).bind(digest.to_vec()).bind(&signed.key_id);
        conn.execute(statement.bind(signed.signature.to_vec()).bind(findings)).await?;
        conn.end().await?;
        Ok((&signed).into())
    }

    /// What the trail of an erased tenant is to be, as it was signed. `None` when there is nothing, or nothing that is signed.
    pub(crate) async fn emptied_trail(
        &self,
        operation: &'static str,
        tenant: TenantId,
    ) -> Result<Option<EmptiedTrail>> {
        let mut conn = self.db().system(operation).await?;
        let emptied = emptied(&mut conn, operation, chain_of(Some(tenant))).await?;
        conn.end().await?;
        Ok(emptied.filter(|emptied| emptied.is_signed(self.audit_keys())).as_ref().map(EmptiedTrail::from))
    }

    async fn digest(&self, operation: &'static str, chain: Uuid, to: i64) -> Result<Hash> {
        let (mut digest, mut after) = (Digest::of(chain), 0);
        while after < to {
            let mut conn = self.db().system(operation).await?;
            let statement = sqlx::query(concat!(
                "SELECT c.seq, c.hash, ",
                audit_row_columns!(),
                " FROM audit_chain c JOIN audit_log l ON l.id = c.entry_id
                 WHERE c.chain = $1 AND c.seq > $2 AND c.seq <= $3 ORDER BY c.seq LIMIT $4"
            ));
            let rows = conn.all(statement.bind(chain).bind(after).bind(to).bind(BATCH)).await?;
            conn.end().await?;
            let links = read(operation, &rows, |row| {
                Ok((row.try_get::<i64, _>("seq")?, bytes32(row, "hash")?, audit_row(row)?))
            })?;
            let Some((last, ..)) = links.last() else { break };
            after = *last;
            for (seq, hash, row) in &links {
                digest.link(*seq, hash, row);
            }
        }
        Ok(digest.finish())
    }
}

/// Empties the next rows of a trail whose digest is signed. False when there were none.
pub(crate) async fn empty_some(conn: &mut Conn, operation: &'static str, tenant: TenantId) -> Result<bool> {
    let row = conn
        .optional(
            sqlx::query("SELECT emptied, least(emptied + $2, seq) AS next FROM audit_erasures WHERE chain = $1 FOR UPDATE")
                .bind(tenant.uuid())
                .bind(BATCH),
        )
        .await?;
    let (from, to) = read_found(operation, row, |row| {
        Ok((row.try_get::<i64, _>("emptied")?, row.try_get::<i64, _>("next")?))
    })?;
    if from == to {
        return Ok(false);
    }
    conn.execute(
        sqlx::query(
            "UPDATE audit_log l SET principal = $4::text::jsonb, target = NULL, reason = NULL, details = '{}'
             FROM audit_chain c WHERE c.chain = $1 AND c.seq > $2 AND c.seq <= $3 AND l.id = c.entry_id",
        )
        .bind(tenant.uuid())
        .bind(from)
        .bind(to)
        .bind(NOBODY),
    )
    .await?;
    conn.execute(
        sqlx::query("UPDATE audit_erasures SET emptied = $2 WHERE chain = $1").bind(tenant.uuid()).bind(to),
    )
    .await?;
    Ok(true)
}

/// The signed digest of a chain, if it has one.
pub(super) async fn emptied(
    conn: &mut Conn,
    operation: &'static str,
    chain: Uuid,
) -> Result<Option<Emptied>> {
    let statement =
        sqlx::query("SELECT seq, digest, findings, key_id, signature FROM audit_erasures WHERE chain = $1");
    let row = conn.optional(statement.bind(chain)).await?;
    let emptied = row.as_ref().map(|row| {
        Ok(Emptied {
            chain,
            seq: row.try_get("seq")?,
            digest: bytes32(row, "digest")?,
            findings: row.try_get("findings")?,
            key_id: row.try_get("key_id")?,
            signature: bytes32(row, "signature")?,
        })
    });
    emptied.transpose().map_err(|error| translate(operation, error))
}
