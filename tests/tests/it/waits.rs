//! `wait`: what it waits for, and what it leaves to others meanwhile.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host};

/// A shell in the background that ends with exit code 3 once a file is there.
async fn shell_until(client: &Client, session: &str, file: &str) -> Result<String> {
    let command = format!("until [[ -e {file} ]]; do sleep 0.05; done; exit 3");
    let call = client.run(session, "bash", json!({"command": command, "background": true})).await?;
    Ok(call["result"]["structured"]["shell_id"].as_str().context("a shell")?.to_owned())
}

async fn running(client: &Client, call: &str) -> Result<()> {
    tests::wait::until("it waits", async || Ok(client.call(call).await?["status"] == "running")).await
}

fn structured(call: &Value) -> &Value {
    &call["result"]["structured"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_takes_no_slot_and_ends_with_what_it_waits_for() {
    Host::test(
        &[("policy.limits.session_running_calls", "2"), ("policy.limits.timeout_ms", "60000")],
        async |host| {
            let tenant = host.tenant("acme")?;
            let client = &tenant.client;
            let session = client.session(json!({})).await?;
            let shell = shell_until(client, &session, "go").await?;
            let call = client
                .submit(&session, "bash", json!({"command": "until [[ -e go2 ]]; do sleep 0.05; done"}))
                .await?;
            running(client, &call).await?;
            // One slot is left, and many wait.
            let mut waits = Vec::new();
            for until in [
                json!({"until": {"shell_id": shell}}),
                json!({"until": {"call_id": call}}),
                json!({"seconds": 3600}),
            ] {
                let wait = client.submit(&session, "wait", until).await?;
                running(client, &wait).await?;
                waits.push(wait);
            }
            let late =
                client.run(&session, "wait", json!({"seconds": 0.2, "until": {"shell_id": shell}})).await?;
            let expected = json!({"ended_by": "time", "reached": false, "shell_status": "running"});
            for (field, value) in expected.as_object().context("an object")? {
                ensure!(structured(&late)[field] == *value, "{late:#}");
            }
            client.bash(&session, "touch go").await?;
            let ended = client.ended(&waits[0]).await?;
            ensure!(
                structured(&ended)["ended_by"] == "shell" && structured(&ended)["exit_code"] == 3,
                "{ended:#}"
            );
            client.bash(&session, "touch go2").await?;
            let ended = client.ended(&waits[1]).await?;
            ensure!(
                structured(&ended)["ended_by"] == "call" && structured(&ended)["call_status"] == "succeeded",
                "{ended:#}"
            );
            client.post(&format!("/v1/calls/{}/cancel", waits[2]), &json!({})).await?;
            ensure!(client.ended(&waits[2]).await?["status"] == "cancelled");
            // What is over already is not waited for, and a plain wait is over by itself; under its name in a source system too.
            let again =
                client.run(&session, "wait", json!({"until": {"call_id": call}, "seconds": 3600})).await?;
            ensure!(structured(&again)["reached"] == true, "{again:#}");
            let slept = client.run(&session, "sleep", json!({"seconds": 0.1})).await?;
            ensure!(slept["status"] == "succeeded" && structured(&slept)["ended_by"] == "time", "{slept:#}");
            Ok(())
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_what_is_not_there_is_refused() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let stranger = host.tenant("other")?.client;
        let theirs = stranger.session(json!({})).await?;
        let shell = shell_until(&stranger, &theirs, "go").await?;
        let call = stranger.bash(&theirs, "true").await?["id"].clone();
        for (until, code) in [
            (json!({"shell_id": shell}), "shell_not_found"),
            (json!({"shell_id": "x"}), "shell_not_found"),
            (json!({"call_id": call}), "call_not_found"),
            (json!({"call_id": "call_00000000000000000000000000"}), "call_not_found"),
        ] {
            let call = client.run(&session, "wait", json!({"until": until})).await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == code, "{call:#}");
        }
        let calls = format!("/v1/sessions/{session}/calls");
        for (arguments, pointer) in [
            (json!({}), "/arguments/seconds"),
            (json!({"seconds": 3601}), "/arguments/seconds"),
            (json!({"seconds": -1}), "/arguments/seconds"),
            (json!({"seconds": "soon"}), "/arguments/seconds"),
            (json!({"until": {}}), "/arguments/until"),
            (json!({"until": {"shell_id": "x y"}}), "/arguments/until/shell_id"),
            (json!({"until": {"call_id": shell}}), "/arguments/until/call_id"),
        ] {
            let refused = client.post(&calls, &json!({"tool": "wait", "arguments": arguments})).await?;
            let problem = refused.problem(422, "invalid_arguments")?;
            ensure!(problem["errors"][0]["pointer"] == pointer, "{problem:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_outlives_its_worker() {
    Host::test_prepared(async |host| {
        host.serve(&[])?;
        host.set("worker.end_sessions_at_exit", "false");
        host.worker()?;
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let shell = shell_until(client, &session, "go").await?;
        let wait = client.submit(&session, "wait", json!({"until": {"shell_id": shell}})).await?;
        running(client, &wait).await?;
        host.processes.last_mut().context("a worker")?.signal(nix::sys::signal::Signal::SIGKILL);
        host.set("worker.end_sessions_at_exit", "true");
        host.worker()?;
        client.bash(&session, "touch go").await?;
        let ended = client.ended(&wait).await?;
        ensure!(ended["status"] == "succeeded" && structured(&ended)["exit_code"] == 3, "{ended:#}");
        ensure!(ended["attempt"].as_u64() >= Some(2), "{ended:#}");
        Ok(())
    })
    .await;
}
