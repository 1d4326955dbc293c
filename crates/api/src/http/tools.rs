//! The catalogue over HTTP.

use ::tools::{Descriptor, Filter};
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use serde_json::Value;

use super::access::Tenant;
use super::extract::Params;
use crate::problem::Problem;
use crate::service::tools;
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::tools::{ToolFormat, ToolList, ToolView, ToolkitView};

/// List tools
///
/// The tools that the caller's policy allows: as `Tool` objects, or in the native form of a model provider or of MCP.
#[utoipa::path(get, path = "/v1/tools", tag = "tools", security(("bearer" = ["tools:read"])),
    params(
        ("format" = Option<ToolFormat>, Query, description = "`openai`, `anthropic` or `mcp`; `Tool` objects when left out."),
        ("toolkit" = Option<String>, Query, description = "Only tools of this toolkit."),
        ("q" = Option<String>, Query, description = "Only tools with all of these words in name, aliases, title or description."),
    ),
    responses((status = 200, description = "The tools.", body = ToolList)))]
pub(crate) async fn list_tools(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let form: fn(&Descriptor) -> Value = match params.take("format")?.as_deref() {
        None => |tool| serde_json::to_value(ToolView::from(tool)).unwrap_or_default(),
        Some("openai") => Descriptor::to_openai,
        Some("anthropic") => Descriptor::to_anthropic,
        Some("mcp") => Descriptor::to_mcp,
        Some(_) => return Err(Problem::query("format", "must be openai, anthropic or mcp")),
    };
    let filter = Filter { toolkit: params.take("toolkit")?, q: params.take("q")? };
    params.finish()?;
    let data = tools::list(&state, &context, &filter).into_iter().map(form).collect();
    Ok(axum::Json(ToolList { object: "list", data, has_more: false, next_cursor: None }))
}

/// Get a tool
///
/// By its own name or by one of its other names.
#[utoipa::path(get, path = "/v1/tools/{name}", tag = "tools", security(("bearer" = ["tools:read"])),
    params(("name" = String, Path, description = "The tool's name.")),
    responses((status = 200, description = "The tool.", body = ToolView)))]
pub(crate) async fn get_tool(
    State(state): State<ApiState>,
    _tenant: Tenant,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(ToolView::from(tools::get(&state, &name)?)))
}

/// List toolkits
#[utoipa::path(get, path = "/v1/toolkits", tag = "tools", security(("bearer" = ["tools:read"])),
    responses((status = 200, description = "The toolkits.", body = List<ToolkitView>)))]
pub(crate) async fn list_toolkits(
    State(state): State<ApiState>,
    _tenant: Tenant,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    params.finish()?;
    let toolkits = state.catalog.toolkits().into_iter();
    let data =
        toolkits.map(|toolkit| ToolkitView { object: "toolkit", name: toolkit.name, tools: toolkit.tools });
    Ok(axum::Json(List::new(data.collect(), None)))
}
