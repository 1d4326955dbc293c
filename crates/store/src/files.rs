//! What a session knows of its files: the versions that it has seen, and those that it has replaced.

use data_encoding::HEXLOWER_PERMISSIVE;
use domain::{CallId, SessionId, TenantContext, limits};
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::db::{signed, unknown_word, unsigned};
use crate::error::translate;
use crate::{Result, SessionFence, Store, StoreError};

/// Rows of replaced versions that one session keeps.
const VERSION_ROWS: i64 = 2_000;

/// A version of a file, as far as a session knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenFile {
    /// SHA-256 of its content in hex; `None` when it was not read to its end.
    pub sha256: Option<String>,
    /// Its size.
    pub size_bytes: u64,
    /// Its last change, milliseconds since 1970; `None` when only its content is known.
    pub modified_ms: Option<i64>,
}

/// What a file was before a call changed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileBefore {
    /// Nothing was there.
    Absent,
    /// This content, with its SHA-256 in hex.
    Content {
        /// The bytes.
        bytes: Vec<u8>,
        /// Their SHA-256.
        sha256: String,
        /// The permission bits, when the change sets others.
        permissions: Option<u32>,
    },
    /// Something that was too large to be kept.
    NotKept,
}

/// Changes of a file that can be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoableFile {
    /// How many, at most as many as asked for; never 0.
    pub steps: u32,
    /// What was there before the oldest of them.
    pub before: FileBefore,
    /// SHA-256 of what was there after the newest.
    pub after_sha256: String,
}

/// The rows of one session that its worker may write, as the first part of a statement.
macro_rules! owned {
    ($rest:literal) => {
        concat!(
            "WITH owned AS (SELECT id, tenant_id FROM sessions WHERE id = $1 AND worker_id = $2 AND epoch = $3) ",
            $rest
        )
    };
}

/// Changes of a file that count: those made, and those that this call has undone already in a run before.
macro_rules! undoable {
    () => {
        "SELECT v.id, v.after_sha256 FROM file_versions v
         WHERE v.session_id = $1 AND v.path_hash = $2 AND (v.state = 'made' OR v.undone_by = $3)
         ORDER BY v.id DESC LIMIT $4"
    };
}

impl Store {
    /// The version of a file that the session has seen last.
    pub async fn seen_file(
        &self,
        context: &TenantContext,
        session: SessionId,
        path: &str,
    ) -> Result<Option<SeenFile>> {
        const OPERATION: &str = "read seen file";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT sha256, size_bytes, modified_ms FROM file_reads
                     WHERE tenant_id = $1 AND session_id = $2 AND path_hash = $3",
                )
                .bind(context.tenant_id().uuid())
                .bind(session.uuid())
                .bind(hash(path)),
            )
            .await?;
        conn.end().await?;
        let seen = |row: &PgRow| {
            Ok(SeenFile {
                sha256: row.try_get::<Option<Vec<u8>>, _>("sha256")?.map(|sha256| hex(&sha256)),
                size_bytes: unsigned(row.try_get("size_bytes")?),
                modified_ms: row.try_get("modified_ms")?,
            })
        };
        row.as_ref().map(seen).transpose().map_err(|error| translate(OPERATION, error))
    }

    /// The session has seen a version of a file.
    pub async fn see_file(&self, fence: &SessionFence, path: &str, seen: &SeenFile) -> Result<()> {
        const OPERATION: &str = "record seen file";
        let mut conn = self.db().system(OPERATION).await?;
        let owned = conn
            .optional(
                sqlx::query(owned!(
                    ", seen AS (
                         INSERT INTO file_reads (tenant_id, session_id, path_hash, path, sha256, size_bytes, modified_ms)
                         SELECT tenant_id, id, $4, $5, $6, $7, $8 FROM owned
                         ON CONFLICT (session_id, path_hash) DO UPDATE SET sha256 = excluded.sha256,
                             size_bytes = excluded.size_bytes, modified_ms = excluded.modified_ms, seen_at = excluded.seen_at
                     ), forgotten AS (
                         DELETE FROM file_reads WHERE session_id = $1 AND path_hash IN (
                             SELECT path_hash FROM file_reads WHERE session_id = $1 ORDER BY seen_at DESC OFFSET $9)
                     )
                     SELECT 1 FROM owned"
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(hash(path))
                .bind(path)
                .bind(seen.sha256.as_deref().map(|sha256| bytes(OPERATION, sha256)).transpose()?)
                .bind(signed(seen.size_bytes))
                .bind(seen.modified_ms)
                .bind(i64::from(limits::FILE_READS)),
            )
            .await?;
        conn.end().await?;
        still_owned(OPERATION, owned)
    }

    /// What lies at a path, or beneath it, is no more.
    pub async fn forget_files(&self, fence: &SessionFence, path: &str) -> Result<()> {
        const OPERATION: &str = "forget seen files";
        let mut conn = self.db().system(OPERATION).await?;
        let owned = conn
            .optional(
                sqlx::query(owned!(
                    ", gone AS (
                         DELETE FROM file_reads r USING owned
                         WHERE r.session_id = owned.id AND (r.path = $4 OR starts_with(r.path, $4 || '/'))
                     )
                     SELECT 1 FROM owned"
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(path),
            )
            .await?;
        conn.end().await?;
        still_owned(OPERATION, owned)
    }

    /// What a call has planned to change at a path.
    pub async fn planned_change(
        &self,
        context: &TenantContext,
        call: CallId,
        path: &str,
    ) -> Result<Option<FileBefore>> {
        const OPERATION: &str = "read planned change";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT before, before_sha256, before_bytes, before_mode FROM file_versions
                     WHERE tenant_id = $1 AND call_id = $2 AND path_hash = $3",
                )
                .bind(context.tenant_id().uuid())
                .bind(call.uuid())
                .bind(hash(path)),
            )
            .await?;
        conn.end().await?;
        row.as_ref().map(before).transpose().map_err(|error| translate(OPERATION, error))
    }

    /// A call is about to change a file. Idempotent by call and path. Older versions go where there are too many.
    pub async fn plan_change(
        &self,
        fence: &SessionFence,
        call: CallId,
        path: &str,
        before: &FileBefore,
    ) -> Result<()> {
        const OPERATION: &str = "plan change";
        let (word, sha256, content, mode) = match before {
            FileBefore::Absent => ("absent", None, None, None),
            FileBefore::NotKept => ("not_kept", None, None, None),
            FileBefore::Content { bytes: content, sha256, permissions } => {
                let mode = permissions.and_then(|bits| i32::try_from(bits).ok());
                ("content", Some(bytes(OPERATION, sha256)?), Some(content.as_slice()), mode)
            }
        };
        let mut conn = self.db().system_transaction(OPERATION).await?;
        let owned = conn
            .optional(
                sqlx::query(owned!(
                    ", planned AS (
                         INSERT INTO file_versions (tenant_id, session_id, path_hash, path, call_id, before, before_sha256, before_bytes, before_mode)
                         SELECT tenant_id, id, $4, $5, $6, $7, $8, $9, $10 FROM owned
                         ON CONFLICT (call_id, path_hash) DO NOTHING
                     )
                     SELECT 1 FROM owned"
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(hash(path))
                .bind(path)
                .bind(call.uuid())
                .bind(word)
                .bind(sha256)
                .bind(content)
                .bind(mode),
            )
            .await?;
        conn.execute(
            sqlx::query(
                "DELETE FROM file_versions WHERE call_id <> $2 AND state <> 'planned' AND id IN (
                     SELECT id FROM (
                         SELECT id, row_number() OVER (PARTITION BY path_hash ORDER BY id DESC) AS of_file,
                             row_number() OVER (ORDER BY id DESC) AS of_session,
                             sum(coalesce(octet_length(before_bytes), 0)) OVER (ORDER BY id DESC) AS total_bytes
                         FROM file_versions WHERE session_id = $1) v
                     WHERE v.of_file > $3 OR v.of_session > $4 OR v.total_bytes > $5)",
            )
            .bind(fence.session_id.uuid())
            .bind(call.uuid())
            .bind(i64::from(limits::FILE_VERSIONS))
            .bind(VERSION_ROWS)
            .bind(signed(limits::FILE_VERSION_BYTES)),
        )
        .await?;
        conn.end().await?;
        still_owned(OPERATION, owned)
    }

    /// A call has changed a file as planned, and the session knows the new version.
    pub async fn change_made(
        &self,
        fence: &SessionFence,
        call: CallId,
        path: &str,
        after: &SeenFile,
    ) -> Result<()> {
        const OPERATION: &str = "record change";
        let after_sha256 = after.sha256.as_deref().map(|sha256| bytes(OPERATION, sha256)).transpose()?;
        let mut conn = self.db().system(OPERATION).await?;
        let owned = conn
            .optional(
                sqlx::query(owned!(
                    ", made AS (
                         UPDATE file_versions v SET state = 'made', after_sha256 = $6 FROM owned
                         WHERE v.session_id = owned.id AND v.call_id = $7 AND v.path_hash = $4 AND v.state = 'planned'
                             AND $6::bytea IS NOT NULL
                     ), seen AS (
                         INSERT INTO file_reads (tenant_id, session_id, path_hash, path, sha256, size_bytes, modified_ms)
                         SELECT tenant_id, id, $4, $5, $6, $8, $9 FROM owned
                         ON CONFLICT (session_id, path_hash) DO UPDATE SET sha256 = excluded.sha256,
                             size_bytes = excluded.size_bytes, modified_ms = excluded.modified_ms, seen_at = excluded.seen_at
                     )
                     SELECT 1 FROM owned"
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(hash(path))
                .bind(path)
                .bind(after_sha256)
                .bind(call.uuid())
                .bind(signed(after.size_bytes))
                .bind(after.modified_ms),
            )
            .await?;
        conn.end().await?;
        still_owned(OPERATION, owned)
    }

    /// A planned change was not made.
    pub async fn change_dropped(&self, fence: &SessionFence, call: CallId, path: &str) -> Result<()> {
        const OPERATION: &str = "drop change";
        let mut conn = self.db().system(OPERATION).await?;
        let owned = conn
            .optional(
                sqlx::query(owned!(
                    ", dropped AS (
                         DELETE FROM file_versions v USING owned
                         WHERE v.session_id = owned.id AND v.call_id = $4 AND v.path_hash = $5 AND v.state = 'planned'
                     )
                     SELECT 1 FROM owned"
                ))
                .bind(fence.session_id.uuid())
                .bind(fence.worker_id.uuid())
                .bind(signed(fence.epoch))
                .bind(call.uuid())
                .bind(hash(path)),
            )
            .await?;
        conn.end().await?;
        still_owned(OPERATION, owned)
    }

    /// The last changes of a file that can be undone, at most so many; the same again for a call that has undone them.
    pub async fn undoable(
        &self,
        context: &TenantContext,
        session: SessionId,
        call: CallId,
        path: &str,
        steps: u32,
    ) -> Result<Option<UndoableFile>> {
        const OPERATION: &str = "read undoable changes";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "WITH last AS (",
                    undoable!(),
                    ") SELECT v.before, v.before_sha256, v.before_bytes, (SELECT count(*) FROM last) AS steps,
                           (SELECT m.before_mode FROM file_versions m JOIN last ON last.id = m.id
                             WHERE m.before_mode IS NOT NULL ORDER BY m.id LIMIT 1) AS before_mode,
                           (SELECT after_sha256 FROM last ORDER BY id DESC LIMIT 1) AS after_sha256
                       FROM file_versions v WHERE v.id = (SELECT min(id) FROM last)"
                ))
                .bind(session.uuid())
                .bind(hash(path))
                .bind(call.uuid())
                .bind(i64::from(steps)),
            )
            .await?;
        conn.end().await?;
        let undoable = |row: &PgRow| {
            Ok(UndoableFile {
                steps: u32::try_from(row.try_get::<i64, _>("steps")?).unwrap_or(0),
                before: before(row)?,
                after_sha256: hex(&row.try_get::<Vec<u8>, _>("after_sha256")?),
            })
        };
        row.as_ref().map(undoable).transpose().map_err(|error| translate(OPERATION, error))
    }

    /// The last changes of a file have been undone; `after` is what is there now, if anything.
    pub async fn changes_undone(
        &self,
        fence: &SessionFence,
        call: CallId,
        path: &str,
        steps: u32,
        after: Option<&SeenFile>,
    ) -> Result<()> {
        const OPERATION: &str = "record undoing";
        let mut conn = self.db().system(OPERATION).await?;
        conn.execute(
            sqlx::query(concat!(
                "WITH last AS (",
                undoable!(),
                ") UPDATE file_versions v SET state = 'undone', undone_by = $3 FROM last, sessions s
                   WHERE v.id = last.id AND s.id = $1 AND s.worker_id = $5 AND s.epoch = $6"
            ))
            .bind(fence.session_id.uuid())
            .bind(hash(path))
            .bind(call.uuid())
            .bind(i64::from(steps))
            .bind(fence.worker_id.uuid())
            .bind(signed(fence.epoch)),
        )
        .await?;
        conn.end().await?;
        match after {
            Some(after) => self.see_file(fence, path, after).await,
            None => self.forget_files(fence, path).await,
        }
    }

    /// Forgets what ended sessions knew of their files, and what their named shells were. Returns how many rows.
    pub async fn prune_files(&self) -> Result<u64> {
        let mut conn = self.db().system("prune files").await?;
        let mut pruned = 0;
        for statement in [
            "DELETE FROM file_reads r USING sessions s WHERE s.id = r.session_id AND s.status = 'ended'",
            "DELETE FROM file_versions v USING sessions s WHERE s.id = v.session_id AND s.status = 'ended'",
            "DELETE FROM named_shells n USING sessions s WHERE s.id = n.session_id AND s.status = 'ended'",
        ] {
            pruned += conn.execute(sqlx::query(statement)).await?;
        }
        conn.end().await?;
        Ok(pruned)
    }
}

fn hash(path: &str) -> Vec<u8> {
    Sha256::digest(path).to_vec()
}

fn hex(sha256: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(sha256)
}

fn bytes(operation: &'static str, sha256: &str) -> Result<Vec<u8>> {
    HEXLOWER_PERMISSIVE
        .decode(sha256.as_bytes())
        .map_err(|error| StoreError::Internal { operation, source: Box::new(error) })
}

fn still_owned(operation: &'static str, owned: Option<PgRow>) -> Result<()> {
    owned.map(drop).ok_or(StoreError::Stale { operation })
}

fn before(row: &PgRow) -> Result<FileBefore, sqlx::Error> {
    Ok(match row.try_get("before")? {
        "absent" => FileBefore::Absent,
        "not_kept" => FileBefore::NotKept,
        "content" => FileBefore::Content {
            bytes: row.try_get("before_bytes")?,
            sha256: hex(&row.try_get::<Vec<u8>, _>("before_sha256")?),
            permissions: row
                .try_get::<Option<i32>, _>("before_mode")?
                .and_then(|bits| u32::try_from(bits).ok()),
        },
        _ => return Err(unknown_word("file_versions.before")),
    })
}
