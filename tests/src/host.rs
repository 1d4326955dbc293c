//! One installation for one test: its own Postgres, folders, labels and `toolhost` processes. When it is dropped,
//! it stops what runs and asserts that nothing is left: no process, no container, no workspace, no loop device.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use server::postgres::{Cluster, Durability};
use tempfile::TempDir;

use crate::process::{self, built};
use crate::{Client, Process, engine};

const PEPPER: &str = "a pepper for tests, which is long enough";
const SIGNING_KEY: &str = "a signing key for tests, long enough too";
const INTERNAL_KEY: &str = "a key between processes of one test, long enough";

/// How long what has ended may take to be gone: a mount is over with its last user, and a container that another test starts
/// at that moment is one, and so is a helper of gVisor's.
const TIME_TO_GO: Duration = Duration::from_secs(30);

/// An installation.
#[derive(Debug)]
pub struct Host {
    /// Its name, on every container of its.
    pub installation: String,
    /// Its database.
    pub postgres: Cluster,
    /// Its processes, by the order of their start.
    pub processes: Vec<Process>,
    /// Where its API is.
    pub base: String,
    /// What the processes get beside the usual settings.
    pub settings: Vec<(String, String)>,
    folder: TempDir,
    /// Why its test failed.
    failed: Option<String>,
}

/// A tenant and a client with its key.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Its id.
    pub id: String,
    /// A client with a key of its that may do everything.
    pub client: Client,
}

/// The container runtime that sandboxes get: `TOOLHOST_TEST_RUNTIME`, so that the same tests run on `runsc`; else `runc`.
#[must_use]
pub fn runtime() -> String {
    std::env::var("TOOLHOST_TEST_RUNTIME").unwrap_or_else(|_| "runc".to_owned())
}

impl Host {
    /// Runs a test on a whole installation. When the test fails, what the processes said is shown.
    ///
    /// # Panics
    /// When the installation does not start, the test fails, or something is left behind.
    pub async fn test(settings: &[(&str, &str)], body: impl AsyncFnOnce(&mut Self) -> Result<()>) {
        let mut host = Box::pin(Self::start_with(settings)).await.expect("an installation starts");
        let outcome = Box::pin(body(&mut host)).await;
        host.finish(outcome);
    }

    /// The same, but nothing runs yet.
    ///
    /// # Panics
    /// When the installation cannot be made, the test fails, or something is left behind.
    pub async fn test_prepared(body: impl AsyncFnOnce(&mut Self) -> Result<()>) {
        let mut host = Box::pin(Self::prepare()).await.expect("an installation can be made");
        let outcome = Box::pin(body(&mut host)).await;
        host.finish(outcome);
    }

    /// The same with a worker and an API in a process of its own each, and an internal listener between them.
    ///
    /// # Panics
    /// When the installation does not start, the test fails, or something is left behind.
    pub async fn test_apart(body: impl AsyncFnOnce(&mut Self) -> Result<()>) {
        Self::test_prepared(async |host| {
            host.set("internal.listen", "127.0.0.1:0");
            host.set("internal.key", INTERNAL_KEY);
            host.worker()?;
            host.serve(&[])?;
            body(host).await
        })
        .await;
    }

    fn finish(mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            let why = format!("{error:#}{}", own_frames(&error));
            eprintln!("the test failed: {why}");
            self.failed = Some(why);
            // Unwinding drops the host, which shows what its processes said. A second backtrace would say nothing about why.
            std::panic::resume_unwind(Box::new("the test failed"));
        }
    }

    /// A database with its schema, and nothing that runs on it yet.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn prepare() -> Result<Self> {
        Box::pin(Self::prepare_with(Durability::Relaxed)).await
    }

    /// The same with a database that keeps what it says, for benchmarks.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn prepare_with(durability: Durability) -> Result<Self> {
        // Sockets of sandboxes lie in here, and paths of sockets must be short.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("th-").permissions(mode).tempdir_in("/tmp")?;
        let name = folder.path().file_name().and_then(|name| name.to_str()).context("a name")?;
        let installation = format!("test-{}", name.trim_start_matches("th-"));
        let postgres = Cluster::start(&folder.path().join("postgres"), durability).await?;
        let host = Self {
            installation,
            postgres,
            processes: Vec::new(),
            base: String::new(),
            settings: Vec::new(),
            folder,
            failed: None,
        };
        host.cli(&["migrate"])?;
        Ok(host)
    }

    /// A whole installation: API and worker in one process.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with settings, by their dotted names.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        let mut host = Self::prepare().await?;
        for (key, value) in settings {
            host.set(key, value);
        }
        host.serve(&["--with-worker"])?;
        Ok(host)
    }

    /// A setting for processes that are started from now on.
    pub fn set(&mut self, key: &str, value: &str) {
        self.settings.push((key.to_owned(), value.to_owned()));
    }

    /// Starts `toolhost serve` and waits until it serves; its address becomes [`Self::base`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn serve(&mut self, arguments: &[&str]) -> Result<&mut Process> {
        let process = self.spawn(&[&["serve"], arguments].concat())?;
        let process = self.keep(process)?;
        let base = process.wait_for(|line| address(line, "the API listens"))?;
        self.base = base;
        self.processes.last_mut().context("was kept")
    }

    /// Starts `toolhost worker` and waits until it runs.
    ///
    /// # Errors
    /// When it does not start.
    pub fn worker(&mut self) -> Result<&mut Process> {
        let process = self.spawn(&["worker"])?;
        let process = self.keep(process)?;
        process.wait_for(|line| line.contains("the worker runs").then_some(()))?;
        Ok(process)
    }

    fn keep(&mut self, process: Process) -> Result<&mut Process> {
        self.processes.push(process);
        self.processes.last_mut().context("was pushed")
    }

    /// Starts `toolhost` with these arguments and this installation's settings.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, arguments: &[&str]) -> Result<Process> {
        let mut command = self.command()?;
        command.args(arguments);
        Process::start(&format!("toolhost {}", arguments.join(" ")), &mut command)
    }

    /// Runs `toolhost` to its end; what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub fn cli(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "toolhost {}: {said}", arguments.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs `toolhost` to its end, however it ends.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command()?.args(arguments).output()?)
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(built("toolhost")?);
        command.current_dir(self.folder.path()).env_remove("DATABASE_URL").env_remove("TOOLHOST_CONFIG");
        command.envs(self.environment());
        Ok(command)
    }

    /// The settings of its processes, as environment variables.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let agent = std::env::var("TOOLHOST_AGENT_PATH")
            .map_or_else(|_| root.join("target/toolhost-agent"), PathBuf::from);
        [
            ("server.listen", "127.0.0.1:0".to_owned()),
            ("metrics.listen", "127.0.0.1:0".to_owned()),
            ("database.url", self.postgres.url()),
            // A machine that stands still for seconds is no outage.
            ("database.timeout_ms", "20000".to_owned()),
            ("keys.pepper", PEPPER.to_owned()),
            ("stream_url.signing_key", SIGNING_KEY.to_owned()),
            ("worker.installation", self.installation.clone()),
            ("worker.host", "test-host".to_owned()),
            ("worker.end_sessions_at_exit", "true".to_owned()),
            ("worker.drain_ms", "2000".to_owned()),
            ("server.drain_ms", "2000".to_owned()),
            ("sandbox.runtime", runtime()),
            ("sandbox.runtime_dir", path("run")),
            ("sandbox.state_dir", path("state")),
            ("artifacts.store", path("artifacts")),
            ("sandbox.agent_path", agent.display().to_string()),
            ("sandbox.orphan_grace_s", "5".to_owned()),
            ("sandbox.reconcile_s", "2".to_owned()),
            // The machine of the tests has less than many small sessions may use at most.
            ("capacity.memory_mb", "1000000".to_owned()),
            ("capacity.disk_mb", "10000000".to_owned()),
            ("capacity.cpus", "1000".to_owned()),
            ("log.format", "json".to_owned()),
        ]
        .into_iter()
        .chain(self.settings.iter().map(|(key, value)| (key.as_str(), value.clone())))
        .map(|(key, value)| (format!("TOOLHOST_{}", key.to_uppercase().replace('.', "__")), value))
        .collect()
    }

    /// A new tenant with a key.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn tenant(&self, name: &str) -> Result<Tenant> {
        let id = self.cli(&["admin", "tenant", "create", name])?;
        let key = self.cli(&["admin", "key", "create", "--tenant", &id, "--name", "test"])?;
        Ok(Tenant { id, client: Client::new(&self.base, &key) })
    }

    /// A client with a key above tenants.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn operator(&self) -> Result<Client> {
        let key = self.cli(&["admin", "operator-key", "create", "--name", "test"])?;
        Ok(Client::new(&self.base, &key))
    }

    /// Sets a tenant's policy; it holds once the caches of the processes are over.
    ///
    /// # Errors
    /// When it is refused.
    pub fn policy(&self, tenant: &Tenant, policy: &Value) -> Result<()> {
        let file = self.folder.path().join("policy.json");
        std::fs::write(&file, policy.to_string())?;
        self.cli(&["admin", "tenant", "policy", &tenant.id, &file.display().to_string()]).map(drop)
    }

    /// Its one container, given that no pool keeps others.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn only_container(&self) -> Result<String> {
        let containers = engine::containers(&self.installation)?;
        ensure!(containers.len() == 1, "{containers:?}");
        containers.into_iter().next().context("one")
    }

    /// The installation's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn stop(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for process in &mut self.processes {
            process.signal(nix::sys::signal::Signal::SIGTERM);
        }
        for process in &mut self.processes {
            match process.wait() {
                Ok(status) if status.success() || signalled(&status) => {}
                Ok(status) => left.push(format!("a process ended with {status}: {}", process.end_of_said())),
                Err(error) => left.push(error.to_string()),
            }
        }
        left.extend(
            engine::containers(&self.installation)
                .unwrap_or_default()
                .into_iter()
                .map(|id| format!("container {id}")),
        );
        let (folder, run) = (self.folder.path(), self.folder.path().join("run"));
        left.extend(still_there(&folder.display().to_string(), &run.display().to_string()));
        left
    }

    /// After a test: what the test left is removed, whatever it is.
    fn sweep(&mut self) {
        for container in engine::containers(&self.installation).unwrap_or_default() {
            let _ = engine::docker(&["rm", "-f", "-v", &container]);
        }
        for volume in engine::volumes(&self.installation).unwrap_or_default() {
            let _ = engine::docker(&["volume", "rm", "-f", &volume]);
        }
        for line in engine::loop_devices(&self.folder.path().display().to_string()) {
            if let Some(device) = line.split_whitespace().next() {
                let _ = Command::new("/sbin/losetup").args(["-d", device]).status();
            }
        }
    }

    fn stop_postgres(&mut self) {
        let Some(pid) = self.postgres.pid() else { return };
        let _ =
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGINT);
        // What it leaves behind is the next test's to meet.
        let _ = process::ends(pid, Duration::from_secs(30));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in &mut self.processes {
                eprintln!("--- said by a process:\n{}", process.end_of_said());
            }
            // Once more, below all that: it is what a reader looks for first.
            if let Some(why) = &self.failed {
                eprintln!("--- the test failed: {why}");
            }
        }
        let left = self.stop();
        self.sweep();
        self.stop_postgres();
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
        }
    }
}

/// Loop devices over files in a folder, and processes whose command line contains a text, that do not go by themselves.
#[must_use]
pub fn still_there(folder: &str, text: &str) -> Vec<String> {
    let deadline = Instant::now() + TIME_TO_GO;
    loop {
        let left = [engine::loop_devices(folder), engine::processes_with(text)].concat();
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        // Neither says when it goes: the engine's helpers are not this process's children, and mounts are the kernel's.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where in this repository an error comes from, where backtraces are wanted; the other frames are the runtime's.
fn own_frames(error: &anyhow::Error) -> String {
    let backtrace = error.backtrace().to_string();
    let own = backtrace.lines().map(str::trim).filter(|line| line.starts_with("at ./"));
    own.map(|line| format!("\n    {line}")).collect()
}

/// A test ended it on purpose.
fn signalled(status: &std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal().is_some()
}

/// The address in a line that says what listens.
#[must_use]
pub fn address(line: &str, message: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    (line["message"] == message).then(|| format!("http://{}", line["address"].as_str().unwrap_or_default()))
}
