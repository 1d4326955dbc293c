//! Who may call what: every operation of the served document, with every kind of credential that must not open it.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{Scope, TenantStatus};
use serde_json::{Value, json};
use store::testing::{new_shell, until};
use store::{Authenticated, NewShell, SessionFence};

use crate::app::App;
use crate::artifacts::kept;
use crate::client::{Client, Reply, id_of};
use crate::issuer::{Issuer, claims};
use crate::wheels::put;

/// One operation of the document.
#[derive(Debug, Clone)]
struct Operation {
    method: String,
    path: String,
    scopes: Option<Vec<String>>,
    takes_body: bool,
}

async fn operations(app: &App) -> Vec<Operation> {
    let document = Client::new(&app.base, "").get("/openapi.json").await.expect(200);
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let scopes = operation["security"][0]["bearer"].as_array();
            let scopes = scopes.map(|scopes| {
                scopes.iter().map(|scope| scope.as_str().expect("a scope").to_owned()).collect()
            });
            operations.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                scopes,
                takes_body: operation.get("requestBody").is_some(),
            });
        }
    }
    operations
}

impl Operation {
    /// Asks, with these ids in the path and a body that would be acceptable.
    async fn ask(&self, client: &Client, ids: &BTreeMap<&str, String>) -> Reply {
        let mut path = self.path.clone();
        for (name, id) in ids {
            path = path.replace(&format!("{{{name}}}"), id);
        }
        assert!(!path.contains('{'), "no id for {path}");
        let mut request = client.request(&self.method, &path);
        if self.takes_body {
            request = request.json(&self.body());
        }
        client.send(request).await
    }

    fn body(&self) -> Value {
        let call = json!({"tool": "bash", "arguments": {"command": "true"}});
        match (self.method.as_str(), self.path.as_str()) {
            ("POST", "/v1/calls" | "/v1/sessions/{session_id}/calls") => call,
            ("POST", "/v1/sessions/{session_id}/calls/batch") => json!({"calls": [call]}),
            ("POST", "/v1/sessions/{session_id}/tool_results") => json!({
                "format": "anthropic", "wait_ms": 0,
                "tool_calls": [{"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "true"}}],
            }),
            ("POST", "/v1/policies/explain") => json!({"tool": "bash"}),
            ("POST", "/v1/admin/tenants" | "/v1/admin/tenants/{tenant_id}/keys") => json!({"name": "x"}),
            ("POST", "/v1/admin/tenants/{tenant_id}/erasure") => json!({"confirm": "x"}),
            ("PUT", "/v1/roles/{role}" | "/v1/admin/tenants/{tenant_id}/roles/{role}") => {
                json!({"scopes": []})
            }
            ("POST", "/v1/keys") => json!({"name": "x"}),
            ("POST", "/v1/sessions/{session_id}/shells") => json!({"command": "true"}),
            ("POST", "/v1/sessions/{session_id}/files/move") => json!({"path": "a", "to": "b"}),
            ("POST", "/v1/sessions/{session_id}/files/mkdir") => json!({"path": "a"}),
            ("POST", "/v1/sessions/{session_id}/shells/{shell_id}/input") => json!({"text": "x"}),
            ("POST", "/v1/sessions/{session_id}/shells/{shell_id}/signal") => json!({"signal": "INT"}),
            ("POST", "/v1/sessions/{session_id}/shells/{shell_id}/resize") => json!({"rows": 24, "cols": 80}),
            _ => json!({}),
        }
    }

    /// Whose things the path names. A new kind of thing fails here until somebody says whose it is.
    fn named(&self) -> Vec<Owner> {
        let placeholders = self.path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
        placeholders
            .map(|(name, _)| {
                let known = OWNERS.iter().find(|(known, _)| *known == name);
                known.unwrap_or_else(|| panic!("whose is {{{name}}} of {self:?}?")).1
            })
            .collect()
    }
}

/// Whose the things are that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A tenant's: nobody else sees that they are there.
    Tenant,
    /// A name in the tenant's own world: another's of the same name is another thing.
    Name,
    /// The operators'.
    Operators,
    /// Everybody's.
    Everybody,
}

/// Every placeholder of the document's paths.
const OWNERS: &[(&str, Owner)] = &[
    ("session_id", Owner::Tenant),
    ("call_id", Owner::Tenant),
    ("shell_id", Owner::Tenant),
    ("context_id", Owner::Tenant),
    ("artifact_id", Owner::Tenant),
    ("key_id", Owner::Tenant),
    ("shell_name", Owner::Name),
    ("role", Owner::Name),
    ("file_name", Owner::Name),
    ("tenant_id", Owner::Operators),
    ("host_id", Owner::Operators),
    ("name", Owner::Everybody),
    ("code", Owner::Everybody),
    ("file", Owner::Everybody),
];

fn nowhere() -> BTreeMap<&'static str, String> {
    let id = "06b2m8j0v5x3t9q7k1h4c8n2rg";
    [
        ("session_id", "sess"),
        ("call_id", "call"),
        ("shell_id", "shell"),
        ("context_id", "ctx"),
        ("artifact_id", "art"),
        ("tenant_id", "ten"),
        ("key_id", "key"),
        ("host_id", "host"),
    ]
    .into_iter()
    .map(|(name, prefix)| (name, format!("{prefix}_{id}")))
    .chain(
        [
            ("name", "bash"),
            ("code", "not_found"),
            ("file", "docs.css"),
            ("role", "theirs"),
            ("shell_name", "main"),
            ("file_name", "theirs-1.0-py3-none-any.whl"),
        ]
        .map(|(name, id)| (name, id.to_owned())),
    )
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_opens_without_a_valid_key() {
    let app = App::start().await;
    let (tenant, good) = app.tenant("acme").await;
    let (revoked, revoked_client) = app.key(tenant, Scope::tenant_default()).await;
    app.store.revoke_key(&app.operator, revoked).await.expect("revokes");
    let mut tampered = good.key.clone();
    let last = if tampered.pop() == Some('0') { '1' } else { '0' };
    tampered.push(last);
    let keys = ["", "x", "th_", &tampered, &revoked_client.key, &"y".repeat(4_000), "th_\u{301}"];
    let ids = nowhere();
    for operation in operations(&app).await.iter().filter(|operation| operation.scopes.is_some()) {
        let mut bodies = Vec::new();
        for key in keys {
            let Ok(_) = reqwest::header::HeaderValue::from_str(key) else { continue };
            let reply = operation.ask(&good.with_key(key), &ids).await;
            assert!(reply.header("www-authenticate").starts_with("Bearer"), "{operation:?} {key}");
            let mut problem = reply.problem(401, "unauthenticated");
            problem["request_id"].take();
            bodies.push(problem);
        }
        assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "the answer says nothing of the key");
        // A key in the query is no key.
        let by_query = operation.path.replace(['{', '}'], "") + "?token=" + &good.key;
        let reply = good.with_key("").get(&by_query).await;
        assert!(matches!(reply.status, 401 | 404 | 405), "{operation:?}: {}", reply.status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_asks_for_its_scope() {
    let app = App::start().await;
    let (tenant, everything) = app.tenant("acme").await;
    let (operator, ids) = (app.operator().await, nowhere());
    let mut without = BTreeMap::new();
    for scope in Scope::tenant_default() {
        let others = Scope::tenant_default().into_iter().filter(|other| *other != scope).collect();
        without.insert(scope.as_str(), app.key(tenant, others).await.1);
    }
    for operation in operations(&app).await {
        let Some(scopes) = &operation.scopes else {
            let reply = operation.ask(&everything.with_key(""), &ids).await;
            assert_eq!(reply.status, 200, "{operation:?} is public");
            continue;
        };
        match scopes.first().map(String::as_str) {
            None => assert_eq!(operation.path, "/v1/me"),
            Some("operator") => {
                operation.ask(&everything, &ids).await.problem(403, "insufficient_scope");
            }
            Some(scope) => {
                let problem = operation.ask(&without[scope], &ids).await.problem(403, "insufficient_scope");
                assert_eq!(problem["required_scope"], scope);
                operation.ask(&operator, &ids).await.problem(403, "insufficient_scope");
                let status = operation.ask(&everything, &ids).await.status;
                assert!(!matches!(status, 401 | 403) && status < 500, "{operation:?}: {status}");
            }
        }
    }
    let audit = everything.get("/v1/audit?limit=5").await.expect(200);
    assert_eq!(audit["data"][0]["allowed"], false, "{audit:#}");
}

/// A shell that a call has started, as its worker records it.
async fn shell_of(app: &App, client: &Client, call: &domain::Call) -> String {
    let Ok(Authenticated::Tenant(context)) = app.store.authenticate(&client.key, None).await else {
        panic!("a tenant's key")
    };
    let session = app.store.get_session(&context, call.session_id).await.expect("a session");
    let fence = SessionFence::of(&session).expect("has a worker");
    let new = NewShell { operation: 1, ..new_shell(&app.store, call.id) };
    app.store.create_shell(&fence, new).await.expect("a shell").id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_another_tenants_looks_like_nothing() {
    let app = App::start().await;
    let (_, ours) = app.tenant("ours").await;
    let (theirs_id, theirs) = app.tenant("theirs").await;
    let role = theirs.request("PUT", "/v1/roles/theirs").json(&json!({"scopes": ["calls:read"]}));
    theirs.send(role).await.expect(200);
    let key = theirs.post("/v1/keys", &json!({"name": "x"})).await.expect(201);
    let wheel = put(&theirs, "theirs-1.0-py3-none-any.whl", b"PK\x03\x04").await.expect(201);
    let running = app.running(&theirs).await;
    let artifact_id = kept(&app, &running, "secret", b"secret").await;
    let call_id = running.id();
    let session_id = running.call.session_id.to_string();
    let shell_id = shell_of(&app, &theirs, &running.call).await;
    let shell = format!("/v1/sessions/{session_id}/shells/{shell_id}");
    assert_eq!(theirs.get(&shell).await.expect(200)["status"], "running");
    running.finish().await;
    let contexts = format!("/v1/sessions/{session_id}/contexts");
    let context_id = id_of(&theirs.post(&contexts, &json!({"name": "main"})).await.expect(201));
    let mut ids = nowhere();
    ids.insert("call_id", call_id);
    ids.insert("artifact_id", artifact_id);
    ids.insert("session_id", session_id.clone());
    ids.insert("shell_id", shell_id);
    ids.insert("context_id", context_id.clone());
    ids.insert("tenant_id", theirs_id.to_string());
    ids.insert("key_id", key["id"].as_str().expect("an id").to_owned());
    for operation in operations(&app).await {
        let owners = operation.named();
        if owners.contains(&Owner::Name) && !owners.contains(&Owner::Operators) {
            operation.ask(&ours, &ids).await;
        }
        if !owners.contains(&Owner::Tenant) || owners.contains(&Owner::Operators) {
            continue;
        }
        let foreign = operation.ask(&ours, &ids).await.problem(404, "not_found");
        let absent = operation.ask(&ours, &nowhere()).await.problem(404, "not_found");
        assert_eq!(foreign["detail"], absent["detail"], "{operation:?}");
    }
    // Their things in a session of ours are nothing either.
    let session = ours.session().await;
    let (mut mixed, mut empty) = (ids.clone(), nowhere());
    mixed.insert("session_id", session.clone());
    empty.insert("session_id", session.clone());
    let mut asked = 0;
    for operation in operations(&app).await {
        let of_tenant = operation.named().iter().filter(|owner| **owner == Owner::Tenant).count();
        if of_tenant < 2 || operation.named().contains(&Owner::Operators) {
            continue;
        }
        asked += 1;
        let foreign = operation.ask(&ours, &mixed).await.problem(404, "not_found");
        let absent = operation.ask(&ours, &empty).await.problem(404, "not_found");
        assert_eq!(foreign["detail"], absent["detail"], "{operation:?}");
    }
    assert!(asked >= 8, "shells and contexts are named within sessions: {asked}");
    assert_eq!(theirs.get(&shell).await.expect(200)["status"], "running", "nothing was touched");
    assert_eq!(theirs.get(&contexts).await.expect(200)["data"][0]["id"], context_id);
    let their_key = theirs.get("/v1/me").await.expect(200)["key_id"].clone();
    for filter in [
        format!("/v1/calls?session_id={session_id}"),
        format!("/v1/artifacts?session_id={session_id}"),
        format!("/v1/artifacts?call_id={}", ids["call_id"]),
        format!("/v1/audit?target={session_id}"),
        format!("/v1/audit?principal={}", their_key.as_str().expect("an id")),
    ] {
        assert_ne!(theirs.get(&filter).await.expect(200)["data"], json!([]), "{filter}");
        assert_eq!(ours.get(&filter).await.expect(200)["data"], json!([]), "{filter}");
    }
    let by_session = ours.get("/v1/usage?group=session").await.expect(200);
    assert!(!by_session.to_string().contains(&session_id), "{by_session:#}");
    let roles = theirs.get("/v1/roles").await.expect(200);
    assert_eq!(roles["data"][4]["scopes"], json!(["calls:read"]), "theirs is as it was");
    assert_eq!(theirs.get("/v1/wheels").await.expect(200)["data"], json!([wheel]));
    assert!(theirs.with_key(key["key"].as_str().expect("a key")).get("/v1/me").await.status == 200);
    for list in ["/v1/calls", "/v1/artifacts", "/v1/wheels"] {
        assert_eq!(ours.get(list).await.expect(200)["data"], json!([]));
    }
    assert_eq!(crate::app::ids(&ours.get("/v1/sessions").await.expect(200)), std::slice::from_ref(&session));
    let after = json!({"tool": "bash", "arguments": {"command": "true"}, "after": ids["call_id"]});
    let path = format!("/v1/sessions/{session}/calls");
    let problem = ours.post(&path, &after).await.problem(422, "invalid_arguments");
    assert_eq!(problem["errors"][0]["pointer"], "/after");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_tenant_and_a_revoked_key_are_refused_within_seconds() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let (key, other) = app.key(tenant, Scope::tenant_default()).await;
    assert_eq!(client.get("/v1/me").await.expect(200)["tenant_id"], tenant.to_string());
    assert_eq!(other.get("/v1/me").await.status, 200);
    app.store.revoke_key(&app.operator, key).await.expect("revokes");
    refused_within_seconds(&other, 401).await;
    let admin = app.operator().await;
    let path = format!("/v1/admin/tenants/{tenant}");
    let suspended = admin.send(admin.request("PATCH", &path).json(&json!({"status": "suspended"}))).await;
    assert_eq!(suspended.expect(200)["status"], "suspended");
    refused_within_seconds(&client, 403).await;
    client.get("/v1/me").await.problem(403, "tenant_suspended");
    app.store.set_tenant_status(&app.operator, tenant, TenantStatus::Active).await.expect("activates");
}

async fn refused_within_seconds(client: &Client, status: u16) {
    until("it is refused", Duration::from_secs(30), async || client.get("/v1/me").await.status == status)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_opens_for_a_suspended_tenant_or_an_expired_token() {
    let issuer = Issuer::new();
    let app = App::with(|config| config.issuers = vec![issuer.config()]).await;
    let (tenant, key) = app.tenant("acme").await;
    let (suspended, _) = app.tenant("suspended").await;
    let (_, of_suspended) = app.key(suspended, Scope::tenant_default()).await;
    app.store.set_tenant_status(&app.operator, suspended, TenantStatus::Suspended).await.expect("suspends");
    let with = |id: &str, seconds| key.with_key(&issuer.token(&claims(id, seconds)));
    let expired = with(&tenant.to_string(), -1);
    let token_of_suspended = with(&suspended.to_string(), 600);
    with(&tenant.to_string(), 600).get("/v1/me").await.expect(200);
    let ids = nowhere();
    for operation in operations(&app).await.iter().filter(|operation| operation.scopes.is_some()) {
        operation.ask(&expired, &ids).await.problem(401, "unauthenticated");
        for client in [&of_suspended, &token_of_suspended] {
            operation.ask(client, &ids).await.problem(403, "tenant_suspended");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_make_tenants_and_keys_over_http() {
    let app = App::start().await;
    let admin = app.operator().await;
    let me = admin.get("/v1/me").await.expect(200);
    assert_eq!((&me["tenant_id"], &me["scopes"]), (&Value::Null, &json!(["operator"])));
    let created = admin.post("/v1/admin/tenants", &json!({"name": "acme", "metadata": {"plan": "x"}})).await;
    let tenant = created.expect(201);
    let path = created.header("location").to_owned();
    assert_eq!(admin.get(&path).await.expect(200), tenant);
    admin.post("/v1/admin/tenants", &json!({"name": "acme"})).await.problem(409, "conflict");
    let with_key = admin.request("POST", "/v1/admin/tenants").header("idempotency-key", "k");
    admin.send(with_key.json(&json!({"name": "other"}))).await.problem(400, "invalid_request");

    let body = json!({"name": "reader", "scopes": ["calls:read"]});
    let key = admin.post(&format!("{path}/keys"), &body).await.expect(201);
    let text = key["key"].as_str().expect("shown once").to_owned();
    let client = Client::new(&app.base, &text);
    assert_eq!(client.get("/v1/me").await.expect(200)["scopes"], json!(["calls:read"]));
    let listed = admin.get(&format!("{path}/keys")).await.expect(200);
    assert_eq!(listed["data"][0]["id"], key["id"]);
    assert!(!listed.to_string().contains(&text));
    for body in [
        json!({"name": "x", "scopes": ["operator"]}),
        json!({"name": "x", "scopes": ["calls"]}),
        json!({"name": ""}),
        json!({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}),
    ] {
        admin.post(&format!("{path}/keys"), &body).await.problem(422, "invalid_arguments");
    }
    let revoked = admin.delete(&format!("{path}/keys/{}", key["id"].as_str().expect("an id"))).await;
    assert!(revoked.expect(200)["revoked_at"].is_string());
    let (other, _) = app.tenant("other").await;
    let foreign = format!("/v1/admin/tenants/{other}/keys/{}", key["id"].as_str().expect("an id"));
    admin.delete(&foreign).await.problem(404, "not_found");
    assert_eq!(admin.get("/v1/admin/tenants?limit=1").await.expect(200)["has_more"], true);
}
