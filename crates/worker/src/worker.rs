//! The worker process: registers, serves one tenure after another, and hands over or cleans up when it is stopped.

use std::sync::Arc;
use std::time::Duration;

use domain::WorkerId;
use domain::dispatch::Dispatch;
use domain::exchange::{ExchangeError, Opening};
use domain::trace::Traces;
use prometheus::Registry;
use sandbox::{DockerDriver, Driver, Identity, Sandboxes};
use store::Store;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tools::Catalog;

use crate::dispatch::Door;
use crate::ledger::{PresentWorker, StoreLedger};
use crate::tenure::{Core, Tenure};
use crate::{
    Duplex, Metrics, OnShutdown, WorkerConfig, capacity, claims, engine, exchange, lease, sessions, sweeps,
    takeover,
};

/// Pause between attempts to register.
const REGISTER_RETRY: Duration = Duration::from_millis(500);
/// Time that tasks get to notice that their tenure is over.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// Time that sessions get to end when the process is stopped.
const END_SESSIONS_LIMIT: Duration = Duration::from_secs(30);

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database did not take its registration.
    #[error("the worker could not be registered")]
    Register(#[source] store::StoreError),
    /// The driver of sandboxes cannot work here.
    #[error("sandboxes cannot be made on this host")]
    Driver(#[source] sandbox::EngineError),
    /// Metrics of these names are registered already.
    #[error("the worker's metrics could not be registered")]
    Metrics(#[source] prometheus::Error),
}

/// Makes workers.
#[derive(Debug, Clone, Copy)]
pub struct Worker;

/// A worker that runs. Dropping it leaves it running; cancel the token that it was started with.
#[derive(Clone)]
pub struct WorkerHandle {
    door: Arc<Door>,
    sandboxes: Sandboxes,
    shutdown: CancellationToken,
    stopped: watch::Receiver<bool>,
}

impl std::fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerHandle").finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts a worker with the Docker driver. It runs until `shutdown` is cancelled and everything is handed over or
    /// cleaned up (see [`WorkerHandle::stopped`]). The container engine may be down; it is asked until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(
        config: WorkerConfig,
        store: Store,
        catalog: Arc<Catalog>,
        registry: &Registry,
        traces: Arc<dyn Traces>,
        shutdown: CancellationToken,
    ) -> Result<WorkerHandle, StartError> {
        let host_id = store.register_host(&config.host).await.map_err(StartError::Register)?;
        let identity = Identity { installation: config.installation.clone(), host_id };
        let driver = DockerDriver::new(identity.clone(), &config.sandbox).map_err(StartError::Driver)?;
        Self::start_with(config, store, catalog, registry, traces, shutdown, &identity, Arc::new(driver))
            .await
    }

    /// The same with another driver.
    ///
    /// # Errors
    /// See [`StartError`].
    #[expect(clippy::too_many_arguments, reason = "each is one thing that the server wires")]
    pub async fn start_with(
        config: WorkerConfig,
        store: Store,
        catalog: Arc<Catalog>,
        registry: &Registry,
        traces: Arc<dyn Traces>,
        shutdown: CancellationToken,
        identity: &Identity,
        driver: Arc<dyn Driver>,
    ) -> Result<WorkerHandle, StartError> {
        let mut config = config;
        let pool = capacity::fit_pool(&mut config);
        let metrics = Metrics::register(registry).map_err(StartError::Metrics)?;
        metrics.show_tools(&catalog);
        let of_sandboxes = sandbox::Metrics::register(registry).map_err(StartError::Metrics)?;
        let host_id = identity.host_id;
        store.set_host_capacity(host_id, config.capacity.host).await.map_err(StartError::Register)?;
        let first = store.register_worker(host_id).await.map_err(StartError::Register)?;
        let worker = PresentWorker::new(first.worker_id);
        let ledger = StoreLedger { store: store.clone(), host_id, worker: worker.clone() };
        let sandboxes =
            Sandboxes::new(identity, driver, Arc::new(ledger), config.sandbox.clone(), of_sandboxes);
        sandboxes.start();
        let core =
            Arc::new(Core { config, store, sandboxes: sandboxes.clone(), catalog, metrics, traces, host_id });
        let door = Arc::new(Door::default());
        let (stopped_sender, stopped) = watch::channel(false);
        let process = Process { core, door: Arc::clone(&door), worker, pool, shutdown: shutdown.clone() };
        tokio::spawn(async move {
            process.run(first).await;
            stopped_sender.send_replace(true);
        });
        Ok(WorkerHandle { door, sandboxes, shutdown, stopped })
    }
}

impl WorkerHandle {
    /// The door for admission in this process.
    #[must_use]
    pub fn dispatch(&self) -> Arc<dyn Dispatch> {
        Arc::clone(&self.door) as Arc<dyn Dispatch>
    }

    /// Whose lease this process has at the moment.
    #[must_use]
    pub fn worker_id(&self) -> Option<WorkerId> {
        self.door.present().map(|tenure| tenure.worker_id())
    }

    /// Opens an operation on a session that this worker owns.
    ///
    /// # Errors
    /// [`domain::Code::WorkerUnavailable`] when the session is not this worker's, and what the operation itself refuses.
    pub async fn exchange(&self, opening: Opening) -> Result<Duplex, ExchangeError> {
        let tenure = self.door.present().ok_or_else(ExchangeError::not_here)?;
        exchange::open(&tenure, opening).await
    }

    /// The sandboxes of this process, for what the server wants to know of the engine.
    #[must_use]
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// Asks the worker to take no more work, hand over what it has and stop, as cancelling its token does.
    pub fn drain(&self) {
        self.shutdown.cancel();
    }

    /// Waits until everything is handed over or cleaned up.
    pub async fn stopped(&self) {
        let mut stopped = self.stopped.clone();
        // An error means that the task is gone, which is as stopped as can be.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

struct Process {
    core: Arc<Core>,
    door: Arc<Door>,
    worker: PresentWorker,
    /// What the warm pool holds at most.
    pool: store::HostShare,
    shutdown: CancellationToken,
}

impl Process {
    async fn run(&self, first: store::Lease) {
        let mut lease = Some(first);
        while let Some(present) = lease.take() {
            let tenure = Tenure::new(Arc::clone(&self.core), present);
            if self.serve(&tenure).await {
                lease = self.register_anew().await;
            }
        }
        self.core.sandboxes.shutdown().await;
        let worker_id = self.worker.get();
        // Sandboxes of the pool are gone and sessions are left: whoever is there may take over at once.
        if let Err(error) = self.core.store.deregister_worker(worker_id).await {
            tracing::warn!(worker = %worker_id, %error, "not deregistered; its lease runs out instead");
        }
    }

    /// Serves until the lease is lost (true) or the process is to stop (false).
    async fn serve(&self, tenure: &Arc<Tenure>) -> bool {
        self.worker.set(tenure.worker_id());
        let lost = CancellationToken::new();
        let keeper = {
            let (tenure, lost) = (Arc::clone(tenure), lost.clone());
            tokio::spawn(async move {
                lease::keep(&tenure.lease, tenure.store(), &tenure.ended).await;
                lost.cancel();
            })
        };
        tenure.spawn(exchange::publish_address(Arc::clone(tenure)));
        tenure.spawn(capacity::announce(Arc::clone(tenure), self.pool));
        tenure.spawn(engine::announce(Arc::clone(tenure)));
        tenure.spawn(claims::hear(Arc::clone(tenure)));
        tenure.spawn(claims::claim(Arc::clone(tenure)));
        tenure.spawn(sessions::keep(Arc::clone(tenure)));
        tenure.spawn(takeover::watch(Arc::clone(tenure)));
        sweeps::start(tenure);
        self.door.lead_to(Some(Arc::clone(tenure)));
        tracing::info!(worker = %tenure.worker_id(), host = %self.core.host_id, "worker started");

        let stopping = tokio::select! {
            () = self.shutdown.cancelled() => true,
            () = lost.cancelled() => false,
        };
        if stopping {
            tokio::select! {
                () = self.wind_down(tenure) => {}
                () = lost.cancelled() => {}
            }
        } else {
            self.core.metrics.leases_lost.inc();
        }
        self.door.lead_to(None);
        tenure.ended.cancel();
        tenure.tasks.close();
        if timeout(LEAVE_LIMIT, tenure.tasks.wait()).await.is_err() {
            tracing::warn!("some tasks did not notice that their tenure is over");
        }
        let _ = timeout(LEAVE_LIMIT, keeper).await;
        !stopping
    }

    /// Ends what can be ended before the process stops.
    async fn wind_down(&self, tenure: &Arc<Tenure>) {
        tenure.draining.cancel();
        if let Err(error) = self.core.store.drain_worker(tenure.worker_id()).await {
            tracing::warn!(%error, "the worker could not be marked as draining");
        }
        let (limit, what) = match self.core.config.on_shutdown {
            OnShutdown::HandOver { drain } => (drain, "calls"),
            OnShutdown::EndSessions => {
                for session in tenure.sessions() {
                    session.end_for_shutdown();
                }
                (END_SESSIONS_LIMIT, "sessions")
            }
        };
        let all_over = async {
            match self.core.config.on_shutdown {
                OnShutdown::HandOver { .. } => tenure.no_calls().await,
                OnShutdown::EndSessions => tenure.no_sessions().await,
            }
        };
        if timeout(limit, all_over).await.is_err() {
            tracing::info!(what, "not everything ended in time; the rest is left to other workers");
        }
        if self.core.config.on_shutdown == OnShutdown::EndSessions
            && let Err(error) = self.core.sandboxes.reconcile().await
        {
            // Nobody may come after us to clear away what a worker before us left.
            tracing::warn!(%error, "leftovers could not be looked for");
        }
    }

    async fn register_anew(&self) -> Option<store::Lease> {
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return None,
                registered = self.core.store.register_worker(self.core.host_id) => match registered {
                    Ok(lease) => return Some(lease),
                    Err(error) => tracing::warn!(%error, "the worker could not be registered anew yet"),
                },
            }
            tokio::time::sleep(REGISTER_RETRY).await;
        }
    }
}
