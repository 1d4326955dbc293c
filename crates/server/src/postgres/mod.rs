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
mod folders;
mod orphan;
mod probe;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
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
        let home = folders::home(folder, &account)?;
        let binaries = Binaries::find(&home.join("data"))?;
        let sockets = folders::sockets(&home, &account)?;
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
        orphan::stop(&self.home.join("data")).await?;
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
                orphan::send(pid, signal);
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
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            orphan::send(pid, Signal::SIGINT);
        }
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
