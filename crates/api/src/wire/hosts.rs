//! A host on the wire.

use serde::{Deserialize, Serialize};
use store::{Host, HostShare};
use utoipa::ToSchema;

use super::Time;
use crate::json::Checks;

/// Whether a host takes sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostSchedule {
    /// It does.
    Open,
    /// No new ones; what runs goes on.
    Cordoned,
    /// No new ones; what runs ends by itself or at a deadline.
    Draining,
}

impl From<store::HostSchedule> for HostSchedule {
    fn from(schedule: store::HostSchedule) -> Self {
        match schedule {
            store::HostSchedule::Open => Self::Open,
            store::HostSchedule::Cordoned => Self::Cordoned,
            store::HostSchedule::Draining => Self::Draining,
        }
    }
}

/// Whether a host's container engine makes sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostEngine {
    /// It does.
    Works,
    /// It does not answer, or is refused as unsafe (`sandbox.allow_known_bad`): no new sessions; what runs goes on.
    Down,
}

impl From<store::EngineState> for HostEngine {
    fn from(state: store::EngineState) -> Self {
        match state {
            store::EngineState::Works => Self::Works,
            store::EngineState::Down => Self::Down,
        }
    }
}

/// What a host has for sessions. Null is not counted.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct HostCapacity {
    /// CPUs, times the factor by which they are overcommitted.
    pub cpus: Option<f64>,
    /// Memory, in MiB.
    pub memory_mb: Option<u64>,
    /// Room for workspaces, in MiB.
    pub disk_mb: Option<u64>,
    /// Sandboxes.
    pub sandboxes: Option<u32>,
}

/// A part of what a host has.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct HostUse {
    /// CPUs.
    pub cpus: f64,
    /// Memory, in MiB.
    pub memory_mb: u64,
    /// Room for workspaces, in MiB.
    pub disk_mb: u64,
    /// Sandboxes.
    pub sandboxes: u32,
}

impl From<HostShare> for HostUse {
    fn from(share: HostShare) -> Self {
        Self {
            cpus: share.cpus,
            memory_mb: share.memory_mb,
            disk_mb: share.disk_mb,
            sandboxes: share.sandboxes,
        }
    }
}

/// A machine with a container engine.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Host)]
pub struct HostView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: domain::HostId,
    /// Always `host`.
    #[schema(pattern = "^host$")]
    pub object: &'static str,
    /// Its name.
    pub name: String,
    /// Whether it takes sessions.
    pub schedule: HostSchedule,
    /// When sessions that still run on a draining host are ended; null when they are not.
    pub drain_by_at: Option<Time>,
    /// Workers of it that are alive and take sessions. Without any it takes none.
    pub workers: u64,
    /// Whether its container engine makes sandboxes, to within some seconds; null without a worker.
    pub engine: Option<HostEngine>,
    /// When a worker of it was last heard of, to within some seconds.
    pub last_seen_at: Time,
    /// What it has.
    pub capacity: HostCapacity,
    /// What its open sessions may use at most.
    pub sessions: HostUse,
    /// What is set aside for warm pools.
    pub pool: HostUse,
}

impl From<Host> for HostView {
    fn from(host: Host) -> Self {
        Self {
            id: host.id,
            object: "host",
            name: host.name,
            schedule: host.schedule.into(),
            drain_by_at: host.drain_by.map(Time::from),
            workers: host.workers,
            engine: host.engine.map(HostEngine::from),
            last_seen_at: host.last_seen_at.into(),
            capacity: HostCapacity {
                cpus: host.capacity.cpus,
                memory_mb: host.capacity.memory_mb,
                disk_mb: host.capacity.disk_mb,
                sandboxes: host.capacity.sandboxes,
            },
            sessions: host.used.into(),
            pool: host.pool.into(),
        }
    }
}

/// How a host is drained.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"within_s": 600})))]
pub struct DrainHost {
    /// Seconds until sessions that are left are ended (`host_drained`). When left out they end by themselves.
    #[schema(maximum = 604_800)]
    pub within_s: Option<u32>,
}

impl DrainHost {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.range("/within_s", self.within_s, 0..=604_800);
    }
}
