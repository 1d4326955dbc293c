//! The port to the rows of sandboxes, which `worker` implements over the store.
//!
//! # Design notes
//!
//! *Row before container.* A row is committed by [`Ledger::reserve`] before anything is made on the host and
//! marked by [`Ledger::removed`] after everything is gone. So whatever is found on the host without a live row
//! is an orphan, provided that the rows are read *after* the host was looked at; the reaper relies on it.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use domain::{Resources, SandboxId, SizeClass};

use crate::{LedgerError, Workspace, WorkspaceName};

/// What a sandbox will be, before it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Reserve {
    /// Its image.
    pub image: String,
    /// Its size class, unless the resources are its own.
    pub size: Option<SizeClass>,
    /// What it may use.
    pub resources: Resources,
    /// Its container runtime.
    pub runtime: String,
    /// The workspace that it takes over from an earlier sandbox. The row must then get that workspace's uid (as
    /// the files belong to it), which is free because the earlier sandbox is gone; a uid is not given to
    /// others while a workspace of it exists.
    pub workspace: Option<Workspace>,
}

/// A row that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// Uid (and gid) of its tools, unique among the live sandboxes of the host.
    pub tool_uid: u32,
    /// First ownership epoch.
    pub epoch: u64,
}

/// A row that is not `removed`, as the reaper sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveRow {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// The container, once [`Ledger::started`] said so.
    pub container_id: Option<String>,
    /// The workspace, once [`Ledger::started`] said so.
    pub workspace: Option<WorkspaceName>,
    /// Nobody wants it any more: it has no session and the worker that made it is gone (or it was being made or
    /// removed by a worker that is gone). The reaper removes it with its workspace.
    pub abandoned: bool,
    /// Time since the row was made, on the database's clock.
    pub age: Duration,
}

/// Everything of this host that is wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Live {
    /// Rows that are not `removed`.
    pub rows: Vec<LiveRow>,
    /// Workspaces that a session still wants although its sandbox is gone.
    pub workspaces: Vec<WorkspaceName>,
    /// The rows are those of a restored backup: what was made before this time and has no row may serve a session that the backup does
    /// not know, and is left alone.
    pub restored_at: Option<SystemTime>,
}

/// The rows of sandboxes of one host.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Commits a row in state `creating` for this worker. Refused when the worker has lost its lease: what follows
    /// removes other containers over the same workspace.
    async fn reserve(&self, request: &Reserve) -> Result<Reserved, LedgerError>;

    /// The container runs and its agent is connected; the row becomes `warm` (claiming it for a session is the
    /// worker's own statement).
    async fn started(
        &self,
        sandbox_id: SandboxId,
        container_id: &str,
        workspace: &WorkspaceName,
    ) -> Result<(), LedgerError>;

    /// Nothing of the sandbox is left on the host (its workspace may be): the row becomes `removed` and its
    /// uid free. Idempotent.
    async fn removed(&self, sandbox_id: SandboxId) -> Result<(), LedgerError>;

    /// What of this host is wanted, read in one snapshot.
    async fn live(&self) -> Result<Live, LedgerError>;
}
