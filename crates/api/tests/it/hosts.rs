//! Hosts, quotas that are used up, and what a tenant keeps, as operators and tenants meet them.

use serde_json::{Value, json};
use store::testing::until_some;
use store::{EngineState, HostCapacity, Metered, Sealed};

use crate::app::{App, ended_call};
use crate::client::{Client, Reply};

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_listed_cordoned_drained_and_opened() {
    let app = App::start().await;
    let (admin, client) = (app.operator().await, app.client().await);
    let host = app.store.register_host("here").await.expect("a host");
    let capacity = HostCapacity { memory_mb: Some(1_024), cpu_overcommit: 1.0, ..HostCapacity::default() };
    app.store.set_host_capacity(host, capacity).await.expect("is said");
    app.worker().await;
    client.session().await;
    client.session().await;
    let refused = client.post("/v1/sessions", &json!({})).await;
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(refused.problem(503, "capacity")["reason"], "full");
    let listed = admin.get("/v1/admin/hosts").await.expect(200)["data"][0].clone();
    assert_eq!((&listed["name"], &listed["schedule"]), (&json!("here"), &json!("open")));
    assert_eq!(
        listed["capacity"],
        json!({"cpus": null, "memory_mb": 1024, "disk_mb": null, "sandboxes": null})
    );
    assert_eq!((&listed["sessions"]["memory_mb"], &listed["workers"]), (&json!(1024), &json!(1)));

    let path = format!("/v1/admin/hosts/{host}");
    let cordoned = admin.post(&format!("{path}/cordon"), &json!({})).await.expect(200);
    assert_eq!(cordoned["schedule"], "cordoned");
    assert_eq!(client.post("/v1/sessions", &json!({})).await.problem(503, "capacity")["reason"], "cordoned");
    let drained = admin.post(&format!("{path}/drain"), &json!({"within_s": 60})).await.expect(200);
    assert!(drained["schedule"] == "draining" && drained["drain_by_at"].is_string(), "{drained:#}");
    admin
        .post(&format!("{path}/drain"), &json!({"within_s": 9_999_999}))
        .await
        .problem(422, "limit_exceeded");
    let opened = admin.post(&format!("{path}/uncordon"), &json!({})).await.expect(200);
    assert_eq!((&opened["schedule"], &opened["drain_by_at"]), (&json!("open"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_no_engine_could_take_are_refused_with_a_time_to_wait() {
    let app = App::start().await;
    let (admin, client) = (app.operator().await, app.client().await);
    let worker = app.worker().await;
    assert_eq!(admin.get("/v1/admin/hosts").await.expect(200)["data"][0]["engine"], "works");
    let session = client.session().await;
    app.store.set_worker_engine(worker.id(), EngineState::Down, None).await.expect("is said");
    assert_eq!(admin.get("/v1/admin/hosts").await.expect(200)["data"][0]["engine"], "down");
    let call = json!({"tool": "bash", "arguments": {"command": "true"}});
    for (path, body) in [("/v1/sessions", json!({})), ("/v1/calls", call.clone())] {
        let refused = client.post(path, &body).await;
        assert_eq!(refused.header("retry-after"), "5", "{path}");
        assert_eq!(refused.problem(503, "engine_unavailable")["retryable"], true);
    }
    // What is there goes on.
    client.post(&format!("/v1/sessions/{session}/calls"), &call).await.expect(202);
    let runtimes = ["runsc".to_owned()];
    app.store.set_worker_engine(worker.id(), EngineState::Works, Some(&runtimes)).await.expect("is said");
    let refused = client.post("/v1/sessions", &json!({})).await;
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(refused.problem(503, "capacity")["reason"], "no_runtime");
}

#[tokio::test(flavor = "multi_thread")]
async fn cpu_hours_of_a_day_are_a_quota_that_says_when_it_resets() {
    let app = App::start().await;
    let admin = app.operator().await;
    let new = json!({"name": "acme", "policy": {"limits": {"cpu_hours_per_day": 0.5}}});
    let tenant = admin.post("/v1/admin/tenants", &new).await.expect(201)["id"].clone();
    let id = tenant.as_str().and_then(|id| id.parse().ok()).expect("an id");
    let (_, client) = app.key(id, domain::Scope::tenant_default()).await;
    assert_eq!(client.get("/v1/me").await.expect(200)["limits"]["cpu_hours_per_day"], 0.5);
    let call = ended_call(&app, &client, &[]).await;
    let session = client.get(&format!("/v1/calls/{call}")).await.expect(200)["session_id"].clone();
    let path = format!("/v1/sessions/{}/calls", session.as_str().expect("an id"));
    let body = json!({"tool": "bash", "arguments": {"command": "true"}});
    let with_key = async |client: &Client, key: &str| {
        client.send(client.request("POST", &path).header("idempotency-key", key).json(&body)).await
    };
    with_key(&client, "before").await.expect(202);
    while !matches!(app.store.seal_audit().await.expect("seals"), Sealed::Everything(0)) {}
    while app.store.meter_usage().await.expect("meters") != Metered::Nothing {}
    app.database.execute("UPDATE usage_calls SET cpu_ms = 3600000").await.expect("changes");
    // What is known of usage is as old as two seconds.
    let refused = not_taken(&client, &path, &body).await;
    assert!(!refused.header("retry-after").is_empty());
    let problem = refused.problem(429, "quota_exceeded");
    assert_eq!(
        (&problem["quota"], &problem["limit"], &problem["used"]),
        (&json!("cpu_hours_per_day"), &json!(0.5), &json!(1.0))
    );
    assert!(problem["resets_at"].as_str().is_some_and(|at| at.contains("T00:00:00")), "{problem:#}");
    // What was taken on before is still answered, and the refusal is in the trail.
    assert_eq!(with_key(&client, "before").await.header("idempotent-replayed"), "true");
    let trail = client.get("/v1/audit?allowed=false&action=call.submit").await.expect(200);
    assert_eq!(trail["data"][0]["reason"], "quota_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_installation_s_own_cap_of_cpu_hours_holds_too() {
    let app = App::start().await;
    let client = app.client().await;
    let most = client.get("/v1/me").await.expect(200)["limits"]["cpu_hours_per_day"].clone();
    assert_eq!(most, json!(domain::limits::CPU_HOURS_PER_DAY));
    ended_call(&app, &client, &[]).await;
    while !matches!(app.store.seal_audit().await.expect("seals"), Sealed::Everything(0)) {}
    while app.store.meter_usage().await.expect("meters") != Metered::Nothing {}
    app.database.execute("UPDATE usage_calls SET cpu_ms = 24000 * 3600000::bigint").await.expect("changes");
    let path = format!("/v1/sessions/{}/calls", client.session().await);
    let body = json!({"tool": "bash", "arguments": {"command": "true"}});
    let refused = not_taken(&client, &path, &body).await;
    assert_eq!(refused.problem(429, "quota_exceeded")["quota"], "cpu_hours_per_day");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sets_what_a_tenant_keeps() {
    let app = App::start().await;
    let (admin, (tenant, _)) = (app.operator().await, app.tenant("acme").await);
    let path = format!("/v1/admin/tenants/{tenant}");
    let patch = |body: Value| admin.send(admin.request("PATCH", &path).json(&body));
    let set = patch(json!({"retention": {"calls_days": 10, "output_days": 1}})).await.expect(200);
    assert_eq!(set["retention"], json!({"calls_days": 10, "events_days": null, "output_days": 1}));
    assert_eq!(admin.get(&path).await.expect(200), set);
    patch(json!({"retention": {"calls_days": 0}})).await.problem(422, "invalid_arguments");
    patch(json!({"retention": {"days": 1}})).await.problem(422, "invalid_arguments");
}

/// The answer to a call once it is not taken any more.
async fn not_taken(client: &Client, path: &str, body: &Value) -> Reply {
    until_some("it is refused", std::time::Duration::from_secs(30), async || {
        Some(client.post(path, body).await).filter(|reply| reply.status != 202)
    })
    .await
}
