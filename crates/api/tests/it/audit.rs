//! The audit trail as a tenant's auditor reads it.

use domain::Scope;
use serde_json::{Value, json};

use crate::app::App;
use crate::artifacts::kept;

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

#[tokio::test(flavor = "multi_thread")]
async fn operators_read_any_trail_and_the_installation_s_own() {
    let app = App::start().await;
    let (client, _) = some_history(&app).await;
    let tenant = client_tenant(&client).await;
    let admin = app.operator().await;
    // Nobody knows whose this is; and this operator's key is good for nothing of a tenant's.
    client.with_key("th_nonsense").get("/v1/me").await.problem(401, "unauthenticated");
    admin.get("/v1/sessions").await.problem(403, "insufficient_scope");

    let own = admin.get("/v1/admin/audit?limit=100").await.expect(200);
    assert_eq!(actions(&own), ["scope.refuse", "auth.refuse", "key.create"]);
    let (scope, auth) = (&own["data"][0], &own["data"][1]);
    assert!(scope["principal"]["key_id"].is_string(), "{scope:#}");
    assert_eq!((&scope["target"], &scope["allowed"]), (&json!("GET /v1/sessions"), &json!(false)));
    assert_eq!((&auth["reason"], &auth["principal"]["address"]), (&json!("malformed"), &json!("127.0.0.1")));
    let refused = admin.get("/v1/admin/audit?action=auth.*&allowed=false").await.expect(200);
    assert_eq!(actions(&refused), ["auth.refuse"]);

    let of_tenant = format!("/v1/admin/audit?tenant={tenant}");
    let theirs = admin.get(&format!("{of_tenant}&limit=100")).await.expect(200);
    assert_eq!(theirs["data"], client.get("/v1/audit?limit=100").await.expect(200)["data"]);
    let page = admin.get(&format!("{of_tenant}&limit=1")).await.expect(200);
    let cursor = page["next_cursor"].as_str().expect("a cursor");
    let next = admin.get(&format!("{of_tenant}&limit=1&cursor={cursor}")).await.expect(200);
    assert_eq!(next["data"][0], theirs["data"][1]);
    for path in ["/v1/admin/audit?limit=1", "/v1/admin/audit?tenant=ten_06b2m8j0v5x3t9q7k1h4c8n2rg&limit=1"] {
        admin.get(&format!("{path}&cursor={cursor}")).await.problem(400, "invalid_cursor");
    }
    client.get(&format!("/v1/audit?limit=1&cursor={cursor}")).await.problem(400, "invalid_cursor");

    let export = admin.request("GET", &of_tenant).header("accept", "application/x-ndjson");
    let export = admin.send(export).await;
    let lines = export.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse);
    assert_eq!(&json!(lines.collect::<Vec<_>>()), &theirs["data"]);
    for query in ["tenant=acme", "tenant=", "action=%25", "since=-262000-01-01T00:00:00Z", "x=1"] {
        admin.get(&format!("/v1/admin/audit?{query}")).await.problem(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_urls_and_downloads_are_on_record() {
    let app = App::start().await;
    let client = app.client().await;
    let running = app.running(&client).await;
    let artifact = kept(&app, &running, "report", b"0123456789").await;
    client.post(&format!("/v1/calls/{}/stream_url", running.id()), &json!({})).await.expect(201);
    let link = client.post(&format!("/v1/artifacts/{artifact}/links"), &json!({})).await.expect(201);
    let nobody = client.with_key("");
    assert_eq!(nobody.get(link["url"].as_str().expect("a URL")).await.status, 200);
    let part =
        client.request("GET", &format!("/v1/artifacts/{artifact}/content")).header("range", "bytes=2-4");
    assert_eq!(client.send(part).await.bytes, b"234");

    let of = async |query: &str| client.get(&format!("/v1/audit?{query}")).await.expect(200)["data"].clone();
    let made = of("action=stream_url.create").await;
    assert_eq!(made[0]["target"], running.id());
    assert!(made[0]["details"]["expires_at"].is_string(), "{made:#}");
    let made = of("action=artifact.link").await;
    assert_eq!((&made[0]["target"], made[0]["principal"]["key_id"].is_string()), (&json!(artifact), true));
    let read = of("action=artifact.read").await;
    let details: Vec<_> = read.as_array().expect("a list").iter().map(|row| row["details"].clone()).collect();
    let part = json!({"from": 2, "to": 5, "by_link": false});
    assert_eq!(details, [part, json!({"from": 0, "to": 10, "by_link": true})]);
    assert!(read.as_array().expect("a list").iter().all(|row| row["target"] == artifact));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_guesses_do_not_hide_that_a_revoked_key_is_still_in_use() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let (key, revoked) = app.key(tenant, vec![Scope::AuditRead]).await;
    app.store.revoke_key(&app.operator, key).await.expect("revokes");
    for _ in 0..40 {
        client.with_key("th_nonsense").get("/v1/me").await.problem(401, "unauthenticated");
    }
    revoked.get("/v1/me").await.problem(401, "unauthenticated");
    let seen = client.get("/v1/audit?action=auth.refuse").await.expect(200);
    assert_eq!((&seen["data"][0]["reason"], actions(&seen).len()), (&json!("revoked"), 1));
    assert_eq!(seen["data"][0]["principal"]["key_id"], key.to_string());
    let guesses = app.operator().await.get("/v1/admin/audit?action=auth.refuse&limit=100").await.expect(200);
    assert_eq!(actions(&guesses).len(), 30, "a minute's worth");
}
