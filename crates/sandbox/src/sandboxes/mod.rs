//! All sandboxes of one worker: claims, creations, takeovers, removals. The only way to have a [`Sandbox`].

mod folders;
mod launch;
mod pool;
mod reaper;
mod remove;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use domain::{Resources, SandboxId, SizeClass};
use tokio::sync::{OnceCell, Semaphore, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::folders::{Card, Folders};
use self::launch::{Plan, launch};
use self::pool::{Key, Pool};
use crate::driver::{ContainerState, Driver, EngineInfo, Identity, Workspace, WorkspaceName};
use crate::sandbox::{Facts, Inner, Origin, Sandbox, Signs};
use crate::{Config, EngineError, Gone, GoneReason, Ledger, Link, LinkError, Metrics, SandboxError, Terms};

pub use self::reaper::{Action, Observed, reconcile};

/// Time for a warm sandbox to prove that it lives.
const PING_LIMIT: Duration = Duration::from_millis(1_000);
/// Time that a request waits for its turn to make a sandbox.
const TURN_LIMIT: Duration = Duration::from_secs(30);
/// Time for an agent to dial a worker that takes it over: the silence limit and room for a busy host.
const ADOPT_LIMIT: Duration = Duration::from_secs(8);
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

struct Core {
    driver: Arc<dyn Driver>,
    ledger: Arc<dyn Ledger>,
    config: Config,
    metrics: Metrics,
    folders: Folders,
    pool: Pool,
    turns: Semaphore,
    removals: Semaphore,
    held: Mutex<HashMap<SandboxId, Weak<Inner>>>,
    engine: OnceCell<EngineInfo>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Core {
    fn held_map(&self) -> MutexGuard<'_, HashMap<SandboxId, Weak<Inner>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every sandbox that this worker has in its hands.
    fn held(&self) -> Vec<Arc<Inner>> {
        let mut held = self.held_map();
        held.retain(|_, inner| inner.strong_count() > 0);
        held.values().filter_map(Weak::upgrade).collect()
    }

    fn held_one(&self, sandbox_id: SandboxId) -> Option<Arc<Inner>> {
        self.held_map().get(&sandbox_id)?.upgrade()
    }

    /// Takes a connected sandbox into this worker's hands and watches it.
    fn hold(self: &Arc<Self>, facts: Facts, link: Link) -> Sandbox {
        let inner = Arc::new(Inner {
            agent: link.agent(),
            facts,
            link,
            origin: OnceLock::new(),
            signs: Arc::new(Signs::new()),
            given_up: CancellationToken::new(),
        });
        self.held_map().insert(inner.facts.sandbox_id, Arc::downgrade(&inner));
        tokio::spawn(watch::watch(Arc::clone(self), Arc::downgrade(&inner)));
        Sandbox { inner }
    }

    /// Takes it out of this worker's hands; true the first time.
    fn give_up(&self, inner: &Inner) -> bool {
        let first = !inner.given_up.is_cancelled();
        inner.given_up.cancel();
        inner.link.close();
        self.held_map().remove(&inner.facts.sandbox_id);
        first
    }

    async fn engine_info(&self) -> Result<&EngineInfo, SandboxError> {
        let info = self.engine.get_or_try_init(|| async {
            let info = self.driver.engine_info().await?;
            for warning in &info.warnings {
                tracing::warn!(warning, "the container engine");
            }
            Ok::<_, EngineError>(info)
        });
        Ok(info.await?)
    }

    /// Whether this host may run such a sandbox at all.
    async fn admit(&self, runtime: &str) -> Result<(), SandboxError> {
        let info = self.engine_info().await?;
        if !self.config.allow_known_bad && !info.warnings.is_empty() {
            return Err(SandboxError::HostUnsafe { warnings: info.warnings.clone() });
        }
        if !info.runtimes.iter().any(|known| known == runtime) {
            return Err(SandboxError::RuntimeUnavailable { runtime: runtime.to_owned() });
        }
        Ok(())
    }
}

/// Gives a sandbox up and removes it in the background.
fn release(core: &Arc<Core>, sandbox: &Sandbox, fate: WorkspaceFate) {
    if core.give_up(&sandbox.inner) {
        let workspace = match fate {
            WorkspaceFate::Remove => Some(sandbox.workspace().name.clone()),
            WorkspaceFate::Keep => None,
        };
        remove::in_background(core, sandbox.id(), workspace);
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
        let core = Core {
            driver,
            ledger,
            folders: Folders::new(&config, identity),
            pool: Pool::new(&config, metrics.clone()),
            turns: Semaphore::new(config.create_parallel.max(1)),
            removals: Semaphore::new(remove::PARALLEL),
            held: Mutex::default(),
            engine: OnceCell::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            config,
            metrics,
        };
        Self { core: Arc::new(core) }
    }

    /// Starts the tasks that fill the pool, listen to the engine and reconcile. An engine that is down is asked
    /// again until it answers. To be called once, on a runtime.
    pub fn start(&self) {
        for task in [
            tokio::spawn(pool::keep(Arc::clone(&self.core))),
            tokio::spawn(watch::listen(Arc::clone(&self.core))),
            tokio::spawn(reaper::keep(Arc::clone(&self.core))),
        ] {
            drop(task);
        }
    }

    /// What the engine is; asked once.
    ///
    /// # Errors
    /// [`SandboxError::EngineUnavailable`] while it does not answer.
    pub async fn engine_info(&self) -> Result<EngineInfo, SandboxError> {
        self.core.engine_info().await.cloned()
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
        if let Some(sandbox) = self.claim(&request).await {
            self.core.metrics.warm_hits.inc();
            return Ok(sandbox);
        }
        self.make(request).await
    }

    /// A warm one that answers; those that do not are removed.
    async fn claim(&self, request: &AcquireRequest) -> Option<Sandbox> {
        if request.workspace.is_some() {
            return None;
        }
        let size = SizeClass::of(request.resources)?;
        let key = Key { image: request.image.clone(), size, runtime: request.runtime.clone() };
        while let Some(sandbox) = self.core.pool.take(&key) {
            // Dropped half-way, the sandbox goes back to nobody: it is removed by its guard.
            let guard = Unclaimed { core: &self.core, sandbox: Some(sandbox) };
            if let Some(sandbox) = guard.claim().await {
                return Some(sandbox);
            }
        }
        None
    }

    async fn make(&self, request: AcquireRequest) -> Result<Sandbox, SandboxError> {
        let fate = match request.workspace {
            Some(_) => WorkspaceFate::Keep,
            None => WorkspaceFate::Remove,
        };
        let AcquireRequest { image, resources, runtime, workspace } = request;
        let plan = Plan { image, resources, runtime, workspace };
        let (sender, receiver) = oneshot::channel();
        let core = Arc::clone(&self.core);
        // A task of its own, so that a caller that goes away cannot leave half a sandbox.
        self.core.tasks.spawn(async move {
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
        self.core.metrics.cold_creations.inc();
        Ok(sandbox)
    }

    /// Takes over a sandbox whose worker is gone: listens in its folder and waits for its agent to dial (it does
    /// once it has been without a heartbeat for 3 s). Operations go on meanwhile; attach to them by their keys.
    ///
    /// # Errors
    /// [`SandboxError::Gone`] when the container is gone or its agent does not dial, [`SandboxError::Fenced`]
    /// when it has served a higher epoch, [`SandboxError::EngineUnavailable`] when the container could not be
    /// looked at. The container is left as it is.
    pub async fn adopt(&self, adoption: Adoption) -> Result<Sandbox, SandboxError> {
        let core = &self.core;
        ended(&core.driver.inspect(&adoption.container_id).await?).map_or(Ok(()), |gone| Err(SandboxError::Gone(gone)))?;
        let folder = core.folders.of(adoption.sandbox_id);
        let card = match folder.card() {
            Some(card) => card,
            None => {
                let image = core.driver.resolve_image(&adoption.image).await?;
                Card { boot_id: None, image_id: image.id, env: image.env }
            }
        };
        let terms = Terms {
            epoch: adoption.epoch,
            tool_uid: adoption.workspace.tool_uid,
            env: card.env.clone(),
            warm_shells: core.config.warm_shells,
            boot_id: card.boot_id.clone(),
        };
        let link = launch::bind(core, &folder, terms)?;
        if let Err(error) = link.connected(ADOPT_LIMIT).await {
            return Err(self.not_adopted(&adoption, error).await);
        }
        let card = Card { boot_id: link.boot_id(), ..card };
        folder.write_card(&card).map_err(EngineError::host("note the agent's boot"))?;
        let facts = Facts {
            sandbox_id: adoption.sandbox_id,
            container_id: adoption.container_id,
            workspace: adoption.workspace,
            epoch: adoption.epoch,
            image: adoption.image,
            image_id: card.image_id,
            size: SizeClass::of(adoption.resources),
            resources: adoption.resources,
            runtime: adoption.runtime,
        };
        let sandbox = core.hold(facts, link);
        let _ = sandbox.inner.origin.set(Origin::Adopted);
        Ok(sandbox)
    }

    async fn not_adopted(&self, adoption: &Adoption, error: LinkError) -> SandboxError {
        let agent = |why: &str| SandboxError::Gone(Gone::because(GoneReason::AgentGone).with("why", why));
        match error {
            LinkError::Fenced => SandboxError::Fenced,
            LinkError::JournalLost => agent("the agent restarted"),
            _ => match self.core.driver.inspect(&adoption.container_id).await {
                Ok(state) => ended(&state).map_or_else(|| agent("it does not dial"), SandboxError::Gone),
                Err(error) => error.into(),
            },
        }
    }

    /// Gives a sandbox up: its link is closed at once, its container is removed in the background (and again,
    /// until it works), then [`Ledger::removed`] is called. A used sandbox never returns to the pool. Idempotent.
    ///
    /// With [`WorkspaceFate::Keep`], [`Ledger::live`] must list the workspace from before this call on.
    pub fn release(&self, sandbox: &Sandbox, fate: WorkspaceFate) {
        release(&self.core, sandbox, fate);
    }

    /// The same for a row without a handle (a session that ended while nobody owned it), waiting for the end.
    ///
    /// # Errors
    /// When the engine or the ledger failed; asking again is safe, and the reaper tries too.
    pub async fn destroy(
        &self,
        sandbox_id: SandboxId,
        workspace: Option<&WorkspaceName>,
    ) -> Result<(), SandboxError> {
        if let Some(inner) = self.core.held_one(sandbox_id) {
            self.core.give_up(&inner);
        }
        remove::now(&self.core, sandbox_id, workspace).await
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

/// That a container has ended, if it has.
fn ended(state: &ContainerState) -> Option<Gone> {
    match state {
        ContainerState::Running | ContainerState::Created => None,
        ContainerState::Gone => Some(Gone::because(GoneReason::ContainerGone).with("container", "removed")),
        ContainerState::Exited { exit_code, oom_killed, .. } => Some(
            Gone::because(if *oom_killed { GoneReason::Oom } else { GoneReason::AgentGone })
                .with("container", "exited")
                .with("exit_code", *exit_code)
                .with("oom_killed", *oom_killed),
        ),
    }
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
