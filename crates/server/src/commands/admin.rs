//! `toolhost admin`: tenants, roles and keys. What a script needs is on standard output, alone; words are on standard error.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result};
use chrono::{DateTime, TimeDelta, Utc};
use domain::policy::Policy;
use domain::{KeyId, OperatorContext, Principal, Scope, TenantId, TenantStatus};
use store::{
    ApiKey, EngineState, Host, HostOrder, Keeper, NewKey, NewRole, NewTenant, Page, PlainKey, Rotation,
    Store, Tenant, TenantRetention,
};
use uuid::Uuid;

use super::leaving::{self, Until};
use super::print;
use crate::cli::{
    AdminCommand, HostCommand, KeyCommand, OperatorKeyCommand, Overlap, RoleCommand, TenantCommand,
};
use crate::config::Config;
use crate::wiring;

/// Runs one of them.
///
/// # Errors
/// When the database refuses or does not answer.
pub(super) async fn run(config: &Config, command: AdminCommand) -> Result<()> {
    let registry = prometheus::Registry::new();
    let store = match &command {
        // It reads the bytes of artifacts as well.
        AdminCommand::Tenant(TenantCommand::Export { .. }) => {
            wiring::service_store(config, &registry).await?
        }
        _ => wiring::store(config, &registry).await?,
    };
    let operator = OperatorContext::verified(Principal::command_line());
    let done = match command {
        AdminCommand::Tenant(command) => tenant(&store, &operator, command).await,
        AdminCommand::Key(command) => key(&store, &operator, command).await,
        AdminCommand::Role(command) => role(&store, &operator, command).await,
        AdminCommand::OperatorKey(command) => operator_key(&store, &operator, command).await,
        AdminCommand::Host(command) => host(&store, &operator, command).await,
        AdminCommand::Restored { release: true } => {
            store.release_restored(&operator).await?;
            eprintln!("sandboxes that the backup did not know are removed with the next passes");
            Ok(())
        }
        AdminCommand::Restored { release: false } => {
            let restored = store.mark_restored(&operator).await?;
            eprintln!(
                "{} sessions are looked for on their hosts; {} calls were open and are ended",
                restored.sessions, restored.calls
            );
            Ok(())
        }
    };
    store.close().await;
    done
}

async fn host(store: &Store, operator: &OperatorContext, command: HostCommand) -> Result<()> {
    let (id, order) = match command {
        HostCommand::List => {
            for host in store.list_hosts(operator).await? {
                print(&row_of_host(&host))?;
            }
            return Ok(());
        }
        HostCommand::Cordon { host } => (host, HostOrder::Cordon),
        HostCommand::Uncordon { host } => (host, HostOrder::Uncordon),
        HostCommand::Drain { host, within_s } => (host, HostOrder::Drain { within_s }),
    };
    let host = store.order_host(operator, id, order).await?;
    eprintln!("the host {:?} is {}", host.name, host.schedule.as_str());
    Ok(())
}

fn row_of_host(host: &Host) -> String {
    let of = |used: u64, all: Option<u64>| {
        all.map_or_else(|| format!("{used} MiB"), |all| format!("{used} of {all} MiB"))
    };
    format!(
        "{}\t{}\tworkers {}{}\tsessions {}\tmemory {}\tdisk {}\t{}\n",
        host.id,
        host.schedule.as_str(),
        host.workers,
        match host.engine {
            Some(EngineState::Down) => ", engine down",
            Some(EngineState::Works) | None => "",
        },
        host.used.sandboxes,
        of(host.used.memory_mb + host.pool.memory_mb, host.capacity.memory_mb),
        of(host.used.disk_mb + host.pool.disk_mb, host.capacity.disk_mb),
        host.name
    )
}

async fn tenant(store: &Store, operator: &OperatorContext, command: TenantCommand) -> Result<()> {
    match command {
        TenantCommand::Create { name } => {
            let tenant = store.create_tenant(operator, NewTenant { name, ..NewTenant::default() }).await?;
            eprintln!("created the tenant {:?}", tenant.name);
            print(&format!("{}\n", tenant.id))
        }
        TenantCommand::List => {
            let mut after = None;
            loop {
                let page = store.list_tenants(operator, page(after)).await?;
                for tenant in &page.items {
                    print(&row_of_tenant(tenant))?;
                }
                after = page.next;
                if after.is_none() {
                    return Ok(());
                }
            }
        }
        TenantCommand::Suspend { tenant } => {
            set_status(store, operator, tenant, TenantStatus::Suspended).await
        }
        TenantCommand::Activate { tenant } => set_status(store, operator, tenant, TenantStatus::Active).await,
        TenantCommand::Policy { tenant, file } => {
            let policy = read_policy(&file)?;
            store.set_tenant_policy(operator, tenant, &policy).await?;
            eprintln!("set the policy of {tenant}; it holds within seconds");
            Ok(())
        }
        TenantCommand::Retention { tenant, calls_days, events_days, output_days } => {
            let retention = TenantRetention { calls_days, events_days, output_days };
            store.set_tenant_retention(operator, tenant, retention).await?;
            let days = [("calls", calls_days), ("events", events_days), ("output", output_days)];
            let days = days.map(|(what, days)| match days {
                Some(days) => format!("{what} {days} days"),
                None => format!("{what} as long as the installation does"),
            });
            eprintln!("the tenant {tenant} keeps {}", days.join(", "));
            Ok(())
        }
        TenantCommand::Export { tenant, output } => leaving::export(store, operator, tenant, &output).await,
        TenantCommand::Erase { tenant, confirm, wait } => {
            let until = if wait { Until::Done } else { Until::Begun };
            leaving::erase(store, operator, tenant, &confirm, until).await
        }
        TenantCommand::VerifyReceipt { file } => leaving::verify(store, &file).await,
    }
}

async fn set_status(
    store: &Store,
    operator: &OperatorContext,
    id: TenantId,
    status: TenantStatus,
) -> Result<()> {
    let tenant = store.set_tenant_status(operator, id, status).await?;
    eprintln!("the tenant {:?} is {}", tenant.name, tenant.status.as_str());
    Ok(())
}

async fn key(store: &Store, operator: &OperatorContext, command: KeyCommand) -> Result<()> {
    match command {
        KeyCommand::Create { tenant, name, scopes, role, expires_in_days } => {
            let keeper = Keeper::Operator(operator, tenant);
            if let Some(role) = &role {
                store.get_role(keeper, role).await.with_context(|| format!("the role {role:?}"))?;
            }
            let all = scopes.is_empty() && role.is_none();
            let scopes = if all { Scope::tenant_default() } else { scopes };
            let expires_at = in_days(expires_in_days);
            let new = NewKey { name, scopes, role, policy: None, expires_at };
            show_key(store.create_key(operator, tenant, new).await?)
        }
        KeyCommand::List { tenant } => list_keys(store, operator, Some(tenant)).await,
        KeyCommand::Rotate { tenant, key, overlap } => {
            show_key(store.rotate_key(Keeper::Operator(operator, tenant), key, rotation(&overlap)).await?)
        }
        KeyCommand::Revoke { key } => revoke(store, operator, key).await,
    }
}

async fn operator_key(store: &Store, operator: &OperatorContext, command: OperatorKeyCommand) -> Result<()> {
    match command {
        OperatorKeyCommand::Create { name, expires_in_days } => {
            show_key(store.create_operator_key(operator, &name, in_days(expires_in_days)).await?)
        }
        OperatorKeyCommand::List => list_keys(store, operator, None).await,
        OperatorKeyCommand::Rotate { key, overlap } => {
            show_key(store.rotate_operator_key(operator, key, rotation(&overlap)).await?)
        }
        OperatorKeyCommand::Revoke { key } => revoke(store, operator, key).await,
    }
}

async fn role(store: &Store, operator: &OperatorContext, command: RoleCommand) -> Result<()> {
    match command {
        RoleCommand::List { tenant } => {
            for role in store.list_roles(Keeper::Operator(operator, tenant)).await? {
                let scopes: Vec<_> = role.scopes.iter().map(|scope| scope.as_str()).collect();
                let kind = if role.given { "given" } else { "own" };
                print(&format!("{}\t{kind}\t{}\t{}\n", role.name, scopes.join(","), role.description))?;
            }
            Ok(())
        }
        RoleCommand::Put { tenant, name, scopes, description, policy } => {
            let policy = policy.as_deref().map(read_policy).transpose()?;
            let new = NewRole { description, scopes, policy };
            store.put_role(Keeper::Operator(operator, tenant), &name, new).await?;
            eprintln!("set the role {name:?}; it holds within seconds");
            Ok(())
        }
        RoleCommand::Delete { tenant, name } => {
            store.delete_role(Keeper::Operator(operator, tenant), &name).await?;
            eprintln!("deleted the role {name:?}");
            Ok(())
        }
    }
}

async fn list_keys(store: &Store, operator: &OperatorContext, tenant: Option<TenantId>) -> Result<()> {
    let mut after = None;
    loop {
        let page = store.list_keys(operator, tenant, page(after)).await?;
        for key in &page.items {
            print(&row_of_key(key))?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

async fn revoke(store: &Store, operator: &OperatorContext, key: KeyId) -> Result<()> {
    store.revoke_key(operator, key).await?;
    eprintln!("revoked {key}; every process refuses it within seconds");
    Ok(())
}

fn in_days(days: Option<u32>) -> Option<DateTime<Utc>> {
    days.map(|days| Utc::now() + TimeDelta::days(i64::from(days)))
}

fn rotation(overlap: &Overlap) -> Rotation {
    Rotation {
        old_until: Utc::now() + TimeDelta::hours(i64::from(overlap.overlap_hours)),
        expires_at: in_days(overlap.expires_in_days),
        latest: None,
    }
}

fn show_key((made, text): (ApiKey, PlainKey)) -> Result<()> {
    eprintln!("created the key {} ({:?}); it is shown this once:", made.id, made.name);
    print(&format!("{}\n", text.reveal()))
}

fn page(after: Option<Uuid>) -> Page {
    Page { limit: domain::limits::PAGE_ITEMS, after }
}

fn row_of_tenant(tenant: &Tenant) -> String {
    format!("{}\t{}\t{}\t{}\n", tenant.id, tenant.status.as_str(), time(Some(tenant.created_at)), tenant.name)
}

fn row_of_key(key: &ApiKey) -> String {
    let state = match (key.revoked_at, key.expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(at)) if at <= Utc::now() => "expired",
        (None, _) => "valid",
    };
    let role = key.role.iter().map(|role| format!("role={role}"));
    let scopes: Vec<_> = role.chain(key.scopes.iter().map(|scope| scope.as_str().to_owned())).collect();
    format!(
        "{}\t{state}\texpires {}\tused {}\t{}\t{}\n",
        key.id,
        time(key.expires_at),
        time(key.last_used_at),
        scopes.join(","),
        key.name
    )
}

fn time(at: Option<DateTime<Utc>>) -> String {
    at.map_or_else(|| "never".to_owned(), |at| at.format("%Y-%m-%dT%H:%M:%SZ").to_string())
}

fn read_policy(file: &Path) -> Result<Policy> {
    serde_json::from_str(&read(file)?).context("this is no policy")
}

/// A file's text; `-` is standard input.
pub(super) fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    Ok(text)
}
