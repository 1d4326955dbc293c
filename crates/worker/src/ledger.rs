//! The sandbox room's rows, kept in the store under this process's present worker id.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use domain::{HostId, SandboxId, WorkerId};
use sandbox::{Ledger, LedgerError, Live, LiveRow, Reserve, Reserved, WorkspaceName};
use store::{NewSandbox, Store};

/// The id under which this process holds its lease. It changes when a lease is lost and taken anew.
#[derive(Debug, Clone)]
pub(crate) struct PresentWorker(Arc<Mutex<WorkerId>>);

impl PresentWorker {
    pub(crate) fn new(worker_id: WorkerId) -> Self {
        Self(Arc::new(Mutex::new(worker_id)))
    }

    pub(crate) fn get(&self) -> WorkerId {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, worker_id: WorkerId) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = worker_id;
    }
}

/// [`Ledger`] over the store.
#[derive(Debug)]
pub(crate) struct StoreLedger {
    pub(crate) store: Store,
    pub(crate) host_id: HostId,
    pub(crate) worker: PresentWorker,
}

#[async_trait]
impl Ledger for StoreLedger {
    async fn reserve(&self, request: &Reserve) -> Result<Reserved, LedgerError> {
        let new = NewSandbox {
            host_id: self.host_id,
            worker_id: self.worker.get(),
            image: request.image.clone(),
            size: request.size,
            runtime: request.runtime.clone(),
            workspace: request
                .workspace
                .as_ref()
                .map(|workspace| (workspace.name.as_str().to_owned(), workspace.tool_uid)),
        };
        let row = self.store.reserve_sandbox(&new).await.map_err(LedgerError::new)?;
        Ok(Reserved { sandbox_id: row.sandbox_id, tool_uid: row.tool_uid, epoch: row.epoch })
    }

    async fn started(
        &self,
        sandbox_id: SandboxId,
        container_id: &str,
        workspace: &WorkspaceName,
    ) -> Result<(), LedgerError> {
        self.store
            .sandbox_started(sandbox_id, container_id, workspace.as_str())
            .await
            .map_err(LedgerError::new)
    }

    async fn removed(&self, sandbox_id: SandboxId) -> Result<(), LedgerError> {
        self.store.sandbox_removed(sandbox_id).await.map_err(LedgerError::new)
    }

    async fn live(&self) -> Result<Live, LedgerError> {
        let live = self.store.live_sandboxes(self.host_id).await.map_err(LedgerError::new)?;
        let name = |name: String| WorkspaceName::try_from(name).map_err(LedgerError::new);
        let rows = live
            .rows
            .into_iter()
            .map(|row| {
                Ok(LiveRow {
                    sandbox_id: row.sandbox_id,
                    container_id: row.container_id,
                    workspace: row.workspace.map(name).transpose()?,
                    abandoned: row.abandoned,
                    age: row.age,
                })
            })
            .collect::<Result<_, LedgerError>>()?;
        let workspaces = live.workspaces.into_iter().map(name).collect::<Result<_, _>>()?;
        Ok(Live { rows, workspaces, restored_at: live.restored_at.map(SystemTime::from) })
    }
}
