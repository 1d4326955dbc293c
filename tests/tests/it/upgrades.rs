//! Binaries and schemas of different ages, as `toolhost migrate --check`, a start and `/readyz` tell of them.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};
use tests::{Client, Host};

async fn sql(host: &Host, text: &'static str) -> Result<()> {
    let mut connection = PgConnection::connect(&host.postgres.url()).await?;
    connection.execute(sqlx::raw_sql(text)).await?;
    Ok(connection.close().await?)
}

/// What the check prints, and whether it ended well.
fn check(host: &Host) -> Result<(String, bool)> {
    let mut process = host.spawn(&["migrate", "--check"])?;
    let status = process.wait()?;
    Ok((process.said().join("\n"), status.success()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_tells_a_newer_schema_from_one_that_leaves_it_behind() {
    Host::test_prepared(async |host| {
        let (said, well) = check(host)?;
        ensure!(well && said.contains("up to date"), "{said}");
        sql(host, "DELETE FROM _sqlx_migrations WHERE version = 32; ALTER TABLE installation DROP COLUMN needs_migration").await?;
        let (said, well) = check(host)?;
        ensure!(!well && said.contains("missing\t0032\tupgrades"), "{said}");
        host.cli(&["migrate"])?;

        let next = "ALTER TABLE calls ADD COLUMN next_release text;
            INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
            VALUES (9001, 'next release', true, '', 0)";
        sql(host, next).await?;
        let (said, well) = check(host)?;
        ensure!(well && said.contains("newer\t9001\tnext release"), "{said}");
        // An old binary that migrates at its start (a rollback) leaves it as it is.
        host.cli(&["migrate"])?;
        let said = host.serve(&[])?.said().join("\n");
        ensure!(said.contains("newer migrations"), "{said}");
        let ready = Client::new(&host.base, "").get("/readyz").await?.expect(200)?;
        ensure!(ready["checks"]["migrations"] == "newer", "{ready:#}");

        sql(host, "UPDATE installation SET needs_migration = 9001").await?;
        tests::wait::until("it is not ready", async || {
            let ready = Client::new(&host.base, "").get("/readyz").await?;
            Ok(ready.status == 503 && ready.json()["checks"]["migrations"] == "failed")
        })
        .await?;
        let (said, well) = check(host)?;
        ensure!(!well && said.contains("newer version"), "{said}");
        let mut refused = host.spawn(&["serve"])?;
        ensure!(!refused.wait()?.success());
        ensure!(refused.end_of_said().contains("newer version"), "{}", refused.end_of_said());
        // The one that runs goes on for those who ask it.
        ensure!(Client::new(&host.base, "").get("/healthz").await?.status == 200);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_the_version_before_goes_on_and_says_what_its_sandbox_cannot() {
    Host::test_prepared(async |host| {
        host.serve(&[])?;
        host.set("worker.end_sessions_at_exit", "false");
        host.set("sandbox.agent_protocol", "1");
        host.worker()?;
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        client.bash(&session, "echo kept > kept").await?;
        let command = json!({"command": "touch up; until [[ -e go ]]; do sleep 0.05; done; echo done"});
        let call = client.submit(&session, "bash", command).await?;
        client.bash(&session, "until [[ -e up ]]; do sleep 0.05; done").await?;

        host.processes.last_mut().context("a worker")?.signal(nix::sys::signal::Signal::SIGKILL);
        host.set("worker.end_sessions_at_exit", "true");
        host.set("sandbox.agent_protocol", "2");
        host.worker()?;
        let listed = client.bash(&session, "touch go; cat kept").await?;
        ensure!(listed["result"]["structured"]["stdout"] == "kept\n", "{listed:#}");
        let ended = client.ended(&call).await?;
        ensure!(ended["status"] == "succeeded", "{ended:#}");
        ensure!(ended["result"]["structured"]["stdout"] == "done\n", "{ended:#}");
        let listed = client.run(&session, "list_files", json!({})).await?;
        ensure!(listed.to_string().contains("kept"), "{listed:#}");

        let found = client.submit(&session, "glob", json!({"pattern": "*"})).await?;
        let found = client.ended(&found).await?;
        ensure!(found["error"]["code"] == "sandbox_outdated", "{found:#}");

        // Anew, it is of this version.
        client.post(&format!("/v1/sessions/{session}/reset"), &json!({})).await?;
        let found = client.run(&session, "glob", json!({"pattern": "*"})).await?;
        ensure!(found["status"] == "succeeded", "{found:#}");
        Ok(())
    })
    .await;
}
