//! The command line: names and arguments of the subcommands. What they do is in [`crate::commands`].

use std::net::SocketAddr;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::{Args, Parser, Subcommand};
use domain::{HostId, KeyId, Scope, TenantId};

/// Runs tool calls for AI agents, each in its session's own sandbox.
#[derive(Debug, Parser)]
#[command(name = "toolhost", version, disable_version_flag = true, propagate_version = false)]
pub struct Cli {
    /// Configuration file (TOML); TOOLHOST_CONFIG does the same.
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start everything on this machine, with a private Postgres and a demo call; Ctrl-C ends it.
    Dev(DevArgs),
    /// Serve the HTTP API.
    Serve(ServeArgs),
    /// Run calls: own sessions and their sandboxes on this host.
    Worker,
    /// Bring the database's schema up to date.
    Migrate(MigrateArgs),
    /// Print the OpenAPI document.
    Openapi,
    /// Manage tenants and keys.
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Read and check the audit trail, and keep its signed heads.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Print the effective configuration, with secrets redacted.
    Config(ConfigArgs),
    /// Print the version.
    Version,
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Change nothing; say which migrations are missing and which are newer than this program. Ends with 1 when any is missing, or when
    /// the schema has left this program behind.
    #[arg(long)]
    pub check: bool,
}

/// Arguments of `dev`.
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Address of the API, instead of server.listen.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Folder for the private Postgres, the demo key and logs.
    #[arg(long, default_value = ".toolhost", value_name = "PATH")]
    pub state_dir: PathBuf,
    /// Do not run the demo call.
    #[arg(long)]
    pub no_demo: bool,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Run calls in this process too.
    #[arg(long)]
    pub with_worker: bool,
}

/// Arguments of `config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Print the reference of all settings (Markdown) instead.
    #[arg(long)]
    pub reference: bool,
}

/// Arguments of `audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Print a trail, newest first.
    List(AuditListArgs),
    /// Find rows that were changed, deleted, inserted or reordered, and tails that were cut. Ends with 1 when there are any.
    Verify {
        /// Only this tenant's trail. All trails, and the installation's own, when left out.
        #[arg(long)]
        tenant: Option<TenantId>,
        /// Signed heads from `audit checkpoint`, one JSON object a line: each must still be in its chain.
        #[arg(long, value_name = "PATH")]
        checkpoint: Option<PathBuf>,
    },
    /// Print the signed heads of all trails, one JSON object a line. Keep them where the database's administrators cannot write.
    Checkpoint,
}

/// Arguments of `audit list`.
#[derive(Debug, Args)]
pub struct AuditListArgs {
    /// This tenant's trail. The installation's own when left out: hosts, operators, and credentials that nobody knows.
    #[arg(long)]
    pub tenant: Option<TenantId>,
    /// Recorded at or after this time (RFC 3339).
    #[arg(long, value_name = "TIME")]
    pub since: Option<DateTime<Utc>>,
    /// Recorded before this time (RFC 3339).
    #[arg(long, value_name = "TIME")]
    pub until: Option<DateTime<Utc>>,
    /// This action, such as `auth.refuse`, or all that begin so, as `host.*`; can be repeated.
    #[arg(long = "action", value_name = "ACTION")]
    pub actions: Vec<String>,
    /// The id of the API key, or the name, of who did it.
    #[arg(long)]
    pub principal: Option<String>,
    /// What it was done to.
    #[arg(long)]
    pub target: Option<String>,
    /// Only what was allowed (`true`), or only what was refused (`false`).
    #[arg(long)]
    pub allowed: Option<bool>,
    /// Most rows; all when left out.
    #[arg(long, value_name = "ROWS")]
    pub limit: Option<usize>,
    /// One JSON object a line, as `GET /v1/admin/audit` has them.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `admin`.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Tenants: who pays and who is isolated.
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// API keys of a tenant.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Roles of a tenant: names for what keys and tokens may do.
    #[command(subcommand)]
    Role(RoleCommand),
    /// Hosts: what they have, and whether they take sessions.
    #[command(subcommand)]
    Host(HostCommand),
    /// Say that the database was restored from a backup, before workers start (a dump in another cluster is noticed by itself).
    Restored {
        /// Sandboxes that the backup did not know, and that were left alone since, may be removed.
        #[arg(long)]
        release: bool,
    },
    /// Keys above tenants, for the admin endpoints.
    #[command(subcommand)]
    OperatorKey(OperatorKeyCommand),
}

/// Arguments of `admin host`.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts with what is taken of them.
    List,
    /// Take no new sessions; what runs goes on.
    Cordon {
        /// The host's id.
        host: HostId,
    },
    /// Take sessions again.
    Uncordon {
        /// The host's id.
        host: HostId,
    },
    /// Take no new sessions, and end what still runs after a while.
    Drain {
        /// The host's id.
        host: HostId,
        /// Seconds until the sessions that are left are ended; they end by themselves when left out.
        #[arg(long, value_name = "SECONDS")]
        within_s: Option<u32>,
    },
}

/// Arguments of `admin tenant`.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Create a tenant.
    Create {
        /// Its name, unique in the installation.
        name: String,
    },
    /// List the tenants.
    List,
    /// Refuse a tenant's requests and end what it runs.
    Suspend {
        /// The tenant.
        tenant: TenantId,
    },
    /// Serve a suspended tenant again.
    Activate {
        /// The tenant.
        tenant: TenantId,
    },
    /// Set a tenant's policy from a JSON document.
    Policy {
        /// The tenant.
        tenant: TenantId,
        /// The document; `-` reads standard input.
        file: PathBuf,
    },
    /// Set the days that a tenant keeps things. What is left out is the installation's; it can only be less.
    Retention {
        /// The tenant.
        tenant: TenantId,
        /// Calls and their results.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
        calls_days: Option<u32>,
        /// Events of calls.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
        events_days: Option<u32>,
        /// Output of calls and shells.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
        output_days: Option<u32>,
    },
    /// Write everything of a tenant to a file, as JSON lines. A file that was cut off is gone on with.
    Export {
        /// The tenant.
        tenant: TenantId,
        /// The file.
        #[arg(long, value_name = "PATH")]
        output: PathBuf,
    },
    /// Erase a tenant for ever: suspend it, end what it runs, delete everything of it. Workers do it; asking again changes nothing.
    Erase {
        /// The tenant.
        tenant: TenantId,
        /// The tenant's name, so that no slip erases another.
        #[arg(long, value_name = "NAME")]
        confirm: String,
        /// Wait until it is done, and print the signed receipt.
        #[arg(long)]
        wait: bool,
    },
    /// Check the receipt of an erasure: its signature, and the trail that it speaks of.
    VerifyReceipt {
        /// The receipt; `-` reads standard input.
        file: PathBuf,
    },
}

/// Arguments of `admin key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print it, once.
    Create {
        /// The tenant.
        #[arg(long)]
        tenant: TenantId,
        /// A name for people.
        #[arg(long)]
        name: String,
        /// What it may do; can be repeated. What its role may, or all of a tenant's scopes, when left out.
        #[arg(long = "scope", value_name = "SCOPE", value_parser = scope)]
        scopes: Vec<Scope>,
        /// Its role: admin, developer, viewer, auditor, or one of the tenant's own.
        #[arg(long)]
        role: Option<String>,
        /// Days until it expires; never when left out.
        #[arg(long, value_name = "DAYS")]
        expires_in_days: Option<u32>,
    },
    /// List a tenant's keys, without their secrets.
    List {
        /// The tenant.
        #[arg(long)]
        tenant: TenantId,
    },
    /// Make a key that takes another's place, and print it, once. Both work for a while.
    Rotate {
        /// The tenant.
        #[arg(long)]
        tenant: TenantId,
        /// The key's id.
        key: KeyId,
        /// For how long both work.
        #[command(flatten)]
        overlap: Overlap,
    },
    /// Revoke a key: within seconds it opens nothing any more, and its calls are cancelled.
    Revoke {
        /// The key's id.
        key: KeyId,
    },
}

/// How a key is replaced.
#[derive(Debug, Args)]
pub struct Overlap {
    /// Hours that the old key works beside the new one.
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=720))]
    pub overlap_hours: u32,
    /// Days until the new key expires; when the old one would have, if left out.
    #[arg(long, value_name = "DAYS")]
    pub expires_in_days: Option<u32>,
}

/// Arguments of `admin role`.
#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// List a tenant's roles, the given ones included.
    List {
        /// The tenant.
        #[arg(long)]
        tenant: TenantId,
    },
    /// Make a role of a tenant, or replace it.
    Put {
        /// The tenant.
        #[arg(long)]
        tenant: TenantId,
        /// Its name.
        name: String,
        /// What it may do; can be repeated.
        #[arg(long = "scope", value_name = "SCOPE", value_parser = scope, required = true)]
        scopes: Vec<Scope>,
        /// What it is for.
        #[arg(long, default_value = "")]
        description: String,
        /// A narrowing of the tenant's policy, as a JSON document; `-` reads standard input.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
    },
    /// Delete a role that no valid key has.
    Delete {
        /// The tenant.
        #[arg(long)]
        tenant: TenantId,
        /// Its name.
        name: String,
    },
}

/// Arguments of `admin operator-key`.
#[derive(Debug, Subcommand)]
pub enum OperatorKeyCommand {
    /// Create a key and print it, once.
    Create {
        /// A name for people.
        #[arg(long)]
        name: String,
        /// Days until it expires; never when left out.
        #[arg(long, value_name = "DAYS")]
        expires_in_days: Option<u32>,
    },
    /// List the operators' keys, without their secrets.
    List,
    /// Make a key that takes another's place, and print it, once. Both work for a while.
    Rotate {
        /// The key's id.
        key: KeyId,
        /// For how long both work.
        #[command(flatten)]
        overlap: Overlap,
    },
    /// Revoke a key: within seconds it opens nothing any more.
    Revoke {
        /// The key's id.
        key: KeyId,
    },
}

fn scope(text: &str) -> Result<Scope, String> {
    text.parse().map_err(|_| {
        let all: Vec<_> = Scope::tenant_default().into_iter().map(Scope::as_str).collect();
        format!("one of {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
