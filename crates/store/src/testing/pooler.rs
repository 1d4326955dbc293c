//! A real PgBouncer in transaction mode before a test's Postgres, with so few connections that clients have to share them.
//!
//! Its clients log in as a role that may do nothing but become `toolhost_app` or `toolhost_system`, so that a statement outside a
//! transaction that took its role is refused, and not run with more rights than it would have elsewhere.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, Executor, PgConnection};

use super::cluster::{as_user, directory_in};

/// A running pooler. It ends with this value, or with the thread that made it.
#[derive(Debug)]
pub struct Pooler {
    child: Child,
    directory: PathBuf,
    postgres: PathBuf,
    database: String,
}

/// Connections that it has to Postgres.
const CONNECTIONS: u32 = 3;
const PORT: u16 = 6432;
const LOGIN: &str = "toolhost_login";
const START: Duration = Duration::from_secs(60);

impl Pooler {
    /// Starts one before the Postgres of a superuser's URL with a unix socket.
    ///
    /// # Errors
    /// When PgBouncer is not installed or does not start.
    pub async fn before(url: &str) -> Result<Self> {
        let options: PgConnectOptions = url.parse()?;
        let postgres = options.get_socket().context("the URL has no socket's folder")?.clone();
        let database = options.get_database().context("the URL names no database")?.to_owned();
        let mut superuser = PgConnection::connect_with(&options).await?;
        let role = "DO $$ BEGIN CREATE ROLE toolhost_login LOGIN NOINHERIT;
                    EXCEPTION WHEN duplicate_object THEN NULL; END $$;
                    GRANT toolhost_app, toolhost_system TO toolhost_login";
        superuser.execute(sqlx::raw_sql(role)).await.context("make the login role")?;
        superuser.close().await?;

        // Within the cluster's, and so removed with it.
        let directory = directory_in(&postgres, "pooler")?;
        let here = directory.display();
        let settings = format!(
            "[databases]\n* = host={} user={LOGIN}\n[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\n\
             unix_socket_dir = {here}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {CONNECTIONS}\n\
             max_client_conn = 200\nserver_login_retry = 1\nlogfile = {here}/log\npidfile = {here}/pid\n",
            postgres.display()
        );
        let file = directory.join("pgbouncer.ini");
        fs::write(&file, settings)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .args(as_user().iter().skip(1).filter(|word| *word != "--"))
            .args(["--", "/usr/sbin/pgbouncer", "-q"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn()
            .context("start pgbouncer")?;
        let mut pooler = Self { child, directory, postgres, database };
        pooler.answers().await?;
        Ok(pooler)
    }

    /// URL of the database through the pooler.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{LOGIN}@localhost:{PORT}/{}?host={}", self.database, self.directory.display())
    }

    /// URL of the database past it, as the same role.
    #[must_use]
    pub fn direct_url(&self) -> String {
        format!("postgres://{LOGIN}@localhost/{}?host={}", self.database, self.postgres.display())
    }

    async fn answers(&mut self) -> Result<()> {
        let since = Instant::now();
        loop {
            let options: PgConnectOptions = self.url().parse()?;
            let error = match PgConnection::connect_with(&options.extra_float_digits(None)).await {
                Ok(connection) => return Ok(connection.close().await?),
                Err(error) => error,
            };
            let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            if let Some(status) = self.child.try_wait()? {
                bail!("pgbouncer (is it installed?) ended with {status}: {log}");
            }
            ensure!(since.elapsed() < START, "pgbouncer does not answer: {error}: {log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
