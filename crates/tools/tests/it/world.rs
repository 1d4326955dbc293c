//! A fake world for tools: it records what is asked of it and answers what the test prepared.
#![expect(clippy::unwrap_used, reason = "a poisoned lock means that a test has failed already")]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use domain::event::OutputPiece;
use domain::{
    Artifact, ArtifactId, CallId, CallStatus, Code, SessionId, Shell, ShellId, ShellStatus, StreamName,
    TenantId,
};
use sha2::{Digest, Sha256};
use tools::port::{
    ArtifactDraft, ArtifactQuery, ArtifactRef, ArtifactSource, Artifacts, Before, Captured, Command,
    CommandEnd, CommandOutcome, ContextEnd, ContextRun, Contexts, EntryKind, Events, FileContent,
    FileRemoval, FileStat, FileWrite, FileWritten, FilesRemoved, GlobQuery, Globbed, GrepQuery, Grepped,
    KnownFile, ListQuery, Listing, Named, NamedEnd, OutputPart, Outputs, Records, Sandbox, SandboxPath,
    ShellInput, ShellOutput, Shells, Undoable, Waits, WriteMode,
};
use tools::{Catalog, Context, Finished, ToolError};
use uuid::Uuid;

#[derive(Default)]
pub struct World {
    pub commands: Mutex<Vec<Command>>,
    pub outcomes: Mutex<VecDeque<Result<CommandOutcome, ToolError>>>,
    /// How commands in named shells end, in order, and what was asked of them.
    pub named: Mutex<VecDeque<(CommandEnd, NamedEnd)>>,
    pub named_runs: Mutex<Vec<Named>>,
    pub files: Mutex<HashMap<String, Vec<u8>>>,
    pub writes: Mutex<Vec<FileWrite>>,
    pub removals: Mutex<Vec<FileRemoval>>,
    pub globs: Mutex<Vec<GlobQuery>>,
    pub globbed: Mutex<Globbed>,
    pub greps: Mutex<Vec<GrepQuery>>,
    pub grepped: Mutex<Grepped>,
    /// What the session has seen.
    pub known: Mutex<HashMap<String, KnownFile>>,
    /// Changes: path, what was there before, and the SHA-256 afterwards once made.
    pub versions: Mutex<Vec<(String, Before, Option<String>)>>,
    /// The call was run before: its plans are found.
    pub is_run_again: bool,
    pub lists: Mutex<Vec<ListQuery>>,
    pub listing: Mutex<Listing>,
    pub shells: Mutex<Vec<Shell>>,
    /// How code in contexts ends, in order.
    pub contexts: Mutex<VecDeque<Result<ContextEnd, ToolError>>>,
    pub log: Mutex<Vec<OutputPiece>>,
    pub inputs: Mutex<Vec<ShellInput>>,
    pub kills: Mutex<Vec<Duration>>,
    pub waits: Mutex<Vec<(u64, Duration)>>,
    /// How long the call has run, how often it gave its slot back, and the calls of the session.
    pub elapsed: Mutex<Duration>,
    pub rests: Mutex<u32>,
    pub calls: Mutex<HashMap<CallId, CallStatus>>,
    pub artifacts: Mutex<Vec<(Artifact, Bytes)>>,
}

pub const SHELL: ShellId = ShellId::from_uuid(Uuid::from_u128(7));

impl World {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub fn with_file(self: Arc<Self>, path: &str, content: &[u8]) -> Arc<Self> {
        self.files.lock().unwrap().insert(path.to_owned(), content.to_vec());
        self
    }

    pub fn with_outcome(self: Arc<Self>, outcome: Result<CommandOutcome, ToolError>) -> Arc<Self> {
        self.outcomes.lock().unwrap().push_back(outcome);
        self
    }

    pub fn with_shell(self: Arc<Self>, shell: Shell, log: &[(StreamName, &str)]) -> Arc<Self> {
        let mut log_offset = 0;
        let mut pieces = self.log.lock().unwrap();
        for (stream, text) in log {
            pieces.push(OutputPiece {
                log_offset,
                stream: *stream,
                offset: 0,
                bytes: text.as_bytes().to_vec(),
            });
            log_offset += text.len() as u64;
        }
        drop(pieces);
        self.shells.lock().unwrap().push(Shell { next_offset: log_offset, ..shell });
        self
    }

    /// The shell goes on to write.
    pub fn goes_on(&self, stream: StreamName, text: &str) {
        let mut shells = self.shells.lock().unwrap();
        let log_offset = shells[0].next_offset;
        shells[0].next_offset += text.len() as u64;
        let piece = OutputPiece { log_offset, stream, offset: 0, bytes: text.as_bytes().to_vec() };
        self.log.lock().unwrap().push(piece);
    }

    pub fn context(self: &Arc<Self>, output_budget_bytes: u64) -> Context {
        Context {
            call_id: CallId::from_uuid(Uuid::from_u128(1)),
            session_id: SessionId::from_uuid(Uuid::from_u128(2)),
            tenant_id: TenantId::from_uuid(Uuid::from_u128(3)),
            description: None,
            output_budget_bytes,
            cancel: tokio_util::sync::CancellationToken::new(),
            sandbox: self.clone(),
            shells: self.clone(),
            outputs: self.clone(),
            waits: self.clone(),
            contexts: self.clone(),
            records: self.clone(),
            artifacts: self.clone(),
            events: self.clone(),
        }
    }

    /// Admits and runs a call, as api and worker do.
    pub async fn call(
        self: &Arc<Self>,
        tool: &str,
        arguments: serde_json::Value,
    ) -> Result<Finished, ToolError> {
        let catalog = Catalog::standard();
        let admitted = catalog.admit(tool, arguments).expect("admitted");
        catalog.run(admitted.tool, &self.context(30_000), admitted.arguments).await
    }
}

pub fn shell(status: ShellStatus) -> Shell {
    Shell {
        id: SHELL,
        tenant_id: TenantId::from_uuid(Uuid::from_u128(3)),
        session_id: SessionId::from_uuid(Uuid::from_u128(2)),
        call_id: CallId::from_uuid(Uuid::from_u128(1)),
        operation: 0,
        name: None,
        command: "sleep 100\necho done".to_owned(),
        description: Some("wait".to_owned()),
        status,
        exit_code: (status == ShellStatus::Exited).then_some(0),
        signal: None,
        terminal: false,
        end_reason: None,
        next_offset: 0,
        created_at: DateTime::UNIX_EPOCH,
        ended_at: DateTime::from_timestamp_millis(2_500).filter(|_| status == ShellStatus::Exited),
    }
}

pub fn captured(text: &str) -> Captured {
    Captured { head: text.as_bytes().to_vec(), tail: Vec::new(), total_bytes: text.len() as u64 }
}

pub fn exited(exit_code: i32, stdout: &str, stderr: &str) -> CommandEnd {
    CommandEnd {
        exit_code: Some(exit_code),
        duration_ms: 12,
        stdout: captured(stdout),
        stderr: captured(stderr),
        ..CommandEnd::default()
    }
}

fn place(path: &SandboxPath) -> String {
    format!("{}/{}", path.root, path.relative)
}

pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn missing(what: Code) -> ToolError {
    ToolError::new(what, "not there")
}

#[async_trait]
impl Sandbox for World {
    async fn run(&self, command: Command) -> Result<CommandOutcome, ToolError> {
        self.commands.lock().unwrap().push(command);
        self.outcomes.lock().unwrap().pop_front().unwrap_or(Ok(CommandOutcome::Ended(exited(0, "", ""))))
    }

    async fn run_named(&self, named: Named, command: Command) -> Result<(CommandEnd, NamedEnd), ToolError> {
        self.commands.lock().unwrap().push(command);
        let prepared = self.named.lock().unwrap().pop_front();
        self.named_runs.lock().unwrap().push(named);
        Ok(prepared.expect("a prepared end"))
    }

    async fn start_named(&self, named: Named, command: Command) -> Result<CommandOutcome, ToolError> {
        self.named_runs.lock().unwrap().push(named);
        Sandbox::run(self, command).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, max_bytes: u64) -> Result<FileContent, ToolError> {
        let files = self.files.lock().unwrap();
        let content = files.get(&place(path)).ok_or_else(|| missing(Code::PathNotFound))?;
        let start = (offset as usize).min(content.len());
        let end = (start + max_bytes as usize).min(content.len());
        let stat = FileStat {
            kind: EntryKind::File,
            size_bytes: content.len() as u64,
            permissions: 0o644,
            modified_ms: 0,
        };
        let whole = end - start == content.len();
        Ok(FileContent {
            bytes: Bytes::copy_from_slice(&content[start..end]),
            stat,
            sha256: whole.then(|| sha256(content)),
        })
    }

    async fn write(&self, write: FileWrite) -> Result<FileWritten, ToolError> {
        let path = place(&write.path);
        let mut files = self.files.lock().unwrap();
        let present = files.get(&path).cloned();
        if present.is_some() && write.mode == WriteMode::CreateNew {
            return Err(missing(Code::AlreadyExists));
        }
        if write.expected_sha256.is_some() && write.expected_sha256 != present.as_deref().map(sha256) {
            return Err(missing(Code::StaleRead));
        }
        let mut content = match write.mode {
            WriteMode::Append => present.clone().unwrap_or_default(),
            WriteMode::Overwrite | WriteMode::CreateNew => Vec::new(),
        };
        content.extend_from_slice(&write.content);
        let written = FileWritten {
            created: present.is_none(),
            size_bytes: content.len() as u64,
            sha256: sha256(&content),
            permissions: write.permissions.unwrap_or(0o644),
        };
        files.insert(path, content);
        self.writes.lock().unwrap().push(write);
        Ok(written)
    }

    async fn remove(&self, removal: FileRemoval) -> Result<FilesRemoved, ToolError> {
        let mut files = self.files.lock().unwrap();
        let path = place(&removal.path);
        let content = files.get(&path).ok_or_else(|| missing(Code::PathNotFound))?;
        if removal.expected_sha256.as_ref().is_some_and(|expected| *expected != sha256(content)) {
            return Err(missing(Code::StaleRead));
        }
        files.remove(&path);
        self.removals.lock().unwrap().push(removal);
        Ok(FilesRemoved { files: 1, directories: 0 })
    }

    async fn glob(&self, query: GlobQuery) -> Result<Globbed, ToolError> {
        self.globs.lock().unwrap().push(query);
        Ok(self.globbed.lock().unwrap().clone())
    }

    async fn grep(&self, query: GrepQuery) -> Result<Grepped, ToolError> {
        self.greps.lock().unwrap().push(query);
        Ok(self.grepped.lock().unwrap().clone())
    }

    async fn list(&self, query: ListQuery) -> Result<Listing, ToolError> {
        self.lists.lock().unwrap().push(query);
        Ok(self.listing.lock().unwrap().clone())
    }
}

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

    async fn output(
        &self,
        _id: ShellId,
        since_offset: u64,
        max_bytes: u64,
    ) -> Result<ShellOutput, ToolError> {
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
    async fn progress(&self, _message: Option<String>, _percent: Option<f64>) -> Result<(), ToolError> {
        Ok(())
    }
}
