//! The HTTP face: routes, layers and extractors over the service layer.
//!
//! # Design notes
//!
//! Layers from the outside in: observe (id, span, metrics, problems) → catch panics → bounds (time per request) → authorize (a turn of its
//! address, then a place among the requests at a time, then the tenant's share of them) → handler. A place is for requests that are
//! somebody's: whoever has no valid credential can take none, and nothing of a body is read before. Public operations take none either, so
//! that an overloaded process still says how it is. What takes longer than a moment is judged anew by its credential, before its answer and within it
//! ([`crate::service::vigil`]). The longest wait that a request may ask for is part of its time; streams are not touched by it, since their head
//! is answered at once.

mod accept;
mod access;
mod address;
mod advice;
mod archives;
mod arrange;
mod artifacts;
mod attach;
mod audit;
mod batches;
mod calls;
mod contexts;
mod cut;
mod downloads;
mod erasures;
mod events;
mod extract;
mod files;
mod forms;
mod guarded;
mod health;
mod hosts;
mod keys;
mod me;
mod named_shells;
mod observe;
mod output;
mod output_lines;
mod pages;
mod policies;
mod problems;
mod ranges;
mod rates;
mod respond;
mod roles;
mod sessions;
mod shell_input;
mod shell_output;
mod shells;
mod stream_urls;
mod tenants;
mod tool_results;
mod tools;
mod turns;
mod under_way;
mod usage;
mod watch;
mod wheels;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use domain::{Code, limits};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use address::{NoProxy, PeerAddress, TrustedProxy};
pub(crate) use cut::Judged;
pub(crate) use guarded::guarded;
pub(crate) use under_way::UnderWay;

use crate::health::Readiness;
use crate::problem::Problem;
use crate::state::{ApiError, ApiState};

/// All operations, with their part of the document.
pub(crate) fn operations() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(crate::openapi::base())
        .routes(routes!(me::get_me))
        .routes(routes!(keys::create_own_key, keys::list_own_keys))
        .routes(routes!(keys::revoke_own_key))
        .routes(routes!(keys::rotate_own_key))
        .routes(routes!(roles::list_roles))
        .routes(routes!(roles::put_role, roles::delete_role))
        .routes(routes!(sessions::create_session, sessions::list_sessions))
        .routes(routes!(sessions::get_session, sessions::patch_session, sessions::delete_session))
        .routes(routes!(sessions::reset_session))
        .routes(routes!(calls::submit_call, calls::list_session_calls))
        .routes(routes!(batches::submit_batch))
        .routes(routes!(tool_results::submit_tool_calls))
        .routes(routes!(calls::submit_one_shot_call, calls::list_calls))
        .routes(routes!(calls::get_call))
        .routes(routes!(calls::cancel_call))
        .routes(routes!(events::get_events))
        .routes(routes!(output::get_output))
        .routes(routes!(stream_urls::create_stream_url))
        .routes(routes!(shells::create_shell, shells::list_shells))
        .routes(routes!(shells::get_shell, shells::delete_shell))
        .routes(routes!(shell_output::get_shell_output))
        .routes(routes!(shell_input::send_input))
        .routes(routes!(shell_input::send_signal))
        .routes(routes!(shell_input::resize_shell))
        .routes(routes!(attach::attach_shell))
        .routes(routes!(named_shells::list_named_shells))
        .routes(routes!(named_shells::get_named_shell, named_shells::delete_named_shell))
        .routes(routes!(contexts::create_context, contexts::list_contexts))
        .routes(routes!(contexts::get_context, contexts::delete_context))
        .routes(routes!(contexts::interrupt_context))
        .routes(routes!(contexts::restart_context))
        .routes(routes!(files::get_file, files::put_file, forms::post_files, files::delete_file))
        .routes(routes!(files::list_files))
        .routes(routes!(archives::get_archive, archives::put_archive))
        .routes(routes!(watch::watch_files))
        .routes(routes!(arrange::move_file))
        .routes(routes!(arrange::make_directory))
        .routes(routes!(artifacts::list_artifacts))
        .routes(routes!(artifacts::get_artifact, artifacts::delete_artifact))
        .routes(routes!(artifacts::get_artifact_content))
        .routes(routes!(artifacts::create_artifact_link))
        .routes(routes!(wheels::list_wheels))
        .routes(routes!(wheels::put_wheel, wheels::delete_wheel))
        .routes(routes!(tools::list_tools))
        .routes(routes!(tools::get_tool))
        .routes(routes!(tools::list_toolkits))
        .routes(routes!(policies::explain_policy))
        .routes(routes!(audit::list_audit))
        .routes(routes!(usage::get_usage))
        .routes(routes!(usage::get_usage_insights))
        .routes(routes!(usage::list_usage_hours))
        .routes(routes!(usage::get_session_usage))
        .routes(routes!(usage::list_usage_of_all))
        .routes(routes!(audit::list_audit_of_all))
        .routes(routes!(tenants::create_tenant, tenants::list_tenants))
        .routes(routes!(tenants::get_tenant, tenants::patch_tenant))
        .routes(routes!(erasures::export_tenant))
        .routes(routes!(erasures::erase_tenant, erasures::get_erasure))
        .routes(routes!(keys::create_key, keys::list_keys))
        .routes(routes!(keys::revoke_key))
        .routes(routes!(keys::rotate_key))
        .routes(routes!(roles::list_tenant_roles))
        .routes(routes!(roles::put_tenant_role, roles::delete_tenant_role))
        .routes(routes!(hosts::list_hosts))
        .routes(routes!(hosts::cordon_host))
        .routes(routes!(hosts::uncordon_host))
        .routes(routes!(hosts::drain_host))
        .routes(routes!(health::get_health))
        .routes(routes!(health::get_readiness))
        .routes(routes!(document))
        .routes(routes!(pages::get_docs))
        .routes(routes!(pages::get_docs_file))
        .routes(routes!(problems::list_problems))
        .routes(routes!(problems::get_problem))
}

/// The API as a router.
///
/// # Errors
/// When an operation declares no scope and is not public.
pub fn router(state: ApiState) -> Result<Router, ApiError> {
    let written = serde_json::from_slice(&state.document).unwrap_or_default();
    let gate = access::Gate {
        table: Arc::new(access::Table::of(&written)?),
        turns: turns::Turns::new(),
        places: Arc::new(Semaphore::new(state.config.requests.min(Semaphore::MAX_PERMITS))),
        state: state.clone(),
    };
    let bounds = observe::Bounds {
        longest: state.config.answer_timeout
            + state.config.body_timeout
            + Duration::from_millis(limits::WAIT_MS),
        longest_upload: Duration::from_secs(limits::UPLOAD_S),
        longest_wheel: Duration::from_secs(limits::WHEEL_PUT_S),
    };
    let (router, _) = operations().split_for_parts();
    Ok(router
        .route_layer(from_fn_with_state(gate, access::authorize))
        .fallback(nowhere)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(bounds, observe::bound))
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state))
}

async fn nowhere() -> Problem {
    Problem::new(Code::NotFound, "There is nothing at this path.")
}

async fn no_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "This path has no such method; `Allow` lists those that it has.")
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "operation",
    responses((status = 200, description = "OpenAPI 3.1.", content_type = "application/json", body = Object)))]
async fn document(State(state): State<ApiState>) -> impl IntoResponse {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], state.document.clone())
}

/// Prometheus metrics, and the process's health, for a listener of their own.
pub fn metrics_router(registry: prometheus::Registry, readiness: Readiness) -> Router {
    Router::new()
        .route("/metrics", get(async move || metrics(&registry)))
        .route("/healthz", get(health::get_health))
        .route("/readyz", get(async move || health::readiness(&readiness).await))
}

fn metrics(registry: &prometheus::Registry) -> Response {
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather());
    match text {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => Problem::internal("metrics", &error).into_response(),
    }
}
