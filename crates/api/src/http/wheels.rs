//! Wheels over HTTP.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use domain::wheel::project_name;

use super::access::Tenant;
use super::extract::{Id, Params};
use super::files::{announced, pieces, uncompressed};
use crate::problem::Problem;
use crate::service::wheels::{self, Put};
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::wheels::WheelView;

/// List wheels
///
/// The tenant's, newest first. What the sandbox's image has beside them is not listed.
#[utoipa::path(get, path = "/v1/wheels", tag = "wheels", security(("bearer" = ["artifacts:read"])),
    params(
        ("project" = Option<String>, Query, description = "Only those of this project, in any spelling of its name."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of wheels.", body = List<WheelView>)))]
pub(crate) async fn list_wheels(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let project = params.take("project")?.map(|name| project_name(&name));
    let (list, owner) = (format!("wheels {project:?}"), Some(context.tenant_id()));
    let page = params.page(&state, &list, owner)?;
    params.finish()?;
    let listed = wheels::list(&state, &context, project.as_deref(), page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, owner, after));
    Ok(axum::Json(List::new(listed.items.into_iter().map(WheelView::from).collect(), next)))
}

/// Put a wheel
///
/// The body is the wheel, at most 256 MiB. Sessions of the tenant install it when `packages` of `python_execute` needs its project and their
/// image has none that fits. The same bytes again change nothing; others under the same name are 409 `already_exists` until it is deleted. What
/// is inside is not looked at before it is installed, and then in a sandbox.
#[utoipa::path(put, path = "/v1/wheels/{file_name}", tag = "wheels", security(("bearer" = ["artifacts:write"])),
    params(("file_name" = String, Path, description = "Its name (PEP 427): `humanize-4.17.0-py3-none-any.whl`. Kept in lower case, the project with `_` for `-` and `.`.")),
    request_body(content = String, content_type = "application/octet-stream", description = "The wheel."),
    responses(
        (status = 200, description = "It was there.", body = WheelView),
        (status = 201, description = "It is kept.", body = WheelView)))]
pub(crate) async fn put_wheel(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(file_name): Id<String>,
    params: Params,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    params.finish()?;
    uncompressed(request.headers())?;
    let announced = announced(request.headers());
    let body = pieces(&state, request.into_body());
    let (wheel, put) = wheels::put(&state, &context, &file_name, announced, body).await?;
    let status = match put {
        Put::Made => StatusCode::CREATED,
        Put::WasThere => StatusCode::OK,
    };
    Ok((status, axum::Json(WheelView::from(wheel))))
}

/// Delete a wheel
///
/// No session gets it from here on. Where it is installed it stays.
#[utoipa::path(delete, path = "/v1/wheels/{file_name}", tag = "wheels", security(("bearer" = ["artifacts:write"])),
    params(("file_name" = String, Path, description = "Its name.")),
    responses((status = 204, description = "It is gone.")))]
pub(crate) async fn delete_wheel(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(file_name): Id<String>,
) -> Result<StatusCode, Problem> {
    wheels::delete(&state, &context, &file_name).await?;
    Ok(StatusCode::NO_CONTENT)
}
