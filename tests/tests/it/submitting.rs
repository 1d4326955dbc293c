//! The ways in which calls can be submitted: one and wait, streamed at once, several, with a session, once only, in order.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::Host;
use tests::client::id_of;
use tests::sse::{Parser, output_of};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_may_wait_for_the_end_or_stream_at_once() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let path = format!("/v1/sessions/{session}/calls");
        let body = json!({"tool": "bash", "arguments": {"command": "echo hi"}, "wait_ms": 60_000});
        let call = client.post(&path, &body).await?.expect(200)?;
        ensure!(
            call["status"] == "succeeded"
                && call["result"]["output"].as_str().is_some_and(|text| text.contains("hi")),
            "{call:#}"
        );

        let body = json!({"tool": "bash", "arguments": {"command": "echo streamed"}});
        let reply = client
            .send(client.request("POST", &path).header("accept", "text/event-stream").json(&body))
            .await?;
        ensure!(reply.header("content-type").starts_with("text/event-stream"), "{reply:?}");
        ensure!(
            reply.header("x-accel-buffering") == "no"
                && reply.header("cache-control").contains("no-transform"),
            "{:?}",
            reply.headers
        );
        let events = Parser::default().push(&reply.bytes)?;
        let numbered: Vec<_> = events.iter().filter_map(|event| event.id).collect();
        ensure!(numbered == (1..=numbered.len() as u64).collect::<Vec<_>>(), "{events:#?}");
        ensure!(output_of(&events, "stdout") == "streamed\n", "{events:#?}");
        ensure!(events.last().is_some_and(|event| event.event == "end"), "{events:#?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gives_each_call_its_own_result() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let calls = json!({"calls": [
            {"tool": "bash", "arguments": {"command": "echo one"}, "wait_ms": 60_000},
            {"tool": "no_such_tool", "arguments": {}},
            {"tool": "bash", "arguments": {"command": "exit 2"}, "wait_ms": 60_000},
        ]});
        let outcome =
            client.post(&format!("/v1/sessions/{session}/calls/batch"), &calls).await?.expect(200)?;
        let data = outcome["data"].as_array().context("data")?;
        ensure!(data.len() == 3, "{outcome:#}");
        ensure!(data[0]["call"]["result"]["structured"]["stdout"] == "one\n", "{outcome:#}");
        ensure!(data[1]["error"]["code"] == "unknown_tool" && data[1]["call"].is_null(), "{outcome:#}");
        ensure!(data[2]["call"]["result"]["exit_code"] == 2, "{outcome:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_call_brings_its_session_and_takes_it_away() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let body = json!({"tool": "bash", "arguments": {"command": "echo $GREETING"}, "wait_ms": 60_000,
            "session": {"env": {"GREETING": "hello"}}});
        let call = client.post("/v1/calls", &body).await?.expect(200)?;
        ensure!(call["result"]["structured"]["stdout"] == "hello\n", "{call:#}");
        let session = call["session_id"].as_str().context("has a session")?.to_owned();
        tests::wait::session(&client, &session, |session| session["status"] == "ended").await?;
        let ended = client.get(&format!("/v1/sessions/{session}")).await?.expect(200)?;
        ensure!(ended["ended"]["reason"] == "deleted", "{ended:#}");
        ensure!(!ended.to_string().contains("hello"), "values of the environment are not shown");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_makes_a_retry_safe() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let body = json!({"metadata": {"a": "1"}});
        let first = client.post_once("/v1/sessions", &body, "s-1").await?.expect(201)?;
        let second = client.post_once("/v1/sessions", &body, "s-1").await?;
        ensure!(matches!(second.status, 200 | 201) && second.json()["id"] == first["id"], "{second:?}");

        let path = format!("/v1/sessions/{}/calls", id_of(&first)?);
        let body = json!({"tool": "bash", "arguments": {"command": "echo x >> ledger; wc -l < ledger"}, "wait_ms": 60_000});
        let call = client.post_once(&path, &body, "c-1").await?.expect(200)?;
        for _ in 0..5 {
            let again = client.post_once(&path, &body, "c-1").await?.expect(200)?;
            ensure!(again["id"] == call["id"] && again["result"]["structured"]["stdout"] == "1\n", "{again:#}");
        }
        let other = json!({"tool": "bash", "arguments": {"command": "echo y"}, "wait_ms": 60_000});
        let problem = client.post_once(&path, &other, "c-1").await?.problem(422, "idempotency_mismatch")?;
        ensure!(problem["errors"].to_string().contains("/arguments"), "{problem:#}");

        let racing = futures_util::future::join_all((0..10).map(|_| client.post_once(&path, &other, "c-2"))).await;
        let mut ids: Vec<String> = Vec::new();
        for reply in racing {
            let reply = reply?;
            if reply.status != 409 {
                ids.push(id_of(&reply.expect(200)?)?);
            }
        }
        ids.dedup();
        ensure!(ids.len() == 1, "{ids:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_session_run_side_by_side_and_in_order_when_asked() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // Each waits for the other: they end only if both run at the same time.
        let left = client.submit(&session, "bash", json!({"command": "mkfifo pipe 2>/dev/null; echo ping > pipe"})).await?;
        let right = client.submit(&session, "bash", json!({"command": "mkfifo pipe 2>/dev/null; cat pipe"})).await?;
        ensure!(client.ended(&left).await?["result"]["exit_code"] == 0);
        ensure!(client.ended(&right).await?["result"]["structured"]["stdout"] == "ping\n");

        let mut before = client.submit(&session, "bash", json!({"command": "echo 0 > order"})).await?;
        for n in 1..6 {
            let body = json!({"tool": "bash", "arguments": {"command": format!("echo {n} >> order")}, "after": before});
            before = client.submit_with(&session, body).await?;
        }
        client.ended(&before).await?;
        let order = client.bash(&session, "cat order | tr '\\n' ' '").await?;
        ensure!(order["result"]["structured"]["stdout"] == "0 1 2 3 4 5 ", "{order:#}");
        Ok(())
    })
    .await;
}
