//! Which container runtime a session gets: asked for, offered, or demanded by policy.

use domain::policy::Policy;
use serde_json::json;

use crate::app::App;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_gets_the_runtime_that_it_asks_for_unless_policy_demands_another() {
    let app = App::with(|config| config.runtimes = vec!["runc".to_owned(), "runsc".to_owned()]).await;
    let (tenant, client) = app.tenant("acme").await;
    let created = client.post("/v1/sessions", &json!({})).await;
    assert_eq!(created.expect(201)["runtime"], "runc");
    let asked = client.post("/v1/sessions", &json!({"runtime": "runsc"})).await;
    assert_eq!(asked.expect(201)["runtime"], "runsc");
    let own = client.post("/v1/sessions", &json!({"policy": {"runtime": "runsc"}})).await;
    assert_eq!(own.expect(201)["runtime"], "runsc");

    let policy = Policy { runtime: Some("runsc".to_owned()), ..Policy::default() };
    app.store.set_tenant_policy(&app.operator, tenant, &policy).await.expect("is set");
    let (_, client) = app.key(tenant, domain::Scope::tenant_default()).await;
    let forced = client.post("/v1/sessions", &json!({})).await;
    assert_eq!(forced.expect(201)["runtime"], "runsc");
    for weaker in [json!({"runtime": "runc"}), json!({"runtime": "runc", "policy": {"runtime": "runc"}})] {
        let refused = client.post("/v1/sessions", &weaker).await;
        let problem = refused.problem(422, "invalid_arguments");
        assert_eq!(problem["errors"][0]["pointer"], "/runtime", "{problem:#}");
        assert!(problem["errors"][0]["message"].as_str().is_some_and(|text| text.contains("`runsc`")));
    }
}
