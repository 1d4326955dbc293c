//! Telling whether somebody has touched the trail: the rows against their chain, the chain against its signed head, and both
//! against heads that were kept elsewhere.
//!
//! # Design notes
//!
//! * Each link is computed from the *stored* hash before it, so that one change is one finding and not one for every row after it.
//! * Rows of an erased tenant have no content to hash; their links are compared with a signed digest (see `emptied`).
//! * What cannot be told: a row that was written as if by the service and sealed as such; rows changed within the second
//!   before they are sealed; and a whole chain that was cut with its head put back to an older one, unless a checkpoint says more.
//!   So keep checkpoints where the database's administrators cannot write.

use chrono::{DateTime, TimeDelta, Utc};
use domain::TenantId;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::chain::{AuditHead, Hash, NOTHING, Row, chain_of, tenant_of};
use super::emptied::{Digest, Emptied, emptied};
use super::report::{AuditReport, Finding};
use super::row::{audit_row, bytes32};
use super::seal::heads;
use crate::db::{read, read_found, unsigned};
use crate::{Result, Store};

const VERIFY: &str = "verify the audit trail";
/// Links that are read at once.
const BATCH: i64 = 2_000;
/// Time within which a row is sealed when all is well, with plenty to spare: longer than any transaction of ours.
const GRACE_S: f64 = 60.0;

/// Rows of one tenant, and whether they have a link in its chain. Two statements, as an index serves `=` and `IS NULL` but
/// not what would mean both.
macro_rules! unsealed {
    ($tenant:literal) => {
        concat!(
            "SELECT l.id, l.at, c.entry_id IS NULL AS unsealed,
                    l.at < clock_timestamp() - make_interval(secs => $4) AS old
             FROM audit_log l LEFT JOIN audit_chain c
                 ON c.entry_id = l.id AND c.chain = coalesce(l.tenant_id, '00000000-0000-0000-0000-000000000000')
             WHERE ",
            $tenant,
            " AND (l.at, l.id) > ($1, $2) ORDER BY l.at, l.id LIMIT $3"
        )
    };
}

struct Link {
    seq: i64,
    entry_id: i64,
    hash: Hash,
    row: Option<Row>,
}

/// A walk along one chain.
struct Walk<'a> {
    chain: Uuid,
    checkpoint: Option<&'a AuditHead>,
    report: AuditReport,
    seq: i64,
    /// Stored hash of the last link; `None` behind a gap.
    previous: Option<Hash>,
    latest_at: DateTime<Utc>,
    /// What was signed of an erased tenant's links, and what of them was seen.
    emptied: Option<(Emptied, Digest)>,
}

impl Store {
    /// The signed ends of all chains: kept elsewhere, they are checkpoints for [`Store::verify_audit`].
    pub async fn audit_heads(&self) -> Result<Vec<AuditHead>> {
        let mut conn = self.db().system(VERIFY).await?;
        let found = heads(&mut conn, VERIFY, None).await?;
        conn.end().await?;
        Ok(found)
    }

    /// Everyone who has a chain, a head, or is a tenant; `None` is the installation's own.
    pub async fn audit_chains(&self) -> Result<Vec<Option<TenantId>>> {
        let mut conn = self.db().system(VERIFY).await?;
        let statement = sqlx::query(
            "SELECT '00000000-0000-0000-0000-000000000000'::uuid AS chain UNION SELECT id FROM tenants
             UNION SELECT chain FROM audit_heads ORDER BY chain",
        );
        let rows = conn.all(statement).await?;
        conn.end().await?;
        read(VERIFY, &rows, |row| Ok(tenant_of(row.try_get("chain")?)))
    }

    /// Checks one chain from its first link to its signed head, its rows, and the checkpoint if there is one of this chain.
    /// Safe while the service runs: what is sealed meanwhile is left for the next time.
    pub async fn verify_audit(
        &self,
        tenant: Option<TenantId>,
        checkpoint: Option<&AuditHead>,
    ) -> Result<AuditReport> {
        let chain = chain_of(tenant);
        let mut conn = self.db().system(VERIFY).await?;
        let head = heads(&mut conn, VERIFY, Some(vec![chain])).await?.pop();
        let emptied = emptied(&mut conn, VERIFY, chain).await?;
        conn.end().await?;
        let mut walk = Walk::new(chain, checkpoint);
        match emptied {
            Some(emptied) if emptied.is_signed(self.audit_keys()) => {
                walk.emptied = Some((emptied, Digest::of(chain)))
            }
            Some(_) => walk.report.find(Finding::ErasureForged),
            None => {}
        }
        match &head {
            Some(head) if self.audit_keys().signed(head) => walk.report.head = Some(head.clone()),
            Some(_) => walk.report.find(Finding::HeadForged),
            None => {}
        }
        if checkpoint.is_some_and(|checkpoint| !self.audit_keys().signed(checkpoint)) {
            walk.report.find(Finding::CheckpointForged);
            walk.checkpoint = None;
        }
        let signed_to = head.as_ref().map_or(0, |head| head.sequence);
        loop {
            let links = self.links(chain, walk.seq, signed_to).await?;
            let last = links.len() < usize::try_from(BATCH).unwrap_or(usize::MAX);
            links.into_iter().for_each(|link| walk.step(link));
            if last {
                break;
            }
        }
        walk.end(signed_to);
        self.behind(&mut walk, head.is_some()).await?;
        self.unsealed(&mut walk).await?;
        Ok(walk.report)
    }

    async fn links(&self, chain: Uuid, after: i64, to: i64) -> Result<Vec<Link>> {
        let mut conn = self.db().system(VERIFY).await?;
        let statement = sqlx::query(concat!(
            "SELECT c.seq, c.entry_id, c.hash, l.id IS NOT NULL AS there, ",
            audit_row_columns!(),
            " FROM audit_chain c LEFT JOIN audit_log l ON l.id = c.entry_id
             WHERE c.chain = $1 AND c.seq > $2 AND c.seq <= $3 ORDER BY c.seq LIMIT $4"
        ))
        .bind(chain)
        .bind(after)
        .bind(to)
        .bind(BATCH);
        let rows = conn.all(statement).await?;
        conn.end().await?;
        read(VERIFY, &rows, link)
    }

    /// Links behind the head, in one look: the sealer writes both in one commit.
    async fn behind(&self, walk: &mut Walk<'_>, has_head: bool) -> Result<()> {
        let mut conn = self.db().system(VERIFY).await?;
        let statement = sqlx::query(
            "SELECT coalesce((SELECT max(seq) FROM audit_chain WHERE chain = $1), 0) AS last,
                    coalesce((SELECT seq FROM audit_heads WHERE chain = $1), 0) AS signed",
        )
        .bind(walk.chain);
        let row = conn.one(statement).await?;
        conn.end().await?;
        let (last, signed_to) = read_found(VERIFY, Some(row), |row| {
            Ok((row.try_get::<i64, _>("last")?, row.try_get("signed")?))
        })?;
        if last > 0 && signed_to == 0 && !has_head {
            walk.report.find(Finding::HeadMissing);
        } else if last > signed_to {
            walk.report.find(Finding::Unsigned { sequence: unsigned(last) });
        }
        Ok(())
    }

    /// Rows without a link.
    async fn unsealed(&self, walk: &mut Walk<'_>) -> Result<()> {
        let (mut at, mut id) = (DateTime::<Utc>::UNIX_EPOCH - TimeDelta::days(36_500), i64::MIN);
        loop {
            let mut conn = self.db().system(VERIFY).await?;
            let of = match walk.report.tenant_id {
                Some(_) => unsealed!("l.tenant_id = $5"),
                None => unsealed!("l.tenant_id IS NULL AND $5::uuid IS NULL"),
            };
            let statement = sqlx::query(of)
                .bind(at)
                .bind(id)
                .bind(BATCH)
                .bind(GRACE_S)
                .bind(walk.report.tenant_id.map(TenantId::uuid));
            let rows = conn.all(statement).await?;
            conn.end().await?;
            let found = read(VERIFY, &rows, |row| {
                let of = (row.try_get::<bool, _>("unsealed")?, row.try_get::<bool, _>("old")?);
                Ok((row.try_get::<DateTime<Utc>, _>("at")?, row.try_get::<i64, _>("id")?, of))
            })?;
            for (row_at, row_id, of) in &found {
                (at, id) = (*row_at, *row_id);
                match of {
                    (false, _) => {}
                    (true, true) => walk.report.find(Finding::Inserted { entry_id: id }),
                    (true, false) => walk.report.pending += 1,
                }
            }
            if found.len() < usize::try_from(BATCH).unwrap_or(usize::MAX) {
                return Ok(());
            }
        }
    }
}

impl<'a> Walk<'a> {
    fn new(chain: Uuid, checkpoint: Option<&'a AuditHead>) -> Self {
        let report = AuditReport {
            tenant_id: tenant_of(chain),
            links: 0,
            pending: 0,
            head: None,
            findings: Vec::new(),
            more: 0,
        };
        let latest_at = DateTime::<Utc>::MIN_UTC;
        Self { chain, checkpoint, report, seq: 0, previous: Some(NOTHING), latest_at, emptied: None }
    }

    fn step(&mut self, link: Link) {
        let (sequence, entry_id) = (unsigned(link.seq), link.entry_id);
        if link.seq != self.seq + 1 {
            self.report
                .find(Finding::LinksMissing { from: unsigned(self.seq + 1), to: unsigned(link.seq - 1) });
            self.previous = None;
        }
        match (&link.row, self.previous) {
            (None, _) => self.report.find(Finding::Deleted { sequence, entry_id }),
            (Some(row), Some(previous))
                if !self.was_emptied(link.seq, row)
                    && row.link(self.chain, link.seq, &previous) != link.hash =>
            {
                self.report.find(Finding::Changed { sequence, entry_id });
            }
            (Some(row), _) => {
                if self.latest_at > row.at + TimeDelta::seconds(GRACE_S as i64) {
                    self.report.find(Finding::Backdated { sequence, entry_id });
                }
                self.latest_at = self.latest_at.max(row.at);
            }
        }
        self.compare_emptied(&link);
        if let Some(checkpoint) = self.checkpoint.filter(|checkpoint| checkpoint.sequence == link.seq)
            && checkpoint.hash != link.hash
        {
            self.report.find(Finding::CheckpointDiffers { sequence });
        }
        if let Some(head) = self.report.head.as_ref().filter(|head| head.sequence == link.seq)
            && head.hash != link.hash
        {
            self.report.find(Finding::HeadDiffers { sequence });
        }
        self.report.links += 1;
        (self.seq, self.previous) = (link.seq, Some(link.hash));
    }

    /// Whether the row is one whose content is gone by right. Its link is then covered by the digest.
    fn was_emptied(&self, seq: i64, row: &Row) -> bool {
        self.emptied.as_ref().is_some_and(|(emptied, _)| seq <= emptied.seq) && row.is_emptied()
    }

    fn compare_emptied(&mut self, link: &Link) {
        let Some((emptied, digest)) = &mut self.emptied else { return };
        if let Some(row) = link.row.as_ref().filter(|_| link.seq <= emptied.seq) {
            digest.link(link.seq, &link.hash, row);
        }
        if link.seq == emptied.seq && digest.clone().finish() != emptied.digest {
            self.report.find(Finding::ErasureDiffers { to: unsigned(link.seq) });
        }
    }

    fn end(&mut self, signed_to: i64) {
        let promised = self.checkpoint.map_or(signed_to, |checkpoint| checkpoint.sequence.max(signed_to));
        if promised > self.seq {
            self.report.find(Finding::TailCut { sequence: unsigned(self.seq), signed: unsigned(promised) });
        }
    }
}

fn link(row: &PgRow) -> Result<Link, sqlx::Error> {
    let there: bool = row.try_get("there")?;
    Ok(Link {
        seq: row.try_get("seq")?,
        entry_id: row.try_get("entry_id")?,
        hash: bytes32(row, "hash")?,
        row: if there { Some(audit_row(row)?) } else { None },
    })
}
