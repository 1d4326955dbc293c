//! A fake world for tools: it records what is asked of it and answers what the test prepared.
#![expect(clippy::unwrap_used, reason = "a poisoned lock means that a test has failed already")]

mod ports;
mod wheels;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use domain::event::OutputPiece;
use domain::{
    Artifact, CallId, CallStatus, Code, SessionId, Shell, ShellId, ShellStatus, StreamName, TenantId,
};
use sha2::{Digest, Sha256};
use tools::port::{
    Before, Captured, Command, CommandEnd, CommandOutcome, ContextEnd, EntryKind, FileContent, FileRemoval,
    FileStat, FileWrite, FileWritten, FilesRemoved, GlobQuery, Globbed, GrepQuery, Grepped, KnownFile,
    ListQuery, Listing, Named, NamedEnd, Sandbox, SandboxPath, ShellInput, WriteMode,
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
    /// When that was.
    pub run_before_at: Option<DateTime<Utc>>,
    pub lists: Mutex<Vec<ListQuery>>,
    pub listing: Mutex<Listing>,
    pub shells: Mutex<Vec<Shell>>,
    /// How code in contexts ends, in order.
    pub contexts: Mutex<VecDeque<Result<ContextEnd, ToolError>>>,
    pub log: Mutex<Vec<OutputPiece>>,
    /// From where the log was read.
    pub reads: Mutex<Vec<u64>>,
    /// What the shell writes whenever it is waited for, and that takes five milliseconds.
    pub drips: Option<&'static str>,
    pub inputs: Mutex<Vec<ShellInput>>,
    pub kills: Mutex<Vec<Duration>>,
    pub waits: Mutex<Vec<(u64, Duration)>>,
    /// How long the call has run, how often it gave its slot back, and the calls of the session.
    pub elapsed: Mutex<Duration>,
    pub rests: Mutex<u32>,
    pub calls: Mutex<HashMap<CallId, CallStatus>>,
    pub artifacts: Mutex<Vec<(Artifact, Bytes)>>,
    /// The tenant's wheels, and which of them came, time by time.
    pub wheels: Mutex<Vec<(String, Bytes)>>,
    pub copies: Mutex<Vec<Vec<String>>>,
    /// What was copied under which number of an operation: the agent's journal, which outlives a run of the call.
    pub copied: Mutex<BTreeMap<u32, String>>,
    pub next_operation: Mutex<u32>,
    /// What the call has said of how far it is.
    pub told: Mutex<Vec<String>>,
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

    pub fn with_wheel(self: Arc<Self>, name: &str, content: &'static [u8]) -> Arc<Self> {
        self.wheels.lock().unwrap().push((name.to_owned(), Bytes::from_static(content)));
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
            wheels: self.clone(),
            events: self.clone(),
        }
    }

    /// Admits and runs a call, as api and worker do.
    pub async fn call(
        self: &Arc<Self>,
        tool: &str,
        arguments: serde_json::Value,
    ) -> Result<Finished, ToolError> {
        *self.next_operation.lock().unwrap() = 0;
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
