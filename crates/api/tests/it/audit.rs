//! The audit trail as a tenant's auditor reads it.

use domain::Scope;
use serde_json::{Value, json};

use crate::app::App;

async fn some_history(app: &App) -> (crate::client::Client, String) {
    let client = app.client().await;
    let session = client.session().await;
    for _ in 0..3 {
        client.submit(&session).await;
    }
    let (_, reader) = app.key(client_tenant(&client).await, vec![Scope::AuditRead]).await;
    reader.post("/v1/sessions", &json!({})).await.problem(403, "insufficient_scope");
    (client, session)
}

async fn client_tenant(client: &crate::client::Client) -> domain::TenantId {
    let me = client.get("/v1/me").await.expect(200);
    me["tenant_id"].as_str().and_then(|id| id.parse().ok()).expect("a tenant")
}

fn actions(list: &Value) -> Vec<&str> {
    list["data"].as_array().expect("a list").iter().map(|row| row["action"].as_str().expect("text")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trail_is_filtered_paged_and_exported() {
    let app = App::start().await;
    let (client, session) = some_history(&app).await;
    let all = client.get("/v1/audit?limit=100").await.expect(200);
    assert!(all["data"].as_array().expect("a list").iter().all(|row| row["seal"].is_null()));
    while let store::Sealed::Some(_) | store::Sealed::Elsewhere = app.store.seal_audit().await.expect("seals")
    {
    }

    let calls = client.get("/v1/audit?action=call.*&limit=2").await.expect(200);
    assert_eq!(actions(&calls), ["call.submit", "call.submit"]);
    assert_eq!(calls["has_more"], true);
    let cursor = calls["next_cursor"].as_str().expect("a cursor");
    let rest = client.get(&format!("/v1/audit?action=call.*&limit=2&cursor={cursor}")).await.expect(200);
    assert_eq!((actions(&rest), &rest["has_more"]), (vec!["call.submit"], &Value::Bool(false)));
    client.get(&format!("/v1/audit?limit=2&cursor={cursor}")).await.problem(400, "invalid_cursor");

    let of_session = client.get(&format!("/v1/audit?target={session}")).await.expect(200);
    assert_eq!(actions(&of_session), ["session.create"]);
    let refused = client.get("/v1/audit?allowed=false").await.expect(200);
    assert_eq!(actions(&refused), ["scope.refuse"]);
    assert!(refused["data"][0]["seal"]["sequence"].is_u64(), "{refused:#}");
    let by = refused["data"][0]["principal"]["key_id"].as_str().expect("a key").to_owned();
    let by = client.get(&format!("/v1/audit?principal={by}")).await.expect(200);
    assert_eq!(actions(&by), ["scope.refuse"]);
    let at = refused["data"][0]["at"].as_str().expect("a time");
    let since = client.get(&format!("/v1/audit?since={at}&until={at}")).await.expect(200);
    assert_eq!(actions(&since), Vec::<&str>::new());

    let export = client.request("GET", "/v1/audit").header("accept", "application/x-ndjson");
    let export = client.send(export).await;
    assert_eq!((export.status, export.header("content-type")), (200, "application/x-ndjson"));
    let lines: Vec<Value> =
        export.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse).collect();
    let without_seal = |row: &Value| (row["id"].clone(), row["action"].clone(), row["details"].clone());
    let listed: Vec<_> = all["data"].as_array().expect("a list").iter().map(without_seal).collect();
    assert_eq!(lines.iter().map(without_seal).collect::<Vec<_>>(), listed);
}

fn parse(line: &[u8]) -> Value {
    serde_json::from_slice(line).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_trail_is_exported_whole() {
    let app = App::start().await;
    let client = app.client().await;
    let tenant = client_tenant(&client).await;
    let principal = domain::Principal::system();
    let context = domain::TenantContext::verified(tenant, principal, Vec::new(), Vec::new());
    for n in 0..2_100 {
        app.store.audit(&context, store::AuditRow::done("test.row", n)).await.expect("is written");
    }
    let export = client.request("GET", "/v1/audit?action=test.row").header("accept", "application/x-ndjson");
    let export = client.send(export).await;
    let lines = export.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let targets: Vec<_> =
        lines.map(|line| parse(line)["target"].as_str().expect("text").to_owned()).collect();
    assert_eq!(targets, (0..2_100).rev().map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_means_nothing_is_refused() {
    let app = App::start().await;
    let client = app.client().await;
    for query in
        ["since=yesterday", "allowed=maybe", "action=%25", "action=CALL", "allowed=true&allowed=false", "x=1"]
    {
        client.get(&format!("/v1/audit?{query}")).await.problem(400, "invalid_request");
    }
    let wild =
        client.get("/v1/audit?target=%27%3B+DROP+TABLE+audit_log%3B--&principal=%25").await.expect(200);
    assert_eq!(actions(&wild), Vec::<&str>::new());
    let picture = client.request("GET", "/v1/audit").header("accept", "image/png");
    client.send(picture).await.problem(406, "not_acceptable");
    let limited = client.request("GET", "/v1/audit?limit=5").header("accept", "application/x-ndjson");
    client.send(limited).await.problem(400, "invalid_request");
}
