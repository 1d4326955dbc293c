//! `toolhost admin`: tenants and keys. What a script needs is on standard output, alone; words are on standard error.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result};
use chrono::{DateTime, TimeDelta, Utc};
use domain::policy::Policy;
use domain::{OperatorContext, Principal, Scope, TenantId, TenantStatus};
use store::{ApiKey, NewKey, NewTenant, Page, Store, Tenant};
use uuid::Uuid;

use super::print;
use crate::cli::{AdminCommand, KeyCommand, OperatorKeyCommand, TenantCommand};
use crate::config::Config;
use crate::wiring;

/// Runs one of them.
///
/// # Errors
/// When the database refuses or does not answer.
pub(super) async fn run(config: &Config, command: AdminCommand) -> Result<()> {
    let store = wiring::store(config, &prometheus::Registry::new()).await?;
    let operator = OperatorContext::verified(Principal::command_line());
    let done = match command {
        AdminCommand::Tenant(command) => tenant(&store, &operator, command).await,
        AdminCommand::Key(command) => key(&store, &operator, command).await,
        AdminCommand::OperatorKey(OperatorKeyCommand::Create { name }) => {
            let (made, text) = store.create_operator_key(&operator, &name, None).await?;
            tell_key(&made);
            print(&format!("{}\n", text.reveal()))
        }
    };
    store.close().await;
    done
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
        KeyCommand::Create { tenant, name, scopes, expires_in_days } => {
            let scopes = if scopes.is_empty() { Scope::tenant_default() } else { scopes };
            let expires_at = expires_in_days.map(|days| Utc::now() + TimeDelta::days(i64::from(days)));
            let new = NewKey { name, scopes, policy: None, expires_at };
            let (made, text) = store.create_key(operator, tenant, new).await?;
            tell_key(&made);
            print(&format!("{}\n", text.reveal()))
        }
        KeyCommand::List { tenant } => {
            let mut after = None;
            loop {
                let page = store.list_keys(operator, Some(tenant), page(after)).await?;
                for key in &page.items {
                    print(&row_of_key(key))?;
                }
                after = page.next;
                if after.is_none() {
                    return Ok(());
                }
            }
        }
        KeyCommand::Revoke { key } => {
            store.revoke_key(operator, key).await?;
            eprintln!("revoked {key}; every process refuses it within seconds");
            Ok(())
        }
    }
}

fn page(after: Option<Uuid>) -> Page {
    Page { limit: domain::limits::PAGE_ITEMS, after }
}

fn tell_key(key: &ApiKey) {
    eprintln!("created the key {} ({:?}); it is shown this once:", key.id, key.name);
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
    let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
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
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    serde_json::from_str(&text).context("this is no policy")
}
