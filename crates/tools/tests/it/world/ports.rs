//! What a tool has beside its sandbox: records, waits, shells, output, contexts, artifacts and events.
#![expect(clippy::unwrap_used, reason = "a poisoned lock means that a test has failed already")]

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use domain::event::OutputPiece;
use domain::{
    Artifact, ArtifactId, CallId, CallStatus, Code, SessionId, Shell, ShellId, ShellStatus, StreamName,
    TenantId,
};
use tools::ToolError;
use tools::port::{
    ArtifactDraft, ArtifactQuery, ArtifactRef, ArtifactSource, Artifacts, Before, ContextEnd, ContextRun,
    Contexts, Events, KnownFile, OutputPart, Outputs, Records, SandboxPath, ShellInput, ShellOutput, Shells,
    Undoable, Waits,
};
use uuid::Uuid;

use super::{World, missing, place, sha256};

#[async_trait]
impl Records for World {
    async fn known_file(&self, path: &SandboxPath) -> Result<Option<KnownFile>, ToolError> {
        Ok(self.known.lock().unwrap().get(&place(path)).cloned())
    }

    async fn remember_file(&self, path: &SandboxPath, known: KnownFile) -> Result<(), ToolError> {
        self.known.lock().unwrap().insert(place(path), known);
        Ok(())
    }

    async fn forget_files(&self, path: &SandboxPath) -> Result<(), ToolError> {
        self.known.lock().unwrap().remove(&place(path));
        Ok(())
    }

    async fn planned_change(&self, path: &SandboxPath) -> Result<Option<Before>, ToolError> {
        let versions = self.versions.lock().unwrap();
        let planned = versions.iter().rev().find(|(changed, ..)| *changed == place(path));
        Ok(planned.filter(|_| self.is_run_again).map(|(_, before, _)| before.clone()))
    }

    async fn plan_change(&self, path: &SandboxPath, before: Before) -> Result<(), ToolError> {
        self.versions.lock().unwrap().push((place(path), before, None));
        Ok(())
    }

    async fn change_made(&self, path: &SandboxPath, after: KnownFile) -> Result<(), ToolError> {
        let mut versions = self.versions.lock().unwrap();
        if let Some(version) = versions.iter_mut().rev().find(|(changed, ..)| *changed == place(path)) {
            version.2.clone_from(&after.sha256);
        }
        self.known.lock().unwrap().insert(place(path), after);
        Ok(())
    }

    async fn change_dropped(&self, path: &SandboxPath) -> Result<(), ToolError> {
        self.versions.lock().unwrap().retain(|(changed, _, made)| *changed != place(path) || made.is_some());
        Ok(())
    }

    async fn undoable(&self, path: &SandboxPath, steps: u32) -> Result<Option<Undoable>, ToolError> {
        let versions = self.versions.lock().unwrap();
        let last: Vec<_> = versions
            .iter()
            .rev()
            .filter(|(changed, ..)| *changed == place(path))
            .take(steps as usize)
            .collect();
        Ok(last.last().map(|oldest| Undoable {
            steps: last.len() as u32,
            before: oldest.1.clone(),
            after_sha256: last[0].2.clone().expect("made"),
        }))
    }

    async fn undone(
        &self,
        path: &SandboxPath,
        steps: u32,
        after: Option<KnownFile>,
    ) -> Result<(), ToolError> {
        let mut versions = self.versions.lock().unwrap();
        for _ in 0..steps {
            let at = versions.iter().rposition(|(changed, ..)| *changed == place(path)).expect("a version");
            versions.remove(at);
        }
        let mut known = self.known.lock().unwrap();
        match after {
            Some(after) => known.insert(place(path), after),
            None => known.remove(&place(path)),
        };
        Ok(())
    }
}

#[async_trait]
impl Waits for World {
    fn rest(&self) {
        *self.rests.lock().unwrap() += 1;
    }

    fn elapsed(&self) -> Duration {
        *self.elapsed.lock().unwrap()
    }

    async fn time(&self, wait: Duration) -> Result<(), ToolError> {
        *self.elapsed.lock().unwrap() += wait;
        Ok(())
    }

    async fn call(&self, id: CallId, wait: Duration) -> Result<CallStatus, ToolError> {
        self.waits.lock().unwrap().push((0, wait));
        let calls = self.calls.lock().unwrap();
        calls.get(&id).copied().ok_or_else(|| missing(Code::CallNotFound))
    }
}

#[async_trait]
impl Shells for World {
    async fn get(&self, id: ShellId) -> Result<Shell, ToolError> {
        let shells = self.shells.lock().unwrap();
        shells.iter().find(|shell| shell.id == id).cloned().ok_or_else(|| missing(Code::ShellNotFound))
    }

    async fn list(&self) -> Result<Vec<Shell>, ToolError> {
        Ok(self.shells.lock().unwrap().clone())
    }

    fn run_before_at(&self) -> Option<DateTime<Utc>> {
        self.run_before_at
    }

    async fn output(
        &self,
        _id: ShellId,
        since_offset: u64,
        max_bytes: u64,
    ) -> Result<ShellOutput, ToolError> {
        self.reads.lock().unwrap().push(since_offset);
        let mut output = ShellOutput { next_offset: since_offset, ..ShellOutput::default() };
        for piece in self.log.lock().unwrap().iter() {
            let skip = since_offset.saturating_sub(piece.log_offset).min(piece.bytes.len() as u64);
            let left = max_bytes.saturating_sub(output.next_offset - since_offset);
            let bytes: Vec<u8> =
                piece.bytes.iter().skip(skip as usize).take(left as usize).copied().collect();
            if bytes.is_empty() {
                continue;
            }
            let log_offset = piece.log_offset + skip;
            output.next_offset = log_offset + bytes.len() as u64;
            output.pieces.push(OutputPiece { log_offset, bytes, ..piece.clone() });
        }
        Ok(output)
    }

    async fn changed(&self, _id: ShellId, since_offset: u64, wait: Duration) -> Result<(), ToolError> {
        self.waits.lock().unwrap().push((since_offset, wait));
        if let Some(text) = self.drips {
            self.goes_on(StreamName::Stdout, text);
            *self.elapsed.lock().unwrap() += Duration::from_millis(5);
        }
        Ok(())
    }

    async fn input(&self, _id: ShellId, input: ShellInput) -> Result<u64, ToolError> {
        let bytes = input.text.as_ref().map_or(0, String::len) as u64;
        self.inputs.lock().unwrap().push(input);
        Ok(bytes)
    }

    async fn kill(&self, id: ShellId, grace: Duration) -> Result<Shell, ToolError> {
        self.kills.lock().unwrap().push(grace);
        let shell = self.get(id).await?;
        let was_running = shell.status == ShellStatus::Running;
        Ok(Shell {
            status: ShellStatus::Exited,
            signal: was_running.then(|| "SIGTERM".to_owned()),
            end_reason: was_running.then(|| "killed".to_owned()),
            ..shell
        })
    }
}

#[async_trait]
impl Outputs for World {
    async fn read(
        &self,
        _id: CallId,
        stream: StreamName,
        from: u64,
        max_bytes: u64,
    ) -> Result<OutputPart, ToolError> {
        let log = self.log.lock().unwrap();
        let bytes: Vec<u8> =
            log.iter().filter(|piece| piece.stream == stream).flat_map(|piece| piece.bytes.clone()).collect();
        let end = bytes.len().min((from + max_bytes) as usize);
        let part = bytes.get(from as usize..end).unwrap_or_default().to_vec();
        let pieces = if part.is_empty() { Vec::new() } else { vec![(from, part)] };
        let ended = self.shells.lock().unwrap().iter().all(|shell| shell.status == ShellStatus::Exited);
        Ok(OutputPart { pieces, total_bytes: bytes.len() as u64, ended })
    }
}

#[async_trait]
impl Contexts for World {
    async fn run(&self, _run: ContextRun) -> Result<ContextEnd, ToolError> {
        self.contexts.lock().expect("no test panicked").pop_front().expect("a context's end")
    }
}

#[async_trait]
impl Artifacts for World {
    async fn save(&self, draft: ArtifactDraft) -> Result<Artifact, ToolError> {
        let content = match &draft.content {
            ArtifactSource::Bytes(bytes) => bytes.clone(),
            ArtifactSource::File(path) => {
                let files = self.files.lock().unwrap();
                files
                    .get(&place(path))
                    .map(|bytes| Bytes::from(bytes.clone()))
                    .ok_or_else(|| missing(Code::PathNotFound))?
            }
        };
        let mut artifacts = self.artifacts.lock().unwrap();
        let versions = artifacts.iter().filter(|(known, _)| known.name == draft.name).count();
        let artifact = Artifact {
            id: ArtifactId::from_uuid(Uuid::from_u128(100 + artifacts.len() as u128)),
            tenant_id: TenantId::from_uuid(Uuid::from_u128(3)),
            session_id: SessionId::from_uuid(Uuid::from_u128(2)),
            call_id: CallId::from_uuid(Uuid::from_u128(1)),
            name: draft.name,
            version: versions as u32 + 1,
            kind: draft.kind,
            mime_type: draft.mime_type,
            size_bytes: content.len() as u64,
            sha256: sha256(&content),
            metadata: draft.metadata,
            created_at: DateTime::UNIX_EPOCH,
        };
        artifacts.push((artifact.clone(), content));
        Ok(artifact)
    }

    async fn find(&self, which: &ArtifactRef) -> Result<Artifact, ToolError> {
        let artifacts = self.artifacts.lock().unwrap();
        let found = artifacts.iter().rev().find(|(known, _)| match which {
            ArtifactRef::Id(id) => known.id == *id,
            ArtifactRef::Named { name, version } => {
                known.name == *name && version.is_none_or(|version| known.version == version)
            }
        });
        found.map(|(artifact, _)| artifact.clone()).ok_or_else(|| missing(Code::ArtifactNotFound))
    }

    async fn read(&self, artifact: &Artifact, offset: u64, max_bytes: u64) -> Result<Bytes, ToolError> {
        let artifacts = self.artifacts.lock().unwrap();
        let (_, content) = artifacts.iter().find(|(known, _)| known.id == artifact.id).unwrap();
        let from = (offset as usize).min(content.len());
        Ok(content.slice(from..content.len().min(from.saturating_add(max_bytes as usize))))
    }

    async fn list(&self, query: ArtifactQuery) -> Result<(Vec<Artifact>, bool), ToolError> {
        let artifacts = self.artifacts.lock().unwrap();
        let newest = |artifact: &Artifact| {
            !artifacts
                .iter()
                .any(|(known, _)| known.name == artifact.name && known.version > artifact.version)
        };
        let found = artifacts.iter().rev().map(|(artifact, _)| artifact);
        let found: Vec<_> = found
            .filter(|artifact| !query.latest_only || newest(artifact))
            .filter(|artifact| query.kind.is_none_or(|kind| artifact.kind == kind))
            .cloned()
            .collect();
        Ok((found.iter().take(query.limit as usize).cloned().collect(), found.len() > query.limit as usize))
    }
}

#[async_trait]
impl Events for World {
    async fn progress(&self, message: Option<String>, _percent: Option<f64>) -> Result<(), ToolError> {
        self.told.lock().unwrap().extend(message);
        Ok(())
    }
}
