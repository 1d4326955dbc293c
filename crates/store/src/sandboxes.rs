//! The ledger of sandboxes: a row before anything is made on a host, `removed` after everything is gone.

use std::time::Duration;

use domain::{HostId, SandboxId, SizeClass, WorkerId};

use crate::sessions::SessionFence;
use crate::{Result, Store};

/// A sandbox to be made.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// On which host.
    pub host_id: HostId,
    /// By which worker.
    pub worker_id: WorkerId,
    /// Its image.
    pub image: String,
    /// Its size class.
    pub size: Option<SizeClass>,
    /// Its container runtime.
    pub runtime: String,
    /// The workspace that it takes over: name, and uid that owns its files.
    pub workspace: Option<(String, u32)>,
}

/// A row that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedSandbox {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// Uid of its tools, unique among what lives on the host.
    pub tool_uid: u32,
    /// Its first ownership epoch.
    pub epoch: u64,
}

/// A row that is not removed.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSandbox {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// The container, once it was started.
    pub container_id: Option<String>,
    /// The workspace, once it was started.
    pub workspace: Option<String>,
    /// The session that it serves.
    pub session_id: Option<domain::SessionId>,
    /// Uid of its tools.
    pub tool_uid: u32,
    /// Its ownership epoch.
    pub epoch: u64,
    /// Which sandbox of its session it is.
    pub generation: u32,
    /// The worker that has it.
    pub worker_id: WorkerId,
    /// Nobody wants it any more: its session has ended or has another one, or it has none and its worker is gone.
    pub abandoned: bool,
    /// Time since the row was made.
    pub age: Duration,
}

/// Everything of a host that is wanted or not yet gone, in one snapshot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveSandboxes {
    /// Rows that are not removed.
    pub rows: Vec<LiveSandbox>,
    /// Workspaces that an open session still wants although its sandbox is gone.
    pub workspaces: Vec<String>,
}

impl Store {
    /// Commits a row in state `creating`.
    pub async fn reserve_sandbox(&self, new: &NewSandbox) -> Result<ReservedSandbox> {
        todo!()
    }

    /// The container runs and its agent is connected: the row becomes `warm`.
    pub async fn sandbox_started(
        &self,
        sandbox: SandboxId,
        container_id: &str,
        workspace: &str,
    ) -> Result<()> {
        todo!()
    }

    /// Gives a warm sandbox to a session, at a generation and with the session's epoch. [`crate::StoreError::Stale`] when
    /// the session is not the worker's, [`crate::StoreError::Conflict`] when the sandbox is not warm or the session has one.
    pub async fn claim_sandbox(
        &self,
        sandbox: SandboxId,
        fence: &SessionFence,
        generation: u32,
    ) -> Result<()> {
        todo!()
    }

    /// The sandbox is on its way out: it serves nobody, and its session may have another. Idempotent.
    pub async fn sandbox_removing(&self, sandbox: SandboxId) -> Result<()> {
        todo!()
    }

    /// Nothing of it is left on the host but perhaps its workspace. Idempotent.
    pub async fn sandbox_removed(&self, sandbox: SandboxId) -> Result<()> {
        todo!()
    }

    /// The sandbox that serves a session, and the workspace (with its uid) to take over when there is none.
    pub async fn sandbox_of_session(&self, session: domain::SessionId) -> Result<Option<LiveSandbox>> {
        todo!()
    }

    /// The newest workspace of a session, with the uid that owns its files, whether or not a sandbox lives.
    pub async fn workspace_of_session(&self, session: domain::SessionId) -> Result<Option<(String, u32)>> {
        todo!()
    }

    /// What of a host is wanted or not yet gone.
    pub async fn live_sandboxes(&self, host: HostId) -> Result<LiveSandboxes> {
        todo!()
    }
}
