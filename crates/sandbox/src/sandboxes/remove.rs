//! Removing sandboxes: off the path of requests, idempotent, and tried again until it works.
//!
//! # Design notes
//!
//! *A zombie removes nothing.* A worker that was stopped past its lease finds, when it comes back, that the agents
//! of its sandboxes have left it, and would tidy up what another worker has taken over. The card in the
//! sandbox's folder carries the epoch of whoever has it, and is raised before a takeover begins.

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

/// The same by a worker that had the sandbox under this epoch. Not done when another has taken it over since.
pub(super) async fn owned(
    core: &Core,
    sandbox_id: SandboxId,
    epoch: u64,
    workspace: Option<&WorkspaceName>,
) -> Result<(), SandboxError> {
    if core.folders.of(sandbox_id).card().is_some_and(|card| card.epoch > epoch) {
        return Err(SandboxError::Fenced);
    }
    now(core, sandbox_id, workspace).await
}

/// The same without waiting for it, again and again until it works: nobody else removes what a live worker's row
/// names. [`super::Sandboxes::shutdown`] waits for what is under way.
pub(super) fn in_background(
    core: &Arc<Core>,
    sandbox_id: SandboxId,
    epoch: u64,
    workspace: Option<WorkspaceName>,
) {
    let core = Arc::clone(core);
    let tasks = core.tasks.clone();
    tasks.spawn(async move {
        let mut pause = PAUSE;
        loop {
            let Ok(permit) = core.removals.acquire().await else { return };
            let error = match owned(&core, sandbox_id, epoch, workspace.as_ref()).await {
                Ok(()) => return,
                Err(SandboxError::Fenced) => {
                    tracing::warn!(%sandbox_id, epoch, "a sandbox that another worker has is left alone");
                    return;
                }
                Err(error) => error,
            };
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
