//! Problems as HTTP responses. A handler returns [`Problem`]; what only the face knows (`instance`, `request_id`) is added by
//! [`finish`], which also turns whatever else came back with an error status into a problem.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{Code, RequestId};

use crate::problem::Problem;

/// Media type of problems.
pub(crate) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status_of(self.code);
        response.extensions_mut().insert(self);
        response
    }
}

/// The HTTP status of a code.
pub(crate) fn status_of(code: Code) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Writes the body of a problem and the headers that go with it.
pub(crate) fn finish(mut response: Response, method: &Method, path: &str, request_id: RequestId) -> Response {
    let Some(problem) = problem_of(&mut response) else { return response };
    let mut members = problem.members();
    members.insert("instance".to_owned(), path.into());
    members.insert("request_id".to_owned(), request_id.to_string().into());
    response.extensions_mut().insert(problem.code);
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, PROBLEM_JSON);
    if problem.code == Code::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"toolhost\""));
    }
    if let Some(retry_after_ms) = problem.retry_after_ms {
        headers.insert(RETRY_AFTER, retry_after_ms.div_ceil(1_000).max(1).into());
    }
    let body = serde_json::to_vec(&members).unwrap_or_default();
    *response.body_mut() = if method == Method::HEAD { Body::empty() } else { body.into() };
    response
}

fn problem_of(response: &mut Response) -> Option<Problem> {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        return Some(problem);
    }
    let status = response.status();
    // The framework answers in text; JSON is a handler's own answer (that it is not ready, say).
    let kind = response.headers().get(CONTENT_TYPE);
    let ours = kind.is_some_and(|kind| kind == PROBLEM_JSON || kind == "application/json");
    if ours || !(status.is_client_error() || status.is_server_error()) {
        return None;
    }
    // A response of the framework itself, with a text of its own.
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::BodyTooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        StatusCode::REQUEST_TIMEOUT => Code::RequestTimeout,
        other if other.is_client_error() => Code::InvalidRequest,
        _ => Code::Internal,
    };
    *response.status_mut() = status_of(code);
    Some(Problem::new(code, format!("{}.", code.title())))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;

    async fn body_of(response: Response) -> Value {
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        serde_json::from_slice(&bytes).expect("JSON")
    }

    fn id() -> RequestId {
        RequestId::from_uuid(Uuid::from_u128(5))
    }

    #[tokio::test]
    async fn a_problem_gets_its_place_and_headers() {
        let problem = Problem::new(Code::QueueFull, "full").retry_after_ms(1_200);
        let response = finish(problem.into_response(), &Method::POST, "/v1/calls", id());
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        let body = body_of(response).await;
        assert_eq!((&body["code"], &body["instance"]), (&"queue_full".into(), &"/v1/calls".into()));
        assert_eq!(body["request_id"], id().to_string());
        assert_eq!(body["type"], "/problems/queue_full");
    }

    #[tokio::test]
    async fn what_the_framework_answers_becomes_a_problem() {
        let response = (StatusCode::BAD_REQUEST, "a text with the input").into_response();
        let body = body_of(finish(response, &Method::GET, "/x", id())).await;
        assert_eq!(body["code"], "invalid_request");
        assert!(!body.to_string().contains("the input"));
    }

    #[tokio::test]
    async fn a_success_stays_as_it_is() {
        let response = finish((StatusCode::CREATED, "made").into_response(), &Method::POST, "/x", id());
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "made");
    }
}
