//! All sandboxes of one worker: claims, creations, takeovers, removals. The only way to have a [`Sandbox`].

mod acquire;
mod adopt;
mod core;
mod folders;
mod launch;
mod pool;
mod reaper;
mod remove;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use domain::{Resources, SandboxId};
use tokio::time::timeout;

use self::core::{Core, release};
use crate::driver::{Driver, EngineInfo, Identity, Workspace, WorkspaceName};
use crate::sandbox::Sandbox;
use crate::{Config, EngineError, Ledger, Metrics, SandboxError};

pub use self::reaper::{Action, Observed, reconcile};

/// Time for removals to finish at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);

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
#[derive(Clone)]
pub struct Sandboxes {
    core: Arc<Core>,
}

impl std::fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandboxes").finish_non_exhaustive()
    }
}

impl Sandboxes {
    /// Nothing is made or asked yet; see [`Self::start`].
    #[must_use]
    pub fn new(
        identity: &Identity,
        driver: Arc<dyn Driver>,
        ledger: Arc<dyn Ledger>,
        config: Config,
        metrics: Metrics,
    ) -> Self {
        Self { core: Arc::new(Core::new(identity, driver, ledger, config, metrics)) }
    }

    /// Starts the tasks that fill the pool, listen to the engine and reconcile. An engine that is down is asked
    /// again until it answers. To be called once, on a runtime.
    pub fn start(&self) {
        // Waited for at shutdown, so that nothing is left half-made.
        let core = &self.core;
        core.tasks.spawn(pool::keep(Arc::clone(core)));
        core.tasks.spawn(watch::listen(Arc::clone(core)));
        core.tasks.spawn(reaper::keep(Arc::clone(core)));
    }

    /// What the engine is, as it was last asked.
    ///
    /// # Errors
    /// [`SandboxError::EngineUnavailable`] while it does not answer.
    pub async fn engine_info(&self) -> Result<EngineInfo, SandboxError> {
        Ok(self.core.engine_info().await?.as_ref().clone())
    }

    /// Asks the engine whether it answers now.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping_engine(&self) -> Result<(), SandboxError> {
        match self.core.driver.resolve_image(&self.core.config.image).await {
            // An engine that says so answers.
            Ok(_) | Err(EngineError::ImageMissing { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the engine whether it answers now, and looks whether this host may make sandboxes at all. The runtimes that it has.
    ///
    /// # Errors
    /// [`SandboxError::EngineUnavailable`] or [`SandboxError::HostUnsafe`]. An engine that refuses answers all the same.
    pub async fn ready(&self) -> Result<Vec<String>, SandboxError> {
        self.ping_engine().await?;
        let info = self.core.engine_info_anew().await?;
        self.core.refuse_unsafe(&info)?;
        Ok(info.runtimes.clone())
    }

    /// Asks the engine whether it has an image.
    ///
    /// # Errors
    /// When it has not, or does not answer.
    pub async fn has_image(&self, image: &str) -> Result<(), SandboxError> {
        Ok(self.core.driver.resolve_image(image).await.map(drop)?)
    }

    /// A sandbox for a session: a warm one when there is one, else a new one (about 300 ms). When the caller
    /// goes away meanwhile, it is removed again.
    ///
    /// The session's row is the caller's to write; so is [`Self::release`] when that fails.
    ///
    /// # Errors
    /// See [`SandboxError`]. Nothing is left behind.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<Sandbox, SandboxError> {
        if self.core.stop.is_cancelled() {
            return Err(SandboxError::ShuttingDown);
        }
        let _claiming = self.core.pool.begin_claim();
        if let Some(sandbox) = acquire::claim(&self.core, &request).await {
            return Ok(sandbox);
        }
        acquire::make(&self.core, request).await
    }

    /// Takes over a sandbox whose worker is gone: listens in its folder and waits for its agent to dial (it does
    /// once it has been without a heartbeat for 3 s). Operations go on meanwhile; attach to them by their keys.
    ///
    /// # Errors
    /// [`SandboxError::Gone`] when the container is gone or its agent does not dial (waited for 15 s: a worker
    /// without a lease lets go long before), [`SandboxError::Fenced`] when it has served a higher epoch, [`SandboxError::EngineUnavailable`] when the container could not be
    /// looked at. The container is left as it is.
    pub async fn adopt(&self, adoption: Adoption) -> Result<Sandbox, SandboxError> {
        adopt::adopt(&self.core, adoption).await
    }

    /// Gives a sandbox up: its link is closed at once, its container is removed in the background (and again,
    /// until it works), then [`Ledger::removed`] is called. A used sandbox never returns to the pool. Idempotent.
    ///
    /// With [`WorkspaceFate::Keep`], [`Ledger::live`] must list the workspace from before this call on.
    pub fn release(&self, sandbox: &Sandbox, fate: WorkspaceFate) {
        release(&self.core, sandbox, fate);
    }

    /// The same by id, waiting for the end: for a sandbox that must be gone before the next step, or that nobody
    /// has a handle of (then the caller's right to it must have been written before).
    ///
    /// # Errors
    /// [`SandboxError::Fenced`] when another worker has taken it over from this one. Else when the engine or the
    /// ledger failed; it is then tried again in the background.
    pub async fn destroy(
        &self,
        sandbox_id: SandboxId,
        workspace: Option<&WorkspaceName>,
    ) -> Result<(), SandboxError> {
        let core = &self.core;
        let epoch = match core.held_one(sandbox_id) {
            Some(inner) => {
                core.give_up(&inner);
                inner.facts.epoch
            }
            None => u64::MAX,
        };
        let removed = remove::owned(core, sandbox_id, epoch, workspace).await;
        match &removed {
            Ok(()) | Err(SandboxError::Fenced) => {}
            Err(_) => remove::in_background(core, sandbox_id, epoch, workspace.cloned()),
        }
        removed
    }

    /// Removes the files of a session that has no sandbox any more. Idempotent.
    ///
    /// # Errors
    /// When the engine or the host failed; asking again is safe, and the reaper tries too.
    pub async fn remove_workspace(&self, name: &WorkspaceName) -> Result<(), SandboxError> {
        Ok(self.core.driver.remove_workspace(name).await?)
    }

    /// Stops acting on a sandbox without removing it (this worker has lost its lease): the link is closed, so
    /// that the agent dials whoever takes over.
    pub fn let_go(&self, sandbox: &Sandbox) {
        self.core.give_up(&sandbox.inner);
    }

    /// Compares what runs with what should and removes leftovers, as the background task does.
    ///
    /// # Errors
    /// When the host could not be looked at or the rows could not be read; single removals that fail are logged
    /// and counted.
    pub async fn reconcile(&self) -> Result<Vec<Action>, SandboxError> {
        reaper::pass(&self.core).await
    }

    /// Ends the background tasks, removes every sandbox that waits in the pool or is being made, and finishes
    /// removals that are under way (for at most 20 s). Sandboxes that were acquired are let go, not removed.
    pub async fn shutdown(&self) {
        self.core.stop.cancel();
        for sandbox in self.core.pool.drain() {
            release(&self.core, &sandbox, WorkspaceFate::Remove);
        }
        for inner in self.core.held() {
            self.core.give_up(&inner);
        }
        self.core.tasks.close();
        if timeout(SHUTDOWN_LIMIT, self.core.tasks.wait()).await.is_err() {
            tracing::warn!("some sandboxes are left to the reaper");
        }
    }
}
