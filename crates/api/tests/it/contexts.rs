//! Contexts as objects: made, named, limited, and whose they are. What runs in them is tried with a sandbox.

use serde_json::{Value, json};

use crate::app::{App, ids};
use crate::client::id_of;

#[tokio::test(flavor = "multi_thread")]
async fn contexts_are_made_found_and_deleted() {
    let app = App::start().await;
    let client = app.client().await;
    let path = format!("/v1/sessions/{}/contexts", client.session().await);
    let body =
        json!({"name": "main", "cwd": "/tmp/../workspace/a", "env": {"SECRET": "x"}, "metadata": {"a": "b"}});
    let made = client.post(&path, &body).await;
    let context = made.expect(201);
    let id = id_of(&context);
    assert_eq!(made.header("location"), format!("{path}/{id}"));
    assert!(id.starts_with("ctx_"), "{id}");
    assert_eq!((&context["object"], &context["status"]), (&json!("context"), &json!("cold")));
    assert_eq!((&context["cwd"], &context["env"]), (&json!("/workspace/a"), &json!(["SECRET"])));
    assert_eq!(client.get(&format!("{path}/{id}")).await.expect(200), context);
    client.post(&path, &json!({"name": "main"})).await.problem(409, "conflict");
    assert_eq!(context["language"], "python");
    let other = client.post(&path, &json!({"language": "javascript"})).await.expect(201);
    assert_eq!(other["language"], "javascript");
    let other = id_of(&other);
    assert_eq!(ids(&client.get(&path).await.expect(200)), [other.clone(), id.clone()]);
    assert_eq!(client.delete(&format!("{path}/{id}")).await.expect(200)["deleted"], true);
    client.delete(&format!("{path}/{id}")).await.problem(404, "not_found");
    client.post(&format!("{path}/{id}/restart"), &json!({})).await.problem(404, "not_found");
    // The name is free again, and a session has only so many.
    for _ in 0..7 {
        client.post(&path, &json!({})).await.expect(201);
    }
    let problem = client.post(&path, &json!({})).await.problem(409, "conflict");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("as many")), "{problem:#}");
    client.delete(&format!("{path}/{other}")).await.expect(200);
    client.post(&path, &json!({"name": "main"})).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_is_its_tenants_and_its_sessions() {
    let app = App::start().await;
    let (ours, theirs) = (app.tenant("ours").await.1, app.tenant("theirs").await.1);
    let session = ours.session().await;
    let path = format!("/v1/sessions/{session}/contexts");
    let id = id_of(&ours.post(&path, &json!({})).await.expect(201));
    let elsewhere = format!("/v1/sessions/{}/contexts", ours.session().await);
    for (client, path) in [(&theirs, &path), (&ours, &elsewhere)] {
        client.get(&format!("{path}/{id}")).await.problem(404, "not_found");
        client.delete(&format!("{path}/{id}")).await.problem(404, "not_found");
        client.post(&format!("{path}/{id}/interrupt"), &json!({})).await.problem(404, "not_found");
        client.post(&format!("{path}/{id}/restart"), &json!({})).await.problem(404, "not_found");
    }
    theirs.get(&path).await.problem(404, "not_found");
    theirs.post(&path, &json!({})).await.problem(404, "not_found");
    assert_eq!(ids(&ours.get(&path).await.expect(200)), [id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_context_is_refused_and_a_key_makes_one() {
    let app = App::start().await;
    let client = app.client().await;
    let path = format!("/v1/sessions/{}/contexts", client.session().await);
    client.post(&path, &json!({"name": "x".repeat(65)})).await.problem(422, "limit_exceeded");
    for (body, pointer) in [
        (json!({"name": ""}), "/name"),
        (json!({"name": 1}), "/name"),
        (json!({"cwd": "/etc"}), "/cwd"),
        (json!({"env": {"A=B": "c"}}), "/env"),
        (json!({"language": "cobol"}), "/language"),
    ] {
        let problem = client.post(&path, &body).await.problem(422, "invalid_arguments");
        let found = problem["errors"][0]["pointer"].as_str().unwrap_or_default().to_owned();
        assert!(found.starts_with(pointer), "{body}: {problem:#}");
    }
    let post = async |body: Value| {
        client.send(client.request("POST", &path).header("idempotency-key", "k").json(&body)).await
    };
    let first = id_of(&post(json!({"name": "a"})).await.expect(201));
    let again = post(json!({"name": "a"})).await;
    assert_eq!((id_of(&again.expect(201)), again.header("idempotent-replayed")), (first, "true"));
    post(json!({"name": "b"})).await.problem(422, "idempotency_mismatch");
    let all = (0..8).map(|_| {
        client.send(client.request("POST", &path).header("idempotency-key", "one").json(&json!({})))
    });
    let all = futures_util::future::join_all(all).await;
    let mut made: Vec<String> = all.iter().map(|reply| id_of(&reply.expect(201))).collect();
    made.dedup();
    assert_eq!(made.len(), 1);
}
