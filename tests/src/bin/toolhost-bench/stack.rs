//! The installation that is measured: a durable private Postgres and the program `toolhost` as a process of its own,
//! in folders and on ports of its own. Stopping it leaves nothing but the results.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use server::place::short_hash;
use server::postgres::{Cluster, Durability};
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};
use tempfile::TempDir;
use tests::process::built;
use tests::{Process, engine, host};
use tokio::time::sleep;

use crate::bench::Progress;
use crate::container;
use crate::http::Http;

/// Sandboxes that wait, where a measure does not say.
const POOL: usize = 4;
/// Filling a pool of a hundred on a busy machine takes minutes.
const POOL_LIMIT: Duration = Duration::from_secs(600);
const POOL_LOOK: Duration = Duration::from_millis(20);
const ENGINE_LOOK: Duration = Duration::from_millis(500);
const PEPPER: &str = "a pepper for the bench, which is long enough";
const SIGNING_KEY: &str = "a signing key for the bench, long enough too";

/// Where the bench keeps its things: `target/bench`, beside the folder of this program.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn folder() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let target = here.ancestors().nth(2).context("this program lies in no target folder")?;
    let folder = target.join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.canonicalize()?)
}

/// The running installation.
#[derive(Debug)]
pub(crate) struct Stack {
    folder: PathBuf,
    // Paths of sockets must be short.
    sockets: TempDir,
    installation: String,
    postgres: Cluster,
    metrics_address: String,
    key: String,
    traces_to: Option<String>,
    running: Option<Running>,
    // Released by the kernel however we end.
    _lock: File,
}

#[derive(Debug)]
struct Running {
    process: Process,
    address: String,
    pool: usize,
}

impl Stack {
    /// A database with its schema, a tenant and its key. The service is started by the first measure that needs it.
    ///
    /// # Errors
    /// When another bench runs here, or Postgres or `toolhost` do not work.
    pub(crate) async fn prepare() -> Result<Self> {
        let folder = folder()?;
        let lock = File::create(folder.join("lock"))?;
        ensure!(lock.try_lock().is_ok(), "another bench runs in {}", folder.display());
        let installation = format!("bench-{}", short_hash(&folder));
        container::sweep(&installation);
        remove_data(&folder);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let sockets = tempfile::Builder::new().prefix("th-").permissions(mode).tempdir_in("/tmp")?;
        let postgres = Cluster::start(&folder.join("postgres"), Durability::Full).await?;
        let metrics_address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let key = String::new();
        let mut stack = Self {
            folder,
            sockets,
            installation,
            postgres,
            metrics_address,
            key,
            traces_to: None,
            running: None,
            _lock: lock,
        };
        match stack.make_tenant() {
            Ok(()) => Ok(stack),
            Err(error) => {
                stack.stop().await;
                Err(error)
            }
        }
    }

    fn make_tenant(&mut self) -> Result<()> {
        self.cli(&["migrate"])?;
        let tenant = self.cli(&["admin", "tenant", "create", "bench"])?;
        self.key = self.cli(&["admin", "key", "create", "--tenant", &tenant, "--name", "bench"])?;
        Ok(())
    }

    /// The service with a pool of the usual size, full.
    ///
    /// # Errors
    /// When it does not start or the pool does not fill.
    pub(crate) async fn serve(&mut self, progress: &mut Progress) -> Result<()> {
        self.serve_with_pool(POOL, progress).await
    }

    /// The service with a pool of this size, full. It is started again when it runs with another one.
    ///
    /// # Errors
    /// When it does not start or the pool does not fill.
    pub(crate) async fn serve_with_pool(&mut self, pool: usize, progress: &mut Progress) -> Result<()> {
        if self.running.as_ref().is_none_or(|running| running.pool != pool) {
            progress.say("starting the service");
            self.stop_service()?;
            let mut command = self.command(pool)?;
            command.args(["serve", "--with-worker"]);
            let mut process = Process::start("toolhost serve", &mut command)?;
            // The worker runs before the API listens.
            let url = process.wait_for(|line| host::address(line, "the API listens"))?;
            process.wait_for(|line| host::address(line, "metrics are served"))?;
            let address = url.trim_start_matches("http://").to_owned();
            self.running = Some(Running { process, address, pool });
        }
        self.pool_is_full(progress).await
    }

    /// A fresh process of the service with a pool of this size.
    ///
    /// # Errors
    /// As [`Self::serve_with_pool`].
    pub(crate) async fn restart_with_pool(&mut self, pool: usize, progress: &mut Progress) -> Result<()> {
        self.stop_service()?;
        self.serve_with_pool(pool, progress).await
    }

    /// A figure of the service's memory, as the kernel tells it.
    ///
    /// # Errors
    /// When the service does not run.
    pub(crate) fn memory_kib(&self, figure: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.service()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
        let number =
            line.and_then(|line| line.split_whitespace().next()).context("the kernel does not tell")?;
        Ok(number.parse()?)
    }

    /// Forgets the service's peak of memory.
    ///
    /// # Errors
    /// When the service does not run.
    pub(crate) fn reset_peak_memory(&self) -> Result<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.service()?), "5")?)
    }

    /// Process id of the service.
    ///
    /// # Errors
    /// When it does not run.
    pub(crate) fn service(&self) -> Result<u32> {
        Ok(self.running.as_ref().context("the service does not run")?.process.pid())
    }

    /// Waits until as many sandboxes wait as should.
    ///
    /// # Errors
    /// When the service does not tell or it takes too long.
    pub(crate) async fn pool_is_full(&self, progress: &mut Progress) -> Result<()> {
        let wanted = self.running.as_ref().context("the service does not run")?.pool;
        let deadline = Instant::now() + POOL_LIMIT;
        let mut metrics = Http::connect(&self.metrics_address, "").await?;
        loop {
            let page = metrics.send("GET", "/metrics", bytes::Bytes::new()).await?;
            let waiting = pool_size(&String::from_utf8_lossy(&page.body));
            if waiting >= wanted {
                return Ok(());
            }
            progress.step("waiting for the pool: sandbox", waiting, wanted);
            ensure!(Instant::now() < deadline, "the pool has only {waiting} of {wanted} sandboxes");
            sleep(POOL_LOOK).await;
        }
    }

    /// Waits until the pool is full and the sandboxes of ended sessions are gone from the engine. No session may run.
    ///
    /// # Errors
    /// When the engine or the service does not tell, or it takes too long.
    pub(crate) async fn has_settled(&self, progress: &mut Progress) -> Result<()> {
        self.pool_is_full(progress).await?;
        let wanted = self.running.as_ref().context("the service does not run")?.pool;
        let deadline = Instant::now() + POOL_LIMIT;
        while engine::containers(&self.installation)?.len() > wanted {
            progress.say("waiting for the engine to remove ended sessions");
            ensure!(Instant::now() < deadline, "the sandboxes of ended sessions stay");
            sleep(ENGINE_LOOK).await;
        }
        Ok(())
    }

    /// A connection of a client with the tenant's key.
    ///
    /// # Errors
    /// When the service does not run.
    pub(crate) async fn client(&self) -> Result<Http> {
        let running = self.running.as_ref().context("the service does not run")?;
        Http::connect(&running.address, &self.key).await
    }

    /// Process id of the database's server.
    ///
    /// # Errors
    /// When it does not run.
    pub(crate) fn postgres_pid(&self) -> Result<u32> {
        self.postgres.pid().context("Postgres does not run")
    }

    /// Ends the service; from its next start on it exports its traces to this collector, or none.
    ///
    /// # Errors
    /// When it does not end well.
    pub(crate) fn export_traces_to(&mut self, url: Option<&str>) -> Result<()> {
        self.traces_to = url.map(str::to_owned);
        self.stop_service()
    }

    /// Name of the installation, on each container of its.
    pub(crate) fn installation(&self) -> &str {
        &self.installation
    }

    /// URL of the database.
    pub(crate) fn database_url(&self) -> String {
        self.postgres.url()
    }

    /// A new, empty database beside ours; its URL.
    ///
    /// # Errors
    /// When Postgres refuses.
    pub(crate) async fn new_database(&self, name: &str) -> Result<String> {
        let mut ours = PgConnection::connect(&self.postgres.url()).await?;
        raw_sql(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}"))).execute(&mut ours).await?;
        raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut ours).await?;
        ours.close().await?;
        Ok(self.postgres.url().replacen("/postgres?", &format!("/{name}?"), 1))
    }

    /// What the service said last.
    pub(crate) fn end_of_said(&mut self) -> String {
        self.running.as_mut().map(|running| running.process.end_of_said()).unwrap_or_default()
    }

    /// Runs `toolhost` to its end; what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(POOL)?.args(arguments).output()?;
        if !output.status.success() {
            bail!("toolhost {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Stops everything and removes everything but the results. What should have been gone by itself is returned.
    pub(crate) async fn stop(&mut self) -> Vec<String> {
        let mut left: Vec<String> =
            self.stop_service().err().map(|error| error.to_string()).into_iter().collect();
        left.extend(container::sweep(&self.installation));
        for line in engine::loop_devices(&self.folder.display().to_string()) {
            if let Some(device) = line.split_whitespace().next() {
                let _ = Command::new("/sbin/losetup").args(["-d", device]).status();
            }
            left.push(format!("loop device {line}"));
        }
        left.extend(self.postgres.stop().await.err().map(|error| error.to_string()));
        remove_data(&self.folder);
        left
    }

    /// Ends the service, if it runs.
    ///
    /// # Errors
    /// When it does not end well.
    pub(crate) fn stop_service(&mut self) -> Result<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        running.process.signal(Signal::SIGTERM);
        let status = running.process.wait()?;
        ensure!(status.success(), "the service ended with {status}: {}", running.process.end_of_said());
        Ok(())
    }

    fn command(&self, pool: usize) -> Result<Command> {
        let mut command = Command::new(built("toolhost")?);
        command.current_dir(&self.folder).env_remove("DATABASE_URL").env_remove("TOOLHOST_CONFIG");
        let agent = match std::env::var("TOOLHOST_AGENT_PATH") {
            Ok(path) => PathBuf::from(path),
            Err(_) => self.folder.join("../toolhost-agent"),
        };
        // A tenant may have the whole machine; what else matters for speed is as it is by default.
        for (key, value) in [
            ("server.listen", "127.0.0.1:0".to_owned()),
            ("metrics.listen", self.metrics_address.clone()),
            ("database.url", self.postgres.url()),
            ("keys.pepper", PEPPER.to_owned()),
            ("stream_url.signing_key", SIGNING_KEY.to_owned()),
            ("worker.installation", self.installation.clone()),
            ("worker.host", "bench-host".to_owned()),
            ("worker.end_sessions_at_exit", "true".to_owned()),
            ("worker.drain_ms", "2000".to_owned()),
            ("server.drain_ms", "2000".to_owned()),
            ("sandbox.runtime_dir", self.sockets.path().join("run").display().to_string()),
            ("sandbox.state_dir", self.folder.join("state").display().to_string()),
            ("sandbox.agent_path", agent.display().to_string()),
            ("sandbox.pool", format!("[{{size = \"small\", count = {pool}}}]")),
            // A hundred sessions are more than a small host would let in, and they do nearly nothing.
            ("capacity.cpus", "1000".to_owned()),
            ("capacity.memory_mb", "1000000".to_owned()),
            ("capacity.disk_mb", "1000000".to_owned()),
            ("capacity.pool_share", "1".to_owned()),
            ("policy.limits.sessions", "200".to_owned()),
            ("policy.limits.running_calls", "200".to_owned()),
            ("log.format", "json".to_owned()),
        ] {
            command.env(format!("TOOLHOST_{}", key.to_uppercase().replace('.', "__")), value);
        }
        if let Some(url) = &self.traces_to {
            command.env("TOOLHOST_TELEMETRY__OTLP_ENDPOINT", url);
        }
        Ok(command)
    }
}

/// Removes everything of a run that is of no use after it.
fn remove_data(folder: &Path) {
    let postgres = folder.join("postgres");
    if let Ok(elsewhere) = fs::read_link(&postgres) {
        // The cluster moves out of folders that its user may not enter.
        let _ = fs::remove_dir_all(&elsewhere);
        let _ = fs::remove_file(&postgres);
    } else {
        let _ = fs::remove_dir_all(&postgres);
    }
    let _ = fs::remove_dir_all(folder.join("state"));
}

/// Sandboxes that wait, by a page of metrics.
fn pool_size(page: &str) -> usize {
    let samples = page.lines().filter(|line| line.starts_with("toolhost_sandbox_pool{"));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod pool_tests {
    use super::*;

    #[test]
    fn the_pool_is_the_sum_over_images_and_sizes() {
        let page = "# HELP toolhost_sandbox_pool x\ntoolhost_sandbox_pool{image=\"a\",size=\"small\"} 3\n\
                    toolhost_sandbox_pool{image=\"b\",size=\"small\"} 2\ntoolhost_sandbox_pools 9\n";
        assert_eq!(pool_size(page), 5);
    }
}
