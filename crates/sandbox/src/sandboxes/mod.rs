//! All sandboxes of one worker: claims, creations, takeovers, removals. The only way to have a [`Sandbox`].

use std::sync::Arc;

use domain::{Resources, SandboxId};

use crate::{Config, Driver, Identity, Ledger, Metrics, Sandbox, SandboxError, Workspace, WorkspaceName};

/// What a session needs.
#[derive(Debug, Clone, PartialEq)]
pub struct AcquireRequest {
    /// Image.
    pub image: String,
    /// What it may use. A warm sandbox serves when this is exactly a size class.
    pub resources: Resources,
    /// Container runtime.
    pub runtime: String,
    /// The workspace of the session's sandbox before this one. Its files stay, and the sandbox is made cold.
    pub workspace: Option<Workspace>,
}

/// A sandbox of a worker that is gone, as its row says.
#[derive(Debug, Clone, PartialEq)]
pub struct Adoption {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// The engine's id of its container.
    pub container_id: String,
    /// Its workspace and the uid of its tools.
    pub workspace: Workspace,
    /// The new ownership epoch: higher than any that served this sandbox.
    pub epoch: u64,
    /// Image.
    pub image: String,
    /// What it may use.
    pub resources: Resources,
    /// Container runtime.
    pub runtime: String,
}

/// What becomes of a released sandbox's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceFate {
    /// They go with it.
    Remove,
    /// They stay for another sandbox of the same session.
    Keep,
}

/// All sandboxes of one worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {}

impl Sandboxes {
    /// Nothing is made or asked yet; see [`Self::start`].
    #[must_use]
    pub fn new(
        _identity: Identity,
        _driver: Arc<dyn Driver>,
        _ledger: Arc<dyn Ledger>,
        _config: Config,
        _metrics: Metrics,
    ) -> Self {
        Self { core: Arc::new(Core {}) }
    }

    /// Starts the tasks that fill the pool, listen to the engine and reconcile. An engine that is down is asked
    /// again until it answers. To be called once, on a runtime.
    pub fn start(&self) {
        let _ = &self.core;
        todo!()
    }

    /// A sandbox for a session: a warm one when there is one, else a new one (about 300 ms). The work goes on
    /// and is undone when the caller goes away.
    ///
    /// The session's row is the caller's to write; so is [`Self::release`] when that fails.
    ///
    /// # Errors
    /// See [`SandboxError`]. Nothing is left behind.
    pub async fn acquire(&self, _request: AcquireRequest) -> Result<Sandbox, SandboxError> {
        todo!()
    }

    /// Takes over a sandbox whose worker is gone: listens in its folder and waits for its agent to dial (it does
    /// once it has been without a heartbeat for 3 s). Operations go on meanwhile; attach to them by their keys.
    ///
    /// # Errors
    /// [`SandboxError::Gone`] when the container is gone or its agent does not dial, [`SandboxError::Fenced`]
    /// when it has served a higher epoch, [`SandboxError::EngineUnavailable`] when the container could not be
    /// looked at. The container is left as it is.
    pub async fn adopt(&self, _adoption: Adoption) -> Result<Sandbox, SandboxError> {
        todo!()
    }

    /// Gives a sandbox up: its link is closed at once, its container is removed in the background (and again,
    /// until it works), then [`Ledger::removed`] is called. A used sandbox never returns to the pool. Idempotent.
    pub fn release(&self, _sandbox: &Sandbox, _fate: WorkspaceFate) {
        todo!()
    }

    /// The same for a row without a handle (a session that ended while nobody owned it), waiting for the end.
    ///
    /// # Errors
    /// When the engine or the ledger failed; asking again is safe, and the reaper tries too.
    pub async fn destroy(
        &self,
        _sandbox_id: SandboxId,
        _workspace: Option<&WorkspaceName>,
    ) -> Result<(), SandboxError> {
        todo!()
    }

    /// Removes the files of a session that has no sandbox any more. Idempotent.
    ///
    /// # Errors
    /// When the engine or the host failed; asking again is safe, and the reaper tries too.
    pub async fn remove_workspace(&self, _name: &WorkspaceName) -> Result<(), SandboxError> {
        todo!()
    }

    /// Stops acting on a sandbox without removing it (this worker has lost its lease): the link is closed, so
    /// that the agent dials whoever takes over.
    pub fn let_go(&self, _sandbox: &Sandbox) {
        todo!()
    }

    /// Ends the background tasks, removes every sandbox that waits in the pool or is being made, and finishes
    /// removals that are under way (for at most 20 s). Sandboxes that were acquired are let go, not removed.
    pub async fn shutdown(&self) {
        todo!()
    }
}
