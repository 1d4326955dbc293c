//! Removing sandboxes: off the path of requests, idempotent, and tried again until it works.

use std::sync::Arc;
use std::time::Duration;

use domain::SandboxId;

use super::core::Core;
use crate::{EngineError, SandboxError, WorkspaceName};

/// Removals at a time. The engine serialises much of them anyway.
pub(super) const PARALLEL: usize = 4;
/// The pause after a try that failed, doubling.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Removes container, workspace (when named) and folder, then says so to the ledger.
pub(super) async fn now(
    core: &Core,
    sandbox_id: SandboxId,
    workspace: Option<&WorkspaceName>,
) -> Result<(), SandboxError> {
    core.driver.remove(sandbox_id).await?;
    if let Some(workspace) = workspace {
        core.driver.remove_workspace(workspace).await?;
    }
    core.folders.remove(sandbox_id).map_err(EngineError::host("remove a sandbox's folder"))?;
    core.ledger.removed(sandbox_id).await?;
    core.metrics.removals.inc();
    Ok(())
}

/// The same without waiting for it, again and again until it works: nobody else removes what a live worker's row
/// names. [`super::Sandboxes::shutdown`] waits for what is under way.
pub(super) fn in_background(core: &Arc<Core>, sandbox_id: SandboxId, workspace: Option<WorkspaceName>) {
    let core = Arc::clone(core);
    let tasks = core.tasks.clone();
    tasks.spawn(async move {
        let mut pause = PAUSE;
        loop {
            let Ok(permit) = core.removals.acquire().await else { return };
            let Err(error) = now(&core, sandbox_id, workspace.as_ref()).await else { return };
            drop(permit);
            core.metrics.error("remove");
            tracing::warn!(%sandbox_id, error = &error as &dyn std::error::Error, "a sandbox could not be removed");
            if core.stop.is_cancelled() {
                // Not much time is left.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = core.stop.cancelled() => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    });
}
