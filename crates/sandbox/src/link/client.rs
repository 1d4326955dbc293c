//! The verbs of the agent. Every one has a time limit and waits for a connection first, as the agent may be redialling.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::{
    AgentStatus, DirectoryMade, ExecRequest, FileRead, FileStat, FileWritten, GlobRequest, Globbed,
    GrepRequest, Grepped, KillRequest, ListRequest, Listing, MoveRequest, OUTPUT_FRAME_BYTES,
    OUTPUT_WINDOW_BYTES, OperationKey, REPORT_BYTES, ReadRequest, RemoveRequest, Removed, Reply, Request,
    StdinWritten, TerminalSize, WORKSPACE_DIR, WatchRequest, WriteRequest,
};
use tokio::time::timeout;

use super::connection::Stream;
use super::inbox::{End, Item};
use super::{ExecStream, FileWatch, LinkState, Shared, Upload};
use crate::LinkError;

/// Time for a connection to come up before a verb fails: the silence limit and a few redials.
const CONNECT_LIMIT: Duration = Duration::from_millis(4_000);
/// Time for an answer that needs no disk.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time for an answer that moves or walks files.
const FILE_LIMIT: Duration = Duration::from_secs(60);

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    /// The bytes.
    pub bytes: Bytes,
    /// Facts of the whole file.
    pub file: FileRead,
}

/// Asks the agent of one sandbox. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentClient {
    shared: Arc<Shared>,
}

impl AgentClient {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Whether an agent is connected at this moment.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(&*self.shared.state.borrow(), LinkState::Connected(connection) if !connection.is_closed())
    }

    /// Starts an operation, or attaches to the one that the journal has under its key.
    ///
    /// # Errors
    /// See [`LinkError`]; whether the operation was started is then unknown, and asking again with the same key
    /// is safe.
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecStream, LinkError> {
        let limit = OUTPUT_WINDOW_BYTES + OUTPUT_FRAME_BYTES as u64;
        self.open(&Request::Exec(request), limit).await.map(ExecStream::new)
    }

    /// Ends an operation's process tree (answered when it is gone), or sends it one signal.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again is safe.
    pub async fn kill(&self, request: KillRequest) -> Result<(), LinkError> {
        let limit = ANSWER_LIMIT + Duration::from_millis(request.grace_ms);
        let reply = self.ask("kill", &Request::Kill(request), limit).await?;
        done(&reply)
    }

    /// Writes to the open stdin of a running operation, at most once per `key`.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again with the same key is safe.
    pub async fn write_stdin(
        &self,
        key: OperationKey,
        target: OperationKey,
        data: Vec<u8>,
        close: bool,
    ) -> Result<StdinWritten, LinkError> {
        let (data, bytes) = match String::from_utf8(data) {
            Ok(text) => (text, None),
            Err(error) => (String::new(), Some(error.into_bytes())),
        };
        let request = Request::WriteStdin { key, target, data, bytes, close };
        match self.ask("write_stdin", &request, ANSWER_LIMIT).await? {
            Reply::StdinWritten(written) => Ok(written),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// Gives the terminal of a running operation another size.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again is safe.
    pub async fn resize(&self, key: OperationKey, size: TerminalSize) -> Result<(), LinkError> {
        let reply = self.ask("resize", &Request::Resize { key, size }, ANSWER_LIMIT).await?;
        done(&reply)
    }

    /// Lets a running operation outlive its owner, with a new deadline from now.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again is safe.
    pub async fn detach(&self, key: OperationKey, timeout_ms: Option<u64>) -> Result<(), LinkError> {
        let reply = self.ask("detach", &Request::Detach { key, timeout_ms }, ANSWER_LIMIT).await?;
        done(&reply)
    }

    /// Reads part of a file, at most `request.max_bytes` of it into memory.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn read(&self, request: ReadRequest) -> Result<FileContent, LinkError> {
        let max_bytes = request.max_bytes;
        self.content("read", &Request::Read(request), max_bytes).await
    }

    /// Reads what an ended operation has left in its memory file.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn report(&self, key: OperationKey) -> Result<Bytes, LinkError> {
        let content = self.content("report", &Request::Report { key }, REPORT_BYTES).await?;
        Ok(content.bytes)
    }

    async fn content(
        &self,
        verb: &'static str,
        request: &Request,
        max_bytes: u64,
    ) -> Result<FileContent, LinkError> {
        let limit_bytes = max_bytes.saturating_add(OUTPUT_FRAME_BYTES as u64);
        timed(verb, FILE_LIMIT, async {
            let stream = self.open(request, limit_bytes).await?;
            let mut bytes = BytesMut::new();
            loop {
                match stream.next().await {
                    Ok(Item::Output(output))
                        if bytes.len() as u64 + output.bytes.len() as u64 <= limit_bytes =>
                    {
                        bytes.extend_from_slice(&output.bytes);
                        stream.ack(output.offset + output.bytes.len() as u64);
                    }
                    Ok(Item::Output(_)) => {
                        return Err(LinkError::Protocol("more of a file than was asked for"));
                    }
                    Ok(Item::Reply(Reply::Read(file))) => {
                        return Ok(FileContent { bytes: bytes.freeze(), file });
                    }
                    Ok(Item::Reply(Reply::Error(error))) => return Err(error.into()),
                    Ok(Item::Reply(_)) => return Err(OTHER_ANSWER),
                    Err(end) => return Err(ended(end)),
                }
            }
        })
        .await
    }

    /// Writes a file, at most once per key. `request.size_bytes` is set from the content.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again with the same key and content is safe.
    pub async fn write(&self, mut request: WriteRequest, content: Bytes) -> Result<FileWritten, LinkError> {
        request.size_bytes = content.len() as u64;
        timed("write", FILE_LIMIT, async {
            let stream = self.open(&Request::Write(request), OUTPUT_FRAME_BYTES as u64).await?;
            // The agent may refuse before it has read everything: its answer comes first then.
            tokio::select! {
                biased;
                answer = answer(&stream) => return written(&answer?),
                sent = stream.send_input(0, content) => sent?,
            }
            stream.finish_input().await?;
            written(&answer(&stream).await?)
        })
        .await
    }

    /// Begins to write a file whose content comes piece by piece. `request.size_bytes` is how much, or the most when it is open-ended.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn upload(&self, request: WriteRequest) -> Result<Upload, LinkError> {
        let (size_bytes, open_ended) = (request.size_bytes, request.open_ended);
        let stream = self.open(&Request::Write(request), OUTPUT_FRAME_BYTES as u64).await?;
        Ok(Upload::new(stream, size_bytes, open_ended))
    }

    /// Begins as [`AgentClient::upload`] what may have been written already under this key: [`Upload::is_known`] says it at once then, before
    /// there is any content.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn upload_again(&self, request: WriteRequest) -> Result<Upload, LinkError> {
        let mut upload = self.upload(request).await?;
        // The agent looks into its journal, and tells its status, as the questions come: behind the later answer there is the earlier one.
        self.status().await?;
        upload.look()?;
        Ok(upload)
    }

    /// Watches a directory: what changes in it once this has returned is told.
    ///
    /// # Errors
    /// See [`LinkError`]; an agent that does not know how refuses as [`protocol::ErrorCode::Unsupported`].
    pub async fn watch(&self, request: WatchRequest) -> Result<FileWatch, LinkError> {
        let limit = OUTPUT_WINDOW_BYTES + OUTPUT_FRAME_BYTES as u64;
        FileWatch::begin(self.open(&Request::Watch(request), limit).await?).await
    }

    /// Lists a directory.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn list(&self, request: ListRequest) -> Result<Listing, LinkError> {
        match self.ask("list", &Request::List(request), FILE_LIMIT).await? {
            Reply::Listed(listing) => Ok(listing),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// Removes a file or directory, at most once per key.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again with the same key is safe.
    pub async fn remove(&self, request: RemoveRequest) -> Result<Removed, LinkError> {
        match self.ask("remove", &Request::Remove(request), FILE_LIMIT).await? {
            Reply::Removed(removed) => Ok(removed),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// Gives an entry another name.
    ///
    /// # Errors
    /// See [`LinkError`]; without an answer nobody knows whether it was done.
    pub async fn move_entry(&self, request: MoveRequest) -> Result<(), LinkError> {
        let reply = self.ask("move", &Request::Move(request), FILE_LIMIT).await?;
        done(&reply)
    }

    /// Makes a directory and those above it.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again is safe.
    pub async fn make_directory(&self, root: &str, path: &str) -> Result<DirectoryMade, LinkError> {
        let request = Request::MakeDirectory { root: root.to_owned(), path: path.to_owned() };
        match self.ask("make_directory", &request, FILE_LIMIT).await? {
            Reply::DirectoryMade(made) => Ok(made),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// Finds files by name.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn glob(&self, request: GlobRequest) -> Result<Globbed, LinkError> {
        match self.ask("glob", &Request::Glob(request), FILE_LIMIT).await? {
            Reply::Globbed(globbed) => Ok(globbed),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// Searches in the contents of files.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn grep(&self, request: GrepRequest) -> Result<Grepped, LinkError> {
        match self.ask("grep", &Request::Grep(request), FILE_LIMIT).await? {
            Reply::Grepped(grepped) => Ok(grepped),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// What is at a path beneath `/workspace` or `/tmp`.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn stat(&self, root: &str, path: &str) -> Result<FileStat, LinkError> {
        self.stat_within(root, path, ANSWER_LIMIT).await
    }

    /// What the agent knows: operations, memory, out-of-memory kills.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub async fn status(&self) -> Result<AgentStatus, LinkError> {
        match self.ask("status", &Request::Status, ANSWER_LIMIT).await? {
            Reply::Status(status) => Ok(status),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// Everything of this owner is durable elsewhere: the journal may drop it, and what still runs and is not
    /// detached is killed.
    ///
    /// # Errors
    /// See [`LinkError`]; asking again is safe.
    pub async fn forget(&self, owner: &str) -> Result<(), LinkError> {
        let reply = self.ask("forget", &Request::Forget { owner: owner.to_owned() }, ANSWER_LIMIT).await?;
        done(&reply)
    }

    /// One round trip through the agent, within `limit`.
    ///
    /// # Errors
    /// When no answer came in time.
    pub async fn ping(&self, limit: Duration) -> Result<(), LinkError> {
        self.stat_within(WORKSPACE_DIR, "", limit).await.map(drop)
    }

    async fn stat_within(&self, root: &str, path: &str, limit: Duration) -> Result<FileStat, LinkError> {
        let request = Request::Stat { root: root.to_owned(), path: path.to_owned() };
        match self.ask("stat", &request, limit).await? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(OTHER_ANSWER),
        }
    }

    async fn open(&self, request: &Request, limit_bytes: u64) -> Result<Stream, LinkError> {
        self.shared.connection(CONNECT_LIMIT).await?.open(request, limit_bytes).await
    }

    async fn ask(&self, verb: &'static str, request: &Request, limit: Duration) -> Result<Reply, LinkError> {
        timed(verb, limit, async { answer(&self.open(request, OUTPUT_FRAME_BYTES as u64).await?).await })
            .await
    }
}

const OTHER_ANSWER: LinkError = LinkError::Protocol("an answer to another question");

async fn timed<T>(
    verb: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(limit, work).await.unwrap_or(Err(LinkError::Timeout { verb, limit }))
}

async fn answer(stream: &Stream) -> Result<Reply, LinkError> {
    match stream.next().await {
        Ok(Item::Reply(Reply::Error(error))) => Err(error.into()),
        Ok(Item::Reply(reply)) => Ok(reply),
        Ok(Item::Output(_)) => Err(OTHER_ANSWER),
        Err(end) => Err(ended(end)),
    }
}

fn ended(end: End) -> LinkError {
    match end {
        End::Closed => LinkError::Protocol("a stream that ended without an answer"),
        End::Disconnected => LinkError::Disconnected,
    }
}

fn done(reply: &Reply) -> Result<(), LinkError> {
    match reply {
        Reply::Done => Ok(()),
        _ => Err(OTHER_ANSWER),
    }
}

fn written(reply: &Reply) -> Result<FileWritten, LinkError> {
    match reply {
        Reply::Written(written) => Ok(written.clone()),
        _ => Err(OTHER_ANSWER),
    }
}
