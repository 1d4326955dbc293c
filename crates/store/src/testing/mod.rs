//! A private Postgres for tests: one cluster for each test process, one migrated database for each test.
//!
//! # Design notes
//!
//! The cluster is stopped and removed by a supervisor of its own process group that waits for the end of a pipe which
//! this process holds. So it ends with this process however that ends (a panic, a timeout's SIGKILL, Ctrl-C), and
//! nothing has to be dropped for it. A migrated data directory is made once for each version of the migrations and
//! copied after that (some tens of milliseconds; `initdb` takes a second of CPU).

mod cluster;
mod fixture;
mod pooler;
mod wait;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::OnceCell;

use cluster::Cluster;
pub use cluster::Durability;
pub use fixture::{admission, new_session, new_shell, operator, running_session, tenant, worker_on};
pub use pooler::Pooler;
pub use wait::{until, until_some};

use crate::{DatabaseConfig, Store};

static SHARED: OnceCell<Arc<Cluster>> = OnceCell::const_new();
static DATABASES: AtomicU32 = AtomicU32::new(0);
/// What is asked is answered, however slow the machine.
const TIMEOUT: Duration = Duration::from_secs(60);
static POOLERS: Mutex<Vec<Arc<Pooler>>> = Mutex::new(Vec::new());

/// Columns go to the end of a table; who lists columns by name does not notice.
const NEXT_RELEASE: &str = "DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT c.oid::regclass FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND c.relname <> '_sqlx_migrations'
    LOOP
        EXECUTE format('ALTER TABLE %s ADD COLUMN next_release_note text, ADD COLUMN next_release_count bigint NOT NULL DEFAULT 0', name);
    END LOOP;
    CREATE TABLE next_release (id bigint PRIMARY KEY);
    CREATE INDEX calls_next_release ON calls (next_release_note);
    INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9001, 'next release', true, '', 0);
END $$";

/// One test's database.
#[derive(Debug, Clone)]
pub struct TestDatabase {
    cluster: Arc<Cluster>,
    name: String,
    pooler: Option<Arc<Pooler>>,
    timeout: Duration,
}

impl TestDatabase {
    /// A fresh, migrated database in this process's cluster.
    pub async fn new() -> Result<Self> {
        let start = || async { Cluster::start(Durability::Off).await.map(Arc::new) };
        let cluster = SHARED.get_or_try_init(start).await?;
        Self::on(Arc::clone(cluster)).await
    }

    /// The same in a cluster of its own, which the test may restart.
    pub async fn private(durability: Durability) -> Result<Self> {
        Self::on(Arc::new(Cluster::start(durability).await?)).await
    }

    async fn on(cluster: Arc<Cluster>) -> Result<Self> {
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&cluster.url("postgres")).await?;
        let create = format!("CREATE DATABASE {name} TEMPLATE {}", cluster::MIGRATED);
        connection.execute(AssertSqlSafe(create)).await.context("create database")?;
        connection.close().await?;
        let mut database = Self { cluster, name, pooler: None, timeout: TIMEOUT };
        // The template may be of another day.
        let today = "SELECT toolhost_ensure_partitions((now() AT TIME ZONE 'UTC')::date - 1, 9)";
        let mut connection = database.superuser().await?;
        connection.execute(today).await.context("make partitions")?;
        connection.close().await?;
        if std::env::var_os("TOOLHOST_TEST_NEXT_SCHEMA").is_some() {
            database.expand().await?;
        }
        if std::env::var_os("TOOLHOST_TEST_POOLER").is_some() {
            database = database.pooled().await?;
            // Stores outlive their test's database.
            POOLERS.lock().expect("nobody panics with it").extend(database.pooler.clone());
        }
        Ok(database)
    }

    /// Makes the schema what a next release may make of it: further columns in every table, a new table, a new index. With
    /// `TOOLHOST_TEST_NEXT_SCHEMA` set every test's database is like this, so that whole suites run on a schema that is newer than they are.
    pub async fn expand(&self) -> Result<()> {
        self.execute(NEXT_RELEASE).await
    }

    /// The same with a PgBouncer in transaction mode before it. With `TOOLHOST_TEST_POOLER` set every test's database has one.
    pub async fn pooled(self) -> Result<Self> {
        let pooler = Arc::new(Pooler::before(&self.url()).await?);
        Ok(Self { pooler: Some(pooler), ..self })
    }

    /// The same for stores that give up after so long: for a test in which the database goes away.
    #[must_use]
    pub fn impatient(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Where it is, as its superuser.
    #[must_use]
    pub fn url(&self) -> String {
        self.cluster.url(&self.name)
    }

    /// A configuration with few connections and much patience.
    #[must_use]
    pub fn config(&self) -> DatabaseConfig {
        let config = DatabaseConfig {
            max_connections: 8,
            timeout: self.timeout,
            ..DatabaseConfig::new(self.url(), [7_u8; 32])
        };
        match &self.pooler {
            None => config,
            Some(pooler) => {
                DatabaseConfig { url: pooler.url(), direct_url: Some(pooler.direct_url()), ..config }
            }
        }
    }

    /// A store with a registry of its own, as another process would have it.
    pub async fn store(&self) -> Result<Store> {
        Ok(Store::connect(&self.config(), &prometheus::Registry::new()).await?)
    }

    /// A connection as superuser, beside the store.
    pub async fn superuser(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.url()).await?)
    }

    /// Runs statements as superuser, for what no door of the store does (moving a row's time, say).
    pub async fn execute(&self, sql: &'static str) -> Result<()> {
        let mut connection = self.superuser().await?;
        connection.execute(sqlx::raw_sql(sql)).await?;
        connection.close().await?;
        Ok(())
    }

    /// Stops Postgres as a crash would. Only for a private cluster.
    pub async fn crash(&self) -> Result<()> {
        self.cluster.stop().await
    }

    /// Starts Postgres again.
    pub async fn start(&self) -> Result<()> {
        self.cluster.start_again().await
    }
}
