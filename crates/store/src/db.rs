//! Connections: two pools, one for each role, and transactions that cannot leak what they set.
//!
//! # Design notes
//!
//! * The role is fixed when a connection is opened (a start-up option, so even `RESET ROLE` keeps it): the pool for tenants is
//!   `toolhost_app` and sees nothing until a transaction sets its tenant; nothing ever runs as the login role. The
//!   tenant is set with `set_config(…, true)` in the same round trip as BEGIN, and the role with it.
//! * A future can be dropped at any await. In sqlx 0.9 one dropped during BEGIN returns its connection to the pool
//!   *inside the open transaction* (the transaction's depth is only counted afterwards, so nothing rolls back): with
//!   a tenant set in it, the next user would act for that tenant. So sqlx's `Transaction` is not used. [`Conn`]
//!   owns the connection, and unless it was brought to its end the connection is closed, never reused.
//! * Behind that, every connection is checked when it leaves the pool, in the round trip of BEGIN: one that has a
//!   tenant set already (it can only be inside somebody's transaction) is refused and closed.
//! * Every statement has a deadline of our own: a black-holed server answers nothing at all.

use std::time::{Duration, Instant};

use domain::TenantContext;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool, Postgres};

use crate::error::translate;
use crate::metrics::Metrics;
use crate::reach::{Reach, Role, Ways};
use crate::{DatabaseConfig, Result, StoreError};

/// A statement with its arguments.
pub(crate) type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// Time without use after which a connection is asked whether it still lives before it is used.
const TRUST_IDLE: Duration = Duration::from_secs(1);
/// Connections that sweeps and workers share, beside the writer's.
const SYSTEM_SHARE: u32 = 4;

/// What a cap is counted under. A count and the row that it allows are two statements, as a statement sees nothing that was
/// committed after it began; the lock lies around both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// A tenant's keys.
    Keys,
    /// A tenant's roles.
    Roles,
    /// A session's contexts.
    Contexts,
    /// A tenant's shells.
    Shells,
}

/// The pools of one process.
#[derive(Debug, Clone)]
pub(crate) struct Db {
    app: PgPool,
    system: PgPool,
    ways: Ways,
    timeout: Duration,
    pub(crate) metrics: Metrics,
}

impl Db {
    /// Opens the pools and makes sure that the database answers.
    pub(crate) async fn connect(config: &DatabaseConfig, metrics: Metrics) -> Result<Self> {
        let ways = Ways::of(config)?;
        let lanes = u32::try_from(config.writer_lanes).unwrap_or(u32::MAX);
        let system = SYSTEM_SHARE.min(config.max_connections / 3).max(1);
        let app = config.max_connections.saturating_sub(system).saturating_sub(lanes).max(1);
        let db = Self {
            app: pool(app, ways.pooled(Role::App), config.timeout),
            system: pool(system, ways.pooled(Role::System), config.timeout),
            ways,
            timeout: config.timeout,
            metrics,
        };
        for (pool, max) in [(Role::App, app), (Role::System, system)] {
            db.metrics.connections_limit.with_label_values(&[pool.label()]).set(i64::from(max));
        }
        db.system("connect").await?.end().await?;
        Ok(db)
    }

    /// A connection of its own for one of the writer's lanes. Its transactions begin with [`Ways::begin_system`].
    pub(crate) async fn lane(&self, operation: &'static str) -> Result<PgConnection> {
        let options = self.ways.pooled(Role::System);
        bounded(operation, self.timeout, PgConnection::connect_with(&options)).await
    }

    /// How connections come to Postgres.
    pub(crate) fn ways(&self) -> &Ways {
        &self.ways
    }

    /// A transaction that sees one tenant's rows.
    pub(crate) async fn tenant(&self, operation: &'static str, context: &TenantContext) -> Result<Conn> {
        let mut conn = self.acquire(operation, Role::App).await?;
        if conn.begin(self.ways.begin_tenant(context)).await? != 1 {
            let source = "a pooled connection was inside another transaction".into();
            return Err(self.metrics.counted(StoreError::Internal { operation, source }));
        }
        Ok(conn)
    }

    /// A connection of its own, past any pooler, inside a transaction that only reads, sees one moment and one tenant's rows, and may stand still for so
    /// long between two statements. Dropped, it is closed.
    pub(crate) async fn snapshot(
        &self,
        operation: &'static str,
        context: &TenantContext,
        idle: &'static str,
    ) -> Result<PgConnection> {
        let options = self.ways.session(Role::App);
        let mut connection = bounded(operation, self.timeout, PgConnection::connect_with(&options)).await?;
        // Neither text comes from outside: a uuid prints as hexadecimal digits and dashes.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT set_config('role', 'toolhost_app', true),
             set_config('toolhost.tenant_id', '{}', true), set_config('idle_in_transaction_session_timeout', '{idle}', true)",
            context.tenant_id().uuid()
        );
        bounded(operation, self.timeout, connection.execute(sqlx::raw_sql(AssertSqlSafe(begin)))).await?;
        Ok(connection)
    }

    /// Statements as the system role, each for itself; behind a pooler all together a transaction.
    pub(crate) async fn system(&self, operation: &'static str) -> Result<Conn> {
        match self.ways.reach() {
            Reach::Direct => self.acquire(operation, Role::System).await,
            Reach::Pooler => self.system_transaction(operation).await,
        }
    }

    /// A transaction as the system role.
    pub(crate) async fn system_transaction(&self, operation: &'static str) -> Result<Conn> {
        let mut conn = self.acquire(operation, Role::System).await?;
        conn.begin(self.ways.begin_system()).await?;
        Ok(conn)
    }

    /// Reads the pools' gauges.
    pub(crate) fn observe(&self) {
        for (role, pool) in [(Role::App, &self.app), (Role::System, &self.system)] {
            let name = role.label();
            let idle = i64::try_from(pool.num_idle()).unwrap_or(i64::MAX);
            let gauges = &self.metrics.connections;
            gauges.with_label_values(&[name, "idle"]).set(idle);
            gauges.with_label_values(&[name, "used"]).set((i64::from(pool.size()) - idle).max(0));
        }
    }

    /// How long a statement may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) async fn close(&self) {
        self.app.close().await;
        self.system.close().await;
    }

    async fn acquire(&self, operation: &'static str, role: Role) -> Result<Conn> {
        let pool = match role {
            Role::App => &self.app,
            Role::System => &self.system,
        };
        let asked = Instant::now();
        let acquired = pool.acquire().await;
        let waited = asked.elapsed().as_secs_f64();
        self.metrics.acquire_seconds.with_label_values(&[role.label()]).observe(waited);
        match acquired {
            Ok(connection) => Ok(Conn {
                connection: Some(connection),
                in_transaction: false,
                reach: self.ways.reach(),
                operation,
                timeout: self.timeout,
                metrics: self.metrics.clone(),
            }),
            Err(error) => Err(self.metrics.counted(translate(operation, error))),
        }
    }
}

/// A connection in use. Unless [`Conn::end`] is reached it is closed instead of being given back.
#[derive(Debug)]
pub(crate) struct Conn {
    connection: Option<sqlx::pool::PoolConnection<Postgres>>,
    in_transaction: bool,
    reach: Reach,
    operation: &'static str,
    timeout: Duration,
    metrics: Metrics,
}

impl Conn {
    async fn begin(&mut self, sql: impl sqlx::SqlSafeStr + Send + 'static) -> Result<u64> {
        self.in_transaction = true;
        let raw = sqlx::raw_sql(sql);
        let done = self.run(|connection| connection.execute(raw)).await?;
        Ok(done.rows_affected())
    }

    /// All rows of a statement.
    pub(crate) async fn all(&mut self, statement: Statement<'_>) -> Result<Vec<PgRow>> {
        let statement = self.fit(statement);
        self.run(|connection| connection.fetch_all(statement)).await
    }

    /// The first row of a statement, if there is one.
    pub(crate) async fn optional(&mut self, statement: Statement<'_>) -> Result<Option<PgRow>> {
        let statement = self.fit(statement);
        self.run(|connection| connection.fetch_optional(statement)).await
    }

    /// The row of a statement that has always one.
    pub(crate) async fn one(&mut self, statement: Statement<'_>) -> Result<PgRow> {
        let statement = self.fit(statement);
        self.run(|connection| connection.fetch_one(statement)).await
    }

    /// The same with the driver's own error, for call sites that translate a constraint.
    pub(crate) async fn try_one(&mut self, statement: Statement<'_>) -> Result<Result<PgRow, sqlx::Error>> {
        let statement = self.fit(statement);
        match tokio::time::timeout(self.timeout, self.connection().fetch_one(statement)).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                Err(self.metrics.counted(StoreError::Unavailable { operation: self.operation, source: None }))
            }
        }
    }

    /// Runs a statement and counts the rows that it touched.
    pub(crate) async fn execute(&mut self, statement: Statement<'_>) -> Result<u64> {
        let statement = self.fit(statement);
        Ok(self.run(|connection| connection.execute(statement)).await?.rows_affected())
    }

    /// Waits for everybody who counts the same, and keeps others waiting until the end of the transaction.
    pub(crate) async fn lock(&mut self, what: Lock, of: uuid::Uuid) -> Result<()> {
        debug_assert!(self.in_transaction, "a lock ends with its transaction");
        let seed = match what {
            Lock::Keys => 7_450_219_374_i64,
            Lock::Roles => 7_450_219_375,
            Lock::Contexts => 7_450_219_376,
            Lock::Shells => 7_450_219_377,
        };
        let statement = sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))");
        self.execute(statement.bind(of.to_string()).bind(seed)).await?;
        Ok(())
    }

    /// Commits, if there is a transaction, and gives the connection back.
    pub(crate) async fn end(mut self) -> Result<()> {
        if self.in_transaction {
            self.run(|connection| connection.execute("COMMIT")).await?;
        }
        self.connection = None;
        Ok(())
    }

    /// Undoes the transaction and gives the connection back.
    pub(crate) async fn undo(mut self) -> Result<()> {
        if self.in_transaction {
            self.run(|connection| connection.execute("ROLLBACK")).await?;
        }
        self.connection = None;
        Ok(())
    }

    /// What answers at the other end.
    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    fn fit<'q>(&self, statement: Statement<'q>) -> Statement<'q> {
        statement.persistent(self.reach.keeps_statements())
    }

    fn connection(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("held until the end")
    }

    /// Runs something of the driver's within the deadline.
    pub(crate) async fn run<'a, T>(
        &'a mut self,
        statement: impl FnOnce(
            &'a mut PgConnection,
        ) -> futures_util::future::BoxFuture<'a, Result<T, sqlx::Error>>,
    ) -> Result<T> {
        let (operation, timeout) = (self.operation, self.timeout);
        let metrics = self.metrics.clone();
        bounded(operation, timeout, statement(self.connection()))
            .await
            .map_err(|error| metrics.counted(error))
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            self.metrics.abandoned.inc();
            connection.close_on_drop();
        }
    }
}

impl Metrics {
    /// Counts an error where it arises.
    pub(crate) fn counted(&self, error: StoreError) -> StoreError {
        let kind = match &error {
            StoreError::Unavailable { .. } => "unavailable",
            StoreError::Unstorable { .. } => "unstorable",
            StoreError::Internal { .. } => "internal",
            StoreError::Storage { .. } => "storage",
            StoreError::Stale { .. } | StoreError::NotFound { .. } | StoreError::Conflict { .. } => {
                return error;
            }
        };
        self.errors.with_label_values(&[kind]).inc();
        error
    }
}

pub(crate) async fn bounded<T>(
    operation: &'static str,
    timeout: Duration,
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T> {
    match tokio::time::timeout(timeout, future).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(translate(operation, error)),
        Err(_) => Err(StoreError::Unavailable { operation, source: None }),
    }
}

fn pool(max: u32, options: PgConnectOptions, timeout: Duration) -> PgPool {
    PgPoolOptions::new()
        .max_connections(max)
        .acquire_timeout(timeout)
        .test_before_acquire(false)
        .before_acquire(|connection, about| {
            Box::pin(async move {
                if about.idle_for >= TRUST_IDLE {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .connect_lazy_with(options)
}

/// Reads rows, naming the operation that asked for them.
pub(crate) fn read<T>(
    operation: &'static str,
    rows: &[PgRow],
    each: impl Fn(&PgRow) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>> {
    rows.iter().map(each).collect::<Result<_, _>>().map_err(|error| translate(operation, error))
}

/// Reads one row that may be missing: nothing there, or not the caller's.
pub(crate) fn read_found<T>(
    operation: &'static str,
    row: Option<PgRow>,
    each: impl Fn(&PgRow) -> Result<T, sqlx::Error>,
) -> Result<T> {
    match row {
        Some(row) => each(&row).map_err(|error| translate(operation, error)),
        None => Err(StoreError::NotFound { operation }),
    }
}

/// A word of the database that this binary does not know.
pub(crate) fn unknown_word(column: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(format!("unknown word in {column}").into())
}

/// Counters are `bigint` there and never negative.
pub(crate) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Numbers of ours are far below what `bigint` holds.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
