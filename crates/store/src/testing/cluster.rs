//! One Postgres cluster, supervised.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use sqlx::{Connection, Executor, PgConnection};

use crate::Store;

/// The migrated database that each test's is copied from.
pub(super) const MIGRATED: &str = "toolhost_migrated";

/// Whether commits survive a crash of the machine. A crash of Postgres alone they survive either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As in production.
    On,
    /// Fast.
    Off,
}

/// A running cluster. It ends with this value, or with the process.
#[derive(Debug)]
pub(super) struct Cluster {
    directory: PathBuf,
    supervisor: Child,
}

impl Cluster {
    pub(super) async fn start(durability: Durability) -> Result<Self> {
        let template = template().await?;
        let directory = fresh_directory("run")?;
        copy(&template, &directory.join("data"))?;
        if durability == Durability::On {
            let settings = directory.join("data/postgresql.auto.conf");
            fs::write(&settings, "fsync = on\nfull_page_writes = on\n")?;
        }
        Self::supervise(directory)
    }

    /// Starts the server and the supervisor that outlives it.
    fn supervise(directory: PathBuf) -> Result<Self> {
        start_server(&directory)?;
        // Reads until the pipe ends, which it does with this process at the latest.
        let script = r#"trap '' INT TERM HUP; cat >/dev/null
            $AS "$BIN/pg_ctl" -D "$DIRECTORY/data" -m immediate -w stop >/dev/null 2>&1
            rm -rf "$DIRECTORY""#;
        let supervisor = Command::new("bash")
            .args(["-c", script])
            .env("AS", as_user().join(" "))
            .env("BIN", binaries()?)
            .env("DIRECTORY", &directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .context("start the supervisor")?;
        Ok(Self { directory, supervisor })
    }

    pub(super) fn url(&self, database: &str) -> String {
        url(&self.directory, database)
    }

    pub(super) async fn stop(&self) -> Result<()> {
        let data = self.directory.join("data");
        server(&["-D", &text(&data), "-m", "immediate", "-w", "stop"])
    }

    pub(super) async fn start_again(&self) -> Result<()> {
        start_server(&self.directory)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The end of the pipe is the order to stop.
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

fn url(directory: &Path, database: &str) -> String {
    format!("postgres://postgres@localhost/{database}?host={}", directory.display())
}

fn start_server(directory: &Path) -> Result<()> {
    let (data, log) = (directory.join("data"), directory.join("log"));
    let options = format!("-c unix_socket_directories={}", directory.display());
    server(&["-D", &text(&data), "-l", &text(&log), "-o", &options, "-w", "-s", "start"])
}

/// Runs `pg_ctl`.
fn server(arguments: &[&str]) -> Result<()> {
    let program = format!("{}/pg_ctl", binaries()?);
    run(Command::new(&as_user_or(&program)[0]).args(&as_user_or(&program)[1..]).args(arguments))
}

fn run(command: &mut Command) -> Result<()> {
    // The server inherits what its starter has open, and a test that left its output open would be called leaking.
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .status()
        .with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// A migrated data directory, made by whoever comes first.
async fn template() -> Result<PathBuf> {
    let mut hash = Sha256::new();
    hash.update(binaries()?.as_bytes());
    hash.update(include_str!("../migrate.rs"));
    hash.update(include_str!("cluster.rs"));
    crate::migrate::texts().for_each(|text| hash.update(text));
    let name = data_encoding::HEXLOWER.encode(&hash.finalize()[..8]);
    let root = root()?;
    let made = root.join(format!("template-{name}"));
    let lock = fs::File::create(root.join("lock"))?;
    lock.lock()?;
    if made.exists() {
        return Ok(made);
    }
    let directory = fresh_directory("template")?;
    let data = directory.join("data");
    let program = format!("{}/initdb", binaries()?);
    let prefix = as_user_or(&program);
    run(Command::new(&prefix[0]).args(&prefix[1..]).args([
        "-D",
        &text(&data),
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        "--wal-segsize=1",
        "--no-sync",
    ]))?;
    fs::write(data.join("postgresql.auto.conf"), "fsync = off\nfull_page_writes = off\n")?;
    let settings = fs::read_to_string(data.join("postgresql.conf"))?;
    let ours = "listen_addresses = ''\nmax_connections = 400\nshared_buffers = 32MB\nmax_wal_size = 64MB\nmin_wal_size = 8MB\n";
    fs::write(data.join("postgresql.conf"), settings + ours)?;
    let cluster = Cluster::supervise(directory.clone())?;
    let mut connection = connect(&cluster).await?;
    connection.execute("CREATE DATABASE toolhost_migrated").await?;
    connection.close().await?;
    Store::migrate(&cluster.url(MIGRATED)).await?;
    server(&["-D", &text(&data), "-m", "fast", "-w", "stop"])?;
    let half = root.join(format!("template-{name}.half"));
    let _ = fs::remove_dir_all(&half);
    copy(&data, &half)?;
    fs::rename(&half, &made)?;
    Ok(made)
}

async fn connect(cluster: &Cluster) -> Result<PgConnection> {
    let connecting = PgConnection::connect(&cluster.url("postgres")).await;
    connecting.with_context(|| fs::read_to_string(cluster.directory.join("log")).unwrap_or_default())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to))
}

/// The folder of all clusters and templates; the server's user has to be able to enter it.
fn root() -> Result<PathBuf> {
    let root = std::env::temp_dir().join("toolhost-test-pg");
    fs::create_dir_all(&root)?;
    let _ = fs::set_permissions(&root, fs::Permissions::from_mode(0o1777));
    Ok(root)
}

fn fresh_directory(prefix: &str) -> Result<PathBuf> {
    directory_in(&root()?, prefix)
}

/// A fresh folder of the server's user.
pub(super) fn directory_in(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let directory = tempfile::Builder::new().prefix(&format!("{prefix}-")).tempdir_in(folder)?.keep();
    if is_root() {
        run(Command::new("chown").arg("postgres:").arg(&directory))?;
    }
    Ok(directory)
}

/// Where the newest installed server is.
fn binaries() -> Result<String> {
    let mut versions: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .context("no Postgres server is installed (looked in /usr/lib/postgresql)")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .collect();
    versions.sort_unstable();
    let newest = versions.last().context("no Postgres server is installed")?;
    Ok(format!("/usr/lib/postgresql/{newest}/bin"))
}

/// Postgres refuses to run as root.
pub(super) fn as_user() -> Vec<String> {
    if !is_root() {
        return Vec::new();
    }
    ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"].map(str::to_owned).to_vec()
}

fn as_user_or(program: &str) -> Vec<String> {
    let mut words = as_user();
    words.push(program.to_owned());
    words
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
