//! The main job: a call goes from HTTP to a sandbox and streams back, in every way in which it can be asked for.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::client::id_of;
use tests::sse::{Parser, output_of};
use tests::{Client, Follower, Host, wait};

/// What follows from a stream that was followed to its end: numbers, order, and the same as what is stored.
async fn check_stream(client: &Client, call_id: &str) -> Result<Vec<tests::SseEvent>> {
    let events = client.follow(call_id).await?;
    let stored = client.stored_events(call_id).await?;
    let streamed: Vec<Value> = events.iter().map(|event| event.data.clone()).collect();
    ensure!(streamed == stored, "streamed {streamed:#?}\nstored {stored:#?}");
    Ok(events)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_and_its_events_are_streamed_and_stored() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({"metadata": {"job": "42"}})).await?;
        let path = format!("/v1/sessions/{session}/calls");
        let command = "echo out; echo err >&2; exit 3";
        let body = json!({"tool": "bash", "arguments": {"command": command}, "description": "try it"});
        let reply = client.post(&path, &body).await?;
        ensure!(reply.status == 202, "{}", reply.status);
        let call_id = id_of(&reply.json())?;
        ensure!(reply.header("location") == format!("/v1/calls/{call_id}"), "{}", reply.header("location"));
        ensure!(reply.header("x-request-id").len() > 10);

        let events = check_stream(&client, &call_id).await?;
        let last = events.last().context("has events")?;
        ensure!(last.event == "call.ended" && last.data["status"] == "succeeded", "{last:?}");
        ensure!(events.iter().filter(|event| event.event == "call.ended").count() == 1);
        ensure!(events.iter().any(|event| event.event == "call.started"));
        ensure!(
            output_of(&events, "stdout") == "out\n" && output_of(&events, "stderr") == "err\n",
            "{events:#?}"
        );

        let call = client.call(&call_id).await?;
        let result = &call["result"];
        ensure!(result["exit_code"] == 3 && result["is_error"] == true, "{call:#}");
        ensure!(
            result["structured"]["stdout"] == "out\n" && result["structured"]["stderr"] == "err\n",
            "{call:#}"
        );
        ensure!(call["ended"]["reason"] == "exited" && call["description"] == "try it", "{call:#}");
        ensure!(last.data["result"] == *result, "the event and the call agree");

        // A client that has seen the last event is told to stay away.
        let again = client.request("GET", &format!("/v1/calls/{call_id}/events"));
        let again = client
            .send(
                again
                    .header("accept", "text/event-stream")
                    .header("last-event-id", last.data["seq"].to_string()),
            )
            .await?;
        ensure!(again.status == 204, "{}", again.status);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_runs_in_a_fresh_interpreter() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let call = client
            .run(
                &session,
                "python_execute",
                json!({"code": "import numpy as np\nprint(np.arange(4).sum())\nx = 1"}),
            )
            .await?;
        ensure!(call["status"] == "succeeded" && call["result"]["structured"]["stdout"] == "6\n", "{call:#}");
        let call = client.run(&session, "python_execute", json!({"code": "print(x)"})).await?;
        ensure!(call["result"]["is_error"] == true, "{call:#}");
        ensure!(call["result"]["structured"]["error"]["name"] == "NameError", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_kept_in_full_and_read_by_range() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let call = client.bash(&session, "seq 1 200000; echo last >&2").await?;
        let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        let truncated = &call["result"]["truncated"];
        ensure!(truncated["total_bytes"] == expected.len() + 5, "{truncated}");
        ensure!(
            call["result"]["output"]
                .as_str()
                .is_some_and(|text| text.contains("last") && text.len() < 40_000)
        );

        let call_id = id_of(&call)?;
        let path = format!("/v1/calls/{call_id}/output?stream=stdout");
        let whole = client.get(&path).await?;
        ensure!(whole.status == 200 && whole.bytes == expected.as_bytes(), "{} bytes", whole.bytes.len());
        let part = client.send(client.request("GET", &path).header("range", "bytes=1000-1999")).await?;
        ensure!(part.status == 206 && part.bytes == expected.as_bytes()[1000..2000], "{}", part.status);
        ensure!(
            part.header("content-range") == format!("bytes 1000-1999/{}", expected.len()),
            "{}",
            part.header("content-range")
        );
        let tail = client.send(client.request("GET", &path).header("range", "bytes=-10")).await?;
        ensure!(tail.bytes == expected.as_bytes()[expected.len() - 10..]);
        let beyond = client.send(client.request("GET", &path).header("range", "bytes=99999999-")).await?;
        beyond.problem(416, "range_not_satisfiable")?;

        let events = Follower::new(&client, &call_id).with_cuts(20).to_end().await?;
        ensure!(output_of(&events, "stdout") == expected, "cut and resumed");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_really_ended_and_keeps_its_output() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let call_id = client.submit(&session, "bash", json!({"command": "echo begun; sleep 4242"})).await?;
        Follower::new(&client, &call_id).until(|event| event.event == "call.output").await?;
        // This one waits behind it and is cancelled while it waits.
        let waiting = client
            .submit_with(
                &session,
                json!({"tool": "bash", "arguments": {"command": "echo never > never"}, "after": call_id}),
            )
            .await?;
        let cancelled = client.post(&format!("/v1/calls/{waiting}/cancel"), &json!({})).await?;
        ensure!(matches!(cancelled.status, 200 | 202), "{cancelled:?}");
        ensure!(client.ended(&waiting).await?["status"] == "cancelled");

        client.post(&format!("/v1/calls/{call_id}/cancel"), &json!({})).await?;
        let call = client.ended(&call_id).await?;
        ensure!(call["status"] == "cancelled" && call["ended"]["reason"] == "cancelled", "{call:#}");
        ensure!(call["result"]["structured"]["stdout"] == "begun\n", "{call:#}");
        let left = client.bash(&session, "pgrep -f 'sleep 4242'; test -e never || echo not there").await?;
        ensure!(left["result"]["structured"]["stdout"] == "not there\n", "{left:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_with_its_time() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let body = json!({"tool": "bash", "arguments": {"command": "echo begun; sleep 4243"}, "timeout_ms": 700, "wait_ms": 60_000});
        let call = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?.expect(200)?;
        ensure!(call["status"] == "timed_out" && call["ended"]["reason"] == "timeout", "{call:#}");
        // All that it wrote until then is in the result; a busy machine may not have let it write anything.
        let said = output_of(&client.follow(&id_of(&call)?).await?, "stdout");
        let kept = call["result"]["structured"]["stdout"].as_str().unwrap_or_default();
        ensure!(kept == said && matches!(kept, "begun\n" | ""), "{said:?} {call:#}");
        let left = client.bash(&session, "pgrep -f 'sleep 4243' || echo none").await?;
        ensure!(left["result"]["structured"]["stdout"] == "none\n", "{left:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_url_streams_without_a_key() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let call_id = client.submit(&session, "bash", json!({"command": "echo hi"})).await?;
        let made = client.post(&format!("/v1/calls/{call_id}/stream_url"), &json!({})).await?;
        ensure!(matches!(made.status, 200 | 201), "{made:?}");
        let url = made.json()["url"].as_str().context("a url")?.to_owned();
        let nobody = client.with_key("");
        let reply = nobody.send(nobody.request("GET", &url).header("accept", "text/event-stream")).await?;
        ensure!(output_of(&Parser::default().push(&reply.bytes)?, "stdout") == "hi\n", "{reply:?}");
        let other = client.submit(&session, "bash", json!({"command": "echo secret"})).await?;
        let forged = nobody.get(&url.replace(&call_id, &other)).await?;
        ensure!(matches!(forged.status, 401 | 403 | 404), "{}", forged.status);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_read_page_by_page() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let mut submitted = Vec::new();
        for n in 0..7 {
            submitted.push(id_of(&client.bash(&session, &format!("echo {n}")).await?)?);
        }
        let mut listed = Vec::new();
        let mut cursor = String::new();
        loop {
            let page =
                client.get(&format!("/v1/sessions/{session}/calls?limit=3{cursor}")).await?.expect(200)?;
            for call in page["data"].as_array().context("data")? {
                listed.push(id_of(call)?);
            }
            if page["has_more"] != true {
                break;
            }
            cursor = format!("&cursor={}", page["next_cursor"].as_str().context("a cursor")?);
        }
        listed.reverse();
        ensure!(listed == submitted, "{listed:?} {submitted:?}");
        let none = client.get("/v1/calls?status=failed").await?.expect(200)?;
        ensure!(none["data"] == json!([]), "{none:#}");
        client.get("/v1/calls?cursor=nonsense").await?.problem(400, "invalid_cursor")?;
        let running = client.get("/v1/sessions?status=running").await?.expect(200)?;
        ensure!(running["data"][0]["id"] == session.as_str(), "{running:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_that_is_served_is_the_one_that_is_committed() {
    Host::test(&[], async |host| {
        let nobody = Client::new(&host.base, "");
        let served = nobody.get("/openapi.json").await?.expect(200)?;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../openapi/toolhost.json");
        let committed: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        ensure!(served == committed, "run `make openapi`");
        ensure!(nobody.get("/healthz").await?.status == 200);
        wait::until("it is ready", || async { Ok(nobody.get("/readyz").await?.status == 200) }).await
    })
    .await;
}
