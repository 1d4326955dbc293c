//! How much a tenant, a key and an address may ask.

use domain::Scope;
use domain::policy::{LimitRules, Policy};
use serde_json::{Value, json};
use store::NewKey;

use crate::app::App;
use crate::client::Client;

fn at_most(requests_per_minute: u32) -> Policy {
    let limits = LimitRules { requests_per_minute: Some(requests_per_minute), ..LimitRules::default() };
    Policy { limits, ..Policy::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_s_keys_share_a_quota_and_its_neighbour_has_its_own() {
    let app = App::start().await;
    let (tenant, first) = app.tenant("acme").await;
    let (_, other) = app.tenant("other").await;
    app.store.set_tenant_policy(&app.operator, tenant, &at_most(6)).await.expect("is set");
    let (_, second) = app.key(tenant, Scope::tenant_default()).await;
    for left in (1..6).rev() {
        let client = if left % 2 == 0 { &first } else { &second };
        let reply = client.get("/v1/me").await;
        reply.expect(200);
        assert_eq!(reply.header("ratelimit-policy"), "\"tenant\";q=6;w=60");
        assert!(
            reply.header("ratelimit").starts_with(&format!("\"tenant\";r={left};t=")),
            "{:?}",
            reply.headers
        );
    }
    // A refused scope and what is not there cost a request too.
    assert!(first.get("/v1/sessions/nothing").await.header("ratelimit").contains("r=0"));
    for client in [&first, &second] {
        let reply = client.get("/v1/me").await;
        let problem = reply.problem(429, "rate_limited");
        let wait: u64 = reply.header("retry-after").parse().expect("a number");
        assert!(
            (1..=10).contains(&wait) && problem["retry_after_ms"].as_u64() <= Some(10_000),
            "{problem:#}"
        );
        assert!(reply.header("ratelimit").contains("r=0"));
    }
    other.get("/v1/me").await.expect(200);
    Client::new(&app.base, "").get("/healthz").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_s_own_limit_is_within_its_tenant_s() {
    let app = App::start().await;
    let (tenant, everything) = app.tenant("acme").await;
    app.store.set_tenant_policy(&app.operator, tenant, &at_most(5)).await.expect("is set");
    let new = NewKey {
        name: "narrow".to_owned(),
        scopes: Scope::tenant_default(),
        policy: Some(at_most(2)),
        ..NewKey::default()
    };
    let (_, plain) = app.store.create_key(&app.operator, tenant, new).await.expect("a key");
    let narrow = Client::new(&app.base, plain.reveal());
    for _ in 0..2 {
        let reply = narrow.get("/v1/me").await;
        reply.expect(200);
        assert_eq!(reply.header("ratelimit-policy"), "\"tenant\";q=5;w=60, \"key\";q=2;w=60");
    }
    for _ in 0..3 {
        narrow.get("/v1/me").await.problem(429, "rate_limited");
    }
    // What the key was refused took nothing of its tenant's.
    for _ in 0..3 {
        everything.get("/v1/me").await.expect(200);
    }
    everything.get("/v1/me").await.problem(429, "rate_limited");
}

#[tokio::test(flavor = "multi_thread")]
async fn guessing_is_throttled_by_address_and_who_was_right_before_is_not_locked_out() {
    let app = App::with(|config| {
        config.failed_auth_per_minute = 5;
        config.trusted_proxies = vec!["127.0.0.1".parse().expect("an address")];
    })
    .await;
    let (tenant, good) = app.tenant("acme").await;
    let (_, fresh) = app.key(tenant, Scope::tenant_default()).await;
    let from = |client: &Client, address: &'static str| {
        let (client, request) = (client.clone(), client.request("GET", "/v1/me"));
        async move { client.send(request.header("x-forwarded-for", address)).await }
    };
    from(&good, "198.51.100.7").await.expect(200);
    let wrong = good.with_key("th_wrong");
    for _ in 0..5 {
        from(&wrong, "198.51.100.7").await.problem(401, "unauthenticated");
    }
    let refused = from(&wrong, "198.51.100.7").await;
    refused.problem(429, "rate_limited");
    assert!(refused.header("ratelimit").is_empty(), "nobody's quota is shown");
    from(&fresh, "198.51.100.7").await.problem(429, "rate_limited");
    from(&good, "198.51.100.7").await.expect(200);
    from(&fresh, "198.51.100.8").await.expect(200);
    from(&wrong, "198.51.100.8").await.problem(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_revoked_is_not_trusted_from_a_throttled_address() {
    let app = App::with(|config| config.failed_auth_per_minute = 2).await;
    let (tenant, good) = app.tenant("acme").await;
    let (revoked, stolen) = app.key(tenant, Scope::tenant_default()).await;
    stolen.get("/v1/me").await.expect(200);
    app.store.revoke_key(&app.operator, revoked).await.expect("revokes");
    good.get("/v1/me").await.expect(200);
    // The addresses that a client writes itself are nobody's: without a trusted proxy all of this is one address.
    for (address, status) in [("192.0.2.1", 401), ("192.0.2.2", 401), ("192.0.2.3", 429)] {
        let request = stolen.request("GET", "/v1/me").header("x-forwarded-for", address);
        assert_eq!(stolen.send(request).await.status, status);
    }
    good.get("/v1/me").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_batch_is_counted_and_answered_for_itself() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let session = client.session().await;
    app.store.set_tenant_policy(&app.operator, tenant, &at_most(4)).await.expect("is set");
    let (_, client) = app.key(tenant, Scope::tenant_default()).await;
    let call = json!({"tool": "bash", "arguments": {"command": "true"}});
    let body = json!({"calls": [call, call, call, call, call, call]});
    let reply = client.post(&format!("/v1/sessions/{session}/calls/batch"), &body).await;
    let outcome = reply.expect(200);
    let codes: Vec<_> =
        outcome["data"].as_array().expect("items").iter().map(|item| &item["error"]["code"]).collect();
    let (none, limited) = (&Value::Null, &json!("rate_limited"));
    assert!(reply.header("ratelimit").starts_with("\"tenant\";r=0;"), "{:?}", reply.headers);
    assert_eq!(codes.len(), 6);
    // The quota comes back by one in 15 s, so that one more may have been let through on a slow machine.
    assert_eq!(codes[..3], [none; 3]);
    assert_eq!(codes[5], limited);
    assert!(outcome["data"][5]["error"]["retry_after_ms"].is_u64(), "{outcome:#}");
}
