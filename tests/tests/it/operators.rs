//! What operators do to a running installation: the kill switch of a tenant, and hosts that are full, drained and opened again.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::{Follower, Host, engine, wait};

#[tokio::test(flavor = "multi_thread")]
async fn the_kill_switch_ends_what_runs_and_closes_streams_until_it_is_lifted() {
    Host::test(&[], async |host| {
        let (tenant, operator) = (host.tenant("acme")?, host.operator()?);
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let call = client.submit(&session, "bash", json!({"command": "sleep 1000"})).await?;
        let mut follower = Follower::new(client, &call);
        follower.until(|event| event.event == "call.started").await?;
        let stream =
            client.request("GET", &format!("/v1/calls/{call}/events")).header("accept", "text/event-stream");
        let stream = stream.send().await?;
        ensure!(stream.status() == 200);

        let path = format!("/v1/admin/tenants/{}", tenant.id);
        let patch = operator.request("PATCH", &path).json(&json!({"status": "suspended"}));
        operator.send(patch).await?.expect(200)?;
        // The stream ends by itself, with the call's end or without.
        let _ = tokio::time::timeout(tests::client::PATIENCE, stream.bytes())
            .await
            .context("the stream is closed")?;
        wait::until("the tenant's credentials are refused", || async {
            Ok(client.get("/v1/me").await?.status == 403)
        })
        .await?;
        client.get("/v1/sessions").await?.problem(403, "tenant_suspended")?;
        wait::until("the session is over", || async {
            let hosts = operator.get("/v1/admin/hosts").await?.expect(200)?;
            Ok(hosts["data"][0]["sessions"]["sandboxes"] == 0)
        })
        .await?;

        let patch = operator.request("PATCH", &path).json(&json!({"status": "active"}));
        operator.send(patch).await?.expect(200)?;
        wait::until("the tenant is served again", || async { Ok(client.get("/v1/me").await?.status == 200) })
            .await?;
        let ended = client.get(&format!("/v1/sessions/{session}")).await?.expect(200)?;
        ensure!(ended["ended"]["reason"] == "tenant_suspended", "{ended:#}");
        let ended = client.call(&call).await?;
        ensure!(ended["status"] == "cancelled", "{ended:#}");
        ensure!(ended["ended"]["evidence"]["cause"] == "tenant_suspended", "{ended:#}");
        let session = client.session(json!({})).await?;
        ensure!(client.bash(&session, "echo back").await?["status"] == "succeeded");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_host_refuses_and_a_drained_one_ends_its_sessions() {
    let settings = [("capacity.memory_mb", "1200"), ("capacity.pool_share", "0.1")];
    Host::test(&settings, async |host| {
        let (tenant, operator) = (host.tenant("acme")?, host.operator()?);
        let client = &tenant.client;
        let (first, second) = (client.session(json!({})).await?, client.session(json!({})).await?);
        let refused = client.post("/v1/sessions", &json!({})).await?;
        ensure!(!refused.header("retry-after").is_empty());
        ensure!(refused.problem(503, "capacity")?["reason"] == "full");
        let once = json!({"session": {}, "tool": "bash", "arguments": {"command": "true"}});
        client.post("/v1/calls", &once).await?.problem(503, "capacity")?;
        let large = client.post("/v1/sessions", &json!({"size": "large"})).await?.problem(503, "capacity")?;
        ensure!(large["reason"] == "too_large", "{large:#}");
        client.bash(&first, "true").await?;
        client.bash(&second, "true").await?;
        // Its share is too small for a warm one.
        ensure!(engine::containers(&host.installation)?.len() == 2);

        let id = host.cli(&["admin", "host", "list"])?.split('\t').next().context("an id")?.to_owned();
        let drain = format!("/v1/admin/hosts/{id}/drain");
        let drained = operator.post(&drain, &json!({"within_s": 0})).await?.expect(200)?;
        ensure!(drained["schedule"] == "draining" && drained["drain_by_at"].is_string(), "{drained:#}");
        ensure!(
            client.post("/v1/sessions", &json!({})).await?.problem(503, "capacity")?["reason"] == "cordoned"
        );
        for session in [&first, &second] {
            let ended = wait::session(client, session, |session| session["status"] == "ended").await?;
            ensure!(ended["ended"]["reason"] == "host_drained", "{ended:#}");
        }
        host.cli(&["admin", "host", "uncordon", &id])?;
        let session = client.session(json!({})).await?;
        ensure!(client.bash(&session, "echo back").await?["status"] == "succeeded");
        Ok(())
    })
    .await;
}
