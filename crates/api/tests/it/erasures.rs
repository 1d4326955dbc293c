//! Tenants that leave, as operators meet them: exports that stream, erasures that name their tenant.

use std::time::Duration;

use serde_json::{Value, json};
use store::testing::TestDatabase;
use store::{Metered, Sealed};

use crate::app::{App, ended_call};
use crate::client::Client;

async fn lines(client: &Client, path: &str) -> Vec<Value> {
    let reply = client.get(path).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/x-ndjson"));
    let text = String::from_utf8(reply.bytes).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_exports_a_tenant_and_goes_on_behind_a_checkpoint() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let (other_tenant, other) = app.tenant("other").await;
    let call = ended_call(&app, &client, &[b"mine"]).await;
    let theirs = other.submit(&other.session().await).await;
    let operator = app.operator().await;
    let path = format!("/v1/admin/tenants/{tenant}/export");
    let all = lines(&operator, &path).await;
    let rows = |table: &str| all.iter().filter(|line| line["table"] == table).count();
    assert_eq!((rows("tenants"), rows("calls"), rows("sessions"), rows("output_chunks")), (1, 1, 1, 1));
    let text = all.iter().map(Value::to_string).collect::<String>();
    let uuid = |id: &str| id.parse::<domain::CallId>().expect("an id").uuid().to_string();
    assert!(text.contains(&uuid(&call)) && !text.contains(&uuid(&theirs)) && !text.contains("secret_hash"));
    assert!(all.last().is_some_and(|line| line["end"]["rows"]["calls"] == 1), "{:?}", all.last());
    let place = all.iter().rev().find_map(|line| line["checkpoint"].as_str()).expect("a checkpoint");
    let rest = lines(&operator, &format!("{path}?after={place}")).await;
    assert!(rest.len() < all.len() && rest.iter().all(|line| line["table"] != "calls"), "{rest:?}");
    let theirs = lines(&operator, &format!("/v1/admin/tenants/{other_tenant}/export")).await;
    let theirs = theirs.iter().rev().find_map(|line| line["checkpoint"].as_str()).expect("a checkpoint");
    let forged = json!({"tenant": tenant, "table": "calls", "key": ["no uuid"]}).to_string();
    let forged = data_encoding::BASE64URL_NOPAD.encode(forged.as_bytes());
    for bad in ["x", "e30", "", theirs, &forged] {
        operator.get(&format!("{path}?after={bad}")).await.problem(400, "invalid_request");
    }
    operator.get("/v1/admin/tenants/ten_06b2m8j0v5x3t9q7k1h4c8n2r8/export").await.problem(404, "not_found");
    let trail = client.get("/v1/audit?action=tenant.export").await.expect(200);
    assert_eq!(trail["data"].as_array().map(Vec::len), Some(2), "each is recorded where the tenant sees it");
}

/// Until everything is sealed and metered.
async fn settle(app: &App) {
    while !matches!(app.store.seal_audit().await.expect("seals"), Sealed::Everything(0)) {}
    while app.store.meter_usage().await.expect("meters") != Metered::Nothing {}
}

/// An erasure, once it is done.
async fn erased(app: &App, operator: &Client, path: &str) -> Value {
    let done = async {
        loop {
            settle(app).await;
            app.store.erase_tenants().await.expect("erases");
            let erasure = operator.get(path).await.expect(200);
            if erasure["state"] == "done" {
                break erasure;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("is done")
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_metered_exported_and_erased_through_a_pooler() {
    let database = TestDatabase::new().await.expect("a database").pooled().await.expect("a pooler");
    let app = App::on(database, |_| {}).await;
    let ((stays, client), (leaves, leaver)) = (app.tenant("acme").await, app.tenant("leaver").await);
    ended_call(&app, &client, &[b"mine"]).await;
    leaver.post("/v1/keys", &json!({"name": "another"})).await.expect(201);
    settle(&app).await;
    let usage = client.get("/v1/usage").await.expect(200);
    assert!(usage.to_string().contains("\"calls\":1"), "{usage:#}");

    let operator = app.operator().await;
    let all = lines(&operator, &format!("/v1/admin/tenants/{stays}/export")).await;
    assert!(all.last().is_some_and(|line| line["end"]["rows"]["output_chunks"] == 1), "{:?}", all.last());
    let path = format!("/v1/admin/tenants/{leaves}/erasure");
    operator.post(&path, &json!({"confirm": "leaver"})).await.expect(202);
    let done = erased(&app, &operator, &path).await;
    assert_eq!(done["receipt"]["deleted"]["api_keys"], 2, "{done:#}");
    client.get("/v1/me").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_erases_a_tenant_by_its_name_and_gets_a_receipt() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    client.get("/v1/me").await.expect(200);
    let operator = app.operator().await;
    let path = format!("/v1/admin/tenants/{tenant}/erasure");
    operator.get(&path).await.problem(404, "not_found");
    for wrong in ["acm", "ACME", "acme ", &tenant.to_string()] {
        let problem =
            operator.post(&path, &json!({"confirm": wrong})).await.problem(422, "invalid_arguments");
        assert_eq!(problem["errors"][0]["pointer"], "/confirm");
    }
    operator.post(&path, &json!({})).await.problem(422, "invalid_arguments");
    client.get("/v1/me").await.expect(200);
    let begun = operator.post(&path, &json!({"confirm": "acme"})).await.expect(202);
    assert_eq!((&begun["state"], &begun["receipt"]), (&json!("ending"), &Value::Null));
    let done = erased(&app, &operator, &path).await;
    assert_eq!(
        (&done["receipt"]["tenant_id"], &done["receipt"]["deleted"]["api_keys"]),
        (&json!(tenant), &json!(1))
    );
    assert_eq!(
        operator.post(&path, &json!({"confirm": "again"})).await.expect(202),
        done,
        "asking again changes nothing"
    );
    let left = operator.get(&format!("/v1/admin/tenants/{tenant}")).await.expect(200);
    assert_eq!(
        (&left["status"], &left["name"]),
        (&json!("suspended"), &json!(format!("erased {}", tenant.uuid())))
    );
    let patch =
        operator.request("PATCH", &format!("/v1/admin/tenants/{tenant}")).json(&json!({"status": "active"}));
    operator.send(patch).await.problem(409, "conflict");
    operator
        .post(&format!("/v1/admin/tenants/{tenant}/keys"), &json!({"name": "x"}))
        .await
        .problem(409, "conflict");
}
