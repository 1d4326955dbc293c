//! Pages for people: the API's documentation and what is shared by all of them. Everything comes from this process; no page loads
//! anything from elsewhere, and the policy that goes with each says so to the browser.

use axum::extract::Path;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// Only our own files, no inline script or style, nobody's frame.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'",
);

const DOCS: &str = include_str!("pages/docs.html");
const STYLE: &str = include_str!("pages/docs.css");
const SCRIPT: &str = include_str!("pages/docs.js");

/// A page, as a browser may show it.
pub(crate) fn html(page: impl Into<String>) -> Response {
    let mut response = asset("text/html; charset=utf-8", page.into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn asset(kind: &'static str, text: String) -> Response {
    // Small, and of this very binary: looked at again each time, so that an upgrade shows at once.
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")];
    (headers, text).into_response()
}

/// Text as it stands, in a page.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

/// The same with what stands between backticks as code.
pub(crate) fn marked(text: &str) -> String {
    let safe = escaped(text);
    let parts = safe.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 1 { format!("<code>{part}</code>") } else { part.to_owned() }).collect()
}

/// A page with a title and a body that is HTML already.
pub(crate) fn page(title: &str, body: &str) -> Response {
    html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <link rel=\"stylesheet\" href=\"/docs/docs.css\">\n<link rel=\"icon\" href=\"data:,\">\n</head>\n<body>\n\
         <main class=\"narrow\">\n{body}\n</main>\n</body>\n</html>\n",
        escaped(title)
    ))
}

/// The API's documentation
///
/// A page that renders `/openapi.json`. It works without any other host.
#[utoipa::path(get, path = "/docs", tag = "operation",
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
pub(crate) async fn get_docs() -> Response {
    html(DOCS)
}

/// A file of the documentation page
#[utoipa::path(get, path = "/docs/{file}", tag = "operation",
    params(("file" = String, Path, description = "`docs.css` or `docs.js`.")),
    responses((status = 200, description = "The file.",
        content((String = "text/css"), (String = "text/javascript")))))]
pub(crate) async fn get_docs_file(Path(file): Path<String>) -> Result<Response, Problem> {
    match file.as_str() {
        "docs.css" => Ok(asset("text/css; charset=utf-8", STYLE.to_owned())),
        "docs.js" => Ok(asset("text/javascript; charset=utf-8", SCRIPT.to_owned())),
        _ => Err(Problem::not_found()),
    }
}
