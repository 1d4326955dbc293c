//! What clients get wrong, by mistake or on purpose: always a problem with a code, never a 500 and never a surprise.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host};

async fn raw(client: &Client, path: &str, body: impl Into<reqwest::Body>) -> Result<tests::Reply> {
    client.send(client.request("POST", path).header("content-type", "application/json").body(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_acceptable_json_are_named() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let path = format!("/v1/sessions/{session}/calls");
        let nested = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let deep = format!(r#"{{"tool":"bash","arguments":{{"command":{nested}}}}}"#);
        let nul = r#"{"tool":"bash","arguments":{"command":"a\u0000b"}}"#;
        let lone = r#"{"tool":"bash","arguments":{"command":"a\ud800b"}}"#;
        let twice = r#"{"tool":"bash","tool":"bash","arguments":{"command":"true"}}"#;
        for body in ["", "{", "nul", "[]]", "{\"tool\": }", deep.as_str(), nul, lone] {
            raw(&client, &path, body.to_owned()).await?.problem(400, "malformed_json")?;
        }
        let reply = raw(&client, &path, twice).await?;
        ensure!((400..500).contains(&reply.status), "{reply:?}");
        let reply = raw(&client, &path, vec![0xff_u8, 0xfe, b'{']).await?;
        reply.problem(400, "malformed_json")?;
        let wrong = client.request("POST", &path).header("content-type", "text/plain").body("{}");
        client.send(wrong).await?.problem(415, "unsupported_media_type")?;
        let large = format!(r#"{{"tool":"bash","arguments":{{"command":"{}"}}}}"#, "x".repeat(9 << 20));
        // The service may close before it has read everything; that too is an answer.
        if let Ok(reply) = raw(&client, &path, large).await {
            reply.problem(413, "body_too_large")?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_field_is_listed_with_its_place() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let path = format!("/v1/sessions/{session}/calls");
        let submit = async |body: Value| client.post(&path, &body).await;

        let problem = submit(json!({"tool": "bash", "arguments": {"command": 7, "cwd": "/etc", "nope": 1}}))
            .await?
            .problem(422, "invalid_arguments")?;
        for pointer in ["/arguments/command", "nope"] {
            ensure!(problem["errors"].to_string().contains(pointer), "{pointer}: {problem:#}");
        }
        let problem = submit(json!({"tool": "bsh", "arguments": {}})).await?.problem(422, "unknown_tool")?;
        ensure!(problem.to_string().contains("bash"), "names the nearest: {problem:#}");
        let problem =
            submit(json!({"tool": "bash", "arguments": {}})).await?.problem(422, "invalid_arguments")?;
        ensure!(problem["errors"].to_string().contains("command"), "{problem:#}");
        for body in [
            json!({"tool": "bash", "arguments": {"command": "true"}, "timeout_ms": 0}),
            json!({"tool": "bash", "arguments": {"command": "true"}, "timeout_ms": 600_001}),
            json!({"tool": "bash", "arguments": {"command": "true"}, "wait_ms": 60_001}),
            json!({"tool": "bash", "arguments": {"command": "true"}, "timeout_ms": -1}),
            json!({"tool": "bash", "arguments": {"command": "true"}, "surprise": true}),
            json!({"tool": "bash", "arguments": "true"}),
            json!({"arguments": {"command": "true"}}),
            json!({"tool": "bash", "arguments": {"command": "true"}, "metadata": {"a": 1}}),
            json!({"tool": "bash", "arguments": {"command": "true"}, "after": "call_nonsense"}),
            json!({"tool": "python_execute", "arguments": {"code": "1", "packages": ["./x"]}}),
        ] {
            let reply = submit(body.clone()).await?;
            ensure!(reply.status == 422, "{body}: {} {}", reply.status, reply.json());
            ensure!(
                reply.json()["errors"].as_array().is_some_and(|errors| !errors.is_empty())
                    || reply.json()["code"] == "limit_exceeded",
                "{body}: {}",
                reply.json()
            );
        }
        for body in [
            json!({"size": "huge"}),
            json!({"idle_timeout_s": 0}),
            json!({"resources": {"cpus": 1000.0, "memory_mb": 1, "disk_mb": 1, "pids": 1}}),
            json!({"network": {"mode": "open"}}),
            json!({"unknown": 1}),
            json!({"env": {"A=B": "c"}}),
        ] {
            let reply = client.post("/v1/sessions", &body).await?;
            ensure!(reply.status == 422, "{body}: {} {}", reply.status, reply.json());
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_methods_and_cursors_that_do_not_exist_are_problems_too() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        client.get("/v1/nothing").await?.problem(404, "not_found")?;
        client.delete("/v1/tools").await?.problem(405, "method_not_allowed")?;
        client.get("/v1/sessions/not-an-id").await?.problem(404, "not_found")?;
        client.get("/v1/calls?limit=0").await?.problem(400, "invalid_request")?;
        client.get("/v1/calls?limit=x").await?.problem(400, "invalid_request")?;
        client.get("/v1/calls?cursor=eyJ9").await?.problem(400, "invalid_cursor")?;
        let session = client.session(json!({})).await?;
        let call = tests::client::id_of(&client.bash(&session, "true").await?)?;
        let events = format!("/v1/calls/{call}/events");
        let bad = client
            .request("GET", &events)
            .header("accept", "text/event-stream")
            .header("last-event-id", "one");
        let reply = client.send(bad).await?;
        ensure!(reply.status == 400, "{reply:?}");
        let reply = client
            .send(client.request("GET", &format!("{events}?after=999")).header("accept", "text/event-stream"))
            .await?;
        ensure!(matches!(reply.status, 204 | 400), "{reply:?}");
        ensure!(client.get("/problems/quota_exceeded").await?.status == 200);
        Ok(())
    })
    .await;
}
