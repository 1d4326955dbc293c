//! The drills of docs/operations.md#backup: a dump of a running installation, restored into another cluster under sandboxes that still run;
//! and the whole set, after the machine with everything on it is gone.

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

        restore(host, &dump).await?;
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

#[tokio::test(flavor = "multi_thread")]
async fn what_was_lost_with_its_machine_comes_back_from_the_whole_set() {
    // Without a pool nothing is being made when the machine stops: a device that no container has mounted yet would stay, for the reaper.
    Host::test(&[("sandbox.pool", "[]")], async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        client.bash(&session, "echo kept > file").await?;
        let save = json!({"name": "report.md", "content": "# Kept"});
        let saved = client.run(&session, "save_artifact", save).await?;
        let artifact = saved["result"]["structured"]["artifact_id"].as_str().context("an artifact")?;
        let call = saved["id"].as_str().context("a call")?;
        let mut signed = Vec::new();
        for path in [format!("/v1/artifacts/{artifact}/links"), format!("/v1/calls/{call}/stream_url")] {
            let made = client.post(&path, &json!({})).await?.expect(201)?;
            signed.push(made["url"].as_str().context("a URL")?.to_owned());
        }
        wait::until("the trail has a signed head", || async {
            Ok(host.cli(&["audit", "checkpoint"])?.contains(&tenant.id))
        })
        .await?;
        let checkpoint = host.folder().join("checkpoint.jsonl").display().to_string();
        std::fs::write(&checkpoint, host.cli(&["audit", "checkpoint"])? + "\n")?;
        let dump = host.folder().join("backup.dump").display().to_string();
        postgres("pg_dump", &["--format=custom", "--file", &dump, "--dbname", &host.postgres.url()])?;

        // The machine stops, its disk is copied, and then there is nothing of it: no container, no workspace, no object.
        host.processes.last_mut().context("a process")?.kill();
        for container in engine::containers(&host.installation)? {
            engine::docker(&["rm", "--force", "--volumes", &container])?;
        }
        wait::until("no workspace is mounted", || async {
            Ok(engine::loop_devices(&host.folder().join("state").display().to_string()).is_empty())
        })
        .await?;
        let folders = ["state", "artifacts"].map(|name| host.folder().join(name));
        let copies = folders.clone().map(|folder| folder.with_extension("copy"));
        for (folder, copy) in folders.iter().zip(&copies) {
            run(
                "cp",
                &["--archive", "--sparse=always", &folder.display().to_string(), &copy.display().to_string()],
            )?;
            std::fs::remove_dir_all(folder)?;
        }

        restore(host, &dump).await?;
        for (folder, copy) in folders.iter().zip(&copies) {
            std::fs::rename(copy, folder)?;
        }
        host.serve(&["--with-worker"])?;
        let client = tenant.client.at(&host.base);
        let read = client.bash(&session, "cat file").await?;
        ensure!(read["result"]["structured"]["stdout"] == "kept\n", "{read:#}");
        let content = client.get(&format!("/v1/artifacts/{artifact}/content")).await?;
        ensure!((content.status, content.bytes.as_slice()) == (200, b"# Kept"), "{content:?}");
        for url in &signed {
            let opened = client.with_key("").get(url).await?;
            ensure!(opened.status == 200 && !opened.bytes.is_empty(), "{url}: {opened:?}");
        }
        host.cli(&["audit", "verify", "--checkpoint", &checkpoint])?;
        Ok(())
    })
    .await;
}

/// A new cluster with what the dump has takes the place of the one that there was.
async fn restore(host: &mut Host, dump: &str) -> Result<()> {
    let cluster = Cluster::start(&host.folder().join("postgres-2"), Durability::Relaxed).await?;
    let roles = "CREATE ROLE toolhost_app NOLOGIN; CREATE ROLE toolhost_system NOLOGIN";
    postgres("psql", &["--quiet", "--command", roles, &cluster.url()])?;
    postgres("pg_restore", &["--exit-on-error", "--dbname", &cluster.url(), dump])?;
    let mut gone = std::mem::replace(&mut host.postgres, cluster);
    gone.stop().await
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
    run(&path.display().to_string(), arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
