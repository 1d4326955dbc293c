//! Calls: submit, wait, deny, batch, cancel; and sessions as far as calls need them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::SessionFence;
use store::testing::until;

use crate::app::{App, ids};
use crate::client::id_of;

fn bash(wait_ms: u64) -> Value {
    json!({"tool": "bash", "arguments": {"command": "true"}, "wait_ms": wait_ms, "metadata": {"a": "b"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_answers_at_once_or_waits_for_the_end() {
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let path = format!("/v1/sessions/{session}/calls");
    let reply = client.post(&path, &bash(0)).await;
    let call = reply.expect(202);
    assert_eq!(reply.header("location"), format!("/v1/calls/{}", id_of(&call)));
    assert_eq!((&call["status"], &call["queue"]["position"]), (&"queued".into(), &1.into()));
    assert_eq!((&call["object"], &call["effect"]), (&"call".into(), &"effectful".into()));
    assert_eq!((&call["arguments"], &call["metadata"]), (&json!({"command": "true"}), &json!({"a": "b"})));

    let waited = Instant::now();
    let call = client.post(&path, &bash(300)).await.expect(202);
    assert!(waited.elapsed() >= Duration::from_millis(300));
    assert_eq!(call["status"], "queued");

    let waiting = tokio::spawn({
        let (client, path) = (client.clone(), path.clone());
        async move { client.post(&path, &bash(20_000)).await }
    });
    let mut worker = app.worker().await;
    worker.serve_sessions().await;
    // The first two end first.
    for _ in 0..2 {
        worker.claim().await.finish().await;
    }
    until("the third is queued", Duration::from_secs(30), async || {
        client.get(&format!("{path}?status=queued")).await.expect(200)["data"] != json!([])
    })
    .await;
    let mut running = worker.claim().await;
    running.write(&[b"hello"]).await;
    running.finish().await;
    let call = waiting.await.expect("joins").expect(200);
    assert_eq!((&call["status"], &call["result"]["output"]), (&"succeeded".into(), &"done".into()));
    let stored = client.get(&format!("/v1/calls/{}", id_of(&call))).await.expect(200);
    assert_eq!(stored, call, "the answer is what is stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_cancels_nothing() {
    let app = App::start().await;
    let client = app.client().await;
    let path = format!("/v1/sessions/{}/calls", client.session().await);
    let impatient = tokio::spawn(client.request("POST", &path).json(&bash(60_000)).send());
    until("it is submitted", Duration::from_secs(30), async || {
        client.get("/v1/calls").await.expect(200)["data"] != json!([])
    })
    .await;
    assert!(!impatient.is_finished());
    impatient.abort();
    until("its request is over", Duration::from_secs(30), async || {
        app.metric("toolhost_http_requests_in_flight") == 0.0
    })
    .await;
    let mut worker = app.worker().await;
    worker.serve_sessions().await;
    let running = worker.claim().await;
    let id = running.id();
    assert!(!running.call.cancel_requested);
    running.finish().await;
    assert_eq!(client.get(&format!("/v1/calls/{id}")).await.expect(200)["status"], "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_policy_denies_is_a_call_with_a_reason() {
    let app = App::with(|config| {
        config.policy =
            serde_json::from_value(json!({"tools": {"disabled": ["list_bash"]}})).expect("a policy");
    })
    .await;
    let client = app.client().await;
    let narrow = json!({"policy": {"tools": {"per_tool": {"bash": {"limits": {"timeout_ms": 1000}}}}, "limits": {"timeout_ms": 5000}}});
    let session = id_of(&client.post("/v1/sessions", &narrow).await.expect(201));
    let path = format!("/v1/sessions/{session}/calls");
    let call = client.post(&path, &json!({"tool": "list_bash"})).await.expect(200);
    assert_eq!((&call["status"], &call["error"]["code"]), (&"denied".into(), &"policy_denied".into()));
    assert!(
        call["error"]["hint"].as_str().is_some_and(|hint| hint.contains("/v1/policies/explain")),
        "{call:#}"
    );
    assert_eq!(call["error"]["details"], json!({"layer": "installation", "rule": "/tools/disabled/0"}));
    let events = client.get(&format!("/v1/calls/{}/events", id_of(&call))).await.expect(200);
    assert_eq!((&events["data"][0]["type"], &events["ended"]), (&"call.ended".into(), &true.into()));

    // Without a timeout of its own a call gets what policy leaves; with one above it is refused.
    assert_eq!(client.post(&path, &bash(0)).await.expect(202)["timeout_ms"], 1000);
    let long = json!({"tool": "bash", "arguments": {"command": "true"}, "timeout_ms": 1001});
    client.post(&path, &long).await.problem(422, "limit_exceeded");
    let inside = json!({"tool": "bash", "arguments": {"command": "true", "timeout_ms": 1001}});
    client.post(&path, &inside).await.problem(422, "limit_exceeded");

    let names = |list: Value| -> Vec<Value> {
        list["data"].as_array().expect("tools").iter().map(|tool| tool["name"].clone()).collect()
    };
    let tools = names(client.get("/v1/tools").await.expect(200));
    assert!(tools.contains(&"bash".into()) && !tools.contains(&"list_bash".into()));
    let explain = |body: Value| {
        let client = client.clone();
        async move { client.post("/v1/policies/explain", &body).await.expect(200) }
    };
    assert_eq!(explain(json!({"tool": "list_bash"})).await["rule"], "/tools/disabled/0");
    let explained =
        explain(json!({"tool": "bash", "session_id": session, "arguments": {"command": "x"}})).await;
    assert_eq!((&explained["allowed"], &explained["limits"]["timeout_ms"]), (&true.into(), &1000.into()));

    // A session's policy narrows further and never widens.
    let patch = |policy: Value| {
        let request = client.request("PATCH", &format!("/v1/sessions/{session}"));
        client.send(request.json(&json!({"policy": policy})))
    };
    patch(json!({})).await.problem(422, "invalid_arguments");
    let narrower = json!({"tools": {"disabled": ["bash"], "per_tool": {"bash": {"limits": {"timeout_ms": 1000}}}}, "limits": {"timeout_ms": 5000}});
    patch(narrower).await.expect(200);
    assert_eq!(client.post(&path, &bash(0)).await.expect(200)["status"], "denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gives_each_call_its_own_answer() {
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let path = format!("/v1/sessions/{session}/calls/batch");
    let calls = json!({"calls": [bash(0), {"tool": "bsh"}, {"tool": "bash", "arguments": {"command": 1}}, 7, bash(0)]});
    let data = client.post(&path, &calls).await.expect(200)["data"].clone();
    assert_eq!(data.as_array().map(Vec::len), Some(5));
    for (index, code, pointer) in [
        (1, "unknown_tool", "/calls/1/tool"),
        (2, "invalid_arguments", "/calls/2/arguments/command"),
        (3, "invalid_arguments", "/calls/3"),
    ] {
        assert_eq!(data[index]["index"], index);
        assert_eq!(data[index]["error"]["code"], code, "{data:#}");
        assert_eq!(data[index]["error"]["errors"][0]["pointer"], pointer, "{data:#}");
    }
    assert_eq!(ids(&client.get("/v1/calls").await.expect(200)).len(), 2);
    client.post(&path, &json!({"calls": []})).await.problem(422, "invalid_arguments");
    let many: Vec<Value> = (0..101).map(|_| bash(0)).collect();
    client.post(&path, &json!({"calls": many})).await.problem(422, "limit_exceeded");
    let hundred: Vec<Value> = (0..100).map(|_| bash(0)).collect();
    let data = client.post(&path, &json!({"calls": hundred})).await.expect(200)["data"].clone();
    assert!(
        data.as_array().expect("items").iter().all(|item| item["call"]["status"] == "queued"),
        "{data:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_call_is_cancelled_at_once_and_a_running_one_is_asked_to() {
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let queued = client.submit(&session).await;
    let cancel = |id: &str| client.send(client.request("POST", &format!("/v1/calls/{id}/cancel")));
    let call = cancel(&queued).await.expect(200);
    assert_eq!((&call["status"], &call["ended"]["reason"]), (&"cancelled".into(), &"cancelled".into()));
    assert_eq!(cancel(&queued).await.expect(200)["status"], "cancelled");
    let running = app.running(&client).await;
    cancel(&running.id()).await.expect(202);
    let row = app.store.calls_of_worker(running.call.worker_id.expect("a worker")).await.expect("calls");
    assert!(row[0].cancel_requested);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_call_brings_its_session() {
    let app = App::start().await;
    let client = app.client().await;
    let body = json!({"tool": "bash", "arguments": {"command": "true"}, "session": {"size": "medium", "metadata": {"x": "y"}}});
    let call = client.post("/v1/calls", &body).await.expect(202);
    let session = client
        .get(&format!("/v1/sessions/{}", call["session_id"].as_str().expect("an id")))
        .await
        .expect(200);
    assert_eq!((&session["size"], &session["metadata"]), (&"medium".into(), &json!({"x": "y"})));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_says_why() {
    let app = App::start().await;
    let client = app.client().await;
    let waiting = client.session().await;
    let ended = client.delete(&format!("/v1/sessions/{waiting}")).await.expect(200);
    assert_eq!((&ended["status"], &ended["ended"]["reason"]), (&"ended".into(), &"deleted".into()));

    let worker = app.worker().await;
    let session = client.session().await;
    let fence = SessionFence::of(&app.store.claim_sessions(worker.id(), 1).await.expect("sessions")[0])
        .expect("mine");
    app.store.session_running(&fence, 1).await.expect("runs");
    client.delete(&format!("/v1/sessions/{session}")).await.expect(202);
    let path = format!("/v1/sessions/{session}");
    client.post(&format!("{path}/calls"), &bash(0)).await.problem(409, "session_ended");
    let end = domain::SessionEnd::because(domain::SessionEndReason::Oom).with("oom_kills", 2);
    app.store.end_session(&fence, end).await.expect("ends");
    for reply in [
        client.post(&format!("{path}/calls"), &bash(0)).await,
        client.post(&format!("{path}/calls/batch"), &json!({"calls": [bash(0)]})).await,
        client.post(&format!("{path}/reset"), &json!({})).await,
        client.send(client.request("PATCH", &path).json(&json!({"metadata": {}}))).await,
    ] {
        let problem = reply.problem(409, "session_ended");
        assert_eq!(problem["session_end"]["reason"], "oom");
        assert_eq!(problem["session_end"]["evidence"], json!({"oom_kills": 2}));
    }
    assert_eq!(client.delete(&path).await.expect(200)["ended"]["reason"], "oom");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_tenant_answer_with_a_time_to_wait() {
    let app = App::with(|config| {
        config.policy =
            serde_json::from_value(json!({"limits": {"sessions": 1, "queued_calls": 2}})).expect("a policy");
    })
    .await;
    let client = app.client().await;
    let session = client.session().await;
    let problem = client.post("/v1/sessions", &json!({})).await.problem(429, "quota_exceeded");
    assert_eq!((&problem["limit"], &problem["in_use"]), (&1.into(), &1.into()));
    client.post("/v1/calls", &bash(0)).await.problem(429, "quota_exceeded");
    for _ in 0..2 {
        client.submit(&session).await;
    }
    let problem =
        client.post(&format!("/v1/sessions/{session}/calls"), &bash(0)).await.problem(429, "queue_full");
    assert!(problem["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_tells_how_it_is() {
    let app = App::start().await;
    let client = app.client().await.with_key("");
    assert_eq!(client.get("/healthz").await.expect(200)["status"], "ok");
    let ready = client.get("/readyz").await.expect(200);
    assert_eq!(
        ready["checks"],
        json!({"database": "ok", "engine": "ok", "migrations": "ok", "shutdown": "ok"})
    );
    let page = client.send(client.request("GET", "/problems/queue_full").header("accept", "text/html")).await;
    assert!(String::from_utf8_lossy(&page.bytes).contains("429"));
    assert_eq!(client.get("/problems/queue_full").await.expect(200)["retryable"], true);
    assert!(app.metric("toolhost_http_requests_total") >= 4.0);
    assert!(app.metric("toolhost_http_connections") >= 1.0);
}
