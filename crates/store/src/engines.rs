//! Engines of hosts, as their workers see them: a session goes only where a sandbox can be made.

use domain::WorkerId;

use crate::{Result, Store};

/// Whether sandboxes can be made with a worker's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineState {
    /// They can.
    Works,
    /// It does not answer, or the installation does not take it as it is.
    Down,
}

impl EngineState {
    pub(crate) const fn of(makes_sandboxes: bool) -> Self {
        if makes_sandboxes { Self::Works } else { Self::Down }
    }
}

impl Store {
    /// Says how a worker's engine is, and which runtimes it has, where that is known.
    pub async fn set_worker_engine(
        &self,
        worker: WorkerId,
        state: EngineState,
        runtimes: Option<&[String]>,
    ) -> Result<()> {
        let mut conn = self.db().system("set worker engine").await?;
        conn.execute(
            sqlx::query(
                "UPDATE workers SET makes_sandboxes = $2, runtimes = coalesce($3, runtimes) WHERE id = $1",
            )
            .bind(worker.uuid())
            .bind(state == EngineState::Works)
            .bind(runtimes),
        )
        .await?;
        conn.end().await
    }
}
