//! Marks of use that need no commit of their own: sessions and keys in use and output that was kept, written together once a second.
//!
//! # Design notes
//!
//! A call's two commits do not touch its session's row or its key's: two lanes of the writer would wait for each
//! other there. A mark that is lost with the process costs at most a second of a session's idle time, and a session with an open or
//! recent call is never idle anyway.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use domain::{KeyId, SessionId};

use crate::Result;
use crate::db::Db;
use crate::stored::add_output;

/// Marks that wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activity {
    marks: Arc<Mutex<Marks>>,
}

#[derive(Debug, Default)]
struct Marks {
    sessions: HashSet<SessionId>,
    keys: HashSet<KeyId>,
    output: HashMap<SessionId, u64>,
}

impl Activity {
    pub(crate) fn session(&self, id: SessionId) {
        self.locked().sessions.insert(id);
    }

    pub(crate) fn key(&self, id: KeyId) {
        self.locked().keys.insert(id);
    }

    /// Output of a session that is durable now.
    pub(crate) fn output(&self, id: SessionId, bytes: usize) {
        if bytes > 0 {
            *self.locked().output.entry(id).or_default() += bytes as u64;
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Writes what waits. Marks of a failed write are dropped.
    pub(crate) async fn write(&self, db: &Db) -> Result<()> {
        let Marks { sessions, keys, output } = std::mem::take(&mut *self.locked());
        if !output.is_empty() {
            add_output(db, output).await?;
        }
        if !sessions.is_empty() {
            let mut ids: Vec<_> = sessions.into_iter().map(SessionId::uuid).collect();
            ids.sort_unstable();
            let mut conn = db.system("mark sessions in use").await?;
            conn.execute(
                sqlx::query(
                    "UPDATE sessions SET last_active_at = clock_timestamp()
                     WHERE status <> 'ended' AND id IN (
                         SELECT s.id FROM sessions s WHERE s.id = ANY($1) ORDER BY s.id FOR NO KEY UPDATE)",
                )
                .bind(ids),
            )
            .await?;
            conn.end().await?;
        }
        if !keys.is_empty() {
            let ids: Vec<_> = keys.into_iter().map(KeyId::uuid).collect();
            let mut conn = db.system("mark keys in use").await?;
            conn.execute(
                sqlx::query(
                    "UPDATE api_keys SET last_used_at = clock_timestamp()
                     WHERE id = ANY($1) AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')",
                )
                .bind(ids),
            )
            .await?;
            conn.end().await?;
        }
        Ok(())
    }
}
