//! A running service: API, worker or both in one process, with the metrics' listener beside them.
//!
//! # Design notes
//!
//! The API's socket is bound before anything else is started, so that a port that is taken is said at once and
//! leaves nothing behind. At the end the API and the worker stop side by side: requests that wait for calls get their answers while the worker drains.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use api::{ApiState, Ports, Readiness, ReadinessCheck};
use domain::dispatch::{Dispatch, NoDispatch};
use domain::trace::Traces;
use prometheus::Registry;
use sandbox::Sandboxes;
use store::Store;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tools::Catalog;
use worker::{Worker, WorkerHandle};

use crate::config::Config;
use crate::telemetry::Telemetry;
use crate::{certificates, internal, process_metrics, wiring};

/// What this process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// It serves the API.
    Api,
    /// It runs calls.
    Worker,
    /// Both: a submit then reaches its worker through memory.
    ApiAndWorker,
}

/// A running service.
pub struct Service {
    store: Store,
    worker: Option<WorkerHandle>,
    address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    listeners: Vec<JoinHandle<std::io::Result<()>>>,
    metrics_listener: Option<JoinHandle<std::io::Result<()>>>,
    failed: CancellationToken,
    traces: Arc<dyn Traces>,
    /// Spans on their way to the collector.
    shipping: Option<JoinHandle<()>>,
    /// Everything but metrics and traces has ended.
    ended: CancellationToken,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Service {
    /// Starts it. It runs until `stop` is cancelled; then call [`Service::stopped`].
    ///
    /// # Errors
    /// When a port is taken, the database is not there or not up to date, or the worker does not start.
    pub async fn start(
        config: &Config,
        parts: Parts,
        telemetry: &Telemetry,
        stop: CancellationToken,
    ) -> Result<Self> {
        let registry = Registry::new();
        process_metrics::register(&registry)?;
        telemetry.register(&registry)?;
        let traces = telemetry.traces();
        let ended = CancellationToken::new();
        let shipping = telemetry.ship(ended.clone());
        let api_listener = match parts {
            Parts::Api | Parts::ApiAndWorker => Some(bind(config.server.listen, "server.listen").await?),
            Parts::Worker => None,
        };
        let metrics_listener = match config.metrics.enabled {
            true => Some(bind(config.metrics.listen, "metrics.listen").await?),
            false => None,
        };
        let internal_listener = match (parts, config.internal.listen) {
            (Parts::Worker | Parts::ApiAndWorker, Some(address)) => {
                Some(bind(address, "internal.listen").await?)
            }
            (Parts::Api, _) | (_, None) => None,
        };
        let internal_address = match &internal_listener {
            Some(listener) => {
                let own = listener.local_addr()?.to_string();
                Some(config.internal.advertise.clone().unwrap_or(own))
            }
            None => None,
        };
        let store = wiring::service_store(config, &registry).await?;
        wiring::schema(config, &store).await?;
        let catalog = Arc::new(Catalog::standard());
        let worker = match parts {
            Parts::Api => None,
            Parts::Worker | Parts::ApiAndWorker => {
                let settings = wiring::worker_config(config, internal_address)?;
                let started = Worker::start(
                    settings,
                    store.clone(),
                    Arc::clone(&catalog),
                    &registry,
                    traces.clone(),
                    stop.clone(),
                )
                .await;
                let started = started.context("cannot start the worker")?;
                tracing::info!("the worker runs");
                Some(started)
            }
        };
        let mut service = Self {
            store,
            worker,
            address: None,
            metrics_address: None,
            listeners: Vec::new(),
            metrics_listener: None,
            failed: CancellationToken::new(),
            traces,
            shipping,
            ended,
        };
        if let (Some(listener), Some(key), Some(worker)) =
            (internal_listener, config.internal.key.clone(), service.worker.clone())
        {
            tracing::info!(address = %listener.local_addr()?, "the internal listener listens");
            let here = Arc::new(internal::Here(Arc::new(worker)));
            let tls = certificates::keep_internal(&config.internal, &stop)?;
            let serving = service.listen(internal::serve(listener, key, tls, here, stop.clone()));
            service.listeners.push(serving);
        }
        let readiness = service.readiness(config, &stop);
        if let Some(listener) = api_listener {
            let state = service.api_state(config, catalog, &registry, &readiness, &stop)?;
            service.address = Some(listener.local_addr()?);
            tracing::info!(address = %listener.local_addr()?, "the API listens");
            let stop = stop.clone();
            let serving = service.listen(async move { api::serve(listener, state, stop).await });
            service.listeners.push(serving);
        }
        if let Some(listener) = metrics_listener {
            service.metrics_address = Some(listener.local_addr()?);
            tracing::info!(address = %listener.local_addr()?, "metrics are served");
            let router = api::metrics_router(registry, readiness);
            // Served to the end of the drain: that is when somebody wants to know.
            let ended = service.ended.clone();
            let serving = service.listen(api::serve_metrics(listener, router, ended));
            service.metrics_listener = Some(serving);
        }
        Ok(service)
    }

    fn api_state(
        &self,
        config: &Config,
        catalog: Arc<Catalog>,
        registry: &Registry,
        readiness: &Readiness,
        stop: &CancellationToken,
    ) -> Result<ApiState> {
        let dispatch: Arc<dyn Dispatch> = match &self.worker {
            Some(worker) => worker.dispatch(),
            None => Arc::new(NoDispatch),
        };
        let trust = certificates::internal_trust(&config.internal)?;
        let remote = config.internal.key.clone().map(|key| internal::Client::new(key, trust));
        let exchange = Arc::new(internal::Exchanges { local: self.worker.clone(), remote });
        let ports = Ports { dispatch, exchange, traces: Arc::clone(&self.traces) };
        let mut settings = wiring::api_config(config)?;
        settings.tls = certificates::keep(&config.tls, stop)?;
        let (store, readiness) = (self.store.clone(), readiness.clone());
        ApiState::new(store, catalog, ports, settings, registry, readiness, stop.clone())
            .context("cannot start the API")
    }

    /// What has to work: with a worker, the engine and the default image too.
    fn readiness(&self, config: &Config, stop: &CancellationToken) -> Readiness {
        let mut checks = Vec::new();
        if let Some(worker) = &self.worker {
            let (of_engine, of_image) = (worker.sandboxes().clone(), worker.sandboxes().clone());
            checks.push(ReadinessCheck::new("engine", move || {
                let sandboxes = of_engine.clone();
                async move { sandboxes.ping_engine().await.map_err(|error| error.to_string()) }
            }));
            let image = config.sandbox.image.clone();
            checks.push(ReadinessCheck::new("image", move || {
                let (sandboxes, image) = (of_image.clone(), image.clone());
                async move { sandboxes.has_image(&image).await.map_err(|error| error.to_string()) }
            }));
        }
        Readiness::new(&self.store, checks, stop.clone())
    }

    fn listen(
        &self,
        serving: impl Future<Output = std::io::Result<()>> + Send + 'static,
    ) -> JoinHandle<std::io::Result<()>> {
        let failed = self.failed.clone();
        tokio::spawn(async move {
            let served = serving.await;
            if let Err(error) = &served {
                tracing::error!(%error, "a listener ended by itself");
                failed.cancel();
            }
            served
        })
    }

    /// Where the API is.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Where metrics are.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The sandboxes of the worker in this process.
    #[must_use]
    pub fn sandboxes(&self) -> Option<Sandboxes> {
        self.worker.as_ref().map(|worker| worker.sandboxes().clone())
    }

    /// The database.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns when a part has ended by itself.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Waits until everything has ended, after its `stop` was cancelled.
    ///
    /// # Errors
    /// When a part ended with an error.
    pub async fn stopped(self) -> Result<()> {
        if let Some(worker) = self.worker {
            worker.stopped().await;
        }
        let mut outcome = Ok(());
        for listener in self.listeners {
            outcome = ended(listener).await.and(outcome);
        }
        self.ended.cancel();
        if let Some(listener) = self.metrics_listener {
            outcome = ended(listener).await.and(outcome);
        }
        if let Some(shipping) = self.shipping {
            let _ = shipping.await;
        }
        self.store.close().await;
        outcome
    }
}

/// `toolhost serve` and `toolhost worker`: runs until it is asked to stop.
///
/// # Errors
/// When it does not start, or a part ends by itself.
pub async fn run(config: &Config, parts: Parts, telemetry: &Telemetry) -> Result<()> {
    let stop = crate::stop::on_signal()?;
    let service = Service::start(config, parts, telemetry, stop.clone()).await?;
    let failed = tokio::select! {
        () = stop.cancelled() => false,
        () = service.failed() => true,
    };
    tracing::info!(failed, "stopping");
    stop.cancel();
    service.stopped().await?;
    tracing::info!("stopped");
    Ok(())
}

/// How a listener ended.
async fn ended(listener: JoinHandle<std::io::Result<()>>) -> Result<()> {
    match listener.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(anyhow!(error).context("a listener failed")),
        Err(error) => Err(anyhow!(error).context("a listener broke")),
    }
}

async fn bind(address: SocketAddr, setting: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow!(
            "{address} is in use (hint: stop what listens there, or choose another address with {setting})"
        ),
        std::io::ErrorKind::PermissionDenied => {
            anyhow!(
                "{address} may not be listened on (hint: ports below 1024 need a privilege; see {setting})"
            )
        }
        _ => anyhow!(error).context(format!("cannot listen on {address} ({setting})")),
    })
}
