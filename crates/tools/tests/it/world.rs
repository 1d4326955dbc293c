//! A fake world for tools: it records what is asked of it and answers what the test prepared.
#![expect(clippy::unwrap_used, reason = "a poisoned lock means that a test has failed already")]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use domain::event::OutputPiece;
use domain::{CallId, Code, SessionId, Shell, ShellId, ShellStatus, StreamName, TenantId};
use tools::port::{
    Captured, Command, CommandEnd, CommandOutcome, EntryKind, Events, FileContent, FileStat, FileWrite,
    FileWritten, ListQuery, Listing, Sandbox, SandboxPath, ShellInput, ShellOutput, Shells,
};
use tools::{Catalog, Context, Finished, ToolError};
use uuid::Uuid;

#[derive(Default)]
pub struct World {
    pub commands: Mutex<Vec<Command>>,
    pub outcomes: Mutex<VecDeque<Result<CommandOutcome, ToolError>>>,
    pub files: Mutex<HashMap<String, Vec<u8>>>,
    pub writes: Mutex<Vec<FileWrite>>,
    pub lists: Mutex<Vec<ListQuery>>,
    pub listing: Mutex<Listing>,
    pub shells: Mutex<Vec<Shell>>,
    pub log: Mutex<Vec<OutputPiece>>,
    pub inputs: Mutex<Vec<ShellInput>>,
    pub kills: Mutex<Vec<Duration>>,
    pub waits: Mutex<Vec<(u64, Duration)>>,
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
        command: "sleep 100\necho done".to_owned(),
        description: Some("wait".to_owned()),
        status,
        exit_code: (status == ShellStatus::Exited).then_some(0),
        signal: None,
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

fn missing(what: Code) -> ToolError {
    ToolError::new(what, "not there")
}

#[async_trait]
impl Sandbox for World {
    async fn run(&self, command: Command) -> Result<CommandOutcome, ToolError> {
        self.commands.lock().unwrap().push(command);
        self.outcomes.lock().unwrap().pop_front().unwrap_or(Ok(CommandOutcome::Ended(exited(0, "", ""))))
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
            sha256: whole.then(|| "abc".to_owned()),
        })
    }

    async fn write(&self, write: FileWrite) -> Result<FileWritten, ToolError> {
        let path = place(&write.path);
        let created = self.files.lock().unwrap().insert(path, write.content.to_vec()).is_none();
        let written = FileWritten {
            created,
            size_bytes: write.content.len() as u64,
            sha256: "def".to_owned(),
            permissions: write.permissions.unwrap_or(0o644),
        };
        self.writes.lock().unwrap().push(write);
        Ok(written)
    }

    async fn list(&self, query: ListQuery) -> Result<Listing, ToolError> {
        self.lists.lock().unwrap().push(query);
        Ok(self.listing.lock().unwrap().clone())
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
impl Events for World {
    async fn progress(&self, _message: Option<String>, _percent: Option<f64>) -> Result<(), ToolError> {
        Ok(())
    }
}
