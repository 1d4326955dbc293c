//! A worker's side of the wire, and what it is told of an operation.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use protocol::{
    AgentError, AgentStatus, Decoder, ExecAttached, ExecExit, ExecLimits, ExecRequest, ExecSpec, FileRead,
    FileWritten, Frame, FrameKind, KillRequest, OperationKey, Program, ReadRequest, Reply, Request,
    StdinMode, StreamId, Welcome, WriteRequest,
};

use super::{Options, PATIENCE};

/// The worker's side of one connection.
pub(crate) struct Worker {
    socket: UnixStream,
    out: Arc<Mutex<UnixStream>>,
    decoder: Decoder,
    next_stream: StreamId,
    /// Frames that came while another stream was waited for.
    aside: VecDeque<Frame>,
}

impl Worker {
    pub(super) fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let out = Arc::new(Mutex::new(socket.try_clone().expect("clones")));
        Self { socket, out, decoder: Decoder::default(), next_stream: 1, aside: VecDeque::new() }
    }

    pub(crate) fn welcome(&mut self, uid: u32, epoch: u64, options: &Options) {
        self.welcome_in(protocol::VERSION, uid, epoch, options);
    }

    /// Welcomes the agent as a worker that speaks this version.
    pub(crate) fn welcome_in(&mut self, version: u32, uid: u32, epoch: u64, options: &Options) {
        let welcome = Welcome {
            version,
            epoch,
            tool_uid: uid,
            env: options.env.clone(),
            warm_shells: options.warm_shells,
        };
        self.send(FrameKind::Welcome, 0, &serde_json::to_vec(&welcome).expect("serialises"));
        let out = Arc::downgrade(&self.out);
        std::thread::spawn(move || {
            while let Some(out) = out.upgrade() {
                let mut ping = BytesMut::new();
                protocol::encode(&mut ping, FrameKind::Ping, 0, &[]);
                if out.lock().expect("locks").write_all(&ping).is_err() {
                    return;
                }
                drop(out);
                // The pace of the protocol: an agent that hears nothing for longer goes away.
                std::thread::sleep(Duration::from_millis(protocol::HEARTBEAT_INTERVAL_MS));
            }
        });
    }

    pub(crate) fn send(&self, kind: FrameKind, stream: StreamId, payload: &[u8]) {
        let mut bytes = BytesMut::new();
        protocol::encode(&mut bytes, kind, stream, payload);
        self.send_bytes(&bytes);
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        self.out.lock().expect("locks").write_all(bytes).expect("the agent reads");
    }

    /// The next frame of any stream; heartbeats are left out.
    pub(crate) fn frame(&mut self) -> Frame {
        self.try_frame().expect("the agent has closed the connection")
    }

    /// As [`Self::frame`]; `None` once the agent has closed.
    pub(crate) fn try_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("well-formed frames") {
                if frame.kind != FrameKind::Ping {
                    return Some(frame);
                }
                continue;
            }
            let mut buffer = [0; 64 * 1024];
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.decoder.buffer().extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame within {PATIENCE:?}: {error}"),
            }
        }
    }

    /// The next frame of one stream.
    pub(crate) fn frame_of(&mut self, stream: StreamId) -> Frame {
        if let Some(index) = self.aside.iter().position(|frame| frame.stream == stream) {
            return self.aside.remove(index).expect("is there");
        }
        loop {
            let frame = self.frame();
            if frame.stream == stream {
                return frame;
            }
            self.aside.push_back(frame);
        }
    }

    pub(crate) fn request(&mut self, request: &Request) -> StreamId {
        let stream = self.next_stream;
        self.next_stream += 2;
        self.send(FrameKind::Request, stream, &serde_json::to_vec(request).expect("serialises"));
        stream
    }

    pub(crate) fn reply_of(&mut self, stream: StreamId) -> Reply {
        let frame = self.frame_of(stream);
        assert_eq!(frame.kind, FrameKind::Reply, "{frame:?}");
        serde_json::from_slice(&frame.payload).expect("a reply")
    }

    /// A request with one reply.
    pub(crate) fn ask(&mut self, request: &Request) -> Reply {
        let stream = self.request(request);
        let reply = self.reply_of(stream);
        assert_eq!(self.frame_of(stream).kind, FrameKind::Close);
        reply
    }

    pub(crate) fn ack(&self, stream: StreamId, offset: u64) {
        self.send(FrameKind::Ack, stream, &offset.to_be_bytes());
    }

    pub(crate) fn exec(&mut self, key: &OperationKey, resume_from: u64, spec: Option<ExecSpec>) -> StreamId {
        self.request(&Request::Exec(ExecRequest { key: key.clone(), resume_from, spec }))
    }

    /// Follows an operation to its end, acknowledging as it goes.
    pub(crate) fn follow(&mut self, stream: StreamId) -> Ended {
        self.follow_to_end(stream, Ended::default(), true)
    }

    /// As [`Self::follow`], but nothing becomes durable.
    pub(crate) fn follow_without_acks(&mut self, stream: StreamId) -> Ended {
        self.follow_to_end(stream, Ended::default(), false)
    }

    /// As [`Self::follow`], for a stream that has been read from already.
    pub(crate) fn follow_on(&mut self, stream: StreamId) -> Ended {
        let ended = Ended { joined_late: true, ..Ended::default() };
        self.follow_to_end(stream, ended, true)
    }

    fn follow_to_end(&mut self, stream: StreamId, mut ended: Ended, acknowledge: bool) -> Ended {
        loop {
            let frame = self.frame_of(stream);
            match frame.kind {
                FrameKind::Data => {
                    let (offset, channel, content) = protocol::decode_data(frame.payload).expect("data");
                    if !ended.joined_late {
                        let start = ended.attached.as_ref().expect("attached first").offset;
                        assert_eq!(offset, start + ended.log.len() as u64, "a gap or a repetition");
                    }
                    ended.log.extend(content.iter().map(|&byte| (channel, byte)));
                    if acknowledge {
                        self.ack(stream, offset + content.len() as u64);
                    }
                }
                FrameKind::Reply => match serde_json::from_slice(&frame.payload).expect("a reply") {
                    Reply::Attached(attached) => ended.attached = Some(attached),
                    Reply::Exited(exit) => ended.exit = Some(exit),
                    Reply::Error(error) => ended.error = Some(error),
                    other => panic!("unexpected {other:?}"),
                },
                FrameKind::Close => return ended,
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Runs a command to its end under a key of its own.
    pub(crate) fn run(&mut self, spec: ExecSpec) -> Ended {
        let key = key(&format!("run-{}", self.next_stream));
        let stream = self.exec(&key, 0, Some(spec));
        let ended = self.follow(stream);
        assert!(matches!(self.ask(&Request::Forget { owner: key.owner }), Reply::Done));
        ended
    }

    /// Until the shell that waits for the next command is there: the agent counts what has executed a program.
    pub(crate) fn until_a_shell_waits(&mut self) {
        while self.status().processes < 1 {}
    }

    /// Runs a command under this key past its deadline, which comes once the command has said this. What it says behind that is in
    /// the end.
    pub(crate) fn run_past_deadline(&mut self, key: &OperationKey, spec: ExecSpec, said: &str) -> Ended {
        let stream = self.exec(key, 0, Some(spec));
        self.until(stream, said);
        let detach = Request::Detach { key: key.clone(), timeout_ms: Some(50) };
        assert!(matches!(self.ask(&detach), Reply::Done));
        self.follow_on(stream)
    }

    pub(crate) fn sh(&mut self, command: &str) -> Ended {
        self.run(shell(command))
    }

    pub(crate) fn kill(&mut self, key: &OperationKey, grace_ms: u64) -> Reply {
        self.ask(&Request::Kill(KillRequest { key: key.clone(), signal: None, grace_ms }))
    }

    /// Writes a file under a key of its own.
    pub(crate) fn write(&mut self, request: WriteRequest, content: &[u8]) -> Result<FileWritten, AgentError> {
        let stream = self.request(&Request::Write(request));
        for piece in content.chunks(protocol::OUTPUT_FRAME_BYTES) {
            let mut data = BytesMut::new();
            protocol::encode_data(&mut data, stream, 0, 0, piece);
            self.send_bytes(&data);
        }
        self.send(FrameKind::Close, stream, &[]);
        let reply = self.reply_of(stream);
        assert_eq!(self.frame_of(stream).kind, FrameKind::Close);
        match reply {
            Reply::Written(written) => Ok(written),
            Reply::Error(error) => Err(error),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Reads a file.
    pub(crate) fn read(&mut self, request: ReadRequest) -> Result<(Vec<u8>, FileRead), AgentError> {
        let start = request.offset;
        self.content(&Request::Read(request), start)
    }

    /// What an ended operation has left.
    pub(crate) fn report(&mut self, key: &OperationKey) -> Result<Vec<u8>, AgentError> {
        self.content(&Request::Report { key: key.clone() }, 0).map(|(content, _)| content)
    }

    fn content(&mut self, request: &Request, start: u64) -> Result<(Vec<u8>, FileRead), AgentError> {
        let mut content = Vec::new();
        let stream = self.request(request);
        let reply = loop {
            let frame = self.frame_of(stream);
            match frame.kind {
                FrameKind::Data => {
                    let (offset, channel, piece) = protocol::decode_data(frame.payload).expect("data");
                    assert_eq!((offset, channel), (start + content.len() as u64, 1));
                    content.extend_from_slice(&piece);
                }
                FrameKind::Reply => break serde_json::from_slice(&frame.payload).expect("a reply"),
                other => panic!("unexpected {other:?}"),
            }
        };
        assert_eq!(self.frame_of(stream).kind, FrameKind::Close);
        match reply {
            Reply::Read(read) => Ok((content, read)),
            Reply::Error(error) => Err(error),
            other => panic!("unexpected {other:?}"),
        }
    }

    pub(crate) fn status(&mut self) -> AgentStatus {
        match self.ask(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Reads output of a stream until it contains `text`. Returns everything read.
    pub(crate) fn until(&mut self, stream: StreamId, text: &str) -> Vec<u8> {
        self.read_until(stream, text, true)
    }

    /// As [`Self::until`], but nothing becomes durable.
    pub(crate) fn until_without_acks(&mut self, stream: StreamId, text: &str) {
        self.read_until(stream, text, false);
    }

    fn read_until(&mut self, stream: StreamId, text: &str, acknowledge: bool) -> Vec<u8> {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            let frame = self.frame_of(stream);
            if frame.kind == FrameKind::Data {
                let (offset, _, content) = protocol::decode_data(frame.payload).expect("data");
                seen.extend_from_slice(&content);
                if acknowledge {
                    self.ack(stream, offset + content.len() as u64);
                }
            } else {
                assert_ne!(frame.kind, FrameKind::Close, "ended; saw {:?}", String::from_utf8_lossy(&seen));
            }
        }
        seen
    }
}

/// What became of an operation.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) attached: Option<ExecAttached>,
    /// Channel and byte.
    pub(crate) log: Vec<(u8, u8)>,
    pub(crate) exit: Option<ExecExit>,
    pub(crate) error: Option<AgentError>,
    joined_late: bool,
}

impl Ended {
    fn channel(&self, channel: u8) -> String {
        let bytes: Vec<u8> = self.log.iter().filter(|(c, _)| *c == channel).map(|(_, byte)| *byte).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn stdout(&self) -> String {
        self.channel(1)
    }

    pub(crate) fn stderr(&self) -> String {
        self.channel(2)
    }

    pub(crate) fn exit(&self) -> &ExecExit {
        self.exit.as_ref().unwrap_or_else(|| panic!("no exit: {:?}", self.error))
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.exit().exit_code
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.attached.as_ref().is_some_and(|attached| attached.warm)
    }
}

pub(crate) fn key(owner: &str) -> OperationKey {
    OperationKey { owner: owner.to_owned(), operation: 0 }
}

/// A command without a deadline: how long one takes on a busy host says nothing, and the runner ends a test that hangs.
pub(crate) fn spec(program: Program) -> ExecSpec {
    ExecSpec {
        role: Default::default(),
        program,
        cwd: "/workspace".to_owned(),
        env: BTreeMap::new(),
        stdin: StdinMode::Null,
        timeout_ms: None,
        grace_ms: 200,
        limits: ExecLimits::default(),
        detached: false,
        terminal: None,
    }
}

pub(crate) fn shell(command: &str) -> ExecSpec {
    spec(Program::Shell { command: command.to_owned() })
}

pub(crate) fn argv(arguments: &[&str]) -> ExecSpec {
    let argv = arguments.iter().map(|&argument| argument.to_owned()).collect();
    spec(Program::Argv { argv, script: None })
}
