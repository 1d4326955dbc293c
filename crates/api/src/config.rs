//! What an installation decides about its API. The binary fills this from its own configuration tree.

use std::sync::Arc;
use std::time::Duration;

use domain::limits;
use domain::policy::Policy;

use crate::http::TrustedProxy;
use crate::jwt::IssuerConfig;
use crate::tls::Tls;

/// How often what goes on is judged anew.
pub(crate) const RECHECK: Duration = Duration::from_secs(2);

/// Settings of the API.
#[derive(Clone)]
pub struct ApiConfig {
    /// Signs stream URLs and list cursors. At least 32 bytes, the same in every process of an installation.
    pub signing_key: Vec<u8>,
    /// The installation's layer of policy.
    pub policy: Policy,
    /// Image of sessions that ask for none.
    pub default_image: String,
    /// Images that sessions may ask for, beside the default: names, or prefixes that end in `*`.
    pub images: Vec<String>,
    /// Container runtime of sessions that ask for none.
    pub runtime: String,
    /// Runtimes that sessions may ask for, beside the default.
    pub runtimes: Vec<String>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// Issuers whose tokens are taken.
    pub issuers: Vec<IssuerConfig>,
    /// Wrong credentials that one address may present in a minute.
    pub failed_auth_per_minute: u32,
    /// Requests that this process handles at the same time, those that wait for a call's end included.
    pub requests: usize,
    /// Open connections of this process.
    pub connections: usize,
    /// Time for a request's headers to arrive.
    pub header_timeout: Duration,
    /// Time for a request's body to arrive.
    pub body_timeout: Duration,
    /// Time for a request to be answered, beside what it asked to wait.
    pub answer_timeout: Duration,
    /// The certificate of the listener; plain HTTP without one.
    pub tls: Option<Arc<Tls>>,
    /// Time at shutdown in which new connections are still taken, while readiness says no.
    pub linger: Duration,
    /// Time that open requests and streams get at shutdown.
    pub drain: Duration,
    /// Event streams.
    pub streams: StreamConfig,
}

/// Settings of event streams. The defaults are the contract's; tests shorten them.
#[derive(Debug, Clone)]
pub struct StreamConfig {
    /// Open streams of one tenant in this process.
    pub per_tenant: u32,
    /// Open streams of this process.
    pub total: u32,
    /// Comment when nothing else was sent.
    pub heartbeat: Duration,
    /// `bookmark` event.
    pub bookmark: Duration,
    /// Without progress for so long, a slow reader is closed.
    pub stall: Duration,
    /// How often the stream's credential is looked at again.
    pub recheck: Duration,
    /// Least time between two `queue` events.
    pub queue: Duration,
    /// Bytes that wait for one reader.
    pub buffer_bytes: usize,
}

impl Default for ApiConfig {
    /// Everything but `signing_key`, which is empty and refused by [`crate::ApiState::new`].
    fn default() -> Self {
        Self {
            signing_key: Vec::new(),
            policy: Policy::default(),
            default_image: "toolhost/sandbox:latest".to_owned(),
            images: vec!["*".to_owned()],
            runtime: "runc".to_owned(),
            runtimes: Vec::new(),
            trusted_proxies: Vec::new(),
            issuers: Vec::new(),
            failed_auth_per_minute: limits::FAILED_AUTH_PER_MINUTE,
            requests: 4_096,
            connections: 16_384,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(30),
            tls: None,
            linger: Duration::ZERO,
            drain: Duration::from_secs(10),
            streams: StreamConfig::default(),
        }
    }
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            per_tenant: limits::SSE_STREAMS_PER_TENANT,
            total: limits::SSE_STREAMS,
            heartbeat: Duration::from_secs(limits::SSE_HEARTBEAT_S),
            bookmark: Duration::from_secs(limits::SSE_BOOKMARK_S),
            stall: Duration::from_secs(limits::SSE_STALL_S),
            recheck: RECHECK,
            queue: Duration::from_secs(1),
            buffer_bytes: limits::SSE_BUFFER_BYTES,
        }
    }
}

impl std::fmt::Debug for ApiConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiConfig")
            .field("default_image", &self.default_image)
            .field("images", &self.images)
            .field("runtime", &self.runtime)
            .field("runtimes", &self.runtimes)
            .field("requests", &self.requests)
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}
