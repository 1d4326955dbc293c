//! What a session remembers of its files, for a tool: kept by the store under the session's fence.

use async_trait::async_trait;
use bytes::Bytes;
use store::{FileBefore, SeenFile};
use tools::ToolError;
use tools::port::{Before, KnownFile, Records, SandboxPath, Undoable};

use super::{CallPorts, context_of};
use crate::tenure::Unwritten;

/// The path as tools show it, which is the name that a file has in the rows.
fn name(path: &SandboxPath) -> String {
    if path.relative.is_empty() { path.root.to_owned() } else { format!("{}/{}", path.root, path.relative) }
}

fn seen(known: KnownFile) -> SeenFile {
    SeenFile { sha256: known.sha256, size_bytes: known.size_bytes, modified_ms: known.modified_ms }
}

fn before(before: FileBefore) -> Before {
    match before {
        FileBefore::Absent => Before::Absent,
        FileBefore::NotKept => Before::NotKept,
        FileBefore::Content { bytes, sha256, permissions } => {
            Before::Content { bytes: Bytes::from(bytes), sha256, permissions }
        }
    }
}

impl CallPorts {
    async fn recorded<T, F>(&self, record: impl FnMut() -> F) -> Result<T, ToolError>
    where
        F: Future<Output = store::Result<T>>,
    {
        let written: Result<T, Unwritten> = self.facts.tenure.write(record).await;
        written.map_err(|unwritten| self.unwritten(unwritten))
    }
}

#[async_trait]
impl Records for CallPorts {
    async fn known_file(&self, path: &SandboxPath) -> Result<Option<KnownFile>, ToolError> {
        let (facts, name) = (&self.facts, name(path));
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let seen = self.recorded(|| store.seen_file(&context, facts.call.session_id, &name)).await?;
        Ok(seen.map(|seen| KnownFile {
            sha256: seen.sha256,
            size_bytes: seen.size_bytes,
            modified_ms: seen.modified_ms,
        }))
    }

    async fn remember_file(&self, path: &SandboxPath, known: KnownFile) -> Result<(), ToolError> {
        let (facts, name, seen) = (&self.facts, name(path), seen(known));
        self.recorded(|| facts.tenure.store().see_file(&facts.session.fence, &name, &seen)).await
    }

    async fn forget_files(&self, path: &SandboxPath) -> Result<(), ToolError> {
        let (facts, name) = (&self.facts, name(path));
        self.recorded(|| facts.tenure.store().forget_files(&facts.session.fence, &name)).await
    }

    async fn planned_change(&self, path: &SandboxPath) -> Result<Option<Before>, ToolError> {
        // Only a call that somebody has run before can have a plan.
        if !self.is_run_again() {
            return Ok(None);
        }
        let (facts, name) = (&self.facts, name(path));
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let planned = self.recorded(|| store.planned_change(&context, facts.call.id, &name)).await?;
        Ok(planned.map(before))
    }

    async fn plan_change(&self, path: &SandboxPath, before: Before) -> Result<(), ToolError> {
        let (facts, name) = (&self.facts, name(path));
        let before = match before {
            Before::Absent => FileBefore::Absent,
            Before::NotKept => FileBefore::NotKept,
            Before::Content { bytes, sha256, permissions } => {
                FileBefore::Content { bytes: bytes.to_vec(), sha256, permissions }
            }
        };
        let store = facts.tenure.store();
        self.recorded(|| store.plan_change(&facts.session.fence, facts.call.id, &name, &before)).await
    }

    async fn change_made(&self, path: &SandboxPath, after: KnownFile) -> Result<(), ToolError> {
        let (facts, name, after) = (&self.facts, name(path), seen(after));
        let store = facts.tenure.store();
        self.recorded(|| store.change_made(&facts.session.fence, facts.call.id, &name, &after)).await
    }

    async fn change_dropped(&self, path: &SandboxPath) -> Result<(), ToolError> {
        let (facts, name) = (&self.facts, name(path));
        let store = facts.tenure.store();
        self.recorded(|| store.change_dropped(&facts.session.fence, facts.call.id, &name)).await
    }

    async fn undoable(&self, path: &SandboxPath, steps: u32) -> Result<Option<Undoable>, ToolError> {
        let (facts, name) = (&self.facts, name(path));
        let context = context_of(facts.call.tenant_id);
        let store = facts.tenure.store();
        let (session, call) = (facts.call.session_id, facts.call.id);
        let undoable = self.recorded(|| store.undoable(&context, session, call, &name, steps)).await?;
        Ok(undoable.map(|undoable| Undoable {
            steps: undoable.steps,
            before: before(undoable.before),
            after_sha256: undoable.after_sha256,
        }))
    }

    async fn undone(
        &self,
        path: &SandboxPath,
        steps: u32,
        after: Option<KnownFile>,
    ) -> Result<(), ToolError> {
        let (facts, name, after) = (&self.facts, name(path), after.map(seen));
        let (store, fence) = (facts.tenure.store(), &facts.session.fence);
        self.recorded(|| store.changes_undone(fence, facts.call.id, &name, steps, after.as_ref())).await
    }
}
