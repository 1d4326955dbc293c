//! The configuration tree: every setting of an installation, typed, with its default.
//!
//! What a key means is written once, in [`mod@reference`]; this module holds the shapes. Nothing here reads files or
//! the environment, that is [`load`].

mod jwt;
pub mod load;
pub mod reference;
mod secret;

use std::net::SocketAddr;

use domain::limits;
use domain::policy::Policy;
use serde::{Deserialize, Serialize};

pub use jwt::{JwtAlgorithm, JwtConfig, JwtIssuer, JwtKey};
pub use secret::Secret;

/// The whole tree.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The HTTP API.
    pub server: ServerConfig,
    /// TLS of the HTTP API.
    pub tls: TlsConfig,
    /// Metrics and health of the process.
    pub metrics: MetricsConfig,
    /// The way of bytes between processes.
    pub internal: InternalConfig,
    /// Postgres.
    pub database: DatabaseConfig,
    /// API keys.
    pub keys: KeysConfig,
    /// Tokens of issuers.
    pub jwt: JwtConfig,
    /// Signed stream URLs.
    pub stream_url: StreamUrlConfig,
    /// The audit trail.
    pub audit: AuditConfig,
    /// What a worker process does.
    pub worker: WorkerConfig,
    /// What this host has for sessions.
    pub capacity: CapacityConfig,
    /// How sandboxes are made.
    pub sandbox: sandbox::Config,
    /// The installation's layer of policy.
    pub policy: Policy,
    /// Files kept beyond sandboxes.
    pub artifacts: ArtifactsConfig,
    /// How long things are kept.
    pub retention: RetentionConfig,
    /// What the process says.
    pub log: LogConfig,
    /// Traces.
    pub telemetry: TelemetryConfig,
}

/// The HTTP API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Requests that this process handles at the same time.
    pub requests: usize,
    /// Open connections of this process.
    pub connections: usize,
    /// Time for a request's headers to arrive, in milliseconds.
    pub header_timeout_ms: u64,
    /// Time for a request's body to arrive, in milliseconds.
    pub body_timeout_ms: u64,
    /// Time for a request to be answered, beside what it asked to wait, in milliseconds.
    pub answer_timeout_ms: u64,
    /// Wrong credentials that one address may present in a minute.
    pub failed_auth_per_minute: u32,
    /// Event streams of one tenant in this process.
    pub streams_per_tenant: u32,
    /// Event streams of this process.
    pub streams: u32,
    /// Images that sessions may name.
    pub images: Vec<String>,
    /// Time at shutdown in which new connections are still taken, in milliseconds.
    pub linger_ms: u64,
    /// Time that open requests and streams get at shutdown, in milliseconds.
    pub drain_ms: u64,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<api::TrustedProxy>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            requests: 4_096,
            connections: 16_384,
            header_timeout_ms: 10_000,
            body_timeout_ms: 30_000,
            answer_timeout_ms: 30_000,
            failed_auth_per_minute: limits::FAILED_AUTH_PER_MINUTE,
            streams_per_tenant: limits::SSE_STREAMS_PER_TENANT,
            streams: limits::SSE_STREAMS,
            images: vec!["*".to_owned()],
            linger_ms: 0,
            drain_ms: 10_000,
            trusted_proxies: Vec::new(),
        }
    }
}

/// TLS of the HTTP API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// File with the certificate chain, PEM.
    pub certificate: Option<std::path::PathBuf>,
    /// File with its key, PEM.
    pub key: Option<std::path::PathBuf>,
}

/// Metrics and health of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Whether there is such a listener.
    pub enabled: bool,
    /// Where it listens.
    pub listen: SocketAddr,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { enabled: true, listen: SocketAddr::from(([127, 0, 0, 1], 9090)) }
    }
}

/// The way of bytes between processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InternalConfig {
    /// Where a process with a worker listens.
    pub listen: Option<SocketAddr>,
    /// Where others reach that listener, `host:port`.
    pub advertise: Option<String>,
    /// The secret that processes show each other.
    pub key: Option<Secret>,
    /// File with the certificate that this process shows to others, PEM.
    pub tls_certificate: Option<std::path::PathBuf>,
    /// File with its key, PEM.
    pub tls_key: Option<std::path::PathBuf>,
    /// File with the CA that all processes' certificates are of, PEM.
    pub tls_ca: Option<std::path::PathBuf>,
}

/// Postgres.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatabaseConfig {
    /// Its URL, or that of a pooler before it.
    pub url: Option<Secret>,
    /// Its own URL, when the other is a pooler's.
    pub direct_url: Option<Secret>,
    /// Most connections of this process.
    pub max_connections: u32,
    /// Longest wait for a connection, and for an answer, in milliseconds.
    pub timeout_ms: u64,
    /// Whether `serve` and `worker` bring the schema up to date when they start.
    pub migrate: bool,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self { url: None, direct_url: None, max_connections: 16, timeout_ms: 4_000, migrate: false }
    }
}

/// API keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeysConfig {
    /// The secret under which keys are hashed.
    pub pepper: Option<Secret>,
}

/// Signed stream URLs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamUrlConfig {
    /// The secret that signs them.
    pub signing_key: Option<Secret>,
}

/// Files kept beyond sandboxes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArtifactsConfig {
    /// A folder, or a bucket as `s3://bucket/prefix`.
    pub store: String,
    /// Region of the bucket.
    pub s3_region: Option<String>,
    /// Address of the service that has the bucket.
    pub s3_endpoint: Option<String>,
    /// Access key of the bucket.
    pub s3_access_key_id: Option<String>,
    /// Its secret.
    pub s3_secret_access_key: Option<Secret>,
}

impl Default for ArtifactsConfig {
    fn default() -> Self {
        Self {
            store: "/var/lib/toolhost/artifacts".to_owned(),
            s3_region: None,
            s3_endpoint: None,
            s3_access_key_id: None,
            s3_secret_access_key: None,
        }
    }
}

/// The audit trail.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// The secret that signs the heads of its chains.
    pub signing_key: Option<Secret>,
    /// The secret that signed them before.
    pub previous_signing_key: Option<Secret>,
}

/// What a worker process does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// Name of the installation, part of every container's name and labels.
    pub installation: String,
    /// Name of the host.
    pub host: Option<String>,
    /// Calls that run at the same time in this process.
    pub slots: u32,
    /// Sessions that this process owns at the same time.
    pub sessions: u32,
    /// Time that running calls get at shutdown, in milliseconds.
    pub drain_ms: u64,
    /// Whether sessions are ended when the process is stopped.
    pub end_sessions_at_exit: bool,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            installation: "toolhost".to_owned(),
            host: None,
            slots: 64,
            sessions: 200,
            drain_ms: 30_000,
            end_sessions_at_exit: false,
        }
    }
}

/// What this host has for sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapacityConfig {
    /// CPUs.
    pub cpus: Option<f64>,
    /// How often each CPU is promised.
    pub cpu_overcommit: f64,
    /// Memory, in MiB.
    pub memory_mb: Option<u64>,
    /// Room for workspaces, in MiB.
    pub disk_mb: Option<u64>,
    /// Sandboxes.
    pub sandboxes: Option<u32>,
    /// The part of it that the warm pool may set aside.
    pub pool_share: f64,
}

impl Default for CapacityConfig {
    fn default() -> Self {
        Self {
            cpus: None,
            cpu_overcommit: 8.0,
            memory_mb: None,
            disk_mb: None,
            sandboxes: None,
            pool_share: 0.25,
        }
    }
}

/// How long things are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// Output of calls and shells, in days.
    pub output_days: u32,
    /// Events of calls, in days.
    pub events_days: u32,
    /// Calls and their results, in days.
    pub calls_days: u32,
    /// Days that artifacts are kept; 0 for ever.
    pub artifacts_days: u32,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self { output_days: 7, events_days: 7, calls_days: 30, artifacts_days: 90 }
    }
}

/// What the process says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Lines for people or for machines.
    pub format: LogFormat,
    /// What is logged.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, filter: "info".to_owned() }
    }
}

/// Traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Where the collector is.
    pub otlp_endpoint: Option<String>,
    /// File with whom to trust there, PEM.
    pub otlp_ca: Option<std::path::PathBuf>,
    /// The part of the traces that begin here which is recorded.
    pub sampling_ratio: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self { otlp_endpoint: None, otlp_ca: None, sampling_ratio: 1.0 }
    }
}

/// Lines for people or for machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people on a terminal, else JSON.
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}
