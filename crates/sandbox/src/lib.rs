//! One sandbox per session: how containers are made, how their agents are asked, and how nothing is left behind.
//!
//! The way in is [`Sandboxes`]: `acquire` claims a warm sandbox or makes one, `adopt` takes one over from a
//! worker that died, `release` removes it. A [`Sandbox`] answers verbs through [`AgentClient`] and says through
//! [`Sandbox::gone`] when and why it serves no more. This room knows no tenants, no calls and no database: rows
//! go through the port [`Ledger`].

mod config;
mod driver;
mod error;
mod gone;
mod ledger;
mod link;
mod metrics;
mod sandbox;
mod sandboxes;

pub use config::{Config, PoolEntry, WorkspaceMode};
pub use driver::docker::DockerDriver;
pub use driver::{
    Container, ContainerEvent, ContainerEventKind, ContainerState, Driver, EngineInfo, Identity, Image,
    InvalidWorkspaceName, LinkKind, LinkPlace, ObservedContainer, ObservedWorkspace, RelayStream,
    SandboxSpec, Workspace, WorkspaceKind, WorkspaceName,
};
pub use error::{EngineError, LedgerError, LinkError, SandboxError};
pub use gone::{Gone, GoneReason};
pub use ledger::{Ledger, Live, LiveRow, Reserve, Reserved};
pub use link::{
    AgentClient, Dial, ExecEvent, ExecStream, FileContent, FileWatch, Link, Terms, Upload, WatchEvent,
};
pub use metrics::Metrics;
pub use sandbox::{Facts, Origin, Sandbox};
pub use sandboxes::{AcquireRequest, Action, Adoption, Observed, Sandboxes, WorkspaceFate, reconcile};

/// The wire's own types, which the verbs take and return.
pub use protocol;
