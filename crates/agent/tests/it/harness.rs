//! A sandbox made of namespaces, and a worker's side of the wire.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use protocol::{
    AgentError, AgentStatus, Decoder, ExecAttached, ExecExit, ExecLimits, ExecRequest, ExecSpec, FileRead,
    FileWritten, Frame, FrameKind, Hello, KillRequest, OperationKey, Program, ReadRequest, Reply, Request,
    StdinMode, StreamId, Welcome, WriteRequest,
};
use tempfile::TempDir;

/// Longest that any single answer may take; a test that meets it has failed.
const PATIENCE: Duration = Duration::from_secs(30);
static NEXT_UID: AtomicU32 = AtomicU32::new(0);

/// How a sandbox is made.
#[derive(Default, Clone)]
pub(crate) struct Options {
    pub(crate) warm_shells: u32,
    pub(crate) env: BTreeMap<String, String>,
    /// Memory limit in bytes, by a control group of its own.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) without_bash: bool,
}

/// A running agent in namespaces of its own.
pub(crate) struct Sandbox {
    pub(crate) folder: TempDir,
    pub(crate) uid: u32,
    options: Options,
    listener: Option<UnixListener>,
    process: Child,
    group: Option<PathBuf>,
    image: Option<String>,
    next_epoch: u64,
}

impl Sandbox {
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests make namespaces and need root");
        let folder = tempfile::Builder::new().prefix("agent-test").tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("mode");
        let uid =
            700_000 + (std::process::id() % 20_000) * 10 + NEXT_UID.fetch_add(1, Ordering::Relaxed) % 10;
        for name in ["root", "link", "workspace"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        chown(folder.path().join("workspace"), Some(uid), Some(uid)).expect("owner");
        let listener = UnixListener::bind(folder.path().join("link/worker.sock")).expect("a socket");
        // The static build can be tried by naming it, and in a real container of an image.
        let built = env!("CARGO_BIN_EXE_toolhost-agent").into();
        let agent = std::env::var_os("TOOLHOST_TEST_AGENT").unwrap_or(built);
        let image = std::env::var("TOOLHOST_TEST_IMAGE").ok();
        let (process, group) = match &image {
            Some(image) => (in_container(&folder, &agent, image, &options), None),
            None => in_namespaces(&folder, &agent, uid, &options),
        };
        Self { folder, uid, options, listener: Some(listener), process, group, image, next_epoch: 1 }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    /// Accepts the agent's next connection and welcomes it as the next owner.
    pub(crate) fn worker(&mut self) -> Worker {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let (mut worker, _) = self.accept();
        worker.welcome(self.uid, epoch, &self.options);
        worker
    }

    /// As [`Self::worker`], by a worker that speaks no newer version than this one.
    pub(crate) fn worker_of(&mut self, version: u32) -> Worker {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let (mut worker, hello) = self.accept();
        assert!((hello.oldest_version..=hello.newest_version).contains(&version));
        worker.welcome_in(version, self.uid, epoch, &self.options);
        worker
    }

    /// Accepts the agent's next connection and reads its greeting.
    pub(crate) fn accept(&mut self) -> (Worker, Hello) {
        let listener = self.listener.as_ref().expect("listens");
        let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(PATIENCE).expect("fits");
        assert_eq!(nix::poll::poll(&mut waiting, patience), Ok(1), "the agent does not dial");
        let (socket, _) = listener.accept().expect("the agent dials");
        let mut worker = Worker::new(socket);
        let frame = worker.frame();
        assert_eq!(frame.kind, FrameKind::Hello);
        (worker, serde_json::from_slice(&frame.payload).expect("a hello"))
    }

    /// Another worker puts its own socket in place.
    pub(crate) fn replace_socket(&mut self) {
        let path = self.folder.path().join("link/worker.sock");
        std::fs::remove_file(&path).expect("removes");
        self.listener = Some(UnixListener::bind(&path).expect("a socket"));
    }

    /// The agent's pid on the host.
    pub(crate) fn agent_pid(&self) -> i32 {
        if self.image.is_some() {
            let name = container_name(&self.folder);
            let pid = Command::new("docker").args(["inspect", "-f", "{{.State.Pid}}", &name]).output();
            return String::from_utf8(pid.expect("inspects").stdout)
                .expect("text")
                .trim()
                .parse()
                .expect("a pid");
        }
        let children = format!("/proc/{0}/task/{0}/children", self.process.id());
        let children = std::fs::read_to_string(children).expect("unshare lives");
        children.trim().parse().expect("one child")
    }

    /// Waits for the whole sandbox to end.
    pub(crate) fn wait(mut self) -> std::process::ExitStatus {
        self.process.wait().expect("waits")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.image.is_some() {
            let removed =
                Command::new("docker").args(["rm", "-f", "-v", &container_name(&self.folder)]).output();
            removed.expect("removes");
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(group) = &self.group {
            while let Err(error) = std::fs::remove_dir(group) {
                assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
            }
        }
    }
}

/// A root of its own in fresh namespaces, with the agent's capabilities: no engine and no image needed.
fn in_namespaces(folder: &TempDir, agent: &OsStr, uid: u32, options: &Options) -> (Child, Option<PathBuf>) {
    let group = options.memory_bytes.map(|bytes| memory_group(uid, bytes));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/sandbox.sh");
    let mut command = Command::new("sh");
    // The shell enters the control group before it becomes unshare, so that the whole sandbox is in it.
    let enter = r#"[ -z "$4" ] || echo $$ > "$4/cgroup.procs"; exec unshare --kill-child --pid --fork --mount --ipc --net sh "$@""#;
    command.arg("-c").arg(enter).arg("sh").arg(script).arg(folder.path()).arg(agent);
    command.arg(group.as_ref().map_or("".into(), |group| group.as_os_str().to_owned()));
    command.arg(if options.without_bash { "without-bash" } else { "" });
    (command.stdin(Stdio::null()).spawn().expect("unshare starts"), group)
}

fn container_name(folder: &TempDir) -> String {
    folder.path().file_name().expect("a name").to_string_lossy().into_owned()
}

/// The hardened container of the design, for trying the agent in the real thing.
fn in_container(folder: &TempDir, agent: &OsStr, image: &str, options: &Options) -> Child {
    let home = folder.path().join("root");
    std::fs::create_dir(home.join("link")).expect("a folder");
    std::fs::copy(agent, home.join("agent")).expect("copies");
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).expect("mode");
    let memory = options.memory_bytes.unwrap_or(512 * 1024 * 1024);
    let mut command = Command::new("docker");
    command.args([
        "run",
        "--rm",
        "--network=none",
        "--ipc=private",
        "--read-only",
        "--user=0:0",
        "--log-driver=none",
    ]);
    command.args([
        "--cap-drop=ALL",
        "--cap-add=SETUID",
        "--cap-add=SETGID",
        "--cap-add=KILL",
        "--cap-add=CHOWN",
    ]);
    let seccomp =
        concat!("--security-opt=seccomp=", env!("CARGO_MANIFEST_DIR"), "/../../deploy/sandbox/seccomp.json");
    command.args(["--security-opt=no-new-privileges", seccomp, "--pids-limit=512", "--ulimit=core=0"]);
    command.args([format!("--memory={memory}"), format!("--memory-swap={memory}")]);
    command.args([
        "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777,size=64m",
        "--tmpfs=/run:rw,nosuid,nodev,size=4m",
    ]);
    command.arg(format!("--name={}", container_name(folder)));
    for (from, to) in [("workspace", "/workspace"), ("root", "/.toolhost:ro"), ("link", "/.toolhost/link:ro")]
    {
        command.arg(format!("--volume={}:{to}", folder.path().join(from).display()));
    }
    if options.without_bash {
        std::fs::write(folder.path().join("empty"), "").expect("writes");
        command.arg(format!("--volume={}:/usr/bin/bash:ro", folder.path().join("empty").display()));
    }
    command.args(["--workdir=/", "--entrypoint=/.toolhost/agent", image]);
    command.stdin(Stdio::null()).spawn().expect("docker starts")
}

fn memory_group(uid: u32, bytes: u64) -> PathBuf {
    let v1 = PathBuf::from("/sys/fs/cgroup/memory");
    let (base, limit) =
        if v1.is_dir() { (v1, "memory.limit_in_bytes") } else { ("/sys/fs/cgroup".into(), "memory.max") };
    let group = base.join(format!("toolhost-agent-test-{uid}"));
    std::fs::create_dir(&group).expect("a control group");
    std::fs::write(group.join(limit), bytes.to_string()).expect("a limit");
    group
}

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
    fn new(socket: UnixStream) -> Self {
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

pub(crate) fn spec(program: Program) -> ExecSpec {
    ExecSpec {
        role: Default::default(),
        program,
        cwd: "/workspace".to_owned(),
        env: BTreeMap::new(),
        stdin: StdinMode::Null,
        timeout_ms: Some(20_000),
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
