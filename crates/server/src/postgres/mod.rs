//! A private Postgres cluster for development and tests, run from the installed server's binaries.
//!
//! # Design notes
//!
//! The server gets a process group of its own, so that Ctrl-C reaches us and not it: sessions are ended and rows
//! are written before it is told to stop. It listens on a unix socket only, in a folder that none but its own user
//! (and root) may enter; that folder is the whole of its access control. When we are root the server runs as the
//! user `postgres`, as it refuses to be root. After a `kill -9` of ours an orphan may still run on the data: it is
//! stopped and a new one is started, so that there is one state to be in, *our child*. A `postmaster.pid` whose
//! process is somebody else is removed; all other staleness is Postgres's own to judge.

mod account;
mod binaries;
mod probe;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use account::Account;
use binaries::Binaries;

/// Start of a cluster that recovers from a crash may take long; nobody waits longer than this.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A fast shutdown writes a checkpoint; beyond this the server is told to drop everything.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// What a server says that starts too soon after the kill of the one before.
const MEMORY_STILL_HELD: &str = "pre-existing shared memory block";
const POLL: Duration = Duration::from_millis(20);
/// Paths of unix sockets are limited to 107 bytes; the socket's own name takes this many.
const LONGEST_SOCKET_FOLDER: usize = 107 - "/.s.PGSQL.5432".len();

/// Whether a power cut may cost data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It may not: commits wait for the disk.
    Full,
    /// It may; only for tests, where a crash of the machine ends the test anyway.
    Relaxed,
}

/// A running cluster. Dropping it tells the server to stop without waiting for it; [`Cluster::stop`] waits.
#[derive(Debug)]
pub struct Cluster {
    home: PathBuf,
    sockets: PathBuf,
    binaries: Binaries,
    account: Account,
    durability: Durability,
    child: Option<Child>,
}

impl Cluster {
    /// Starts the cluster kept in `folder` (made on first use), and returns once it answers. Where the user
    /// `postgres` may not enter that folder, the data is kept below `/var/lib` and `folder` is a link to it.
    ///
    /// # Errors
    /// When there is no server installed, or it does not start; the end of its log is in the message.
    pub async fn start(folder: &Path, durability: Durability) -> Result<Self> {
        let account = Account::for_server()?;
        let home = home(folder, &account)?;
        let binaries = Binaries::find(&home.join("data"))?;
        let sockets = socket_folder(&home, &account)?;
        let mut cluster = Self { home, sockets, binaries, account, durability, child: None };
        cluster.initialise().await?;
        cluster.start_again().await?;
        Ok(cluster)
    }

    /// URL of its first database.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://toolhost@localhost/postgres?host={}", percent_encoded(&self.sockets))
    }

    /// Process id of the server.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Starts the server of a stopped cluster.
    ///
    /// # Errors
    /// When it does not answer in time or ends at once.
    pub async fn start_again(&mut self) -> Result<()> {
        self.stop_orphan().await?;
        let log = self.home.join("log");
        if log.exists() {
            fs::rename(&log, self.home.join("log.old"))?;
        }
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.home.join("data"));
        for setting in self.settings() {
            command.arg("-c").arg(setting);
        }
        command.stdout(output.try_clone()?).stderr(output);
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let mut child = command.spawn().context("cannot start postgres")?;
            let answered = self.wait_until_it_answers(&mut child, deadline).await;
            self.child = Some(child);
            let Err(error) = answered else { return Ok(()) };
            self.stop().await?;
            // Backends of a killed server hold its memory until they notice, which is soon.
            if !error.to_string().contains(MEMORY_STILL_HELD) || Instant::now() > deadline {
                return Err(error);
            }
            sleep(POLL).await;
        }
    }

    /// Ends the server: clients are cut off, transactions rolled back, data written.
    ///
    /// # Errors
    /// When the server cannot be waited for.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        for (signal, limit) in [(Signal::SIGINT, STOP_LIMIT), (Signal::SIGQUIT, STOP_LIMIT)] {
            if let Some(pid) = child.id() {
                send(pid, signal);
            }
            if timeout(limit, child.wait()).await.is_ok() {
                return Ok(());
            }
        }
        child.kill().await.context("cannot end postgres")
    }

    /// Kills the server as a crash would, and waits until all of it is gone.
    ///
    /// # Errors
    /// When the server cannot be waited for.
    pub async fn crash(&mut self) -> Result<()> {
        if let Some(child) = self.child.as_mut() {
            child.kill().await.context("cannot kill postgres")?;
        }
        self.child = None;
        Ok(())
    }

    /// Returns when the server has ended by itself.
    pub async fn ended(&mut self) {
        match self.child.as_mut() {
            Some(child) => drop(child.wait().await),
            None => std::future::pending().await,
        }
    }

    fn settings(&self) -> Vec<String> {
        let mut settings = vec![
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={}", self.sockets.display()),
            "port=5432".to_owned(),
            "max_connections=200".to_owned(),
            "logging_collector=off".to_owned(),
        ];
        if self.durability == Durability::Relaxed {
            settings.extend(["fsync=off", "full_page_writes=off"].map(str::to_owned));
        }
        settings
    }

    async fn initialise(&self) -> Result<()> {
        let data = self.home.join("data");
        if data.join("PG_VERSION").exists() {
            return Ok(());
        }
        // Made beside its place and moved there, so that an interrupted one is not taken for a cluster.
        let new = self.home.join("data.new");
        if new.exists() {
            fs::remove_dir_all(&new).with_context(|| format!("cannot remove {}", new.display()))?;
        }
        let output = self
            .command("initdb")
            .arg("--pgdata")
            .arg(&new)
            .args(["--username=toolhost", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .await
            .context("cannot run initdb")?;
        if !output.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        fs::rename(&new, &data).with_context(|| format!("cannot make {}", data.display()))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.path(program));
        command.stdin(Stdio::null()).current_dir(&self.home).process_group(0);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
        self.account.apply(&mut command);
        command
    }

    async fn wait_until_it_answers(&self, child: &mut Child, deadline: Instant) -> Result<()> {
        let socket = self.sockets.join(".s.PGSQL.5432");
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("postgres ended at once ({status}); the end of its log: {}", self.end_of_log());
            }
            if probe::answers(&socket).await {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "postgres did not answer within {START_LIMIT:?}; the end of its log: {}",
                    self.end_of_log()
                );
            }
            sleep(POLL).await;
        }
    }

    fn end_of_log(&self) -> String {
        let text = fs::read_to_string(self.home.join("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// Stops a server that a killed process of ours has left behind on this data.
    async fn stop_orphan(&self) -> Result<()> {
        let data = self.home.join("data");
        let pid_file = data.join("postmaster.pid");
        let Some(pid) = recorded_pid(&pid_file)? else { return Ok(()) };
        if !is_alive(pid) {
            return Ok(());
        }
        if !is_server_on(pid, &data) {
            return fs::remove_file(&pid_file)
                .with_context(|| format!("cannot remove {}", pid_file.display()));
        }
        tracing::info!(pid, "stopping the Postgres server that an earlier run left behind");
        for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGKILL] {
            send(pid, signal);
            let deadline = Instant::now() + STOP_LIMIT;
            while Instant::now() < deadline {
                if !is_alive(pid) {
                    return Ok(());
                }
                sleep(POLL).await;
            }
        }
        bail!("the Postgres server of an earlier run (pid {pid}) does not end")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            send(pid, Signal::SIGINT);
        }
    }
}

fn home(folder: &Path, account: &Account) -> Result<PathBuf> {
    let parent = folder.parent().context("the cluster's folder needs a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let parent = parent.canonicalize()?;
    let name = folder.file_name().context("the cluster's folder needs a name")?;
    let mut home = parent.join(name);
    if !account.may_enter(&parent) {
        let elsewhere = PathBuf::from(format!("/var/lib/toolhost-{}", crate::place::short_hash(&home)));
        if fs::symlink_metadata(&home).is_err() {
            std::os::unix::fs::symlink(&elsewhere, &home)
                .with_context(|| format!("cannot link {} to {}", home.display(), elsewhere.display()))?;
        }
        home = elsewhere;
    }
    private_folder(&home, account)?;
    Ok(home)
}

fn socket_folder(home: &Path, account: &Account) -> Result<PathBuf> {
    let beside = home.join("run");
    let folder = if beside.as_os_str().len() <= LONGEST_SOCKET_FOLDER {
        beside
    } else {
        PathBuf::from(format!("/tmp/toolhost-postgres-{}", crate::place::short_hash(home)))
    };
    private_folder(&folder, account)?;
    Ok(folder)
}

fn private_folder(path: &Path, account: &Account) -> Result<()> {
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.with_context(|| format!("cannot make {}", path.display()))?,
    }
    account.own(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot protect {}", path.display()))
}

fn recorded_pid(pid_file: &Path) -> Result<Option<u32>> {
    match fs::read_to_string(pid_file) {
        Ok(text) => Ok(text.lines().next().and_then(|line| line.trim().parse().ok())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", pid_file.display())),
    }
}

fn is_alive(pid: u32) -> bool {
    // A zombie has no command line; it holds nothing.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn is_server_on(pid: u32, data: &Path) -> bool {
    let is_postgres =
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres");
    let works_there = fs::read_link(format!("/proc/{pid}/cwd"))
        .is_ok_and(|folder| data.canonicalize().is_ok_and(|data| data == folder));
    is_postgres && works_there
}

fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // It may have ended already; then there is nobody to tell.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

fn percent_encoded(path: &Path) -> String {
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                char::from(*byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests;
