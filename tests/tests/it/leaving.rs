//! The walk of docs/operations.md#when-a-tenant-leaves: a tenant with sandboxes, files and artifacts is exported, and erased while a worker is killed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host, engine, wait};

/// What is nowhere but in what the tenant has said, named and written.
const MARK: &str = "qzx7marker";

/// The database as text, as somebody with its files would see it.
fn dump(host: &Host) -> Result<String> {
    let mut found: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin/pg_dump")))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    let program = found.pop().unwrap_or_else(|| "pg_dump".into());
    let output = Command::new(program)
        .args(["--data-only", "--inserts", "--dbname", &host.postgres.url()])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a text has the mark, plainly or as the hexadecimal digits of bytes.
fn has_mark(text: &str) -> bool {
    let digits: String = MARK.bytes().map(|byte| format!("{byte:02x}")).collect();
    text.contains(MARK) || text.contains(&digits)
}

/// Regular files beneath a folder, but for Postgres's own.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        // The worker removes what is of no use any more.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(all),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && entry.file_name() != "postgres" {
            all.extend(files(&entry.path())?);
        } else if kind.is_file() {
            all.push(entry.path());
        }
    }
    Ok(all)
}

/// Files beneath a folder in which the mark is written, but for Postgres's own and the receipt. The images of workspaces are holes for the
/// most part, which this program skips; as lines they would be one.
fn marked(folder: &Path, receipt: &str) -> Result<String> {
    let output = Command::new("grep")
        .args(["--recursive", "--files-with-matches", "--null-data", "--text", "--fixed-strings"])
        .args(["--exclude-dir=postgres", &format!("--exclude={receipt}"), MARK])
        .arg(folder)
        .env("LC_ALL", "C")
        .output()?;
    // What the worker removes meanwhile says nothing of anybody any more.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.lines().all(|line| line.ends_with("No such file or directory")), "{said}");
    ensure!(matches!(output.status.code(), Some(0..=2)), "{}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn leave_traces(client: &Client) -> Result<String> {
    let body = json!({"metadata": {"of": MARK}, "env": {"WHERE": MARK}});
    let session = client.session(body).await?;
    client.bash(&session, &format!("echo {MARK} | tee {MARK}.txt")).await?;
    let save = json!({"name": format!("{MARK}.md"), "content": format!("# {MARK}"), "kind": "summary"});
    let saved = client.run(&session, "save_artifact", save).await?;
    ensure!(saved["status"] == "succeeded", "{saved:#}");
    let write = json!({"path": format!("{MARK}.py"), "content": MARK});
    client.run(&session, "write_file", write).await?;
    client.submit(&session, "bash", json!({"command": format!("sleep 1000 # {MARK}")})).await?;
    Ok(session)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_takes_everything_along_and_leaves_nothing() {
    Host::test_prepared(async |host| {
        // What a killed worker was just making for its pool would stay for minutes.
        host.set("sandbox.pool", "[]");
        host.worker()?;
        host.serve(&[])?;
        let (tenant, other) = (host.tenant(MARK)?, host.tenant("other")?);
        leave_traces(&tenant.client).await?;
        let kept = other.client.session(json!({})).await?;
        other.client.bash(&kept, "echo other > file").await?;
        ensure!(has_mark(&dump(host)?), "the tenant has left traces");

        let output = host.folder().join("export.jsonl");
        let export = ["admin", "tenant", "export", &tenant.id, "--output", &output.display().to_string()];
        host.cli(&export)?;
        let whole = std::fs::read_to_string(&output)?;
        let rows = |text: &str| text.lines().filter(|line| line.starts_with("{\"table\":\"calls\"")).count();
        ensure!(
            rows(&whole) == 4 && whole.contains(MARK) && !whole.contains(&other.id),
            "{} calls",
            rows(&whole)
        );
        let last: Value = serde_json::from_str(whole.lines().last().context("a line")?)?;
        ensure!(last["end"]["rows"]["calls"] == 4 && last["end"]["rows"]["artifact_content"] == 1, "{last}");
        ensure!(host.cli(&export).is_err(), "a whole one is not written again");
        // Cut off in the middle of a line, it is whole again.
        std::fs::write(&output, &whole.as_bytes()[..whole.len() * 2 / 3])?;
        host.cli(&export)?;
        ensure!(rows(&std::fs::read_to_string(&output)?) == 4);
        std::fs::remove_file(&output)?;

        let wrong = host.cli(&["admin", "tenant", "erase", &tenant.id, "--confirm", "other"]);
        ensure!(wrong.is_err() && tenant.client.get("/v1/me").await?.status == 200, "{wrong:?}");
        host.cli(&["admin", "tenant", "erase", &tenant.id, "--confirm", MARK])?;
        // The worker is killed while it is at it; the next goes on.
        let operator = host.operator()?;
        let path = format!("/v1/admin/tenants/{}/erasure", tenant.id);
        operator.get(&path).await?.expect(200)?;
        host.processes.first_mut().context("a worker")?.kill();
        host.worker()?;
        wait::until("the tenant is erased", || async {
            Ok(operator.get(&path).await?.expect(200)?["state"] == "done")
        })
        .await?;
        let receipt = operator.get(&path).await?.expect(200)?["receipt"].clone();
        ensure!(receipt["deleted"]["calls"] == 4 && receipt["deleted"]["artifacts"] == 1, "{receipt:#}");
        let file = host.folder().join("receipt.json");
        std::fs::write(&file, receipt.to_string())?;
        let verify = ["admin", "tenant", "verify-receipt", &file.display().to_string()];
        ensure!(host.cli(&verify)?.contains(&tenant.id));
        std::fs::write(&file, receipt.to_string().replace("\"calls\":4", "\"calls\":5"))?;
        ensure!(host.cli(&verify).is_err(), "a receipt that was changed is none");

        ensure!(!has_mark(&dump(host)?), "the database says nothing of the tenant");
        let found = marked(host.folder(), "receipt.json")?;
        ensure!(found.is_empty(), "{found}");
        for path in files(host.folder())? {
            ensure!(!path.to_string_lossy().contains(MARK), "{}", path.display());
        }
        ensure!(!engine::containers(&host.installation)?.is_empty(), "the other's sandbox runs on");
        let read = other.client.bash(&kept, "cat file").await?;
        ensure!(read["result"]["output"].as_str().is_some_and(|text| text.contains("other")), "{read:#}");
        host.cli(&["audit", "verify"])?;
        Ok(())
    })
    .await;
}
