//! What a tenant has left, and what it is told when nothing is.

use std::time::Duration;

use domain::policy::{LimitRules, Policy};
use serde_json::{Value, json};
use store::testing::{until, until_some};

use crate::app::App;
use crate::client::Client;

fn limited(limits: LimitRules) -> Policy {
    Policy { limits, ..Policy::default() }
}

async fn left(client: &Client) -> Value {
    client.get("/v1/me").await.expect(200)["left"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn me_says_what_is_left() {
    let app = App::start().await;
    let (tenant, _) = app.tenant("acme").await;
    let limits = LimitRules {
        sessions: Some(3),
        queued_calls: Some(5),
        running_calls: Some(2),
        requests_per_minute: Some(1_000),
        stored_bytes: Some(1_000),
        ..LimitRules::default()
    };
    app.store.set_tenant_policy(&app.operator, tenant, &limited(limits)).await.expect("is set");
    let (_, client) = app.key(tenant, domain::Scope::tenant_default()).await;
    let before = left(&client).await;
    assert_eq!((&before["sessions"], &before["queued_calls"]), (&json!(3), &json!(5)));
    assert_eq!((&before["running_calls"], &before["stored_bytes"]), (&json!(2), &json!(1_000)));
    assert!(before["requests"].as_u64().is_some_and(|left| left < 1_000), "{before:#}");
    let mut running = app.running(&client).await;
    running.start().await;
    client.submit(&running.call.session_id.to_string()).await;
    running.write(&[b"0123456789"]).await;
    let counted = async || left(&client).await["stored_bytes"] == json!(990);
    until("output is counted", Duration::from_secs(30), counted).await;
    let after = left(&client).await;
    assert_eq!((&after["sessions"], &after["queued_calls"]), (&json!(2), &json!(4)), "{after:#}");
    assert_eq!(after["running_calls"], json!(1));
    // An exact count comes to the same.
    assert!(app.store.recount_stored(7).await.expect("counts") >= 2);
    assert_eq!(left(&client).await["stored_bytes"], json!(990));
    let operator = app.operator().await.get("/v1/me").await.expect(200);
    assert_eq!((&operator["left"], &operator["limits"]), (&Value::Null, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_calls_and_answers_those_it_has_accepted() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let mut running = app.running(&client).await;
    running.start().await;
    let path = format!("/v1/sessions/{}/calls", running.call.session_id);
    let call = json!({"tool": "bash", "arguments": {"command": "true"}});
    let keyed = |key: &'static str| client.request("POST", &path).header("idempotency-key", key).json(&call);
    let accepted = client.send(keyed("first")).await.expect(202);
    running.write(&[&[b'x'; 2_000]]).await;
    let limits = LimitRules { stored_bytes: Some(1_500), ..LimitRules::default() };
    app.store.set_tenant_policy(&app.operator, tenant, &limited(limits)).await.expect("is set");
    let refused = until_some("it is refused", Duration::from_secs(30), async || {
        Some(client.post(&path, &call).await).filter(|reply| reply.status == 429)
    })
    .await;
    let problem = refused.problem(429, "quota_exceeded");
    assert_eq!((&problem["quota"], &problem["limit"]), (&json!("stored_bytes"), &json!(1_500)));
    assert_eq!(problem["in_use"], 2_000);
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(client.send(keyed("first")).await.expect(202)["id"], accepted["id"]);
    client.send(keyed("second")).await.problem(429, "quota_exceeded");
    let batch = client.post(&format!("{path}/batch"), &json!({"calls": [call, call]})).await.expect(200);
    for item in batch["data"].as_array().expect("items") {
        assert_eq!(
            (&item["error"]["code"], &item["error"]["quota"]),
            (&json!("quota_exceeded"), &json!("stored_bytes"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_fills_in_the_middle_of_a_batch_answers_each_call() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let session = client.session().await;
    let limits = LimitRules { queued_calls: Some(2), ..LimitRules::default() };
    app.store.set_tenant_policy(&app.operator, tenant, &limited(limits)).await.expect("is set");
    let (_, client) = app.key(tenant, domain::Scope::tenant_default()).await;
    let call = json!({"tool": "bash", "arguments": {"command": "true"}});
    let batch = json!({"calls": [call, call, call, call]});
    let outcome = client.post(&format!("/v1/sessions/{session}/calls/batch"), &batch).await.expect(200);
    let items = outcome["data"].as_array().expect("items");
    let refused: Vec<_> = items.iter().filter(|item| item["error"]["code"] == "queue_full").collect();
    assert_eq!((items.len(), refused.len()), (4, 2), "{outcome:#}");
    for item in refused {
        assert_eq!(item["error"]["limit"], 2);
        assert!(item["error"]["retry_after_ms"].is_u64() && item["call"].is_null(), "{item:#}");
    }
}
