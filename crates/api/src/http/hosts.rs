//! Hosts over HTTP, for operators: what they have, what is taken of it, and whether they take more.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::IntoResponse;
use domain::HostId;
use store::HostOrder;

use super::access::Operator;
use super::extract::{Id, Input, Json};
use super::sessions::Nothing;
use crate::json::Checks;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::wire::hosts::{DrainHost, HostView};
use crate::wire::lists::List;

impl Input for DrainHost {
    const OPTIONAL: bool = true;

    fn check(&self, checks: &mut Checks) {
        self.check(checks);
    }
}

/// List hosts
///
/// By name, all of them: what each has, what open sessions may use of it at most, and what is set aside for warm pools.
#[utoipa::path(get, path = "/v1/admin/hosts", tag = "admin", security(("bearer" = ["operator"])),
    responses((status = 200, description = "The hosts.", body = List<HostView>)))]
pub(crate) async fn list_hosts(
    State(state): State<ApiState>,
    Operator(operator): Operator,
) -> Result<impl IntoResponse, Problem> {
    let hosts = state.store.list_hosts(&operator).await?;
    Ok(Answer(List::new(hosts.into_iter().map(HostView::from).collect(), None)))
}

/// Cordon a host
///
/// It takes no new sessions; what runs goes on.
#[utoipa::path(post, path = "/v1/admin/hosts/{host_id}/cordon", tag = "admin", security(("bearer" = ["operator"])),
    params(("host_id" = String, Path, description = "The host.")),
    request_body = Nothing,
    responses((status = 200, description = "The host as it is now.", body = HostView)))]
pub(crate) async fn cordon_host(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<HostId>,
    _: Json<Nothing>,
) -> Result<impl IntoResponse, Problem> {
    let host = state.store.order_host(&operator, id, HostOrder::Cordon).await?;
    Ok(Answer(HostView::from(host)))
}

/// Uncordon a host
///
/// It takes sessions again, also after it was drained.
#[utoipa::path(post, path = "/v1/admin/hosts/{host_id}/uncordon", tag = "admin", security(("bearer" = ["operator"])),
    params(("host_id" = String, Path, description = "The host.")),
    request_body = Nothing,
    responses((status = 200, description = "The host as it is now.", body = HostView)))]
pub(crate) async fn uncordon_host(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<HostId>,
    _: Json<Nothing>,
) -> Result<impl IntoResponse, Problem> {
    let host = state.store.order_host(&operator, id, HostOrder::Uncordon).await?;
    Ok(Answer(HostView::from(host)))
}

/// Drain a host
///
/// It takes no new sessions; those that run end by themselves, or after `within_s` seconds as `host_drained`.
#[utoipa::path(post, path = "/v1/admin/hosts/{host_id}/drain", tag = "admin", security(("bearer" = ["operator"])),
    params(("host_id" = String, Path, description = "The host.")),
    request_body = DrainHost,
    responses((status = 200, description = "The host as it is now.", body = HostView)))]
pub(crate) async fn drain_host(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    Id(id): Id<HostId>,
    body: Json<DrainHost>,
) -> Result<impl IntoResponse, Problem> {
    let order = HostOrder::Drain { within_s: body.input.within_s };
    Ok(Answer(HostView::from(state.store.order_host(&operator, id, order).await?)))
}
