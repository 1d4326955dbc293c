//! The same key and body give the original; another body is refused by name of what differs.

use serde_json::{Value, json};

use crate::app::{App, ids};
use crate::client::{Client, Reply, id_of};

async fn post(client: &Client, path: &str, key: &str, body: &Value) -> Reply {
    client.send(client.request("POST", path).header("idempotency-key", key).json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_and_body_give_the_original() {
    let app = App::start().await;
    let client = app.client().await;
    let body = json!({"metadata": {"a": "b"}});
    let first = post(&client, "/v1/sessions", "k", &body).await;
    let session = id_of(&first.expect(201));
    assert_eq!(first.header("idempotent-replayed"), "");
    let again = post(&client, "/v1/sessions", "k", &body).await;
    assert_eq!(id_of(&again.expect(201)), session);
    assert_eq!(again.header("idempotent-replayed"), "true");
    let problem = post(&client, "/v1/sessions", "k", &json!({"size": "small"}))
        .await
        .problem(422, "idempotency_mismatch");
    let pointers: Vec<&Value> =
        problem["errors"].as_array().expect("errors").iter().map(|e| &e["pointer"]).collect();
    assert_eq!(pointers, ["/metadata", "/size"]);

    let path = format!("/v1/sessions/{session}/calls");
    let call = json!({"tool": "bash", "arguments": {"command": "true"}, "wait_ms": 100});
    let first = id_of(&post(&client, &path, "k", &call).await.expect(202));
    assert_eq!(id_of(&post(&client, &path, "k", &call).await.expect(202)), first);
    let longer = json!({"tool": "bash", "arguments": {"command": "true"}, "wait_ms": 200});
    assert_eq!(
        id_of(&post(&client, &path, "k", &longer).await.expect(202)),
        first,
        "how long it waits is no part of it"
    );
    // The session is part of the request.
    let other = format!("/v1/sessions/{}/calls", client.session().await);
    let problem = post(&client, &other, "k", &call).await.problem(422, "idempotency_mismatch");
    assert_eq!(problem["errors"][0]["pointer"], "/session_id");

    let one_shot = json!({"tool": "bash", "arguments": {"command": "true"}});
    let first = id_of(&post(&client, "/v1/calls", "k", &one_shot).await.expect(202));
    assert_eq!(id_of(&post(&client, "/v1/calls", "k", &one_shot).await.expect(202)), first);

    let batch = json!({"calls": [call, call]});
    let path = format!("{path}/batch");
    let first = post(&client, &path, "k", &batch).await.expect(200);
    let again = post(&client, &path, "k", &batch).await.expect(200);
    for index in 0..2 {
        assert_eq!(first["data"][index]["call"]["id"], again["data"][index]["call"]["id"]);
    }
    assert_ne!(first["data"][0]["call"]["id"], first["data"][1]["call"]["id"]);
    assert_eq!(ids(&client.get("/v1/calls").await.expect(200)).len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_with_one_key_make_one() {
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let path = format!("/v1/sessions/{session}/calls");
    let body = json!({"tool": "bash", "arguments": {"command": "true"}});
    let all = futures_util::future::join_all((0..20).map(|_| post(&client, &path, "one", &body))).await;
    let mut made: Vec<String> = all.iter().map(|reply| id_of(&reply.expect(202))).collect();
    made.dedup();
    assert_eq!(made.len(), 1);
    assert_eq!(ids(&client.get("/v1/calls").await.expect(200)).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_its_tenant_and_has_a_form() {
    let app = App::start().await;
    let (ours, theirs) = (app.tenant("ours").await.1, app.tenant("theirs").await.1);
    let body = json!({});
    let first = id_of(&post(&ours, "/v1/sessions", "k", &body).await.expect(201));
    assert_ne!(id_of(&post(&theirs, "/v1/sessions", "k", &body).await.expect(201)), first);
    for key in ["", " ", &"k".repeat(256)] {
        post(&ours, "/v1/sessions", key, &body).await.problem(400, "invalid_request");
    }
    let twice =
        ours.request("POST", "/v1/sessions").header("idempotency-key", "a").header("idempotency-key", "b");
    ours.send(twice.json(&body)).await.problem(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_original_is_the_answer_whatever_has_changed_since() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let session = json!({"lifetime_s": 7_200});
    let call = json!({"tool": "bash", "arguments": {"command": "true"}, "timeout_ms": 60_000});
    let batch = json!({"calls": [call]});
    let blocks = |id: &str| {
        let function = json!({"name": "bash", "arguments": "{\"command\":\"true\"}"});
        json!({"format": "openai", "wait_ms": 0, "tool_calls": [{"type": "function", "id": id, "function": function}]})
    };
    let made = id_of(&post(&client, "/v1/sessions", "k", &session).await.expect(201));
    let path = format!("/v1/sessions/{made}");
    let (calls, batches) = (format!("{path}/calls"), format!("{path}/calls/batch"));
    let first = id_of(&post(&client, &calls, "k", &call).await.expect(202));
    let one_shot = id_of(&post(&client, "/v1/calls", "k", &call).await.expect(202));
    let of_batch = post(&client, &batches, "k", &batch).await.expect(200)["data"][0]["call"]["id"].clone();
    let of_block = client.post(&format!("{path}/tool_results"), &blocks("a")).await.expect(200);

    let narrow = json!({"limits": {"timeout_ms": 1_000, "lifetime_s": 3_600}});
    let narrow = serde_json::from_value(narrow).expect("a policy");
    app.store.set_tenant_policy(&app.operator, tenant, &narrow).await.expect("is set");
    let (_, client) = app.key(tenant, domain::Scope::tenant_default()).await;
    for (path, body) in [("/v1/sessions", &session), (calls.as_str(), &call), ("/v1/calls", &call)] {
        post(&client, path, "fresh", body).await.problem(422, "limit_exceeded");
        let other = json!({"tool": "bash", "arguments": {"command": "false"}, "timeout_ms": 60_000});
        let other = if path == "/v1/sessions" { &json!({"lifetime_s": 7_201}) } else { &other };
        post(&client, path, "k", other).await.problem(422, "idempotency_mismatch");
    }
    let again = post(&client, "/v1/sessions", "k", &session).await;
    assert_eq!((id_of(&again.expect(201)), again.header("idempotent-replayed")), (made.clone(), "true"));
    let again = post(&client, &calls, "k", &call).await;
    assert_eq!((id_of(&again.expect(202)), again.header("idempotent-replayed")), (first, "true"));
    assert_eq!(id_of(&post(&client, "/v1/calls", "k", &call).await.expect(202)), one_shot);

    client.delete(&path).await.expect(200);
    let again = post(&client, &batches, "k", &batch).await.expect(200);
    assert_eq!(
        (&again["data"][0]["call"]["id"], &again["data"][0]["call"]["status"]),
        (&of_batch, &json!("failed"))
    );
    let again = client.post(&format!("{path}/tool_results"), &blocks("a")).await.expect(200);
    assert_eq!(again["calls"][0]["call_id"], of_block["calls"][0]["call_id"]);
    post(&client, &batches, "fresh", &json!({"calls": [{"tool": "bash", "arguments": {"command": "true"}}]}))
        .await
        .problem(409, "session_ended");
    client.post(&format!("{path}/tool_results"), &blocks("b")).await.problem(409, "session_ended");
}
