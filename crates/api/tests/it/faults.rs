//! When the database goes away: 503 with a time to wait, never 500; streams stay and go on where they were.

use std::time::Duration;

use serde_json::json;
use store::testing::{Durability, TestDatabase, until};

use crate::app::App;
use crate::client::{Client, id_of};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_database_is_told_and_streams_survive_it() {
    let database = database_that_goes_away().await;
    let app = App::on(database, |config| config.streams.heartbeat = Duration::from_millis(300)).await;
    let client = app.client().await;
    let mut running = app.running(&client).await;
    running.write(&[b"before"]).await;
    let path = format!("/v1/calls/{}", running.id());
    let mut stream = client.stream(&format!("{path}/events"), &[]).await;
    assert_eq!(stream.until("call.output").await.data["text"], "before");

    app.database.crash().await.expect("crashes");
    for _ in 0..10 {
        client.get(&path).await.problem(503, "database_unavailable");
        let submit = json!({"tool": "bash", "arguments": {"command": "true"}});
        client.post("/v1/calls", &submit).await.problem(503, "database_unavailable");
    }
    let ready = client.get("/readyz").await.expect(503);
    assert_eq!((&ready["checks"]["database"], &ready["checks"]["engine"]), (&json!("failed"), &json!("ok")));
    assert_eq!(client.get("/healthz").await.status, 200);

    app.database.start().await.expect("starts");
    back(&client, &path).await;
    // What was found a moment ago still holds there.
    back(&client, "/readyz").await;
    running.write(&[b"after"]).await;
    let after = stream.until("call.output").await;
    assert_eq!((&after.data["text"], after.id), (&json!("after"), Some(4)));
    running.finish().await;
    assert_eq!(stream.until("end").await.data["seq"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_taken_on_is_answered_though_the_database_goes_away() {
    let database = database_that_goes_away().await;
    let app = App::on(database, |_| {}).await;
    let client = app.client().await;
    let path = format!("/v1/sessions/{}/calls", client.session().await);
    let waiting = {
        let (client, path) = (client.clone(), path.clone());
        let body = json!({"tool": "bash", "arguments": {"command": "true"}, "wait_ms": 6_000});
        tokio::spawn(async move { client.post(&path, &body).await })
    };
    let batch = {
        let (client, path) = (client.clone(), format!("{path}/batch"));
        let call = json!({"tool": "bash", "arguments": {"command": "true"}, "wait_ms": 6_000});
        tokio::spawn(async move { client.post(&path, &json!({"calls": [call]})).await })
    };
    until("both are taken on", PATIENCE, async || {
        client.get("/v1/calls").await.expect(200)["data"].as_array().map(Vec::len) == Some(2)
    })
    .await;
    app.database.crash().await.expect("crashes");
    let reply = waiting.await.expect("joins");
    let call = reply.expect(202);
    assert_eq!(call["status"], "queued");
    assert_eq!(reply.header("location"), format!("/v1/calls/{}", id_of(&call)));
    let batch = batch.await.expect("joins").expect(200);
    assert_eq!(
        (&batch["data"][0]["call"]["status"], &batch["data"][0]["error"]),
        (&json!("queued"), &json!(null))
    );
}

/// What is asked while it is away is refused soon.
async fn database_that_goes_away() -> TestDatabase {
    let database = TestDatabase::private(Durability::Off).await.expect("a database");
    database.impatient(Duration::from_secs(4))
}

async fn back(client: &Client, path: &str) {
    until("it is back", PATIENCE, async || client.get(path).await.status == 200).await;
}
