//! What all tasks of one worker's sandboxes share: ports, pool, and which sandboxes are in its hands.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use domain::SandboxId;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::folders::Folders;
use super::pool::Pool;
use super::{WorkspaceFate, remove, watch};
use crate::driver::{Driver, EngineInfo, Identity};
use crate::sandbox::{Facts, Inner, Sandbox, Signs};
use crate::{Config, Ledger, Link, Metrics, SandboxError};

/// How long what the engine said of itself is taken for true: it may be upgraded, or get a runtime, while sandboxes run.
const ENGINE_KNOWN: Duration = Duration::from_secs(60);

pub(super) struct Core {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) folders: Folders,
    pub(super) pool: Pool,
    pub(super) turns: Semaphore,
    pub(super) removals: Semaphore,
    pub(super) held: Mutex<HashMap<SandboxId, Weak<Inner>>>,
    engine: Mutex<Option<(Instant, Arc<EngineInfo>)>>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Core {
    pub(super) fn new(
        identity: &Identity,
        driver: Arc<dyn Driver>,
        ledger: Arc<dyn Ledger>,
        config: Config,
        metrics: Metrics,
    ) -> Self {
        Self {
            driver,
            ledger,
            folders: Folders::new(&config, identity),
            pool: Pool::new(&config, metrics.clone()),
            turns: Semaphore::new(config.create_parallel.max(1)),
            removals: Semaphore::new(remove::PARALLEL),
            held: Mutex::default(),
            engine: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            config,
            metrics,
        }
    }

    fn held_map(&self) -> MutexGuard<'_, HashMap<SandboxId, Weak<Inner>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every sandbox that this worker has in its hands.
    pub(super) fn held(&self) -> Vec<Arc<Inner>> {
        let mut held = self.held_map();
        held.retain(|_, inner| inner.strong_count() > 0);
        held.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn held_one(&self, sandbox_id: SandboxId) -> Option<Arc<Inner>> {
        self.held_map().get(&sandbox_id)?.upgrade()
    }

    /// Takes a connected sandbox into this worker's hands and watches it.
    pub(super) fn hold(self: &Arc<Self>, facts: Facts, link: Link) -> Sandbox {
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
    pub(super) fn give_up(&self, inner: &Inner) -> bool {
        let first = !inner.given_up.is_cancelled();
        inner.given_up.cancel();
        inner.link.close();
        self.held_map().remove(&inner.facts.sandbox_id);
        first
    }

    /// What the engine is, as far as it is known.
    pub(super) async fn engine_info(&self) -> Result<Arc<EngineInfo>, SandboxError> {
        match self.known_engine() {
            Some((_, info)) => Ok(info),
            None => self.ask_engine().await,
        }
    }

    /// What the engine is: asked again now and then, and each time while this host is refused. One that is slow to say so for once is what it was.
    pub(super) async fn engine_info_anew(&self) -> Result<Arc<EngineInfo>, SandboxError> {
        match self.known_engine() {
            Some((asked, info)) if self.refuse_unsafe(&info).is_ok() => {
                if asked.elapsed() < ENGINE_KNOWN {
                    return Ok(info);
                }
                Ok(self.ask_engine().await.unwrap_or(info))
            }
            _ => self.ask_engine().await,
        }
    }

    fn known_engine(&self) -> Option<(Instant, Arc<EngineInfo>)> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn ask_engine(&self) -> Result<Arc<EngineInfo>, SandboxError> {
        let info = Arc::new(self.driver.engine_info().await?);
        let before = self
            .engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace((Instant::now(), Arc::clone(&info)));
        if before.is_none_or(|(_, before)| before.warnings != info.warnings) {
            for warning in &info.warnings {
                tracing::warn!(warning, "the container engine");
            }
        }
        Ok(info)
    }

    /// Refuses a host with versions that the installation does not take.
    pub(super) fn refuse_unsafe(&self, info: &EngineInfo) -> Result<(), SandboxError> {
        if !self.config.allow_known_bad && !info.warnings.is_empty() {
            return Err(SandboxError::HostUnsafe { warnings: info.warnings.clone() });
        }
        Ok(())
    }

    /// Whether this host may run such a sandbox at all.
    pub(super) async fn admit(&self, runtime: &str) -> Result<(), SandboxError> {
        let info = self.engine_info().await?;
        self.refuse_unsafe(&info)?;
        if !info.runtimes.iter().any(|known| known == runtime) {
            return Err(SandboxError::RuntimeUnavailable { runtime: runtime.to_owned() });
        }
        Ok(())
    }
}

/// Gives a sandbox up and removes it in the background.
pub(super) fn release(core: &Arc<Core>, sandbox: &Sandbox, fate: WorkspaceFate) {
    if core.give_up(&sandbox.inner) {
        let workspace = match fate {
            WorkspaceFate::Remove => Some(sandbox.workspace().name.clone()),
            WorkspaceFate::Keep => None,
        };
        remove::in_background(core, sandbox.id(), sandbox.epoch(), workspace);
    }
}
