//! What one tenant reads says nothing of another: every operation of the served document that reads, lists and sums included.
//!
//! What a tenant without anything is answered is compared before and after another one has something of every kind. And what that
//! other one is answered must be something else, so that a new list that nobody has put anything into fails here.

use std::collections::BTreeMap;

use domain::TenantId;
use serde_json::{Value, json};
use store::testing::new_shell;
use store::{Authenticated, Metered, NewShell, Sealed, SessionFence};

use crate::app::{App, Running};
use crate::artifacts::kept;
use crate::client::{Client, Reply, id_of};

/// Lists that are everybody's.
const EVERYBODYS: [&str; 3] = ["/v1/tools", "/v1/tools/{name}", "/v1/toolkits"];
/// Fields that change by themselves.
const CHANGING: [&str; 8] =
    ["from", "to", "seconds", "gb_seconds", "requests", "last_used_at", "last_active_at", "seal"];

/// An operation that reads.
struct Reading {
    path: String,
    /// Names of what its path has, and of what its query may have.
    named: Vec<String>,
    query: Vec<String>,
}

/// All that a tenant may ask for, from the served document.
async fn readings(app: &App) -> Vec<Reading> {
    let document = Client::new(&app.base, "").get("/openapi.json").await.expect(200);
    let mut readings = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let operation = &item["get"];
        let Some(scopes) = operation["security"][0]["bearer"].as_array() else { continue };
        if scopes.contains(&json!("operator")) {
            continue;
        }
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let of = |place: &str| {
            let all = parameters.iter().filter(|parameter| parameter["in"] == place);
            all.map(|parameter| parameter["name"].as_str().expect("a name").to_owned()).collect()
        };
        readings.push(Reading { path: path.clone(), named: of("path"), query: of("query") });
    }
    assert!(readings.len() >= 30, "{}", readings.len());
    // Sums by what are other sums.
    let by =
        |group| Reading { path: format!("/v1/usage?group={group}"), named: Vec::new(), query: Vec::new() };
    readings.into_iter().chain(["day", "session"].map(by)).collect()
}

impl Reading {
    fn path(&self, ids: &BTreeMap<&'static str, String>) -> String {
        let mut path = self.path.clone();
        for name in &self.named {
            let id = ids.get(name.as_str()).unwrap_or_else(|| panic!("what is {{{name}}} of {path}?"));
            path = path.replace(&format!("{{{name}}}"), id);
        }
        // What has to be said of a file to be asked for it at all.
        if self.path.contains("/files") { path + "?path=a" } else { path }
    }

    async fn ask(&self, client: &Client, ids: &BTreeMap<&'static str, String>) -> Reply {
        client.get(&self.path(ids)).await
    }
}

/// Without what changes by itself.
fn still(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                *field = if CHANGING.contains(&name.as_str()) { Value::Null } else { still(field.take()) };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = still(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

/// Something of every kind, by the names that paths and queries have for it.
async fn something_of_all(app: &App, theirs_id: TenantId, theirs: &Client) -> BTreeMap<&'static str, String> {
    let role = theirs.request("PUT", "/v1/roles/theirs").json(&json!({"scopes": ["calls:read"]}));
    theirs.send(role).await.expect(200);
    let key = theirs.post("/v1/keys", &json!({"name": "their key"})).await.expect(201);
    let put = theirs.request("PUT", "/v1/wheels/theirs-1.0-py3-none-any.whl").body("PK\u{3}\u{4}");
    theirs.send(put).await.expect(201);
    let mut running = app.running(theirs).await;
    running.start().await;
    running.write(&[b"their output\n"]).await;
    let artifact_id = kept(app, &running, "their artifact", b"their content").await;
    let call_id = running.id();
    let session_id = running.call.session_id.to_string();
    let shell_id = their_shells(app, theirs, &running).await;
    running.finish().await;
    let contexts = format!("/v1/sessions/{session_id}/contexts");
    let context_id = id_of(&theirs.post(&contexts, &json!({"name": "theirs"})).await.expect(201));
    // Something that is refused, for who asks what could go better.
    let few = json!({"policy": {"limits": {"sessions": 1}}});
    let admin = app.operator().await;
    let path = format!("/v1/admin/tenants/{theirs_id}");
    admin.send(admin.request("PATCH", &path).json(&few)).await.expect(200);
    store::testing::until("the limit holds", std::time::Duration::from_secs(60), async || {
        theirs.post("/v1/sessions", &json!({})).await.status == 429
    })
    .await;
    let earlier = "UPDATE sessions SET started_at = date_trunc('hour', now(), 'UTC') - interval '3 hours';
        UPDATE usage_meter SET closed_until = date_trunc('hour', now(), 'UTC') - interval '4 hours'";
    app.database.execute(earlier).await.expect("changes");
    while !matches!(app.store.seal_audit().await.expect("seals"), Sealed::Everything(0)) {}
    while app.store.meter_usage().await.expect("meters") != Metered::Nothing {}
    BTreeMap::from([
        ("session_id", session_id),
        ("call_id", call_id),
        ("shell_id", shell_id),
        ("context_id", context_id),
        ("artifact_id", artifact_id),
        ("key_id", id_of(&key)),
        ("tenant_id", theirs_id.to_string()),
        ("shell_name", "theirs".to_owned()),
        ("role", "theirs".to_owned()),
        ("name", "bash".to_owned()),
        ("target", String::new()),
    ])
}

/// A shell, and one that has a name, as their worker records them.
async fn their_shells(app: &App, theirs: &Client, running: &Running) -> String {
    let Ok(Authenticated::Tenant(context)) = app.store.authenticate(&theirs.key, None).await else {
        panic!("a tenant's key")
    };
    let session = app.store.get_session(&context, running.call.session_id).await.expect("a session");
    let fence = SessionFence::of(&session).expect("has a worker");
    let new = NewShell {
        operation: 1,
        command: "their command".to_owned(),
        ..new_shell(&app.store, running.call.id)
    };
    let shell = app.store.create_shell(&fence, new).await.expect("a shell");
    let name = "theirs".parse().expect("a name");
    app.store.named_shell_for_call(&fence, &name, running.call.id).await.expect("a named shell");
    shell.id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_reading_tells_one_tenant_of_another() {
    let app = App::start().await;
    let (_, ours) = app.tenant("ours").await;
    let (theirs_id, theirs) = app.tenant("theirs").await;
    let readings = readings(&app).await;
    // What depends on no thing of a tenant's: lists, sums, and who one is.
    let (lists, things): (Vec<_>, Vec<_>) =
        readings.iter().partition(|reading| reading.named.iter().all(|name| name == "name"));
    assert!(lists.len() >= 12 && things.len() >= 15, "{} and {}", lists.len(), things.len());
    let general = BTreeMap::from([("name", "bash".to_owned())]);
    let mut before = Vec::new();
    for list in &lists {
        before.push(still(list.ask(&ours, &general).await.expect(200)));
    }
    let ids = something_of_all(&app, theirs_id, &theirs).await;

    for (list, before) in lists.iter().zip(before) {
        let after = still(list.ask(&ours, &general).await.expect(200));
        assert_eq!(after, before, "{} tells of another tenant", list.path);
        let of_theirs = still(list.ask(&theirs, &general).await.expect(200));
        assert_eq!(
            of_theirs == after,
            EVERYBODYS.contains(&list.path.as_str()),
            "{}: make something of it for `theirs`, or say that it is everybody's: {of_theirs:#}",
            list.path
        );
    }
    let mut by_thing = 0;
    for list in &lists {
        // As filters their things find nothing, and what finds something for them is their own.
        for name in list.query.iter().filter(|name| ids.contains_key(name.as_str()) && *name != "name") {
            let target = if name == "target" { &ids["session_id"] } else { &ids[name.as_str()] };
            let path = format!("{}?{name}={target}", list.path);
            assert_eq!(ours.get(&path).await.expect(200)["data"], json!([]), "{path}");
            assert_ne!(theirs.get(&path).await.expect(200)["data"], json!([]), "{path}");
            by_thing += 1;
        }
    }
    assert!(by_thing >= 4, "lists are filtered by things: {by_thing}");
    for thing in things {
        let foreign = thing.ask(&ours, &ids).await.problem(404, "not_found");
        let (path, text) = (thing.path(&ids), foreign.to_string());
        assert!(!text.contains("their "), "{path}: {text}");
        // It is there, only not for us. For files there would have to be a sandbox, which none is here.
        if !path.contains("/files") {
            let status = thing.ask(&theirs, &ids).await.status;
            assert!(!matches!(status, 401 | 403 | 404 | 405), "{path}: {status}");
        }
    }
}
