//! A sandbox for a session: a warm one that answers, else a new one.

use std::sync::Arc;
use std::time::Duration;

use domain::SizeClass;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::core::{Core, release};
use super::launch::{Plan, launch};
use super::pool::Key;
use super::{AcquireRequest, WorkspaceFate};
use crate::SandboxError;
use crate::sandbox::{Origin, Sandbox};

/// Time for a warm sandbox to prove that it lives.
const PING_LIMIT: Duration = Duration::from_millis(1_000);
/// Time that a request waits for its turn to make a sandbox.
const TURN_LIMIT: Duration = Duration::from_secs(30);

/// A warm one that answers; those that do not are removed.
pub(super) async fn claim(core: &Arc<Core>, request: &AcquireRequest) -> Option<Sandbox> {
    if request.workspace.is_some() {
        return None;
    }
    let size = SizeClass::of(request.resources)?;
    let key = Key { image: request.image.clone(), size, runtime: request.runtime.clone() };
    while let Some(sandbox) = core.pool.take(&key) {
        // Dropped half-way, the sandbox goes back to nobody: it is removed by its guard.
        let guard = Unclaimed { core, sandbox: Some(sandbox) };
        if let Some(sandbox) = guard.claim().await {
            core.metrics.claimed(true);
            return Some(sandbox);
        }
    }
    if core.pool.has_shelf(&key) {
        core.metrics.claimed(false);
    }
    None
}

/// A new one, when its turn comes.
pub(super) async fn make(core: &Arc<Core>, request: AcquireRequest) -> Result<Sandbox, SandboxError> {
    let fate = match request.workspace {
        Some(_) => WorkspaceFate::Keep,
        None => WorkspaceFate::Remove,
    };
    let AcquireRequest { image, resources, runtime, workspace } = request;
    let plan = Plan { image, resources, runtime, workspace };
    let (sender, receiver) = oneshot::channel();
    let task_core = Arc::clone(core);
    // A task of its own, so that a caller that goes away cannot leave half a sandbox.
    core.tasks.spawn(async move {
        let core = task_core;
        let result = match timeout(TURN_LIMIT, core.turns.acquire()).await {
            Ok(Ok(_turn)) => launch(&core, plan).await,
            Ok(Err(_)) | Err(_) => Err(SandboxError::Busy),
        };
        let result = match result {
            Ok(sandbox) if core.stop.is_cancelled() => {
                release(&core, &sandbox, fate);
                Err(SandboxError::ShuttingDown)
            }
            other => other,
        };
        if let Err(Ok(sandbox)) = sender.send(result) {
            release(&core, &sandbox, fate);
        }
    });
    let sandbox = receiver.await.unwrap_or(Err(SandboxError::ShuttingDown))?;
    let _ = sandbox.inner.origin.set(Origin::Cold);
    core.metrics.cold_creations.inc();
    Ok(sandbox)
}

/// A warm sandbox that was taken from the pool and not handed out yet.
struct Unclaimed<'a> {
    core: &'a Arc<Core>,
    sandbox: Option<Sandbox>,
}

impl Unclaimed<'_> {
    async fn claim(mut self) -> Option<Sandbox> {
        let alive = match &self.sandbox {
            Some(sandbox) => sandbox.gone().is_none() && sandbox.agent().ping(PING_LIMIT).await.is_ok(),
            None => false,
        };
        let sandbox = if alive { self.sandbox.take() } else { None }?;
        let _ = sandbox.inner.origin.set(Origin::Warm);
        Some(sandbox)
    }
}

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        if let Some(sandbox) = self.sandbox.take() {
            release(self.core, &sandbox, WorkspaceFate::Remove);
        }
    }
}
