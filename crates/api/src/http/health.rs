//! Whether this process lives, and whether it can serve.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use crate::health;
use crate::state::ApiState;

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
    /// Each check: `ok` or `failed`. `migrations` is `newer` when the database has some that this process does not know and may run on.
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
/// The database answers and has every migration of this binary (and may have newer ones that leave it what it uses), the container engine answers and has the default image, and the
/// process is not shutting down. What was found is told for another quarter of a second to whoever asks.
#[utoipa::path(get, path = "/readyz", tag = "operation",
    responses(
        (status = 200, description = "It can.", body = Readiness),
        (status = 503, description = "It cannot.", body = Readiness)))]
pub(crate) async fn get_readiness(State(state): State<ApiState>) -> impl IntoResponse {
    readiness(&state.readiness).await
}

/// The same for whichever listener was asked.
pub(crate) async fn readiness(readiness: &health::Readiness) -> impl IntoResponse + use<> {
    let checks = readiness.outcomes().await;
    let ready = checks.values().all(|outcome| *outcome != "failed");
    let (code, status) =
        if ready { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not_ready") };
    (code, axum::Json(Readiness { status, checks }))
}
