//! `toolhost audit`: whether the trail is as it was written, and the signed heads that tell it from outside.

use std::path::Path;

use anyhow::{Context, Result, bail};
use domain::TenantId;
use store::{AuditHead, AuditReport, Store};

use super::print;
use crate::cli::AuditCommand;
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
