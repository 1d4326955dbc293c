//! Roles, and keys that a tenant looks after itself.

use std::time::Duration;

use domain::Scope;
use serde_json::{Value, json};
use store::testing::until_some;

use crate::app::App;
use crate::client::{Client, Reply, id_of};

async fn put(client: &Client, path: &str, body: &Value) -> Reply {
    client.send(client.request("PUT", path).json(body)).await
}

fn with_key(client: &Client, created: &Value) -> Client {
    client.with_key(created["key"].as_str().expect("shown once"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_do_what_its_role_may_now() {
    let app = App::start().await;
    let (_, admin) = app.tenant("acme").await;
    let given = admin.get("/v1/roles").await.expect(200);
    let names: Vec<_> = given["data"].as_array().expect("roles").iter().map(|role| &role["name"]).collect();
    assert_eq!(names, ["admin", "developer", "viewer", "auditor"]);
    let auditor = admin.post("/v1/keys", &json!({"name": "books", "role": "auditor"})).await.expect(201);
    assert_eq!((&auditor["role"], &auditor["scopes"]), (&json!("auditor"), &json!([])));
    let auditor = with_key(&admin, &auditor);
    let me = auditor.get("/v1/me").await.expect(200);
    assert_eq!((&me["role"], &me["scopes"]), (&json!("auditor"), &json!(["policies:read", "audit:read"])));
    auditor.get("/v1/audit").await.expect(200);
    auditor.get("/v1/sessions").await.problem(403, "insufficient_scope");
    let both = json!({"name": "x", "role": "viewer", "scopes": ["calls:read", "calls:write"]});
    let both = with_key(&admin, &admin.post("/v1/keys", &both).await.expect(201));
    assert_eq!(both.get("/v1/me").await.expect(200)["scopes"], json!(["calls:read"]));

    let runner = json!({"scopes": ["calls:read"], "policy": {"tools": {"disabled": ["bash"]}, "limits": {"sessions": 1}}});
    put(&admin, "/v1/roles/runner", &runner).await.expect(200);
    let key = admin.post("/v1/keys", &json!({"name": "r", "role": "runner"})).await.expect(201);
    let client = with_key(&admin, &key);
    let me = client.get("/v1/me").await.expect(200);
    assert_eq!((&me["scopes"], &me["limits"]["sessions"]), (&json!(["calls:read"]), &json!(1)));
    let wider = json!({"scopes": ["calls:read", "policies:read"], "policy": runner["policy"]});
    put(&admin, "/v1/roles/runner", &wider).await.expect(200);
    let explained = client.post("/v1/policies/explain", &json!({"tool": "bash"})).await.expect(200);
    assert_eq!(
        (&explained["allowed"], &explained["layer"]),
        (&json!(false), &json!("role")),
        "{explained:#}"
    );
    let request = || admin.request("DELETE", "/v1/roles/runner");
    admin.send(request()).await.problem(409, "conflict");
    admin.delete(&format!("/v1/keys/{}", id_of(&key))).await.expect(200);
    assert_eq!(admin.send(request()).await.status, 204);
    admin.send(request()).await.problem(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gives_away_more_than_they_have() {
    let app = App::start().await;
    let (tenant, everything) = app.tenant("acme").await;
    let (_, clerk) = app.key(tenant, vec![Scope::KeysWrite, Scope::CallsRead]).await;
    let (strong, _) = app.key(tenant, Scope::tenant_default()).await;
    for body in [
        json!({"name": "x", "scopes": ["calls:write"]}),
        json!({"name": "x", "scopes": ["operator"]}),
        json!({"name": "x", "role": "admin"}),
        json!({"name": "x", "role": "developer", "scopes": ["calls:read", "calls:write"]}),
        json!({"name": "x", "role": "operator"}),
        json!({"name": "x", "role": "nobody"}),
    ] {
        clerk.post("/v1/keys", &body).await.problem(422, "invalid_arguments");
    }
    let own = clerk.post("/v1/keys", &json!({"name": "x"})).await.expect(201);
    assert_eq!(own["scopes"], json!(["keys:write", "calls:read"]));
    put(&clerk, "/v1/roles/big", &json!({"scopes": ["calls:write"]})).await.problem(422, "invalid_arguments");
    put(&clerk, "/v1/roles/small", &json!({"scopes": ["calls:read"]})).await.expect(200);
    clerk.post(&format!("/v1/keys/{strong}/rotate"), &json!({})).await.problem(422, "invalid_arguments");
    for name in ["admin", "viewer"] {
        put(&everything, &format!("/v1/roles/{name}"), &json!({"scopes": []})).await.problem(409, "conflict");
    }
    for name in ["operator", "Big", "1st", "a%20b", &"x".repeat(51), "..%2f"] {
        let reply = put(&everything, &format!("/v1/roles/{name}"), &json!({"scopes": []})).await;
        assert!(matches!(reply.status, 400 | 404), "{name}: {}", reply.status);
    }
    put(&everything, "/v1/roles/op", &json!({"scopes": ["operator"]}))
        .await
        .problem(422, "invalid_arguments");

    // Whoever is narrowed by policy gives it on.
    let narrow = json!({"tools": {"disabled": ["bash"]}});
    let body = json!({"name": "n", "scopes": ["keys:write", "calls:write"], "policy": narrow});
    let narrowed = with_key(&everything, &everything.post("/v1/keys", &body).await.expect(201));
    let problem = narrowed.post("/v1/keys", &json!({"name": "x"})).await.problem(422, "invalid_arguments");
    assert_eq!(problem["errors"][0]["pointer"], "/policy/tools/disabled");
    narrowed.post("/v1/keys", &json!({"name": "x", "policy": narrow})).await.expect(201);
    put(&narrowed, "/v1/roles/x", &json!({"scopes": ["calls:write"]}))
        .await
        .problem(422, "invalid_arguments");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_works_beside_its_successor_until_its_time_is_over() {
    let app = App::start().await;
    let (tenant, admin) = app.tenant("acme").await;
    let body = json!({"name": "backend", "role": "developer", "policy": {"limits": {"sessions": 3}}});
    let old = admin.post("/v1/keys", &body).await.expect(201);
    let path = format!("/v1/keys/{}/rotate", id_of(&old));
    admin.post(&path, &json!({"overlap_s": 2_592_001})).await.problem(422, "limit_exceeded");
    let new = admin.post(&path, &json!({"overlap_s": 3_600})).await.expect(201);
    for field in ["name", "role", "scopes", "policy"] {
        assert_eq!(new[field], old[field], "{field}");
    }
    assert_ne!(new["key"], old["key"]);
    for key in [&old, &new] {
        with_key(&admin, key).get("/v1/me").await.expect(200);
    }
    let listed = admin.get("/v1/keys").await.expect(200);
    let replaced =
        listed["data"].as_array().expect("keys").iter().find(|key| key["id"] == old["id"]).expect("listed");
    assert_eq!(replaced["rotated_to"], new["id"]);
    assert!(replaced["expires_at"].is_string(), "{replaced:#}");
    admin.post(&path, &json!({})).await.problem(409, "conflict");

    // An operator does the same for any tenant; without an overlap the old one is over at once.
    let operator = app.operator().await;
    let path = format!("/v1/admin/tenants/{tenant}/keys/{}/rotate", id_of(&new));
    let newest = operator.post(&path, &json!({"overlap_s": 0})).await.expect(201);
    with_key(&admin, &newest).get("/v1/me").await.expect(200);
    with_key(&admin, &new).get("/v1/me").await.problem(401, "unauthenticated");
    let (other, _) = app.tenant("other").await;
    let foreign = format!("/v1/admin/tenants/{other}/keys/{}/rotate", id_of(&newest));
    operator.post(&foreign, &json!({})).await.problem(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_define_roles_of_any_tenant() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let operator = app.operator().await;
    let path = format!("/v1/admin/tenants/{tenant}/roles");
    let role =
        put(&operator, &format!("{path}/robot"), &json!({"scopes": ["calls:read"], "description": "r"}))
            .await;
    assert_eq!(role.expect(200)["given"], false);
    let listed = operator.get(&path).await.expect(200);
    assert_eq!(listed, client.get("/v1/roles").await.expect(200));
    assert_eq!(listed["data"][4]["name"], "robot");
    let key = operator
        .post(&format!("/v1/admin/tenants/{tenant}/keys"), &json!({"name": "x", "role": "robot"}))
        .await;
    assert_eq!(with_key(&client, &key.expect(201)).get("/v1/me").await.expect(200)["role"], "robot");
    let nowhere = "/v1/admin/tenants/ten_06b2m8j0v5x3t9q7k1h4c8n2r8/roles";
    operator.get(nowhere).await.problem(404, "not_found");
    put(&operator, &format!("{nowhere}/x"), &json!({"scopes": []})).await.problem(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_s_calls_and_streams_end_and_its_tenant_s_others_go_on() {
    let app = App::with(|config| config.streams.recheck = Duration::from_millis(100)).await;
    let (tenant, other) = app.tenant("acme").await;
    let (id, client) = app.key(tenant, Scope::tenant_default()).await;
    let mut running = app.running(&client).await;
    running.start().await;
    let session = running.call.session_id.to_string();
    let waiting = client.submit(&session).await;
    let untouched = other.submit(&session).await;
    let mut hints = app.store.bus().subscribe_queue();
    let stream = client.stream(&format!("/v1/calls/{}/events", running.id()), &[]).await;
    assert_eq!(stream.response_status, 200);
    other.delete(&format!("/v1/keys/{id}")).await.expect(200);
    let told = async { while hints.next().await != store::Hint::CancelRequested(running.call.id) {} };
    tokio::time::timeout(Duration::from_secs(30), told).await.expect("its worker is told");
    stream.rest().await;
    let ended = other.get(&format!("/v1/calls/{waiting}")).await.expect(200);
    assert_eq!(
        (&ended["status"], &ended["ended"]["evidence"]["cause"]),
        (&json!("cancelled"), &json!("key_revoked"))
    );
    let reason = app.store.cancel_reason(running.call.id).await.expect("reads").expect("is cancelled");
    assert_eq!(reason.cause, "key_revoked");
    assert_eq!(other.get(&format!("/v1/calls/{untouched}")).await.expect(200)["status"], "queued");
    client.get("/v1/me").await.problem(401, "unauthenticated");

    let path = format!("/v1/admin/tenants/{tenant}");
    let operator = app.operator().await;
    let stream = other.stream(&format!("/v1/calls/{untouched}/events"), &[]).await;
    operator.send(operator.request("PATCH", &path).json(&json!({"status": "suspended"}))).await.expect(200);
    stream.rest().await;
    app.store
        .set_tenant_status(&app.operator, tenant, domain::TenantStatus::Active)
        .await
        .expect("activates");
    let ended = until_some("it is served again", Duration::from_secs(30), async || {
        let reply = other.get(&format!("/v1/calls/{untouched}")).await;
        (reply.status == 200).then(|| reply.expect(200))
    })
    .await;
    assert_eq!(
        (&ended["status"], &ended["ended"]["evidence"]["cause"]),
        (&json!("cancelled"), &json!("tenant_suspended"))
    );
}
