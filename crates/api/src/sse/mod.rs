//! Event streams by the contract: numbered, resumable, bounded, and honest about what they cannot deliver.

mod calls;
pub(crate) mod encode;
mod follow;
mod outlet;
mod pulse;
mod shells;
mod streams;
mod watch;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

use crate::http::Judged;

pub use encode::numbered as encode_event;

pub(crate) use calls::{CallSource, PAGE_BYTES, PAGE_EVENTS};
pub(crate) use follow::{Asked, Rest, Source, open};
pub(crate) use shells::{ShellItem, ShellSource};
pub(crate) use streams::{StreamPermit, Streams};
pub(crate) use watch::watch;

/// Where a stream really begins.
pub(crate) const RESUMED_FROM: HeaderName = HeaderName::from_static("x-resumed-from");

/// The head of every stream: not stored, not changed and not held back on the way.
pub(crate) fn response(body: Body, resumed_from: u64) -> Response {
    let mut response = bare(body);
    response.headers_mut().insert(RESUMED_FROM, resumed_from.into());
    response
}

/// The head of a stream alone.
pub(crate) fn head() -> Response {
    bare(Body::empty())
}

/// A stream that cannot be resumed.
fn bare(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response.extensions_mut().insert(Judged);
    response
}

/// The first events of a call's stream.
pub(crate) type FirstEvents = follow::Read<calls::Shared>;
