//! What each error code means, for people and programs.

use std::fmt::Write as _;

use axum::extract::Path;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use domain::Code;
use serde::Serialize;
use utoipa::ToSchema;

use super::accept::{Reader, reader};
use super::advice::advice;
use super::pages::{escaped, marked, page};
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
    /// What it means.
    meaning: &'static str,
    /// What to do about it.
    advice: &'static str,
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
            meaning: code.meaning(),
            advice: advice(code),
            status: code.status(),
            retryable: code.retryable(),
        }
    }
}

impl ProblemKind {
    fn again(&self) -> &'static str {
        if self.retryable {
            "Yes: the same request may succeed later."
        } else {
            "No: the same request will fail again."
        }
    }

    fn text(&self) -> String {
        let Self { code, title, meaning, advice, status, .. } = self;
        format!(
            "{code}\n\n{title}.\n{meaning}\n\nWhat to do: {advice}\nHTTP status: {status}\nTry again? {}\n",
            self.again()
        )
    }

    fn page(&self) -> Response {
        let body = format!(
            "<p class=\"soft\"><a href=\"/problems\">Problems</a> / <code>{code}</code></p>\n<h1>{title}</h1>\n<p>{meaning}</p>\n\
             <dl class=\"facts\">\n<dt>What to do</dt><dd>{advice}</dd>\n<dt>Try again?</dt><dd>{again}</dd>\n\
             <dt>Code</dt><dd><code>{code}</code></dd>\n<dt>HTTP status</dt><dd>{status}</dd>\n</dl>\n\
             <p class=\"soft\">The answer itself has a sentence in <code>detail</code>, the wrong values in <code>errors</code>, and the \
             <code>request_id</code> under which it is logged. See the <a href=\"/docs\">documentation</a>.</p>",
            code = self.code,
            title = escaped(self.title),
            meaning = marked(self.meaning),
            advice = marked(self.advice),
            again = self.again(),
            status = self.status,
        );
        page(&format!("{} · Toolhost", self.title), &body)
    }
}

/// List kinds of problems
///
/// As JSON, or as a page for browsers.
#[utoipa::path(get, path = "/problems", tag = "operation",
    responses((status = 200, description = "Every code that a problem or a failed call may have.",
        content((List<ProblemKind> = "application/json"), (String = "text/html")))))]
pub(crate) async fn list_problems(headers: HeaderMap) -> Response {
    let kinds: Vec<_> = Code::ALL.iter().map(|code| ProblemKind::from(*code)).collect();
    match reader(&headers) {
        Reader::Program | Reader::Terminal => axum::Json(List::new(kinds, None)).into_response(),
        Reader::Browser => index(&kinds),
    }
}

fn index(kinds: &[ProblemKind]) -> Response {
    let mut rows = String::new();
    for kind in kinds {
        let _ = writeln!(
            rows,
            "<tr><td><a href=\"/problems/{code}\"><code>{code}</code></a></td><td>{status}</td><td>{title}</td><td>{again}</td></tr>",
            code = kind.code,
            status = kind.status,
            title = escaped(kind.title),
            again = if kind.retryable { "may help" } else { "–" },
        );
    }
    let body = format!(
        "<p class=\"soft\"><a href=\"/docs\">Toolhost API</a></p>\n<h1>Problems</h1>\n<p>Whatever is refused is a problem (RFC 9457) with one of \
         these codes; a failed call has one in <code>error.code</code>.</p>\n<table>\n<thead><tr><th>Code</th><th>Status</th><th>Summary</th>\
         <th>Trying again</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>"
    );
    page("Problems · Toolhost", &body)
}

/// Get a kind of problem
///
/// As JSON, as a page for browsers, or as text with `Accept: text/plain`.
#[utoipa::path(get, path = "/problems/{code}", tag = "operation",
    params(("code" = String, Path, description = "The code.")),
    responses((status = 200, description = "What the code means.",
        content((ProblemKind = "application/json"), (String = "text/html"), (String = "text/plain")))))]
pub(crate) async fn get_problem(Path(code): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let code = Code::ALL.iter().find(|known| known.as_str() == code).ok_or_else(Problem::not_found)?;
    let kind = ProblemKind::from(*code);
    Ok(match reader(&headers) {
        Reader::Program => axum::Json(kind).into_response(),
        Reader::Browser => kind.page(),
        Reader::Terminal => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], kind.text()).into_response(),
    })
}
