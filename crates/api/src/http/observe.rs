//! The outermost layer: every request gets an id, a span and a place in the metrics; every refusal becomes a problem.
//!
//! Spans name routes and ids, never paths, queries, arguments or outputs: a path may hold a file's name.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::trace::TraceContext;
use domain::{Code, RequestId};
use tracing::{Instrument, Span, field};
use uuid::Uuid;

use super::address::{PeerAddress, client_address};
use super::respond::finish;
use crate::metrics::{Counted, UNMATCHED};
use crate::problem::Problem;
use crate::state::ApiState;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Watches over one request.
pub(crate) async fn observe(State(state): State<ApiState>, mut request: Request, next: Next) -> Response {
    let request_id = RequestId::from_uuid(Uuid::now_v7());
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map_or(UNMATCHED, MatchedPath::as_str).to_owned();
    if let Some(peer) = request.extensions().get::<PeerAddress>() {
        let address = client_address(peer.0, request.headers(), &state.config.trusted_proxies);
        request.extensions_mut().insert(address);
    }
    let span = tracing::info_span!(
        "request",
        otel.kind = "server",
        %request_id,
        %method,
        route,
        call_id = field::Empty,
        trace_id = field::Empty,
    );
    let _counted = Counted::up(&state.metrics.in_flight);
    let response = next.run(request).instrument(span.clone()).await;
    let mut response = finish(response, &method, &path, request_id);
    if response.extensions_mut().remove::<Joined>().is_none() {
        span.in_scope(|| join(&state, None));
    }
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(request_id.to_string()).ok().map(|id| (REQUEST_ID, id)));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let status = response.status();
    span.in_scope(|| tracing::info!(status = status.as_u16(), elapsed = ?started.elapsed(), "answered"));
    let method = known(&method);
    if let Some(code) = response.extensions().get::<Code>() {
        state.metrics.problems.with_label_values(&[code.as_str()]).inc();
    }
    let class = format!("{}xx", status.as_u16() / 100);
    state.metrics.requests.with_label_values(&[route.as_str(), method, class.as_str()]).inc();
    state
        .metrics
        .duration
        .with_label_values(&[route.as_str(), method])
        .observe(started.elapsed().as_secs_f64());
    response
}

/// Says of an answer that its request has its place in a trace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joined;

/// The trace that a request's client began.
pub(super) fn began(headers: &HeaderMap) -> Option<TraceContext> {
    let mut given = headers.get_all(TRACEPARENT).iter();
    match (given.next(), given.next()) {
        (Some(only), None) => only.to_str().ok()?.parse().ok(),
        // None, or several, of which none is to be believed.
        _ => None,
    }
}

/// The place of the request that the thread is in, in the trace that its client began, or in one of its own. What is recorded of a client's
/// trace is the client's decision, so nobody's trace is joined before it is known who asks.
pub(super) fn join(state: &ApiState, parent: Option<TraceContext>) -> Option<TraceContext> {
    let traces = &state.ports.traces;
    if let Some(parent) = parent {
        traces.adopt(parent);
    }
    // Whoever records none still hands the client's trace on.
    let trace = traces.current().or(parent);
    if let Some(trace) = trace {
        Span::current().record("trace_id", trace.trace());
    }
    trace
}

/// A method as a label: an extension method is whatever a client likes.
fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

/// A panic is a bug: its place is in the log. Its text is not, as it may quote what a tenant sent.
pub(crate) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::internal("request handler", &"it panicked").into_response()
}

/// Refuses what takes too long.
pub(crate) async fn bound(State(bounds): State<Bounds>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or(UNMATCHED, MatchedPath::as_str);
    let longest = bounds.of(request.method(), route);
    match tokio::time::timeout(longest, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(Code::RequestTimeout, "The request took too long.").into_response(),
    }
}

/// Bounds of each request.
#[derive(Clone)]
pub(crate) struct Bounds {
    pub(crate) longest: Duration,
    /// Where the body is files, of any size.
    pub(crate) longest_upload: Duration,
    /// Where it is a wheel.
    pub(crate) longest_wheel: Duration,
}

/// Routes whose body is files.
const TAKES_FILES: [&str; 2] = ["/v1/sessions/{session_id}/files", "/v1/sessions/{session_id}/files/archive"];
/// The route whose body is a wheel.
const TAKES_A_WHEEL: &str = "/v1/wheels/{file_name}";

impl Bounds {
    /// Time of a request. The handlers of those with long bodies bound the time between two pieces as well.
    fn of(&self, method: &Method, route: &str) -> Duration {
        let has_body = matches!(*method, Method::PUT | Method::POST);
        match route {
            TAKES_A_WHEEL if has_body => self.longest_wheel,
            _ if has_body && TAKES_FILES.contains(&route) => self.longest_upload,
            _ => self.longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_tells_the_client_nothing() {
        let response = panicked(Box::new("secret: 42".to_owned()));
        let problem = response.extensions().get::<Problem>().expect("a problem");
        assert_eq!(problem.code, Code::Internal);
        assert!(!format!("{problem:?}").contains("secret"));
    }

    #[test]
    fn long_bodies_have_time_of_their_own() {
        let seconds = Duration::from_secs;
        let bounds = Bounds { longest: seconds(1), longest_upload: seconds(2), longest_wheel: seconds(3) };
        let document = crate::http::operations().split_for_parts().1;
        for (route, longest) in
            TAKES_FILES.map(|route| (route, seconds(2))).into_iter().chain([(TAKES_A_WHEEL, seconds(3))])
        {
            assert!(document.paths.paths.contains_key(route), "{route} is a route");
            assert_eq!(bounds.of(&Method::PUT, route), longest, "{route}");
            assert_eq!(bounds.of(&Method::POST, route), longest, "{route}");
            assert_eq!(
                (bounds.of(&Method::GET, route), bounds.of(&Method::DELETE, route)),
                (seconds(1), seconds(1))
            );
        }
        assert_eq!(bounds.of(&Method::PUT, "/v1/tenants/{tenant_id}/policy"), seconds(1));
        assert_eq!(bounds.of(&Method::POST, UNMATCHED), seconds(1));
    }
}
