//! A running service: API, worker or both in one process, with the metrics' listener beside them.
//!
//! # Design notes
//!
//! The API's socket is bound before anything else is started, so that a port that is taken is said at once and
//! leaves nothing behind. At the end the API and the worker stop side by side: requests that wait for calls get their answers while the worker drains.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use api::{ApiState, Ports, ReadinessCheck};
use domain::dispatch::{Dispatch, NoDispatch};
use prometheus::Registry;
use sandbox::Sandboxes;
use store::Store;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tools::Catalog;
use worker::{Worker, WorkerHandle};

use crate::config::Config;
use crate::{internal, wiring};

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
#[derive(Debug)]
pub struct Service {
    store: Store,
    worker: Option<WorkerHandle>,
    address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    listeners: Vec<JoinHandle<std::io::Result<()>>>,
    failed: CancellationToken,
}

impl Service {
    /// Starts it. It runs until `stop` is cancelled; then call [`Service::stopped`].
    ///
    /// # Errors
    /// When a port is taken, the database is not there or not up to date, or the worker does not start.
    pub async fn start(config: &Config, parts: Parts, stop: CancellationToken) -> Result<Self> {
        let registry = Registry::new();
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
        let store = wiring::store(config, &registry).await?;
        wiring::schema(config, &store).await?;
        let catalog = Arc::new(Catalog::standard());
        let worker = match parts {
            Parts::Api => None,
            Parts::Worker | Parts::ApiAndWorker => {
                let settings = wiring::worker_config(config, internal_address)?;
                let started =
                    Worker::start(settings, store.clone(), Arc::clone(&catalog), &registry, stop.clone())
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
            failed: CancellationToken::new(),
        };
        if let (Some(listener), Some(key), Some(worker)) =
            (internal_listener, config.internal.key.clone(), service.worker.clone())
        {
            tracing::info!(address = %listener.local_addr()?, "the internal listener listens");
            let here = Arc::new(internal::Here(Arc::new(worker)));
            service.listen(internal::serve(listener, key, here, stop.clone()));
        }
        if let Some(listener) = api_listener {
            let state = service.api_state(config, catalog, &registry, &stop)?;
            service.address = Some(listener.local_addr()?);
            tracing::info!(address = %listener.local_addr()?, "the API listens");
            let stop = stop.clone();
            service.listen(async move { api::serve(listener, state, stop).await });
        }
        if let Some(listener) = metrics_listener {
            service.metrics_address = Some(listener.local_addr()?);
            tracing::info!(address = %listener.local_addr()?, "metrics are served");
            let router = api::metrics_router(registry);
            service.listen(async move {
                axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
            });
        }
        Ok(service)
    }

    fn api_state(
        &self,
        config: &Config,
        catalog: Arc<Catalog>,
        registry: &Registry,
        stop: &CancellationToken,
    ) -> Result<ApiState> {
        let dispatch: Arc<dyn Dispatch> = match &self.worker {
            Some(worker) => worker.dispatch(),
            None => Arc::new(NoDispatch),
        };
        let remote = config.internal.key.clone().map(internal::Client::new);
        let exchange = Arc::new(internal::Exchanges { local: self.worker.clone(), remote });
        let ports = Ports { dispatch, exchange };
        let engine = self.worker.iter().map(|worker| {
            let sandboxes = worker.sandboxes().clone();
            ReadinessCheck::new("engine", move || {
                let sandboxes = sandboxes.clone();
                async move { sandboxes.engine_info().await.map(drop).map_err(|error| error.to_string()) }
            })
        });
        let checks: Vec<ReadinessCheck> = engine.collect();
        let settings = wiring::api_config(config)?;
        ApiState::new(self.store.clone(), catalog, ports, settings, registry, checks, stop.clone())
            .context("cannot start the API")
    }

    fn listen(&mut self, serving: impl Future<Output = std::io::Result<()>> + Send + 'static) {
        let failed = self.failed.clone();
        self.listeners.push(tokio::spawn(async move {
            let served = serving.await;
            if let Err(error) = &served {
                tracing::error!(%error, "a listener ended by itself");
                failed.cancel();
            }
            served
        }));
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
        let mut ended = Ok(());
        for listener in self.listeners {
            match listener.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => ended = Err(anyhow!(error).context("a listener failed")),
                Err(error) => ended = Err(anyhow!(error).context("a listener broke")),
            }
        }
        self.store.close().await;
        ended
    }
}

/// `toolhost serve` and `toolhost worker`: runs until it is asked to stop.
///
/// # Errors
/// When it does not start, or a part ends by itself.
pub async fn run(config: &Config, parts: Parts) -> Result<()> {
    let stop = crate::stop::on_signal()?;
    let service = Service::start(config, parts, stop.clone()).await?;
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
