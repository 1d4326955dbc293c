//! `toolhost audit`: what the trail says, whether it is as it was written, and the signed heads that tell it from outside.

use std::path::Path;

use anyhow::{Context, Result, bail};
use api::wire::audit::AuditEntryView;
use domain::{OperatorContext, Principal, TenantId};
use store::{AuditEntry, AuditFilter, AuditHead, AuditReport, Store, Trail};

use super::print;
use crate::cli::{AuditCommand, AuditListArgs};
use crate::config::Config;
use crate::wiring;

/// Runs one of them.
///
/// # Errors
/// When the database does not answer, or the trail was tampered with.
pub(super) async fn run(config: &Config, command: AuditCommand) -> Result<()> {
    let store = wiring::store(config, &prometheus::Registry::new()).await?;
    let done = match command {
        AuditCommand::Verify { tenant, checkpoint } => {
            let checkpoints = checkpoint.as_deref().map(read).transpose();
            match checkpoints {
                Ok(checkpoints) => verify(&store, tenant, checkpoints.unwrap_or_default()).await,
                Err(error) => Err(error),
            }
        }
        AuditCommand::Checkpoint => checkpoint(&store).await,
        AuditCommand::List(arguments) => list(&store, arguments).await,
    };
    store.close().await;
    done
}

async fn checkpoint(store: &Store) -> Result<()> {
    for head in store.audit_heads().await? {
        print(&format!("{}\n", serde_json::to_string(&head)?))?;
    }
    Ok(())
}

async fn list(store: &Store, arguments: AuditListArgs) -> Result<()> {
    let AuditListArgs { tenant, since, until, actions, principal, target, allowed, limit, json } = arguments;
    let filter = AuditFilter { since, until, actions, principal, target, allowed };
    let operator = OperatorContext::verified(Principal::command_line());
    let (mut left, mut after) = (limit.unwrap_or(usize::MAX), None);
    while left > 0 {
        let listed = store.export_audit(Trail::Above(&operator, tenant), &filter, after).await?;
        let mut text = String::new();
        for entry in listed.items.into_iter().take(left) {
            left -= 1;
            text.push_str(&if json { line(entry)? } else { row(&entry) });
        }
        print(&text)?;
        after = listed.next;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

fn line(entry: AuditEntry) -> Result<String> {
    Ok(serde_json::to_string(&AuditEntryView::from(entry))? + "\n")
}

/// `<time>\t<allowed or refused>\t<action>\t<who>\t<from where>\t<on what>\t<why not>\t<facts>`.
fn row(entry: &AuditEntry) -> String {
    let verdict = if entry.allowed { "allowed" } else { "refused" };
    let who = entry.principal.key_id.map_or_else(|| entry.principal.name.clone(), |key| key.to_string());
    let address = entry.principal.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let fields = [
        entry.at.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
        verdict.to_owned(),
        entry.action.clone(),
        who,
        address,
        entry.target.clone().unwrap_or_else(|| "-".to_owned()),
        entry.reason.clone().unwrap_or_else(|| "-".to_owned()),
        entry.details.to_string(),
    ];
    fields.map(|field| plain(&field)).join("\t") + "\n"
}

/// Names and paths are what clients made them: nothing of them may move the terminal's cursor, or look like another row.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

async fn verify(store: &Store, tenant: Option<TenantId>, checkpoints: Vec<AuditHead>) -> Result<()> {
    let mut chains = match tenant {
        Some(tenant) => vec![Some(tenant)],
        None => store.audit_chains().await?,
    };
    // A checkpoint of a tenant that is gone without a trace is the trace.
    let of_checkpoints = checkpoints.iter().map(|head| head.tenant_id);
    chains.extend(of_checkpoints.filter(|chain| tenant.is_none() || *chain == tenant));
    chains.sort_unstable();
    chains.dedup();
    let mut bad = 0;
    for chain in chains {
        let checkpoint =
            checkpoints.iter().filter(|head| head.tenant_id == chain).max_by_key(|head| head.sequence);
        let report = store.verify_audit(chain, checkpoint).await?;
        print(&told(&report))?;
        bad += u32::from(!report.findings.is_empty());
    }
    match bad {
        0 => Ok(()),
        1 => bail!("1 trail is not as it was written"),
        many => bail!("{many} trails are not as they were written"),
    }
}

/// One line for each trail, and one for each finding, as `<tenant>\t<words>`.
fn told(report: &AuditReport) -> String {
    let name = report.tenant_id.map_or_else(|| "installation".to_owned(), |tenant| tenant.to_string());
    let verdict = if report.findings.is_empty() { "ok" } else { "TAMPERED" };
    let mut text = format!("{name}\t{verdict}\t{} links\t{} not sealed yet\n", report.links, report.pending);
    for finding in &report.findings {
        text.push_str(&format!("{name}\t{finding}\n"));
    }
    if report.more > 0 {
        text.push_str(&format!("{name}\tand {} more\n", report.more));
    }
    text
}

fn read(path: &Path) -> Result<Vec<AuditHead>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            serde_json::from_str(line).with_context(|| format!("{} is no checkpoint", path.display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_a_client_named_cannot_write_to_the_terminal() {
        assert_eq!(plain("GET /a\tb\n\u{1b}[2J\u{9b}x ü"), "GET /a\u{fffd}b\u{fffd}\u{fffd}[2J\u{fffd}x ü");
    }
}
