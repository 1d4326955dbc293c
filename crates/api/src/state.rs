//! What every request shares.

use std::fmt;
use std::sync::Arc;

use domain::dispatch::Dispatch;
use domain::limits;
use domain::trace::Traces;
use store::Store;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tools::Catalog;

use crate::config::ApiConfig;
use crate::exchange::Exchange;
use crate::health::Readiness;
use crate::http::UnderWay;
use crate::jwt::{IssuerError, Issuers};
use crate::metrics::Metrics;
use crate::service::quotas::CpuToday;
use crate::service::rates::Rates;
use crate::service::sessions::PolicyCache;
use crate::signature::Signer;
use crate::sse::Streams;
use crate::transfers::Transfers;

/// What every request shares. Cheap to clone.
#[derive(Clone)]
pub struct ApiState {
    pub(crate) inner: Arc<Inner>,
}

/// What an [`ApiState`] points to. Opaque outside this room.
pub struct Inner {
    pub(crate) store: Store,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) ports: Ports,
    pub(crate) config: ApiConfig,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
    pub(crate) shutdown: CancellationToken,
    pub(crate) signer: Signer,
    pub(crate) issuers: Issuers,
    pub(crate) streams: Streams,
    pub(crate) transfers: Transfers,
    pub(crate) under_way: UnderWay,
    pub(crate) exports: Arc<Semaphore>,
    pub(crate) rates: Rates,
    pub(crate) policies: PolicyCache,
    pub(crate) cpu_today: CpuToday,
    pub(crate) document: bytes::Bytes,
}

impl std::ops::Deref for ApiState {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// The ways from here to workers, which the server wires.
#[derive(Clone)]
pub struct Ports {
    /// To the worker in this process, for admission.
    pub dispatch: Arc<dyn Dispatch>,
    /// To the workers of sessions, for bytes.
    pub exchange: Arc<dyn Exchange>,
    /// To whoever records traces.
    pub traces: Arc<dyn Traces>,
}

/// Why there is no API.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The signing key is too short to sign with.
    #[error("the signing key of stream URLs must have at least 32 bytes")]
    SigningKey,
    /// An issuer of tokens cannot be trusted as it is configured.
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    /// A metric of the same name is registered already.
    #[error("metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// An operation declares no scope and is not public.
    #[error("{operation} declares no scope and is not on the list of public operations")]
    Undeclared {
        /// Method and path.
        operation: String,
    },
}

impl ApiState {
    /// Puts everything together.
    ///
    /// `shutdown` is the token that [`crate::serve`] gets too: when it is cancelled, event streams say `reconnect` and end.
    ///
    /// # Errors
    /// When the signing key is too short, or the registry has these metrics already.
    pub fn new(
        store: Store,
        catalog: Arc<Catalog>,
        ports: Ports,
        config: ApiConfig,
        registry: &prometheus::Registry,
        readiness: Readiness,
        shutdown: CancellationToken,
    ) -> Result<Self, ApiError> {
        if config.signing_key.len() < 32 {
            return Err(ApiError::SigningKey);
        }
        let metrics = Metrics::register(registry)?;
        metrics.show_tools(&catalog);
        let inner = Inner {
            signer: Signer::new(&config.signing_key),
            issuers: Issuers::new(&config.issuers)?,
            streams: Streams::new(&config.streams, &metrics),
            transfers: Transfers::default(),
            under_way: UnderWay::new(config.requests),
            exports: Arc::new(Semaphore::new(limits::EXPORTS)),
            document: crate::openapi::document(&catalog).into(),
            rates: Rates::default(),
            policies: PolicyCache::default(),
            cpu_today: CpuToday::default(),
            store,
            catalog,
            ports,
            config,
            metrics,
            readiness,
            shutdown,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl fmt::Debug for ApiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiState").field("config", &self.config).finish_non_exhaustive()
    }
}
