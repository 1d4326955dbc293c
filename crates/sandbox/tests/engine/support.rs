//! One installation for one test: driver, ledger in memory, and a look at what is left when it is over.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::{HostId, Resources, SandboxId, SizeClass};
use protocol::{ExecExit, ExecLimits, ExecRequest, ExecSpec, OperationKey, Program, StdinMode, StreamName};
use sandbox::{
    AcquireRequest, AgentClient, Config, DockerDriver, Driver, ExecEvent, Identity, Ledger, LedgerError,
    LinkError, Live, LiveRow, Metrics, PoolEntry, Reserve, Reserved, Sandbox, Sandboxes, WorkspaceMode,
    WorkspaceName,
};
use uuid::Uuid;

use crate::RUNTIME;

pub(crate) const IMAGE: &str = "toolhost/sandbox:latest";
/// How long a test waits for what comes by itself. It ends a test that hangs, and says nothing of how fast anything is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Rows in memory.
#[derive(Debug)]
pub(crate) struct MemoryLedger {
    pub(crate) rows: Mutex<HashMap<SandboxId, LiveRow>>,
    pub(crate) wanted: Mutex<Vec<WorkspaceName>>,
    next_uid: AtomicU32,
}

impl MemoryLedger {
    fn new() -> Self {
        let first = 1_048_576 + (Uuid::new_v4().as_u128() % 1_000_000_000) as u32;
        Self { rows: Mutex::default(), wanted: Mutex::default(), next_uid: AtomicU32::new(first) }
    }

    pub(crate) fn live_rows(&self) -> usize {
        self.rows.lock().unwrap().len()
    }
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn reserve(&self, request: &Reserve) -> Result<Reserved, LedgerError> {
        let tool_uid = match &request.workspace {
            Some(workspace) => workspace.tool_uid,
            None => self.next_uid.fetch_add(1, Ordering::Relaxed),
        };
        let sandbox_id = SandboxId::from_uuid(Uuid::now_v7());
        let row = LiveRow {
            sandbox_id,
            container_id: None,
            workspace: None,
            abandoned: false,
            age: Duration::ZERO,
        };
        self.rows.lock().unwrap().insert(sandbox_id, row);
        Ok(Reserved { sandbox_id, tool_uid, epoch: 1 })
    }

    async fn started(
        &self,
        id: SandboxId,
        container: &str,
        workspace: &WorkspaceName,
    ) -> Result<(), LedgerError> {
        let mut rows = self.rows.lock().unwrap();
        let row = rows.get_mut(&id).ok_or_else(|| LedgerError::new("no such row"))?;
        row.container_id = Some(container.to_owned());
        row.workspace = Some(workspace.clone());
        Ok(())
    }

    async fn removed(&self, id: SandboxId) -> Result<(), LedgerError> {
        self.rows.lock().unwrap().remove(&id);
        Ok(())
    }

    async fn live(&self) -> Result<Live, LedgerError> {
        Ok(Live {
            rows: self.rows.lock().unwrap().values().cloned().collect(),
            workspaces: self.wanted.lock().unwrap().clone(),
            restored_at: None,
        })
    }
}

/// One installation.
pub(crate) struct Rig {
    pub(crate) identity: Identity,
    pub(crate) config: Config,
    pub(crate) ledger: Arc<MemoryLedger>,
    pub(crate) driver: Arc<DockerDriver>,
    _place: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let agent_path = std::env::var_os("TOOLHOST_AGENT_PATH").map_or_else(
            || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/toolhost-agent")),
            PathBuf::from,
        );
        assert!(
            agent_path.is_file(),
            "there is no agent at {}: build it, or name it in TOOLHOST_AGENT_PATH",
            agent_path.display()
        );
        assert!(
            docker(&["image", "inspect", "--format", "ok", IMAGE]).is_ok(),
            "there is no image {IMAGE} (make sandbox-image builds it), or no engine answers"
        );
        let runtimes = docker(&["info", "--format", "{{json .Runtimes}}"]).unwrap();
        assert!(
            runtimes.contains(&format!("\"{RUNTIME}\"")),
            "the engine has no runtime {RUNTIME}: deploy/host/gvisor.sh installs and registers gVisor"
        );
        let place = tempfile::tempdir().unwrap();
        let mut config = Config {
            runtime_dir: place.path().join("run"),
            state_dir: place.path().join("state"),
            agent_path,
            runtime: RUNTIME.to_owned(),
            runtimes: vec![RUNTIME.to_owned()],
            pool: Vec::new(),
            reconcile_s: 3_600,
            orphan_grace_s: 0,
            ..Config::default()
        };
        change(&mut config);
        let installation = format!("test{:08x}", Uuid::new_v4().as_u128() as u32);
        let identity = Identity { installation, host_id: HostId::from_uuid(Uuid::now_v7()) };
        let driver = Arc::new(DockerDriver::new(identity.clone(), &config).unwrap());
        Self { identity, config, ledger: Arc::new(MemoryLedger::new()), driver, _place: place }
    }

    /// A worker of this installation. Several may share it.
    pub(crate) fn worker(&self) -> Sandboxes {
        self.worker_with(self.config.clone())
    }

    pub(crate) fn worker_with(&self, config: Config) -> Sandboxes {
        self.worker_on(self.driver.clone(), config)
    }

    /// The same with another driver.
    pub(crate) fn worker_on(&self, driver: Arc<dyn Driver>, config: Config) -> Sandboxes {
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let sandboxes = Sandboxes::new(&self.identity, driver, self.ledger.clone(), config, metrics);
        sandboxes.start();
        sandboxes
    }

    /// Fails when anything of this installation is left on the engine or the host.
    pub(crate) async fn finish(self, workers: &[&Sandboxes]) {
        for worker in workers {
            worker.shutdown().await;
        }
        self.assert_nothing_is_left().await;
    }

    async fn assert_nothing_is_left(&self) {
        let label = format!("label=io.toolhost.installation={}", self.identity.installation);
        let containers = docker(&["ps", "-aq", "--filter", &label]).unwrap();
        let volumes = docker(&["volume", "ls", "-q", "--filter", &label]).unwrap();
        let mut left: Vec<&str> = Vec::new();
        for volume in volumes.lines() {
            if volume.contains("-agent-") {
                docker(&["volume", "rm", volume]).unwrap();
            } else {
                left.push(volume);
            }
        }
        let state = self.config.state_dir.to_string_lossy().into_owned();
        let loops = || {
            let loops = run("losetup", &["--noheadings", "--output", "BACK-FILE"]).unwrap_or_default();
            loops.lines().filter(|file| file.contains(&state)).map(str::to_owned).collect::<Vec<_>>()
        };
        // gVisor's helpers may hold a mount for a moment longer than their container.
        until("no loop device is left", PATIENCE, || loops().is_empty()).await;
        let folder = self.config.runtime_dir.join(&self.identity.installation);
        let folders = std::fs::read_dir(folder).map_or(0, Iterator::count);
        let files = self.config.state_dir.join("workspaces").join(&self.identity.installation);
        let files = std::fs::read_dir(files).map_or(0, Iterator::count);
        assert_eq!(containers, "", "containers are left");
        assert_eq!(left, Vec::<&str>::new(), "volumes are left");
        assert_eq!((folders, files), (0, 0), "folders or workspace files are left");
        assert_eq!(self.ledger.live_rows(), 0, "rows are left");
    }
}

impl Drop for Rig {
    /// A test that failed must not leave its sandboxes to the others.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let label = format!("label=io.toolhost.installation={}", self.identity.installation);
        for container in docker(&["ps", "-aq", "--filter", &label]).unwrap_or_default().lines() {
            let _ = docker(&["rm", "-f", "-v", container]);
        }
        for volume in docker(&["volume", "ls", "-q", "--filter", &label]).unwrap_or_default().lines() {
            let _ = docker(&["volume", "rm", volume]);
        }
        let loops = run("losetup", &["--noheadings", "--output", "NAME,BACK-FILE"]).unwrap_or_default();
        let state = self.config.state_dir.to_string_lossy().into_owned();
        for line in loops.lines().filter(|line| line.contains(&state)) {
            let _ = run("losetup", &["--detach", line.split_whitespace().next().unwrap_or_default()]);
        }
    }
}

pub(crate) fn small() -> AcquireRequest {
    sized(SizeClass::Small.resources())
}

pub(crate) fn sized(resources: Resources) -> AcquireRequest {
    AcquireRequest { image: IMAGE.to_owned(), resources, runtime: RUNTIME.to_owned(), workspace: None }
}

pub(crate) fn warm_small(count: usize) -> Vec<PoolEntry> {
    vec![PoolEntry { image: None, size: SizeClass::Small, runtime: None, count }]
}

pub(crate) fn volume_mode(config: &mut Config) {
    config.workspaces = WorkspaceMode::Volume;
}

pub(crate) fn key(owner: &str) -> OperationKey {
    OperationKey { owner: owner.to_owned(), operation: 0 }
}

pub(crate) fn shell(owner: &str, command: &str) -> ExecRequest {
    ExecRequest {
        key: key(owner),
        resume_from: 0,
        spec: Some(ExecSpec {
            role: Default::default(),
            program: Program::Shell { command: command.to_owned() },
            cwd: protocol::WORKSPACE_DIR.to_owned(),
            env: std::collections::BTreeMap::new(),
            stdin: StdinMode::Null,
            timeout_ms: Some(60_000),
            grace_ms: 200,
            limits: ExecLimits::default(),
            detached: false,
            terminal: None,
        }),
    }
}

/// What a command wrote and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: ExecExit,
}

pub(crate) async fn run_request(agent: &AgentClient, request: ExecRequest) -> Result<Ran, LinkError> {
    let mut stream = agent.exec(request).await?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut end = 0;
    while let Some(event) = stream.next().await? {
        match event {
            ExecEvent::Attached(attached) => end = attached.offset,
            ExecEvent::Output(output) => {
                assert_eq!(output.offset, end, "output is contiguous");
                end += output.bytes.len() as u64;
                match output.stream {
                    StreamName::Stdout => stdout.extend_from_slice(&output.bytes),
                    StreamName::Stderr => stderr.extend_from_slice(&output.bytes),
                }
                stream.ack(end);
            }
            ExecEvent::Exited(exit) => {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                return Ok(Ran { stdout: text(stdout), stderr: text(stderr), exit });
            }
        }
    }
    Err(LinkError::Disconnected)
}

/// Runs a command once under a fresh key.
pub(crate) async fn bash(sandbox: &Sandbox, command: &str) -> Ran {
    let owner = Uuid::new_v4().to_string();
    let ran = tokio::time::timeout(PATIENCE, run_request(sandbox.agent(), shell(&owner, command)));
    ran.await.expect("the command ends").unwrap()
}

/// Waits until something holds that has no event of its own: a row, a device, a process of the engine's.
pub(crate) async fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < limit, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn docker(arguments: &[&str]) -> Result<String, String> {
    run("docker", arguments)
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
