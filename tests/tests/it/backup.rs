//! The drill of docs/operations.md#backup: a dump of a running installation, restored into another cluster under sandboxes that still run.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use server::postgres::{Cluster, Durability};
use tests::{Host, engine, wait};

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_goes_on_and_removes_nothing_that_runs() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let old = tenant.client.session(json!({})).await?;
        tenant.client.bash(&old, "echo kept > file").await?;
        let dump = host.folder().join("backup.dump").display().to_string();
        postgres("pg_dump", &["--format=custom", "--file", &dump, "--dbname", &host.postgres.url()])?;

        // What the backup does not know: a session with a sandbox and a command that runs.
        let new = tenant.client.session(json!({})).await?;
        tenant.client.bash(&new, "true").await?;
        tenant.client.submit(&new, "bash", json!({"command": "sleep 1000"})).await?;
        host.processes.last_mut().context("a process")?.kill();
        let before = engine::containers(&host.installation)?;
        ensure!(before.len() >= 2, "{before:?}");

        let cluster = Cluster::start(&host.folder().join("postgres-2"), Durability::Relaxed).await?;
        let roles = "CREATE ROLE toolhost_app NOLOGIN; CREATE ROLE toolhost_system NOLOGIN";
        postgres("psql", &["--quiet", "--command", roles, &cluster.url()])?;
        postgres("pg_restore", &["--exit-on-error", "--dbname", &cluster.url(), &dump])?;
        let mut gone = std::mem::replace(&mut host.postgres, cluster);
        gone.stop().await?;
        let process = host.serve(&["--with-worker"])?;
        process.wait_for(|line| line.contains("are left alone").then_some(()))?;
        process.wait_for(|line| line.contains("does not know are left alone (").then_some(()))?;

        let client = tenant.client.at(&host.base);
        ensure!(client.get("/v1/me").await?.status == 200, "keys work");
        client.get(&format!("/v1/sessions/{new}")).await?.problem(404, "not_found")?;
        let read = client.bash(&old, "cat file").await?;
        ensure!(read["result"]["output"].as_str().is_some_and(|text| text.contains("kept")), "{read:#}");
        host.cli(&["audit", "verify"])?;
        let after = engine::containers(&host.installation)?;
        ensure!(before.iter().all(|id| after.contains(id)), "{before:?} are not all in {after:?}");

        host.cli(&["admin", "restored", "--release"])?;
        wait::until("what the backup did not know is removed", || async {
            let after = engine::containers(&host.installation)?;
            Ok(before.iter().filter(|id| after.contains(id)).count() == 1)
        })
        .await?;
        ensure!(client.bash(&old, "cat file").await?["status"] == "succeeded");
        Ok(())
    })
    .await;
}

/// Runs a program of Postgres, of the newest version that is installed.
fn postgres(program: &str, arguments: &[&str]) -> Result<()> {
    let mut found: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin").join(program)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    let path = found.pop().unwrap_or_else(|| program.into());
    let output = Command::new(&path).args(arguments).output().with_context(|| path.display().to_string())?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
