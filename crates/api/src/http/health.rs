//! Whether this process lives, and whether it can serve.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::state::ApiState;

/// How long a check may take.
const CHECK: Duration = Duration::from_secs(3);

/// That the process lives.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    #[schema(pattern = "^ok$")]
    status: &'static str,
}

/// Whether the process can serve.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// `ready` or `not_ready`.
    #[schema(pattern = "^(ready|not_ready)$")]
    status: &'static str,
    /// Each check: `ok` or `failed`.
    checks: BTreeMap<&'static str, &'static str>,
}

/// Is the process alive?
#[utoipa::path(get, path = "/healthz", tag = "operation",
    responses((status = 200, description = "It lives.", body = Health)))]
pub(crate) async fn get_health() -> impl IntoResponse {
    axum::Json(Health { status: "ok" })
}

/// Can the process serve?
///
/// The database answers and has every migration of this binary, the container engine answers, and the process is not shutting down.
#[utoipa::path(get, path = "/readyz", tag = "operation",
    responses(
        (status = 200, description = "It can.", body = Readiness),
        (status = 503, description = "It cannot.", body = Readiness)))]
pub(crate) async fn get_readiness(State(state): State<ApiState>) -> impl IntoResponse {
    let mut checks = BTreeMap::new();
    checks.insert("shutdown", if state.shutdown.is_cancelled() { "failed" } else { "ok" });
    let store = &state.store;
    let database = async { store.ping().await.map_err(|error| error.to_string()) };
    checks.insert("database", run("database", database).await);
    let migrations = async {
        match store.migrations_pending().await {
            Ok(0) => Ok(()),
            Ok(pending) => Err(format!("{pending} migrations are pending")),
            Err(error) => Err(error.to_string()),
        }
    };
    checks.insert("migrations", run("migrations", migrations).await);
    for readiness in &state.readiness {
        checks.insert(readiness.name, run(readiness.name, (readiness.check)()).await);
    }
    let ready = checks.values().all(|outcome| *outcome == "ok");
    let (code, status) =
        if ready { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not_ready") };
    (code, axum::Json(Readiness { status, checks }))
}

async fn run(name: &'static str, check: impl Future<Output = Result<(), String>>) -> &'static str {
    let outcome = timeout(CHECK, check).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
    match outcome {
        Ok(()) => "ok",
        Err(reason) => {
            tracing::warn!(check = name, %reason, "not ready");
            "failed"
        }
    }
}
