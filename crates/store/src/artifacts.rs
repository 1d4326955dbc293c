//! Artifacts: rows here, bytes in the object store.
//!
//! # Design notes
//!
//! *No row without bytes, no bytes without a row for long.* Saving is three steps: the object's row (`artifact_objects`) is
//! committed, the bytes are sent, the artifact's row is committed and refers to the object's. A crash in between leaves an
//! object without an artifact, which the sweep removes once nobody has wanted it for an hour. The sweep holds the object's row while
//! it removes the bytes: who wants to save the same content meanwhile waits in the first step, and then sends the bytes again.
//!
//! *Once per origin.* A call that another worker runs again saves under the same origins, and finds what it has saved.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use domain::{Artifact, ArtifactId, ArtifactKind, CallId, SessionId, TenantContext, TenantId};
use futures_util::stream::BoxStream;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::clock::uuid_floor;
use crate::db::{read, read_found, signed, unknown_word, unsigned};
use crate::error::{constraint, translate};
use crate::json::{sanitised, sanitised_text};
use crate::objects::Sealed;
use crate::{AuditRow, Listed, Page, Result, SessionFence, Store, StoreError};

macro_rules! artifact_columns {
    () => {
        "a.id, a.tenant_id, a.session_id, a.call_id, a.name, a.version, a.kind, a.mime_type, a.size_bytes, a.sha256, a.metadata, a.created_at"
    };
}

/// An artifact to be saved.
#[derive(Debug, Clone)]
pub struct NewArtifact {
    /// The call that makes it.
    pub call_id: CallId,
    /// What of the call it is, the same when the call is run again.
    pub origin: String,
    /// Its name; another artifact of that name in the session makes it the next version.
    pub name: String,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
}

/// Which artifacts to list.
#[derive(Debug, Clone, Default)]
pub struct ArtifactFilter {
    /// Of this session.
    pub session_id: Option<SessionId>,
    /// Of this call.
    pub call_id: Option<CallId>,
    /// Of this name.
    pub name: Option<String>,
    /// Of this kind.
    pub kind: Option<ArtifactKind>,
    /// With all of these labels.
    pub metadata: BTreeMap<String, String>,
    /// Only the newest version of each name of a session.
    pub latest_only: bool,
}

const SAVE: &str = "save artifact";
const DELETE: &str = "delete artifact";
const READ: &str = "read artifact";
const SWEEP: &str = "sweep artifacts";

/// Attempts to find the next version of a name before another takes it.
const VERSION_ATTEMPTS: u32 = 16;
/// Artifacts and objects that one pass of a sweep looks at.
const SWEEP_ROWS: i64 = 500;

impl Store {
    /// First step of saving: the object is known and safe from the sweep for a while.
    pub async fn announce_artifact(&self, fence: &SessionFence, content: &Sealed) -> Result<()> {
        let mut conn = self.db().system(SAVE).await?;
        let known = conn
            .optional(
                sqlx::query(
                    "INSERT INTO artifact_objects (tenant_id, sha256, size_bytes)
                     SELECT tenant_id, $4, $5 FROM sessions WHERE id = $1 AND worker_id = $2 AND epoch = $3
                     ON CONFLICT (tenant_id, sha256) DO UPDATE SET touched_at = clock_timestamp()
                     RETURNING 1",
                )
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(&content.sha256[..])
                .bind(signed(content.size_bytes)),
            )
            .await?;
        conn.end().await?;
        known.map(drop).ok_or(StoreError::Stale { operation: SAVE })
    }

    /// Second step: the bytes, of a wheel too.
    pub async fn send_artifact(&self, tenant: TenantId, content: &Sealed) -> Result<()> {
        self.objects().put(SAVE, tenant, content).await
    }

    /// Third step: the artifact. Idempotent by call and origin.
    pub async fn save_artifact(
        &self,
        fence: &SessionFence,
        new: &NewArtifact,
        content: &Sealed,
    ) -> Result<Artifact> {
        let id: ArtifactId = self.clock().new_id();
        for _ in 0..VERSION_ATTEMPTS {
            let mut conn = self.db().system(SAVE).await?;
            let statement = sqlx::query(concat!(
                "WITH owned AS (SELECT id, tenant_id FROM sessions WHERE id = $1 AND worker_id = $2 AND epoch = $3),
                 before AS (SELECT b.* FROM artifacts b JOIN owned ON b.session_id = owned.id WHERE b.call_id = $5 AND b.origin = $6),
                 fresh AS (
                     INSERT INTO artifacts (id, tenant_id, session_id, call_id, origin, name, version, kind, mime_type,
                         size_bytes, sha256, metadata)
                     SELECT $4, owned.tenant_id, owned.id, $5, $6, $7,
                         coalesce((SELECT max(v.version) FROM artifacts v WHERE v.session_id = owned.id AND v.name = $7), 0) + 1,
                         $8, $9, $10, $11, $12::text::jsonb
                     FROM owned WHERE NOT EXISTS (SELECT FROM before)
                     RETURNING *
                 )
                 SELECT ",
                artifact_columns!(),
                " FROM fresh a UNION ALL SELECT ",
                artifact_columns!(),
                " FROM before a"
            ))
            .bind(fence.session_id.uuid())
            .bind(fence.worker_id.uuid())
            .bind(signed(fence.epoch))
            .bind(id.uuid())
            .bind(new.call_id.uuid())
            .bind(&new.origin)
            .bind(sanitised_text(&new.name))
            .bind(new.kind.as_str())
            .bind(sanitised_text(&new.mime_type))
            .bind(signed(content.size_bytes))
            .bind(&content.sha256[..])
            .bind(sanitised(SAVE, &new.metadata)?);
            let row = conn.try_one(statement).await?;
            conn.end().await?;
            match row {
                Ok(row) => return artifact(&row).map_err(|error| translate(SAVE, error)),
                Err(sqlx::Error::RowNotFound) => return Err(StoreError::Stale { operation: SAVE }),
                Err(error) => match constraint(&error) {
                    Some("artifacts_version_once" | "artifacts_once_per_origin") => {}
                    _ => return Err(translate(SAVE, error)),
                },
            }
        }
        Err(StoreError::Conflict {
            operation: SAVE,
            message: "Too many versions of this name at the same time.",
        })
    }

    /// One artifact.
    pub async fn get_artifact(&self, context: &TenantContext, id: ArtifactId) -> Result<Artifact> {
        let mut conn = self.db().tenant(READ, context).await?;
        let statement =
            concat!("SELECT ", artifact_columns!(), " FROM artifacts a WHERE a.tenant_id = $1 AND a.id = $2");
        let row =
            conn.optional(sqlx::query(statement).bind(context.tenant_id().uuid()).bind(id.uuid())).await?;
        conn.end().await?;
        read_found(READ, row, artifact)
    }

    /// A version of a name in a session, the newest when none is said.
    pub async fn named_artifact(
        &self,
        context: &TenantContext,
        session: SessionId,
        name: &str,
        version: Option<u32>,
    ) -> Result<Artifact> {
        let mut conn = self.db().tenant(READ, context).await?;
        let statement = concat!(
            "SELECT ",
            artifact_columns!(),
            " FROM artifacts a WHERE a.tenant_id = $1 AND a.session_id = $2 AND a.name = $3
                 AND ($4::integer IS NULL OR a.version = $4) ORDER BY a.version DESC LIMIT 1"
        );
        let row = conn
            .optional(
                sqlx::query(statement)
                    .bind(context.tenant_id().uuid())
                    .bind(session.uuid())
                    .bind(sanitised_text(name))
                    .bind(version.map(|version| i32::try_from(version).unwrap_or(i32::MAX))),
            )
            .await?;
        conn.end().await?;
        read_found(READ, row, artifact)
    }

    /// Artifacts, newest first.
    pub async fn list_artifacts(
        &self,
        context: &TenantContext,
        filter: &ArtifactFilter,
        page: Page,
    ) -> Result<Listed<Artifact>> {
        const OPERATION: &str = "list artifacts";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT ",
                    artifact_columns!(),
                    " FROM artifacts a WHERE a.tenant_id = $1 AND ($2::uuid IS NULL OR a.session_id = $2)
                         AND ($3::uuid IS NULL OR a.call_id = $3) AND ($4::text IS NULL OR a.name = $4)
                         AND ($5::text IS NULL OR a.kind = $5) AND a.metadata @> $6::text::jsonb
                         AND ($7::uuid IS NULL OR a.id < $7)
                         AND (NOT $8 OR NOT EXISTS (SELECT FROM artifacts n
                             WHERE n.session_id = a.session_id AND n.name = a.name AND n.version > a.version))
                     ORDER BY a.id DESC LIMIT $9"
                ))
                .bind(context.tenant_id().uuid())
                .bind(filter.session_id.map(SessionId::uuid))
                .bind(filter.call_id.map(CallId::uuid))
                .bind(filter.name.as_deref().map(sanitised_text))
                .bind(filter.kind.map(ArtifactKind::as_str))
                .bind(sanitised(OPERATION, &filter.metadata)?)
                .bind(page.after)
                .bind(filter.latest_only)
                .bind(page.fetch()),
            )
            .await?;
        conn.end().await?;
        Ok(page.cut(read(OPERATION, &rows, artifact)?, |artifact| artifact.id.uuid()))
    }

    /// Bytes of an artifact, piece by piece as they are asked for.
    pub async fn artifact_content(
        &self,
        artifact: &Artifact,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let sha256 = HEXLOWER
            .decode(artifact.sha256.as_bytes())
            .map_err(|error| StoreError::Internal { operation: READ, source: Box::new(error) })?;
        self.objects().get(READ, artifact.tenant_id, &sha256, range).await
    }

    /// Deletes an artifact. Nobody can read it from here on; its bytes go with the next sweep.
    pub async fn delete_artifact(&self, context: &TenantContext, id: ArtifactId) -> Result<()> {
        let mut conn = self.db().tenant(DELETE, context).await?;
        let deleted = conn
            .execute(
                sqlx::query("DELETE FROM artifacts WHERE tenant_id = $1 AND id = $2")
                    .bind(context.tenant_id().uuid())
                    .bind(id.uuid()),
            )
            .await?;
        if deleted == 0 {
            conn.undo().await?;
            return Err(StoreError::NotFound { operation: DELETE });
        }
        let row = AuditRow::done("artifact.delete", id);
        conn.audit(Some(context.tenant_id()), context.principal(), &row).await?;
        conn.end().await
    }

    /// Deletes artifacts that are older than so many days; 0 keeps them for ever. Returns how many.
    pub async fn drop_old_artifacts(&self, days: u32) -> Result<u64> {
        if days == 0 {
            return Ok(0);
        }
        let floor = uuid_floor(self.clock().now() - chrono::Duration::days(i64::from(days)));
        let mut conn = self.db().system(SWEEP).await?;
        let deleted = conn.execute(sqlx::query("DELETE FROM artifacts WHERE id < $1").bind(floor)).await?;
        conn.end().await?;
        Ok(deleted)
    }

    /// Removes objects that no artifact and no wheel has and that nobody has wanted for so many seconds. Returns how many.
    pub async fn sweep_artifact_objects(&self, older_than_s: u32) -> Result<u64> {
        let mut conn = self.db().system(SWEEP).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT o.tenant_id, o.sha256 FROM artifact_objects o
                     WHERE o.touched_at <= clock_timestamp() - make_interval(secs => $1) AND NOT EXISTS (
                         SELECT FROM artifacts a WHERE a.tenant_id = o.tenant_id AND a.sha256 = o.sha256)
                         AND NOT EXISTS (SELECT FROM wheels w WHERE w.tenant_id = o.tenant_id AND w.sha256 = o.sha256)
                     ORDER BY o.touched_at LIMIT $2",
                )
                .bind(f64::from(older_than_s))
                .bind(SWEEP_ROWS),
            )
            .await?;
        conn.end().await?;
        let unwanted = read(SWEEP, &rows, |row| {
            Ok((
                TenantId::from_uuid(row.try_get::<Uuid, _>("tenant_id")?),
                row.try_get::<Vec<u8>, _>("sha256")?,
            ))
        })?;
        let mut removed = 0;
        for (tenant, sha256) in unwanted {
            removed += u64::from(self.sweep_object(tenant, &sha256, older_than_s).await?);
        }
        Ok(removed)
    }

    /// The object's row is deleted, and so held, while its bytes are removed.
    async fn sweep_object(&self, tenant: TenantId, sha256: &[u8], older_than_s: u32) -> Result<bool> {
        let mut conn = self.db().system_transaction(SWEEP).await?;
        let deleted = conn
            .execute(
                sqlx::query(
                    "DELETE FROM artifact_objects o WHERE (o.tenant_id, o.sha256) IN (
                         SELECT k.tenant_id, k.sha256 FROM artifact_objects k
                         WHERE k.tenant_id = $1 AND k.sha256 = $2
                             AND k.touched_at <= clock_timestamp() - make_interval(secs => $3) AND NOT EXISTS (
                                 SELECT FROM artifacts a WHERE a.tenant_id = k.tenant_id AND a.sha256 = k.sha256)
                             AND NOT EXISTS (SELECT FROM wheels w WHERE w.tenant_id = k.tenant_id AND w.sha256 = k.sha256)
                         FOR UPDATE SKIP LOCKED)",
                )
                .bind(tenant.uuid())
                .bind(sha256)
                .bind(f64::from(older_than_s)),
            )
            .await?;
        if deleted == 0 {
            conn.undo().await?;
            return Ok(false);
        }
        let gone =
            tokio::time::timeout(self.db().timeout(), self.objects().remove(SWEEP, tenant, sha256)).await;
        match gone {
            Ok(Ok(())) => conn.end().await.map(|()| true),
            Ok(Err(error)) => {
                conn.undo().await?;
                Err(error)
            }
            Err(elapsed) => {
                conn.undo().await?;
                Err(StoreError::Storage { operation: SWEEP, source: Box::new(elapsed) })
            }
        }
    }
}

fn artifact(row: &PgRow) -> Result<Artifact, sqlx::Error> {
    let kind: String = row.try_get("kind")?;
    let Json(metadata) = row.try_get("metadata")?;
    Ok(Artifact {
        id: ArtifactId::from_uuid(row.try_get("id")?),
        tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
        session_id: SessionId::from_uuid(row.try_get("session_id")?),
        call_id: CallId::from_uuid(row.try_get("call_id")?),
        name: row.try_get("name")?,
        version: u32::try_from(row.try_get::<i32, _>("version")?).unwrap_or(0),
        kind: kind.parse().map_err(|()| unknown_word("artifacts.kind"))?,
        mime_type: row.try_get("mime_type")?,
        size_bytes: unsigned(row.try_get("size_bytes")?),
        sha256: HEXLOWER.encode(&row.try_get::<Vec<u8>, _>("sha256")?),
        metadata,
        created_at: row.try_get("created_at")?,
    })
}
