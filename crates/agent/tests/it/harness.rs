//! A sandbox made of namespaces; its worker is in [`worker`].

mod worker;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use protocol::{FrameKind, Hello};
use tempfile::TempDir;
pub(crate) use worker::{Ended, Worker, argv, key, shell, spec};

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
