//! Exports: all of a tenant and nothing of others, of one moment.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use domain::TenantId;
use serde_json::{Value, json};
use sqlx::Row;
use store::testing::{TestDatabase, operator, tenant};
use store::{Export, ExportPlace, StoreError};

use crate::erasure::{MARK, files, life, marked, settle, store_on};

/// All lines of an export, and its checkpoints.
async fn read(mut export: Export) -> Result<Vec<Value>> {
    let mut text = String::new();
    while let Some(page) = export.next().await {
        text.push_str(std::str::from_utf8(&page?)?);
    }
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn rows<'a>(lines: &'a [Value], table: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["table"] == table).map(|line| &line["row"]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_has_everything_of_a_tenant_and_nothing_of_others() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let neighbour = Box::pin(life(&store, "neighbour")).await?;
    let context = Box::pin(life(&store, MARK)).await?;
    settle(&store).await?;
    let lines = read(store.export_tenant(&operator(), context.tenant_id(), None).await?).await?;
    let all = lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    for foreign in
        ["neighbour", &neighbour.tenant_id().to_string(), &neighbour.tenant_id().uuid().to_string()]
    {
        ensure!(!all.contains(foreign), "{foreign} is another's");
    }
    ensure!(!all.contains("secret_hash"), "hashes of keys are nobody's to see");
    for (table, count) in [
        ("tenants", 1),
        ("sessions", 1),
        ("calls", 3),
        ("call_events", 9),
        ("output_chunks", 6),
        ("shells", 3),
        ("artifacts", 3),
        ("wheels", 1),
        ("artifact_objects", 4),
        ("artifact_content", 4),
        ("api_keys", 2),
        ("roles", 1),
        ("contexts", 1),
        ("file_versions", 3),
        ("file_reads", 1),
        ("idempotency_keys", 1),
    ] {
        assert_eq!(rows(&lines, table).len(), count, "{table}");
    }
    ensure!(rows(&lines, "audit_log").len() > 10 && rows(&lines, "audit_chain").len() > 10);
    ensure!(!rows(&lines, "usage_calls").is_empty());
    let session = rows(&lines, "sessions")[0];
    ensure!(session["env_names"] == json!(["label"]) && session.get("env").is_none(), "{session:#}");
    let texts = |table: &str, field: &str| -> Result<BTreeSet<String>> {
        let decode = |row: &&Value| {
            Ok(String::from_utf8(
                data_encoding::BASE64.decode(row[field].as_str().context("base64")?.as_bytes())?,
            )?)
        };
        rows(&lines, table).iter().map(decode).collect()
    };
    ensure!(
        texts("output_chunks", "bytes")?.contains(&marked("output 2"))
            && texts("output_chunks", "bytes")?.contains(&marked("shell"))
    );
    assert_eq!(
        texts("artifact_content", "base64")?,
        (0..3).map(|n| marked(&format!("artifact {n}"))).chain([marked("wheel")]).collect()
    );
    // It says that it is whole, and how much it was.
    ensure!(lines[0]["export"]["tenant_id"] == context.tenant_id().to_string(), "{}", lines[0]);
    let end = &lines.last().context("an end")?["end"];
    assert_eq!((&end["rows"]["calls"], &end["rows"]["artifact_content"]), (&json!(3), &json!(4)));

    // Cut off anywhere, it goes on behind its last checkpoint, and both parts are the whole.
    let whole: Vec<_> =
        lines.iter().filter(|line| line.get("table").is_some() && !volatile(line)).cloned().collect();
    let places =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, line["checkpoint"].as_str()?.to_owned())));
    for (at, place) in places {
        let place = ExportPlace::parse(&place).context("a checkpoint")?;
        let rest = read(store.export_tenant(&operator(), context.tenant_id(), Some(place)).await?).await?;
        let both: Vec<_> = lines[..at]
            .iter()
            .chain(&rest)
            .filter(|line| line.get("table").is_some() && !volatile(line))
            .cloned()
            .collect();
        let differs = both.iter().zip(&whole).position(|(one, other)| one != other);
        ensure!(both == whole, "from line {at}: {differs:?}, {} and {}", both.len(), whole.len());
    }
    for bad in ["", "x", "eyJ0YWJsZSI6Imhvc3RzIiwia2V5IjpbXX0"] {
        ensure!(ExportPlace::parse(bad).is_none(), "{bad}");
    }
    let nobody = TenantId::from_uuid(uuid::Uuid::from_u128(7));
    ensure!(matches!(store.export_tenant(&operator(), nobody, None).await, Err(StoreError::NotFound { .. })));
    Ok(())
}

/// Exporting is recorded, so the trail has grown by the next time; and the sum of stored bytes is written a second late.
fn volatile(line: &Value) -> bool {
    line["table"].as_str().is_some_and(|table| table.starts_with("audit_") || table == "stored_bytes")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_of_one_moment() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let context = Box::pin(life(&store, MARK)).await?;
    let mut export = store.export_tenant(&operator(), context.tenant_id(), None).await?;
    let first = export.next().await.context("a page")??;
    ensure!(first.starts_with(b"{\"export\""));
    // Behind its back everything goes; the objects stay, as their rows have to go first.
    database
        .execute(
            "DELETE FROM artifacts; DELETE FROM output_chunks; DELETE FROM call_events; DELETE FROM calls",
        )
        .await?;
    let rest = read(export).await?;
    for (table, count) in
        [("calls", 3), ("call_events", 9), ("output_chunks", 6), ("artifacts", 3), ("artifact_content", 4)]
    {
        assert_eq!(rows(&rest, table).len(), count, "{table}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_nothing_here_is_refused_before_the_first_line() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    let (id, other) = (context.tenant_id(), other.tenant_id());
    let uuid = id.uuid().to_string();
    let place = |tenant: TenantId, table: &str, key: &[&str]| {
        let text = json!({"tenant": tenant, "table": table, "key": key}).to_string();
        ExportPlace::parse(&data_encoding::BASE64URL_NOPAD.encode(text.as_bytes()))
            .context("its form is right")
    };
    for (tenant, table, key) in [
        (id, "calls", &["not a uuid"][..]),
        (id, "calls", &[]),
        (id, "calls", &[&uuid, &uuid]),
        (id, "calls", &["a\0b"]),
        (id, "audit_log", &["yesterday or so", &uuid]),
        (id, "audit_log", &["294277-01-01", &uuid]),
        (id, "calls; DROP TABLE calls", &[&uuid]),
        (id, "api_keys) --", &[&uuid]),
        (id, "artifact_content", &["zz"]),
        (id, "artifact_content", &[]),
        // Another tenant's is well formed, and none of this export.
        (other, "calls", &[&uuid]),
    ] {
        let refused = store.export_tenant(&operator(), id, Some(place(tenant, table, key)?)).await;
        ensure!(matches!(refused, Err(StoreError::Conflict { .. })), "{table} {key:?}: {refused:?}");
    }
    let goes_on = store.export_tenant(&operator(), id, Some(place(id, "calls", &[&uuid])?)).await?;
    ensure!(read(goes_on).await?.last().is_some_and(|line| line["end"].is_object()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_content_of_a_large_artifact_keeps_the_snapshot_awake() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let context = Box::pin(life(&store, MARK)).await?;
    let objects = sqlx::query("SELECT sha256 FROM artifact_objects ORDER BY sha256 LIMIT 1");
    let mut raw = database.superuser().await?;
    let first: Vec<u8> = objects.fetch_one(&mut raw).await?.try_get("sha256")?;
    // The first content is one of many pieces from now on.
    let bytes = 24 * 256 * 1024_i64;
    let path = files(folder.path())?
        .into_iter()
        .find(|path| path.to_string_lossy().contains(&data_encoding::HEXLOWER.encode(&first)));
    std::fs::write(path.context("its file")?, vec![7; usize::try_from(bytes)?])?;
    let grown = sqlx::query("UPDATE artifact_objects SET size_bytes = $2 WHERE sha256 = $1");
    grown.bind(&first).bind(bytes).execute(&mut raw).await?;
    let mut export = store.export_tenant(&operator(), context.tenant_id(), None).await?;
    let mut spoke_at = std::collections::BTreeSet::new();
    let mut pieces = 0;
    while let Some(page) = export.next().await {
        if !page?.starts_with(b"{\"table\":\"artifact_content\"") {
            continue;
        }
        pieces += 1;
        let spoke = sqlx::query(
            "SELECT state_change::text AS at FROM pg_stat_activity WHERE state <> 'idle' AND xact_start IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()",
        );
        for row in spoke.fetch_all(&mut raw).await? {
            spoke_at.insert(row.try_get::<String, _>("at")?);
        }
    }
    // Not with each piece: a look may come before it has spoken again, as some pieces are read ahead of it.
    ensure!(
        pieces > 24 && spoke_at.len() * 5 >= pieces,
        "{pieces} pieces, and it spoke {} times",
        spoke_at.len()
    );
    Ok(())
}
