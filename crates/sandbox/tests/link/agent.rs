//! An agent that does as a test says, at the other end of a link.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use protocol::{
    AgentStatus, Decoder, ExecAttached, ExecRequest, FileStat, FileWritten, Frame, FrameKind, Hello,
    OperationKey, OperationState, Reply, Request, WriteMode, WriteRequest, encode, encode_data,
};
use sandbox::{AgentClient, ExecEvent, ExecStream, Link, LinkError, Metrics, Terms};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long a test waits for what comes at once: it ends one that hangs, and says nothing of how fast anything is.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The other side.
pub(crate) struct Agent {
    pub(crate) socket: UnixStream,
    pub(crate) decoder: Decoder,
}

impl Agent {
    pub(crate) async fn dial(dir: &Path, hello: &Hello) -> Self {
        let socket = UnixStream::connect(dir.join(protocol::LINK_SOCKET)).await.unwrap();
        let mut agent = Self { socket, decoder: Decoder::default() };
        agent.send(FrameKind::Hello, 0, &serde_json::to_vec(hello).unwrap()).await;
        agent
    }

    pub(crate) async fn greeted(dir: &Path) -> Self {
        let mut agent = Self::dial(dir, &hello("boot", 0)).await;
        let welcome = agent.next().await.unwrap();
        assert_eq!((welcome.kind, welcome.stream), (FrameKind::Welcome, 0));
        agent
    }

    pub(crate) async fn send(&mut self, kind: FrameKind, stream: u32, payload: &[u8]) {
        let mut buffer = BytesMut::new();
        encode(&mut buffer, kind, stream, payload);
        let _ = self.socket.write_all(&buffer).await;
    }

    pub(crate) async fn reply(&mut self, stream: u32, reply: &Reply) {
        self.send(FrameKind::Reply, stream, &serde_json::to_vec(reply).unwrap()).await;
    }

    pub(crate) async fn output(&mut self, stream: u32, offset: u64, content: &[u8]) {
        let mut buffer = BytesMut::new();
        encode_data(&mut buffer, stream, offset, 1, content);
        let _ = self.socket.write_all(&buffer).await;
    }

    /// The next frame that is no heartbeat; `None` when the worker closed.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            match self.decoder.next_frame().unwrap() {
                Some(frame) if frame.kind == FrameKind::Ping => {}
                Some(frame) => return Some(frame),
                None => {
                    let read = self.socket.read_buf(self.decoder.buffer());
                    if timeout(SOON, read).await.unwrap().unwrap_or(0) == 0 {
                        return None;
                    }
                }
            }
        }
    }

    pub(crate) async fn request(&mut self) -> (u32, Request) {
        let frame = self.next().await.unwrap();
        assert_eq!(frame.kind, FrameKind::Request);
        assert_eq!(frame.stream % 2, 1, "the worker's streams are odd");
        (frame.stream, serde_json::from_slice(&frame.payload).unwrap())
    }

    /// Takes a request for an operation and says that it runs.
    pub(crate) async fn attach(&mut self) -> u32 {
        let (stream, request) = self.request().await;
        assert!(matches!(request, Request::Exec(_)));
        self.reply(stream, &Reply::Attached(attached())).await;
        stream
    }
}

pub(crate) fn attached() -> ExecAttached {
    ExecAttached {
        state: OperationState::Running,
        started: true,
        offset: 0,
        running_ms: 0,
        warm: false,
        pid: None,
        terminal: false,
    }
}

pub(crate) fn hello(boot_id: &str, highest_epoch: u64) -> Hello {
    Hello {
        oldest_version: 1,
        newest_version: 7,
        agent_version: "0.0.0".to_owned(),
        boot_id: boot_id.to_owned(),
        highest_epoch,
    }
}

pub(crate) fn stat() -> Reply {
    Reply::Stat(FileStat {
        kind: protocol::EntryKind::Directory,
        size_bytes: 0,
        modified_ms: 0,
        permissions: 0o755,
        version: protocol::FileVersion::default(),
    })
}

pub(crate) fn status() -> Reply {
    Reply::Status(AgentStatus {
        operations: Vec::new(),
        oom_kills: 0,
        agent_rss_bytes: 0,
        memory_bytes: None,
        processes: 0,
    })
}

/// A file of three bytes.
pub(crate) fn write() -> WriteRequest {
    WriteRequest {
        key: OperationKey { owner: "call".to_owned(), operation: 1 },
        root: "/tmp".to_owned(),
        path: "a".to_owned(),
        mode: WriteMode::Overwrite,
        size_bytes: 3,
        permissions: None,
        expected_sha256: None,
        expected_version: None,
        open_ended: false,
    }
}

pub(crate) fn written() -> FileWritten {
    FileWritten {
        created: true,
        size_bytes: 3,
        sha256: "ab".to_owned(),
        permissions: 0o644,
        version: protocol::FileVersion::default(),
    }
}

pub(crate) fn terms() -> Terms {
    Terms {
        epoch: 5,
        tool_uid: 1_048_600,
        env: BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]),
        warm_shells: 1,
        boot_id: None,
    }
}

pub(crate) fn bind(dir: &Path) -> Link {
    Link::bind(dir, terms(), Metrics::register(&prometheus::Registry::new()).unwrap()).unwrap()
}

pub(crate) fn exec() -> ExecRequest {
    ExecRequest { key: OperationKey { owner: "call".to_owned(), operation: 0 }, resume_from: 0, spec: None }
}

pub(crate) async fn next(stream: &mut ExecStream) -> Result<Option<ExecEvent>, LinkError> {
    timeout(SOON, stream.next()).await.expect("an event in time")
}

pub(crate) async fn attached_pair(agent: &mut Agent, client: &AgentClient) -> (u32, ExecStream) {
    let (id, stream) = tokio::join!(agent.attach(), client.exec(exec()));
    let mut stream = stream.unwrap();
    assert_eq!(next(&mut stream).await.unwrap(), Some(ExecEvent::Attached(attached())));
    (id, stream)
}
