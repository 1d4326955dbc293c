//! Settings of a worker process. The server fills them from its configuration tree.

use std::time::Duration;

use domain::policy::Policy;

/// What a worker does.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Name of the installation, part of every container's name and labels.
    pub installation: String,
    /// Name of the host: the same for all workers on it and after a restart, or their sessions cannot be taken over.
    pub host: String,
    /// Where other processes reach this one's internal listener, `host:port`.
    pub internal_address: Option<String>,
    /// Calls that run at the same time in this process.
    pub slots: u32,
    /// Sessions that this process owns at the same time.
    pub sessions: u32,
    /// The installation's own policy, the outermost layer.
    pub policy: Policy,
    /// How long events, output and calls are kept.
    pub retention: store::Retention,
    /// Days that artifacts are kept; 0 for ever.
    pub artifacts_days: u32,
    /// What becomes of sessions when the process stops.
    pub on_shutdown: OnShutdown,
    /// What this host has for sessions.
    pub capacity: Capacity,
    /// How sandboxes are made.
    pub sandbox: sandbox::Config,
}

/// What a host has for sessions. What is not said is not counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Capacity {
    /// What there is.
    pub host: store::HostCapacity,
    /// The part of it, 0 to 1, that the warm pool may set aside.
    pub pool_share: f64,
}

/// What becomes of sessions when the process stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnShutdown {
    /// Their commands go on, and another worker of the host (or the next one to start) takes them over at once. Calls that run
    /// get this time to end before.
    HandOver {
        /// The time.
        drain: Duration,
    },
    /// They end, and their containers are removed. For machines that are used alone.
    EndSessions,
}
