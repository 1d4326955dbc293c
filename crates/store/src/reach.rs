//! How connections come to Postgres, directly or through a pooler in transaction mode, and what each of them has set.
//!
//! # Design notes
//!
//! Behind a pooler in transaction mode what is asked next may run on another server process, with whatever the last client left
//! there. So nothing is set when such a connection opens, and no statement is kept by name; even a single statement is a transaction, as its
//! parts (parse, bind) must come to one server process; role, plans and limits are set inside it. They are set with SET LOCAL,
//! which takes no snapshot, so that the transaction can still choose its isolation. Hints need a session of their own, and go past the pooler.

use std::sync::Arc;
use std::time::Duration;

use domain::TenantContext;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnectOptions;

use crate::{DatabaseConfig, Result, StoreError};

/// Time after which Postgres ends a transaction that does nothing.
const IDLE_IN_TRANSACTION_MS: &str = "15000";

/// Plans of the queue's statements must not depend on what the tables looked like when they were made: always by index
/// and nested loop, which leave old partitions alone while they run.
const STEADY_PLANS: [(&str, &str); 4] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_seqscan", "off"),
];

/// What answers at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Postgres itself.
    Direct,
    /// A pooler in transaction mode.
    Pooler,
}

impl Reach {
    /// Whether a prepared statement is still there after its transaction.
    pub(crate) fn keeps_statements(self) -> bool {
        self == Self::Direct
    }
}

/// The role that a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// One tenant's rows, once a tenant is set.
    App,
    /// The queue and the sweeps.
    System,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::App => "toolhost_app",
            Self::System => "toolhost_system",
        }
    }

    /// The role's pool as a label.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::System => "system",
        }
    }
}

/// The ways of one process.
#[derive(Debug, Clone)]
pub(crate) struct Ways {
    reach: Reach,
    pooled: PgConnectOptions,
    direct: PgConnectOptions,
    begin: Arc<str>,
    begin_system: Arc<str>,
}

impl Ways {
    /// As configured.
    pub(crate) fn of(config: &DatabaseConfig) -> Result<Self> {
        let Some(direct) = &config.direct_url else {
            let direct = connect_options(&config.url, config.timeout)?;
            let begin: Arc<str> = "BEGIN".into();
            let (pooled, begin_system) = (direct.clone(), Arc::clone(&begin));
            return Ok(Self { reach: Reach::Direct, pooled, direct, begin, begin_system });
        };
        let millis = config.timeout.as_millis().to_string();
        let set = |settings: &[(&str, &str)]| {
            let each = settings.iter().map(|(name, value)| format!("; SET LOCAL {name} = '{value}'"));
            each.collect::<String>()
        };
        let begin = format!("BEGIN{}", set(&settings(&millis)));
        let role = [("role", Role::System.name())];
        let begin_system = format!("{begin}{}{}", set(&role), set(&STEADY_PLANS));
        Ok(Self {
            reach: Reach::Pooler,
            // A pooler refuses start-up parameters that it does not know.
            pooled: parse(&config.url)?.extra_float_digits(None).statement_cache_capacity(0),
            direct: connect_options(direct, config.timeout)?,
            begin: begin.into(),
            begin_system: begin_system.into(),
        })
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Options of connections of a role.
    pub(crate) fn pooled(&self, role: Role) -> PgConnectOptions {
        match (self.reach, role) {
            (Reach::Direct, Role::App) => role_options(&self.pooled, role),
            (Reach::Direct, Role::System) => role_options(&self.pooled, role).options(STEADY_PLANS),
            (Reach::Pooler, Role::App | Role::System) => self.pooled.clone(),
        }
    }

    /// Options of a session of a role, past any pooler.
    pub(crate) fn session(&self, role: Role) -> PgConnectOptions {
        role_options(&self.direct, role)
    }

    /// Begins a transaction of a tenant. It counts one row, or none when the connection is inside somebody's transaction already.
    pub(crate) fn begin_tenant(&self, context: &TenantContext) -> AssertSqlSafe<String> {
        // A uuid prints as hexadecimal digits and dashes, so it needs no quoting.
        AssertSqlSafe(format!(
            "{}; SELECT set_config('role', 'toolhost_app', true), set_config('toolhost.tenant_id', '{}', true) \
             WHERE nullif(current_setting('toolhost.tenant_id', true), '') IS NULL",
            self.begin,
            context.tenant_id().uuid()
        ))
    }

    /// Begins a transaction as the system role.
    pub(crate) fn begin_system(&self) -> AssertSqlSafe<Arc<str>> {
        // Words and numbers of our own, nothing of a caller's.
        AssertSqlSafe(Arc::clone(&self.begin_system))
    }
}

/// Options of a session of ours with Postgres itself.
pub(crate) fn connect_options(url: &str, timeout: Duration) -> Result<PgConnectOptions> {
    Ok(parse(url)?.options(settings(&timeout.as_millis().to_string())))
}

fn settings(timeout_ms: &str) -> [(&str, &str); 3] {
    [
        // Compiling a plan takes longer than any of ours runs.
        ("jit", "off"),
        ("statement_timeout", timeout_ms),
        ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_MS),
    ]
}

fn parse(url: &str) -> Result<PgConnectOptions> {
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| StoreError::Internal {
        operation: "parse database url",
        source: Box::new(error),
    })?;
    Ok(options.application_name("toolhost"))
}

fn role_options(options: &PgConnectOptions, role: Role) -> PgConnectOptions {
    options.clone().options([("role", role.name())])
}
