//! The main paths through a PgBouncer in transaction mode, where each transaction may be on another connection.

use domain::Scope;
use futures_util::future::join_all;
use serde_json::{Value, json};
use store::testing::TestDatabase;

use crate::app::App;
use crate::client::{id_of, numbered};

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_through_a_pooler_in_transaction_mode() {
    let database = TestDatabase::new().await.expect("a database").pooled().await.expect("a pooler");
    let app = App::on(database, |_| {}).await;
    let ((acme, client), (_, other)) = (app.tenant("acme").await, app.tenant("other").await);

    // A call from its admission to its end, followed live.
    let mut running = app.running(&client).await;
    running.start().await;
    let id = running.id();
    let stream = client.stream(&format!("/v1/calls/{id}/events"), &[]).await;
    assert_eq!(stream.response_status, 200);
    running.write(&[b"one", b"two"]).await;
    let session = running.call.session_id.to_string();
    running.finish().await;
    let numbers: Vec<_> = numbered(&stream.rest().await).iter().filter_map(|event| event.id).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let call = client.get(&format!("/v1/calls/{id}")).await.expect(200);
    assert_eq!(call["status"], "succeeded");
    assert_eq!(client.get(&format!("/v1/calls/{id}/output?stream=stdout")).await.bytes, b"onetwo");
    other.get(&format!("/v1/calls/{id}")).await.problem(404, "not_found");

    // Many clients of two tenants at once on few connections: nobody acts for another.
    let theirs = other.session().await;
    let submits = (0..60).map(|n| {
        let (client, session) = if n % 2 == 0 { (&client, &session) } else { (&other, &theirs) };
        async move {
            let call = client.submit(session).await;
            let seen = client.get(&format!("/v1/calls/{call}")).await.expect(200);
            assert_eq!(seen["session_id"], session.as_str());
        }
    });
    join_all(submits).await;
    for (client, session, calls) in [(&client, &session, 31), (&other, &theirs, 30)] {
        let listed = client.get("/v1/calls?limit=100").await.expect(200);
        let listed = listed["data"].as_array().expect("calls");
        assert_eq!(listed.len(), calls);
        assert!(listed.iter().all(|call| call["session_id"] == session.as_str()));
    }
    let batch = json!({"calls": []});
    client
        .post(&format!("/v1/sessions/{session}/calls/batch"), &batch)
        .await
        .problem(422, "invalid_arguments");
    let keyed = || {
        let body = json!({"tool": "bash", "arguments": {"command": "true"}});
        client
            .request("POST", &format!("/v1/sessions/{session}/calls"))
            .header("idempotency-key", "k")
            .json(&body)
    };
    let first = id_of(&client.send(keyed()).await.expect(202));
    assert_eq!(id_of(&client.send(keyed()).await.expect(202)), first);
    let cancelled = client.post(&format!("/v1/calls/{first}/cancel"), &json!({})).await.expect(200);
    assert_eq!(cancelled["status"], "cancelled");

    // Roles, keys, the trail, sweeps.
    let role = client.request("PUT", "/v1/roles/robot").json(&json!({"scopes": ["calls:read"]}));
    client.send(role).await.expect(200);
    let key = client.post("/v1/keys", &json!({"name": "x", "role": "robot"})).await.expect(201);
    let rotated = client.post(&format!("/v1/keys/{}/rotate", id_of(&key)), &json!({})).await.expect(201);
    let robot = client.with_key(rotated["key"].as_str().expect("a key"));
    assert_eq!(robot.get("/v1/me").await.expect(200)["scopes"], json!(["calls:read"]));
    client.delete(&format!("/v1/keys/{}", id_of(&rotated))).await.expect(200);
    robot.get("/v1/me").await.problem(401, "unauthenticated");
    while let store::Sealed::Some(_) = app.store.seal_audit().await.expect("seals") {}
    let trail = client.get("/v1/audit?limit=5").await.expect(200);
    assert!(trail["data"][0]["seal"]["sequence"].is_u64(), "{trail:#}");
    app.store.recount_stored(7).await.expect("counts");
    app.store.ensure_partitions(7).await.expect("partitions");
    app.store.drop_old(store::Retention::default()).await.expect("retention");
    app.store.counts().await.expect("counts");
    assert_eq!(app.store.schema().await.expect("reads").missing, []);
    assert_eq!(client.get("/readyz").await.status, 200);
    let (_, fresh) = app.key(acme, Scope::tenant_default()).await;
    assert_eq!(fresh.get("/v1/me").await.expect(200)["left"]["sessions"], json!(49));
    assert_eq!(client.get("/v1/nothing").await.problem(404, "not_found")["errors"], Value::Array(Vec::new()));
}
