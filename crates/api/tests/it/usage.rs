//! What a tenant reads of its usage, and an operator of everybody's.

use domain::Scope;
use serde_json::{Value, json};
use store::{Metered, Sealed};

use crate::app::{App, ended_call, succeeded};

async fn meter(app: &App) {
    while !matches!(app.store.seal_audit().await.expect("seals"), Sealed::Everything(0)) {}
    while app.store.meter_usage().await.expect("meters") != Metered::Nothing {}
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_read_by_tool_day_and_session() {
    let app = App::start().await;
    let (_, client) = app.tenant("acme").await;
    let call = ended_call(&app, &client, &[b"hello"]).await;
    let (_, other) = app.tenant("other").await;
    ended_call(&app, &other, &[]).await;
    meter(&app).await;

    let usage = client.get("/v1/usage").await.expect(200);
    assert_eq!(
        (&usage["object"], &usage["group"], &usage["total"]["calls"]),
        (&json!("usage"), &json!("tool"), &json!(1))
    );
    assert_eq!(usage["data"][0]["key"], "bash");
    let figures = &usage["data"][0]["figures"];
    assert_eq!(
        (&figures["succeeded"], &figures["error_rate"], &figures["p50_ms"]),
        (&json!(1), &json!(0.0), &json!(5))
    );
    assert_eq!(figures["duration_seconds"], json!(0.005));

    let day = client.get("/v1/usage?group=day").await.expect(200);
    assert_eq!(day["data"][0]["key"].as_str().map(str::len), Some("2026-03-01".len()));
    let session = client.get(&format!("/v1/calls/{call}")).await.expect(200)["session_id"].clone();
    let by_session = client.get("/v1/usage?group=session&limit=1").await.expect(200);
    assert_eq!((&by_session["data"][0]["key"], &by_session["has_more"]), (&session, &json!(false)));
    let session = session.as_str().expect("an id");
    let alone = client.get(&format!("/v1/sessions/{session}/usage")).await.expect(200);
    assert_eq!((&alone["total"], &alone["session_id"]), (&usage["total"], &json!(session)));
    assert!(alone["sessions"]["seconds"]["small"].is_number(), "{alone:#}");
    other.get(&format!("/v1/sessions/{session}/usage")).await.problem(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_hours_are_exported_to_the_tenant_and_to_the_operator() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    ended_call(&app, &client, &[b"hello"]).await;
    let earlier = "UPDATE sessions SET started_at = date_trunc('hour', now(), 'UTC') - interval '3 hours';
        UPDATE usage_meter SET closed_until = date_trunc('hour', now(), 'UTC') - interval '4 hours'";
    app.database.execute(earlier).await.expect("changes");
    meter(&app).await;
    let page = client.get("/v1/usage/hours?limit=1").await.expect(200);
    let hour = &page["data"][0];
    assert_eq!((&hour["object"], &hour["tenant_id"]), (&json!("usage_hour"), &json!(tenant.to_string())));
    assert_eq!(hour["sessions"], json!({"seconds": {"small": 3600.0}, "gb_seconds": 1800.0}));
    let cursor = page["next_cursor"].as_str().expect("there are more");
    let next = client.get(&format!("/v1/usage/hours?limit=1&cursor={cursor}")).await.expect(200);
    assert!(next["data"][0]["started_at"].as_str() > hour["started_at"].as_str(), "oldest first");
    let (_, other) = app.tenant("other").await;
    assert_eq!(other.get("/v1/usage/hours").await.expect(200)["data"], json!([]));
    other.get(&format!("/v1/usage/hours?limit=1&cursor={cursor}")).await.problem(400, "invalid_cursor");

    let admin = app.operator().await;
    let all = admin.get("/v1/admin/usage?limit=1").await.expect(200);
    assert_eq!(&all["data"][0], hour);
    let none =
        admin.get(&format!("/v1/admin/usage?tenant={}", client_tenant(&other).await)).await.expect(200);
    assert_eq!(none["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_hours_outlive_the_calls_that_they_count() {
    // As if the retention of all of them were over: what `drop_old` does of days that are.
    const OVER: &str = "SELECT toolhost_drop_partitions(parent, (now() AT TIME ZONE 'UTC')::date + 1)
        FROM (VALUES ('call_events'), ('output_chunks'), ('calls')) AS tables (parent)";
    // An hour can be closed a minute after its end: the call ended in the last but one, and the meter begins in front of that.
    const EARLIER: &str = "ALTER TABLE calls DISABLE TRIGGER calls_terminal_stays;
        UPDATE calls SET ended_at = date_trunc('hour', now(), 'UTC') - interval '90 minutes';
        ALTER TABLE calls ENABLE TRIGGER calls_terminal_stays;
        UPDATE sessions SET started_at = date_trunc('hour', now(), 'UTC') - interval '2 hours';
        UPDATE usage_meter SET closed_until = date_trunc('hour', now(), 'UTC') - interval '3 hours'";
    let app = App::start().await;
    let (_, client) = app.tenant("acme").await;
    let mut running = app.running(&client).await;
    running.start().await;
    running.write(&[b"hello"]).await;
    let (id, session) = (running.id(), running.call.session_id);
    let mut outcome = succeeded();
    outcome.usage = domain::CallUsage { cpu_ms: 1_500, bytes_out: 5, duration_ms: 7, ..outcome.usage };
    running.finish_with(outcome).await;
    app.database.execute(EARLIER).await.expect("changes");
    meter(&app).await;
    let hours = client.get("/v1/usage/hours").await.expect(200)["data"].as_array().expect("hours").clone();
    let of_call = hours.iter().find(|hour| hour["calls"] == 1).expect("the hour of the call");
    assert_eq!((&of_call["cpu_seconds"], &of_call["bytes_out"]), (&json!(1.5), &json!(5)), "{of_call:#}");
    // What the session takes goes on, and so does the time that is asked for when none is named.
    let figures = async |path: &str| {
        let usage = client.get(path).await.expect(200);
        (usage["total"].clone(), usage["data"].clone())
    };
    let paths = ["/v1/usage", "/v1/usage?group=day", "/v1/usage?group=session"].map(str::to_owned);
    let mut before = Vec::new();
    for path in paths.into_iter().chain([format!("/v1/sessions/{session}/usage")]) {
        let found = figures(&path).await;
        assert_eq!(found.1[0]["figures"]["calls"], 1, "{path}");
        before.push((path, found));
    }

    app.database.execute(OVER).await.expect("drops");
    client.get(&format!("/v1/calls/{id}")).await.problem(404, "not_found");
    assert_eq!(client.get("/v1/calls").await.expect(200)["data"], json!([]), "no call is left");
    let admin = app.operator().await;
    for round in 0..2 {
        for (path, before) in &before {
            assert_eq!(&figures(path).await, before, "{path}, {round}");
        }
        for (client, path) in [(&client, "/v1/usage/hours"), (&admin, "/v1/admin/usage")] {
            let all = client.get(path).await.expect(200);
            let all = all["data"].as_array().expect("hours");
            assert!(hours.iter().all(|hour| all.contains(hour)), "{path}, {round}: {all:#?}");
        }
        // Nor does the meter count anew what it finds no more.
        meter(&app).await;
    }
}

async fn client_tenant(client: &crate::client::Client) -> String {
    client.get("/v1/me").await.expect(200)["tenant_id"].as_str().expect("a tenant").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn insights_name_what_was_refused() {
    let app = App::start().await;
    let (_, client) = app.tenant("acme").await;
    assert_eq!(client.get("/v1/usage/insights").await.expect(200)["findings"], json!([]));
    let few = json!({"name": "few", "policy": {"limits": {"sessions": 1}}});
    let admin = app.operator().await;
    let tenant =
        admin.post("/v1/admin/tenants", &few).await.expect(201)["id"].as_str().and_then(|id| id.parse().ok());
    let (_, few) = app.key(tenant.expect("an id"), Scope::tenant_default()).await;
    few.session().await;
    few.post("/v1/sessions", &json!({})).await.problem(429, "quota_exceeded");
    meter(&app).await;
    let insights = few.get("/v1/usage/insights").await.expect(200);
    let finding = &insights["findings"][0];
    assert_eq!(
        (&finding["kind"], &finding["severity"], &finding["tool"]),
        (&json!("limit_reached"), &json!("critical"), &Value::Null)
    );
    assert_eq!(
        finding["evidence"],
        json!({"action": "session.create", "code": "quota_exceeded", "refusals": 1})
    );
    assert!(finding["suggestion"].as_str().is_some_and(|text| text.contains("End sessions")), "{finding:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_period_that_makes_no_sense_is_refused() {
    let app = App::start().await;
    let client = app.client().await;
    for query in [
        "from=yesterday",
        "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
        "from=2025-01-01T00:00:00Z&to=2026-01-01T00:00:00Z",
        "from=-262000-01-01T00:00:00Z&to=-262000-01-02T00:00:00Z",
        "group=week",
        "limit=5",
        "group=session&limit=0",
        "x=1",
    ] {
        client.get(&format!("/v1/usage?{query}")).await.problem(400, "invalid_request");
    }
    client.get("/v1/usage/hours?to=-1000-01-01T00:00:00Z").await.problem(400, "invalid_request");
    app.operator().await.get("/v1/admin/usage?tenant=acme").await.problem(400, "invalid_request");
}
