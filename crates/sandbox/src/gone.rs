//! That a sandbox is gone: why, and what was seen. Typed evidence instead of a guess.

use domain::SessionEndReason;
use serde_json::{Map, Value};

/// Why a sandbox serves no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// The container was stopped or removed from outside.
    ContainerGone,
    /// The agent ended or stopped answering, and the container with it.
    AgentGone,
    /// The kernel killed the agent for want of memory.
    Oom,
}

impl GoneReason {
    /// The word for rows, metrics and evidence.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ContainerGone => "container_gone",
            Self::AgentGone => "agent_gone",
            Self::Oom => "oom",
        }
    }

    /// The same as the reason of a session's end.
    #[must_use]
    pub const fn session_end(self) -> SessionEndReason {
        match self {
            Self::ContainerGone => SessionEndReason::ContainerGone,
            Self::AgentGone => SessionEndReason::AgentGone,
            Self::Oom => SessionEndReason::Oom,
        }
    }
}

/// Why a sandbox is gone, with what was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Gone {
    /// Why.
    pub reason: GoneReason,
    /// What was seen: exit code, counters, what the engine said. Never a path of the host.
    pub evidence: Map<String, Value>,
}

impl Gone {
    pub(crate) fn because(reason: GoneReason) -> Self {
        Self { reason, evidence: Map::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.evidence.insert(name.to_owned(), value.into());
        self
    }
}
