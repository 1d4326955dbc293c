//! What each error code means, for people and programs.

use axum::extract::Path;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use domain::Code;
use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::wire::lists::List;

/// One kind of problem.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemKind {
    /// Always `problem_kind`.
    #[schema(pattern = "^problem_kind$")]
    object: &'static str,
    /// The code.
    code: &'static str,
    /// A short, fixed summary.
    title: &'static str,
    /// The HTTP status of a problem with this code.
    status: u16,
    /// Whether the same request may succeed later.
    retryable: bool,
}

impl From<Code> for ProblemKind {
    fn from(code: Code) -> Self {
        Self {
            object: "problem_kind",
            code: code.as_str(),
            title: code.title(),
            status: code.status(),
            retryable: code.retryable(),
        }
    }
}

/// List kinds of problems
#[utoipa::path(get, path = "/problems", tag = "operation",
    responses((status = 200, description = "Every code that a problem or a failed call may have.", body = List<ProblemKind>)))]
pub(crate) async fn list_problems() -> impl IntoResponse {
    axum::Json(List::new(Code::ALL.iter().map(|code| ProblemKind::from(*code)).collect(), None))
}

/// Get a kind of problem
///
/// As JSON, or as a plain page with `Accept: text/plain` or from a browser.
#[utoipa::path(get, path = "/problems/{code}", tag = "operation",
    params(("code" = String, Path, description = "The code.")),
    responses((status = 200, description = "What the code means.",
        content((ProblemKind = "application/json"), (String = "text/plain")))))]
pub(crate) async fn get_problem(Path(code): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let code = Code::ALL.iter().find(|known| known.as_str() == code).ok_or_else(Problem::not_found)?;
    let kind = ProblemKind::from(*code);
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if !accept.contains("text/") || accept.contains("application/json") {
        return Ok(axum::Json(kind).into_response());
    }
    let again = if kind.retryable {
        "The same request may succeed later."
    } else {
        "The same request will fail again."
    };
    let page = format!("{}\n\n{}.\nHTTP status {}. {again}\n", kind.code, kind.title, kind.status);
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response())
}
