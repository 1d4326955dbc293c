//! What credentials may make, and what goes on after they have lost something.

use std::time::Duration;

use domain::{KeyId, Scope, TenantId};
use serde_json::{Value, json};
use store::{Keeper, NewKey, NewRole};

use crate::app::App;
use crate::client::{Client, id_of};

const HOUR: chrono::TimeDelta = chrono::TimeDelta::hours(1);

fn time(value: &Value) -> chrono::DateTime<chrono::Utc> {
    value.as_str().expect("a time").parse().expect("a time")
}

/// A key that holds for an hour.
async fn short_lived(app: &App, tenant: TenantId) -> (chrono::DateTime<chrono::Utc>, KeyId, Client) {
    let expires_at = chrono::Utc::now() + HOUR;
    let new = NewKey {
        name: "short".to_owned(),
        scopes: Scope::tenant_default(),
        expires_at: Some(expires_at),
        ..NewKey::default()
    };
    let (key, plain) = app.store.create_key(&app.operator, tenant, new).await.expect("a key");
    (key.expires_at.expect("an end"), key.id, Client::new(&app.base, plain.reveal()))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_outlives_the_one_that_made_it() {
    let app = App::start().await;
    let (tenant, admin) = app.tenant("acme").await;
    let (end, id, short) = short_lived(&app, tenant).await;
    let made = short.post("/v1/keys", &json!({"name": "x"})).await.expect(201);
    assert_eq!(time(&made["expires_at"]), end);
    let sooner = end - HOUR / 2;
    let made = short.post("/v1/keys", &json!({"name": "x", "expires_at": sooner})).await.expect(201);
    assert_eq!(time(&made["expires_at"]), sooner);
    let later = json!({"name": "x", "expires_at": end + HOUR});
    let problem = short.post("/v1/keys", &later).await.problem(422, "limit_exceeded");
    assert_eq!(problem["errors"][0]["pointer"], "/expires_at");
    // One without an end does not get one, and one that has one may say otherwise.
    let lasting = admin.post("/v1/keys", &json!({"name": "x"})).await.expect(201);
    assert_eq!(lasting["expires_at"], Value::Null);
    admin.post("/v1/keys", &later).await.expect(201);

    // Rotating is no way around it: neither for itself, nor for one that would last.
    let rotate = |id: &str| format!("/v1/keys/{id}/rotate");
    let path = rotate(&id_of(&lasting));
    short.post(&path, &json!({"expires_at": end + HOUR})).await.problem(422, "limit_exceeded");
    let rotated = short.post(&path, &json!({})).await.expect(201);
    assert_eq!(time(&rotated["expires_at"]), end);
    let rotated = short.post(&rotate(&id.to_string()), &json!({})).await.expect(201);
    assert_eq!(time(&rotated["expires_at"]), end);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_ends_when_the_old_one_would_have() {
    let app = App::start().await;
    let (tenant, admin) = app.tenant("acme").await;
    let (end, id, _) = short_lived(&app, tenant).await;
    let rotated = admin.post(&format!("/v1/keys/{id}/rotate"), &json!({})).await.expect(201);
    assert_eq!(time(&rotated["expires_at"]), end);
    let path = format!("/v1/admin/tenants/{tenant}/keys/{}/rotate", id_of(&rotated));
    let later = end + HOUR;
    let told = app.operator().await.post(&path, &json!({"expires_at": later})).await.expect(201);
    assert_eq!(time(&told["expires_at"]), later);
    let lasting = admin.post("/v1/keys", &json!({"name": "x"})).await.expect(201);
    let rotated = admin.post(&format!("/v1/keys/{}/rotate", id_of(&lasting)), &json!({})).await.expect(201);
    assert_eq!(rotated["expires_at"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_key_may_not_read_any_more() {
    let app = App::with(|config| config.streams.recheck = Duration::from_millis(100)).await;
    let (tenant, everything) = app.tenant("acme").await;
    let role = |scopes: Vec<Scope>| NewRole { scopes, ..NewRole::default() };
    let keeper = Keeper::Operator(&app.operator, tenant);
    app.store
        .put_role(keeper, "watcher", role(vec![Scope::CallsRead, Scope::CallsWrite]))
        .await
        .expect("a role");
    let new = NewKey { name: "w".to_owned(), role: Some("watcher".to_owned()), ..NewKey::default() };
    let (_, plain) = app.store.create_key(&app.operator, tenant, new).await.expect("a key");
    let client = Client::new(&app.base, plain.reveal());
    let running = app.running(&everything).await;
    let path = format!("/v1/calls/{}/events", running.id());
    let signed = client.send(client.request("POST", &format!("/v1/calls/{}/stream_url", running.id())));
    let url = signed.await.expect(201)["url"].as_str().expect("a url").to_owned();
    let by_key = client.stream(&path, &[]).await;
    let by_url = client.with_key("").stream(&url, &[]).await;
    let mut other = everything.stream(&path, &[]).await;
    assert_eq!((by_key.response_status, by_url.response_status), (200, 200));
    // It is still a good key, and may still do something.
    app.store.put_role(keeper, "watcher", role(vec![Scope::CallsWrite])).await.expect("a role");
    for stream in [by_key, by_url] {
        let rest = tokio::time::timeout(Duration::from_secs(30), stream.rest()).await.expect("ends");
        assert!(rest.iter().all(|event| event.event != "end"), "{rest:?}");
    }
    client.get("/v1/me").await.expect(200);
    client.with_key("").get(&url).await.problem(403, "insufficient_scope");
    running.finish().await;
    assert_eq!(other.until("call.ended").await.data["status"], "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn caps_hold_for_requests_at_the_same_time() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let session = client.session().await;
    let at_once = |requests: Vec<(&'static str, String, Value)>| {
        let client = client.clone();
        async move {
            let each = requests.into_iter().map(|(method, path, body)| {
                let client = client.clone();
                tokio::spawn(
                    async move { client.send(client.request(method, &path).json(&body)).await.status },
                )
            });
            let mut all = Vec::new();
            for one in each.collect::<Vec<_>>() {
                all.push(one.await.expect("joins"));
            }
            all.sort_unstable();
            all
        }
    };
    let contexts = (0..24).map(|_| ("POST", format!("/v1/sessions/{session}/contexts"), json!({}))).collect();
    assert_eq!(at_once(contexts).await, [vec![201; 8], vec![409; 16]].concat());

    for n in 0..98 {
        let role = NewRole { scopes: vec![Scope::CallsRead], ..NewRole::default() };
        let keeper = Keeper::Operator(&app.operator, tenant);
        app.store.put_role(keeper, &format!("role-{n}"), role).await.expect("a role");
    }
    let roles =
        (0..12).map(|n| ("PUT", format!("/v1/roles/new-{n}"), json!({"scopes": ["calls:read"]}))).collect();
    assert_eq!(at_once(roles).await, [vec![200; 2], vec![409; 10]].concat());

    // The tenant has one key, and whoever asked for the others had one too.
    app.database
        .execute(
            "INSERT INTO api_keys (id, tenant_id, name, secret_hash, scopes)
             SELECT gen_random_uuid(), tenant_id, 'many', secret_hash, scopes FROM api_keys, generate_series(1, 996)",
        )
        .await
        .expect("keys");
    let keys = (0..12).map(|_| ("POST", "/v1/keys".to_owned(), json!({"name": "x"}))).collect();
    assert_eq!(at_once(keys).await, [vec![201; 3], vec![409; 9]].concat());
    let problem = client.post("/v1/keys", &json!({"name": "x"})).await.problem(409, "conflict");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("revoke")), "{problem:#}");
    // One that is revoked makes room; and one can be replaced all the same.
    let listed = client.get("/v1/keys?limit=2").await.expect(200);
    client.delete(&format!("/v1/keys/{}", id_of(&listed["data"][0]))).await.expect(200);
    client.post("/v1/keys", &json!({"name": "x"})).await.expect(201);
    client.post(&format!("/v1/keys/{}/rotate", id_of(&listed["data"][1])), &json!({})).await.expect(201);
}
