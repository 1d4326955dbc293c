//! Erasing a tenant: it is suspended for ever, its sessions end, its bytes and rows go, and a signed receipt says what went and what stays.
//!
//! # Design notes
//!
//! * The tables are found in the catalogue: every one that has a `tenant_id`, but those that stay (see `delete`). So a table that is added later is
//!   erased too, and one that the service may not delete from stops the erasure instead of being forgotten.
//! * Everything happens in steps of one transaction each, which also counts what it deleted: an erasure whose process is killed goes on
//!   where it was, in any worker, and the receipt's counts are exact.
//! * Containers and workspaces are the workers' to remove: no row goes before every sandbox of the tenant is gone. A host that never comes back
//!   holds an erasure up, as nobody can say what still lies there.
//! * What stays is what was billed (closed hours, which have sums and no content) and the audit trail, whose rows keep when what was done and
//!   lose who did it to what (see `audit::emptied`). The open hour is closed early for this tenant: its sessions' rows go with the rest.
//! * The tenant's row stays without name, policy and labels, so that these have an owner. What operators did is in the
//!   installation's own trail, where it stays.

mod delete;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use domain::{OperatorContext, Principal, TenantId, TenantStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use self::delete::{Deleted, count, delete_some};
use crate::audit::{AuditKeys, empty_some, hex};
use crate::creation::lock_creation;
use crate::db::{Conn, read, read_found, unsigned};
use crate::error::translate;
use crate::json::sanitised;
use crate::{AuditRow, Result, Store, StoreError};

/// Purpose of a receipt's signature.
const PURPOSE: &[u8] = b"toolhost erasure receipt 1\0";
const ERASE: &str = "erase a tenant";

/// The proof of an erasure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErasureReceipt {
    /// Who was erased.
    pub tenant_id: TenantId,
    /// When it was asked for.
    pub requested_at: DateTime<Utc>,
    /// When the last of it was gone.
    pub erased_at: DateTime<Utc>,
    /// Rows that were deleted, by table.
    pub deleted: BTreeMap<String, u64>,
    /// Bytes that were removed from the object store.
    pub object_bytes: u64,
    /// Rows that stay without content, by table.
    pub kept: BTreeMap<String, u64>,
    /// Links of the audit trail whose rows have lost their content.
    pub trail_links: u64,
    /// SHA-256 over them and over what their rows keep.
    #[serde(with = "hex")]
    pub trail_digest: [u8; 32],
    /// What was wrong with the trail before its content went; 0 when nobody had touched it.
    pub trail_findings: u64,
    /// Which key has signed.
    pub key_id: String,
    /// HMAC-SHA-256 over the above as JSON.
    #[serde(with = "hex")]
    pub signature: [u8; 32],
}

/// What [`Store::erase_tenants`] came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErasurePass {
    /// There is more to do at once.
    pub more: bool,
    /// Erasures that failed, and will be tried again.
    pub failed: u64,
}

impl ErasureReceipt {
    fn text(&self) -> Vec<u8> {
        let unsigned = Self { key_id: String::new(), signature: [0; 32], ..self.clone() };
        serde_json::to_vec(&unsigned).unwrap_or_default()
    }

    /// Whether one of the keys has signed this.
    #[must_use]
    pub fn is_signed(&self, keys: &AuditKeys) -> bool {
        keys.has_signed(PURPOSE, &self.text(), &self.key_id, &self.signature)
    }
}

/// Where an erasure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErasureState {
    /// Its sessions and sandboxes end.
    Ending,
    /// Its bytes and rows go.
    Deleting,
    /// Its audit trail loses what it says of anybody.
    Trail,
    /// There is a receipt.
    Done,
}

impl ErasureState {
    const ALL: [Self; 4] = [Self::Ending, Self::Deleting, Self::Trail, Self::Done];

    /// The word in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ending => "ending",
            Self::Deleting => "deleting",
            Self::Trail => "trail",
            Self::Done => "done",
        }
    }
}

/// An erasure.
#[derive(Debug, Clone, PartialEq)]
pub struct Erasure {
    /// Who is erased.
    pub tenant_id: TenantId,
    /// When it was asked for.
    pub requested_at: DateTime<Utc>,
    /// Where it is.
    pub state: ErasureState,
    /// Rows deleted so far, by table.
    pub deleted: BTreeMap<String, u64>,
    /// Sessions that have not ended, and sandboxes that are not removed: what it waits for.
    pub waits_for: (u64, u64),
    /// The proof, once it is done.
    pub receipt: Option<ErasureReceipt>,
}

/// What became of the wish to erase a tenant.
#[expect(clippy::large_enum_variant, reason = "made once a request and moved out of at once")]
#[derive(Debug, Clone, PartialEq)]
pub enum ErasureAnswer {
    /// It is under way, or done.
    Begun(Erasure),
    /// The tenant has another name: nothing was done.
    WrongName,
}

/// Steps of one erasure before the next one has its turn.
const STEPS: u32 = 32;

/// One step of one erasure.
struct Step {
    tenant: TenantId,
    requested_at: DateTime<Utc>,
    state: ErasureState,
}

impl Store {
    /// Asks for a tenant's erasure, naming the tenant: it is suspended at once and for ever. Asking again changes nothing.
    pub async fn request_erasure(
        &self,
        operator: &OperatorContext,
        id: TenantId,
        name: &str,
    ) -> Result<ErasureAnswer> {
        match self.erasure(operator, id).await {
            Ok(erasure) => return Ok(ErasureAnswer::Begun(erasure)),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        if self.get_tenant(operator, id).await?.name != name {
            return Ok(ErasureAnswer::WrongName);
        }
        self.set_tenant_status(operator, id, TenantStatus::Suspended).await?;
        let mut conn = self.db().system_transaction(ERASE).await?;
        // Once more and with its row held: somebody may have let it in again, or named it otherwise.
        let held = sqlx::query("UPDATE tenants SET status = 'suspended' WHERE id = $1 AND name = $2")
            .bind(id.uuid());
        if conn.execute(held.bind(name.to_owned())).await? == 0 {
            conn.undo().await?;
            return Ok(ErasureAnswer::WrongName);
        }
        let statement =
            sqlx::query("INSERT INTO tenant_erasures (tenant_id) VALUES ($1) ON CONFLICT DO NOTHING");
        if conn.execute(statement.bind(id.uuid())).await? > 0 {
            conn.audit(None, operator.principal(), &AuditRow::done("tenant.erase", id)).await?;
        }
        conn.end().await?;
        Ok(ErasureAnswer::Begun(self.erasure(operator, id).await?))
    }

    /// Where a tenant's erasure is. [`StoreError::NotFound`] when nobody has asked for one.
    pub async fn erasure(&self, _operator: &OperatorContext, id: TenantId) -> Result<Erasure> {
        let mut conn = self.db().system(ERASE).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT requested_at, state, deleted, receipt,
                         (SELECT count(*) FROM sessions s WHERE s.tenant_id = $1 AND s.status <> 'ended') AS sessions,
                         (SELECT count(*) FROM sandboxes b WHERE b.tenant_id = $1 AND b.state <> 'removed') AS sandboxes
                     FROM tenant_erasures WHERE tenant_id = $1",
                )
                .bind(id.uuid()),
            )
            .await?;
        conn.end().await?;
        read_found(ERASE, row, |row| {
            Ok(Erasure {
                tenant_id: id,
                requested_at: row.try_get("requested_at")?,
                state: state(row)?,
                deleted: row.try_get::<Json<_>, _>("deleted")?.0,
                waits_for: (unsigned(row.try_get("sessions")?), unsigned(row.try_get("sandboxes")?)),
                receipt: row.try_get::<Option<Json<_>>, _>("receipt")?.map(|receipt| receipt.0),
            })
        })
    }

    /// Whether a receipt is one of this installation and says what it said.
    #[must_use]
    pub fn is_our_receipt(&self, receipt: &ErasureReceipt) -> bool {
        receipt.is_signed(self.audit_keys())
    }

    /// Whether what the receipt says of the trail is what is kept of it now, beside whether that trail is whole.
    pub async fn is_trail_of(&self, receipt: &ErasureReceipt) -> Result<bool> {
        let kept = self.emptied_trail(ERASE, receipt.tenant_id).await?;
        Ok(kept.is_some_and(|kept| kept.links == receipt.trail_links && kept.digest == receipt.trail_digest))
    }

    /// Takes every open erasure some steps further. One that fails is logged, and costs the others one attempt for many steps of theirs.
    pub async fn erase_tenants(&self) -> Result<ErasurePass> {
        let mut conn = self.db().system(ERASE).await?;
        let rows = conn
            .all(sqlx::query(
                "SELECT tenant_id FROM tenant_erasures WHERE state <> 'done' ORDER BY requested_at LIMIT 100",
            ))
            .await?;
        conn.end().await?;
        let open = read(ERASE, &rows, |row| Ok(TenantId::from_uuid(row.try_get("tenant_id")?)))?;
        let mut pass = ErasurePass::default();
        for tenant in open {
            for step in 0..STEPS {
                match self.erase_step(tenant).await {
                    Ok(true) => pass.more |= step + 1 == STEPS,
                    Ok(false) => break,
                    Err(error) => {
                        tracing::warn!(%tenant, error = &error as &dyn std::error::Error, "an erasure failed; others go on");
                        pass.failed += 1;
                        break;
                    }
                }
            }
        }
        Ok(pass)
    }

    /// One step. False when it waits for something, or another process is at it.
    async fn erase_step(&self, tenant: TenantId) -> Result<bool> {
        let mut conn = self.db().system_transaction(ERASE).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT requested_at, state FROM tenant_erasures WHERE tenant_id = $1 AND state <> 'done'
                     FOR UPDATE SKIP LOCKED",
                )
                .bind(tenant.uuid()),
            )
            .await?;
        let step = row
            .as_ref()
            .map(|row| Ok(Step { tenant, requested_at: row.try_get("requested_at")?, state: state(row)? }));
        let Some(step) = step.transpose().map_err(|error| translate(ERASE, error))? else {
            conn.end().await?;
            return Ok(false);
        };
        let moved = match step.state {
            ErasureState::Ending => begin(&mut conn, tenant).await?,
            ErasureState::Deleting => match delete_some(&mut conn, tenant).await? {
                Deleted::Rows => true,
                Deleted::ArtifactsAreNext => {
                    // Bytes go in a transaction of their own, which holds the object's row while the store is asked.
                    conn.end().await?;
                    return self.erase_object(tenant).await;
                }
                Deleted::Nothing => move_on(&mut conn, tenant, ErasureState::Trail).await?,
            },
            ErasureState::Trail => {
                conn.end().await?;
                return self.erase_trail(&step).await;
            }
            ErasureState::Done => false,
        };
        conn.end().await?;
        Ok(moved)
    }

    /// Removes one object and its bytes.
    async fn erase_object(&self, tenant: TenantId) -> Result<bool> {
        let mut conn = self.db().system_transaction(ERASE).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT sha256, size_bytes FROM artifact_objects WHERE tenant_id = $1 ORDER BY sha256 LIMIT 1
                     FOR UPDATE SKIP LOCKED",
                )
                .bind(tenant.uuid()),
            )
            .await?;
        let Some(row) = row else {
            conn.end().await?;
            return Ok(false);
        };
        let object =
            |row: &PgRow| Ok((row.try_get::<Vec<u8>, _>("sha256")?, row.try_get::<i64, _>("size_bytes")?));
        let (sha256, size_bytes) = object(&row).map_err(|error| translate(ERASE, error))?;
        let delete = sqlx::query("DELETE FROM artifact_objects WHERE tenant_id = $1 AND sha256 = $2");
        conn.execute(delete.bind(tenant.uuid()).bind(&sha256)).await?;
        count(&mut conn, tenant, "artifact_objects", 1, size_bytes).await?;
        let removed = self.objects().remove(ERASE, tenant, &sha256);
        match tokio::time::timeout(self.db().timeout(), removed).await {
            Ok(Ok(())) => conn.end().await.map(|()| true),
            Ok(Err(error)) => {
                conn.undo().await?;
                Err(error)
            }
            Err(elapsed) => {
                conn.undo().await?;
                Err(StoreError::Storage { operation: ERASE, source: Box::new(elapsed) })
            }
        }
    }

    /// The last step: the trail loses its content, and the receipt is written once nothing is left.
    async fn erase_trail(&self, step: &Step) -> Result<bool> {
        let tenant = step.tenant;
        let mut conn = self.db().system(ERASE).await?;
        let sealed = is_sealed(&mut conn, tenant).await?;
        conn.end().await?;
        if !sealed {
            return Ok(false);
        }
        // No row names anything there any more; an upload that was cut off may have left a piece.
        self.objects().forget(ERASE, tenant).await?;
        let trail = self.sign_emptied(ERASE, tenant).await?;
        let mut conn = self.db().system_transaction(ERASE).await?;
        let lock = sqlx::query(
            "SELECT deleted, object_bytes FROM tenant_erasures WHERE tenant_id = $1 AND state = 'trail' FOR UPDATE",
        );
        let Some(row) = conn.optional(lock.bind(tenant.uuid())).await? else {
            conn.end().await?;
            return Ok(false);
        };
        // What was written late, by a sum that lags, goes as well.
        let more = match delete_some(&mut conn, tenant).await? {
            Deleted::Rows => true,
            Deleted::ArtifactsAreNext => move_on(&mut conn, tenant, ErasureState::Deleting).await?,
            Deleted::Nothing => empty_some(&mut conn, ERASE, tenant).await?,
        };
        if more {
            conn.end().await?;
            return Ok(true);
        }
        let counted = |row: &PgRow| {
            let deleted = row.try_get::<Json<BTreeMap<String, u64>>, _>("deleted")?.0;
            Ok((deleted, unsigned(row.try_get("object_bytes")?)))
        };
        let (deleted, object_bytes) = counted(&row).map_err(|error| translate(ERASE, error))?;
        let mut receipt = ErasureReceipt {
            tenant_id: tenant,
            requested_at: step.requested_at,
            erased_at: DateTime::from_timestamp_micros(self.clock().now().timestamp_micros())
                .unwrap_or_default(),
            deleted,
            object_bytes,
            kept: kept(&mut conn, tenant).await?,
            trail_links: trail.links,
            trail_digest: trail.digest,
            trail_findings: trail.findings,
            key_id: String::new(),
            signature: [0; 32],
        };
        (receipt.key_id, receipt.signature) = self.audit_keys().sign_text(PURPOSE, &receipt.text());
        finish(&mut conn, &receipt).await?;
        conn.end().await?;
        self.forget_role(tenant);
        Ok(false)
    }
}

/// When nothing of the tenant runs any more and all of it is counted: its open hours are closed, nobody writes for its sessions
/// any more, and its rows may go.
async fn begin(conn: &mut Conn, tenant: TenantId) -> Result<bool> {
    // A session that was let in before the request is seen, or is refused by a trigger.
    lock_creation(conn, tenant).await?;
    let row = conn
        .one(
            sqlx::query(
                "SELECT NOT EXISTS (SELECT FROM sessions s WHERE s.tenant_id = $1 AND s.status <> 'ended')
                     AND NOT EXISTS (SELECT FROM sandboxes b WHERE b.tenant_id = $1 AND b.state <> 'removed')
                     AND NOT EXISTS (SELECT FROM calls c WHERE c.tenant_id = $1 AND c.ended_at IS NULL) AS quiet",
            )
            .bind(tenant.uuid()),
        )
        .await?;
    let quiet = read_found(ERASE, Some(row), |row| row.try_get::<bool, _>("quiet"))?;
    if !quiet || !is_sealed(conn, tenant).await? || !crate::usage::close_tenant(conn, tenant).await? {
        return Ok(false);
    }
    let fences = sqlx::query("UPDATE sessions SET worker_id = NULL, epoch = epoch + 1 WHERE tenant_id = $1");
    conn.execute(fences.bind(tenant.uuid())).await?;
    // A key that was rotated names its successor, and neither could go before the other.
    let rotated =
        sqlx::query("UPDATE api_keys SET rotated_to = NULL WHERE tenant_id = $1 AND rotated_to IS NOT NULL");
    conn.execute(rotated.bind(tenant.uuid())).await?;
    move_on(conn, tenant, ErasureState::Deleting).await
}

/// Whether every row of the tenant's trail has its link.
async fn is_sealed(conn: &mut Conn, tenant: TenantId) -> Result<bool> {
    let row = conn
        .one(
            sqlx::query(
                "SELECT NOT EXISTS (SELECT FROM audit_sealer s JOIN audit_log l ON l.xid >= s.xid
                     WHERE l.tenant_id = $1 AND NOT EXISTS (SELECT FROM audit_chain c WHERE c.entry_id = l.id)) AS sealed",
            )
            .bind(tenant.uuid()),
        )
        .await?;
    read_found(ERASE, Some(row), |row| row.try_get("sealed"))
}

async fn move_on(conn: &mut Conn, tenant: TenantId, next: ErasureState) -> Result<bool> {
    let statement = sqlx::query("UPDATE tenant_erasures SET state = $2 WHERE tenant_id = $1");
    conn.execute(statement.bind(tenant.uuid()).bind(next.as_str())).await?;
    Ok(true)
}

async fn kept(conn: &mut Conn, tenant: TenantId) -> Result<BTreeMap<String, u64>> {
    let rows = conn
        .all(
            sqlx::query(
                "SELECT 'audit_log' AS name, count(*) AS rows FROM audit_log WHERE tenant_id = $1
                 UNION ALL SELECT 'usage_hours', count(*) FROM usage_hours WHERE tenant_id = $1",
            )
            .bind(tenant.uuid()),
        )
        .await?;
    let kept =
        read(ERASE, &rows, |row| Ok((row.try_get::<String, _>("name")?, unsigned(row.try_get("rows")?))))?;
    Ok(kept.into_iter().collect())
}

/// The tenant's own row loses what it says, and the receipt is kept.
async fn finish(conn: &mut Conn, receipt: &ErasureReceipt) -> Result<()> {
    let id = receipt.tenant_id;
    conn.execute(
        sqlx::query(
            "UPDATE tenants SET name = 'erased ' || id, policy = '{}', metadata = '{}', calls_days = NULL, events_days = NULL,
                 output_days = NULL WHERE id = $1",
        )
        .bind(id.uuid()),
    )
    .await?;
    let details = json!({"deleted": receipt.deleted, "trail_links": receipt.trail_links});
    let trail = AuditRow::done("tenant.erased", id).details(details);
    conn.audit(None, &Principal::system(), &trail).await?;
    conn.execute(
        sqlx::query(
            "UPDATE tenant_erasures SET state = 'done', receipt = $2::text::jsonb, finished_at = $3 WHERE tenant_id = $1",
        )
        .bind(id.uuid())
        .bind(sanitised(ERASE, receipt)?)
        .bind(receipt.erased_at),
    )
    .await?;
    Ok(())
}

fn state(row: &PgRow) -> Result<ErasureState, sqlx::Error> {
    let word: &str = row.try_get("state")?;
    let known = ErasureState::ALL.into_iter().find(|state| state.as_str() == word);
    known.ok_or_else(|| crate::db::unknown_word("tenant_erasures.state"))
}
