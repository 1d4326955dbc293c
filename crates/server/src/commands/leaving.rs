//! `toolhost admin tenant export`, `erase` and `verify-receipt`: what a tenant takes with it, and what is left of it.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use domain::{OperatorContext, TenantId};
use serde::Deserialize;
use store::{Erasure, ErasureAnswer, ErasureReceipt, ExportPlace, Store};

use super::{admin, print};

/// How often an erasure is looked at that is waited for.
const LOOK: Duration = Duration::from_secs(1);

/// What a line of an export says of the export itself; rows say nothing of it.
#[derive(Debug, Default, Deserialize)]
struct Mark {
    export: Option<Begun>,
    checkpoint: Option<String>,
    end: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Begun {
    tenant_id: TenantId,
}

/// How every export begins.
const BEGINNING: &[u8] = b"{\"export\"";

/// How far a file has come that was begun before.
#[derive(Debug, Default, PartialEq)]
struct Far {
    /// Bytes up to the end of the last checkpoint.
    bytes: u64,
    checkpoint: Option<String>,
    is_whole: bool,
}

/// Writes everything of a tenant to a file, which only the owner may read. A file that was cut off is gone on with.
pub(super) async fn export(
    store: &Store,
    operator: &OperatorContext,
    tenant: TenantId,
    path: &Path,
) -> Result<()> {
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let far = far(&file, tenant).with_context(|| format!("{} cannot be gone on with", path.display()))?;
    ensure!(!far.is_whole, "{} is a whole export already", path.display());
    let after = match &far.checkpoint {
        Some(text) => Some(ExportPlace::parse(text).context("the last checkpoint cannot be read")?),
        None => None,
    };
    file.set_len(far.bytes)?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(far.bytes))?;
    let mut export = store.export_tenant(operator, tenant, after).await?;
    let mut bytes = far.bytes;
    while let Some(page) = export.next().await {
        let page = page.context("the export was cut off; the same command goes on with it")?;
        file.write_all(&page)?;
        bytes += page.len() as u64;
    }
    file.sync_all()?;
    eprintln!("exported {tenant}: {bytes} bytes");
    Ok(())
}

fn far(file: &File, tenant: TenantId) -> Result<Far> {
    let (mut reader, mut far, mut at, mut line) = (BufReader::new(file), Far::default(), 0, Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)? as u64;
        // What is no export is not written over; what was cut off before its first checkpoint begins anew.
        let begins_as_one = line.starts_with(BEGINNING) || BEGINNING.starts_with(&line);
        ensure!(at > 0 || begins_as_one, "it is no export");
        // A line without an end was cut off.
        if read == 0 || line.last() != Some(&b'\n') {
            return Ok(far);
        }
        let mark: Mark = if line.starts_with(b"{\"table\"") {
            Mark::default()
        } else {
            serde_json::from_slice(&line).context("it is no export")?
        };
        at += read;
        if let Some(begun) = mark.export {
            ensure!(begun.tenant_id == tenant, "it is an export of {}", begun.tenant_id);
        }
        if let Some(checkpoint) = mark.checkpoint {
            (far.bytes, far.checkpoint) = (at, Some(checkpoint));
        }
        far.is_whole |= mark.end.is_some();
    }
}

/// Asks for an erasure, and waits for its receipt if it is to.
pub(super) async fn erase(
    store: &Store,
    operator: &OperatorContext,
    tenant: TenantId,
    name: &str,
    until: Until,
) -> Result<()> {
    let mut erasure = match store.request_erasure(operator, tenant, name).await? {
        ErasureAnswer::Begun(erasure) => erasure,
        ErasureAnswer::WrongName => bail!("{name:?} is not the name of {tenant}: nothing was erased"),
    };
    let mut told = String::new();
    loop {
        let now = state(&erasure);
        if now != told {
            eprintln!("{now}");
            told = now;
        }
        if let Some(receipt) = &erasure.receipt {
            return print(&format!("{}\n", serde_json::to_string(receipt)?));
        }
        if until == Until::Begun {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
        erasure = store.erasure(operator, tenant).await?;
    }
}

/// How long the command waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The erasure is asked for; workers do it.
    Begun,
    /// There is a receipt.
    Done,
}

fn state(erasure: &Erasure) -> String {
    let (sessions, sandboxes) = erasure.waits_for;
    let rows: u64 = erasure.deleted.values().sum();
    let waits = match (sessions, sandboxes) {
        (0, 0) => String::new(),
        _ => format!(", waits for {sessions} sessions and {sandboxes} sandboxes to end"),
    };
    format!("the erasure of {} is {}: {rows} rows deleted{waits}", erasure.tenant_id, erasure.state.as_str())
}

/// Whether a receipt is ours and says what it said, and the trail that it speaks of is still the one.
pub(super) async fn verify(store: &Store, path: &Path) -> Result<()> {
    let text = admin::read(path)?;
    let receipt: ErasureReceipt =
        serde_json::from_str(&text).with_context(|| format!("{} is no receipt", path.display()))?;
    ensure!(
        store.is_our_receipt(&receipt),
        "the receipt is not signed by a key of this installation, or was changed"
    );
    let report = store.verify_audit(Some(receipt.tenant_id), None).await?;
    let is_there = store.is_trail_of(&receipt).await? && report.links >= receipt.trail_links;
    ensure!(is_there, "the audit trail of {} is not the one that the receipt speaks of", receipt.tenant_id);
    ensure!(report.findings.is_empty(), "the audit trail of {} is not as it was kept", receipt.tenant_id);
    print(&format!("{}\tok\terased {}\n", receipt.tenant_id, receipt.erased_at.to_rfc3339()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        std::io::Seek::rewind(&mut file).expect("rewound");
        file
    }

    #[test]
    fn a_file_goes_on_behind_its_last_whole_checkpoint() {
        let tenant = TenantId::from_uuid(uuid::Uuid::from_u128(1));
        let begun =
            format!("{{\"export\":{{\"version\":1,\"tenant_id\":\"{tenant}\",\"read_at\":\"x\"}}}}\n");
        let row = "{\"table\":\"calls\",\"row\":{\"checkpoint\":\"no\"}}\n";
        let place = "{\"checkpoint\":\"abc\"}\n";
        let is = |text: &str| far(&file(text), tenant);
        assert_eq!(is("").ok(), Some(Far::default()));
        let until = (begun.len() + row.len() + place.len()) as u64;
        let expected = Far { bytes: until, checkpoint: Some("abc".to_owned()), is_whole: false };
        for rest in ["", row, "{\"check", "{\"checkpoint\":\"cut\"}"] {
            assert_eq!(is(&format!("{begun}{row}{place}{rest}")).ok().as_ref(), Some(&expected), "{rest}");
        }
        assert!(is(&format!("{begun}{place}{{\"end\":{{}}}}\n")).is_ok_and(|far| far.is_whole));
        for anew in [format!("{begun}{row}"), begun[..5].to_owned(), begun.clone()] {
            assert_eq!(is(&anew).ok(), Some(Far::default()), "{anew}");
        }
        for bad in ["hello\n", "hello", place, &begun.replace(&tenant.to_string(), "ten_x")] {
            assert!(is(bad).is_err(), "{bad}");
        }
        assert!(far(&file(&begun), TenantId::from_uuid(uuid::Uuid::from_u128(2))).is_err());
    }
}
