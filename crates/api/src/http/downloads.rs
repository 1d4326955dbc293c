//! Bytes that tenants made, on their way to a browser that must not run them: headers, ranges, validators.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::Code;

use super::ranges::{Wanted, names, wanted_of};
use crate::problem::Problem;

/// Something that can be downloaded.
#[derive(Debug, Clone)]
pub(crate) struct Download {
    /// Its name for people.
    pub(crate) name: String,
    /// Its media type, as a tenant says.
    pub(crate) mime_type: String,
    /// Bytes.
    pub(crate) size_bytes: u64,
    /// Its strong validator, quotes included.
    pub(crate) etag: String,
}

/// What to answer.
#[derive(Debug)]
pub(crate) enum Part {
    /// These bytes: from, and one behind the last. The response wants its body.
    Bytes {
        /// The first.
        from: u64,
        /// One behind the last.
        to: u64,
        /// Status and headers.
        head: Box<Response>,
    },
    /// This, whatever the bytes are.
    Answer(Box<Response>),
}

impl Download {
    /// What a request's `Range`, `If-Range` and `If-None-Match` ask for.
    pub(crate) fn part(&self, headers: &HeaderMap) -> Part {
        if names(headers, IF_NONE_MATCH, &self.etag) {
            let mut response = StatusCode::NOT_MODIFIED.into_response();
            self.write_common(response.headers_mut());
            return Part::Answer(Box::new(response));
        }
        let wanted = wanted_of(headers, &self.etag);
        let total = self.size_bytes;
        let Some((from, to)) = wanted.of(total) else {
            let problem = Problem::new(Code::RangeNotSatisfiable, format!("There are {total} bytes."));
            let mut response = problem.with("total_bytes", total).into_response();
            set(response.headers_mut(), CONTENT_RANGE, format!("bytes */{total}"));
            return Part::Answer(Box::new(response));
        };
        let mut response = Response::new(Body::empty());
        if wanted != Wanted::Everything {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            set(response.headers_mut(), CONTENT_RANGE, format!("bytes {from}-{}/{total}", to - 1));
        }
        self.write_common(response.headers_mut());
        set(response.headers_mut(), CONTENT_LENGTH, (to - from).to_string());
        Part::Bytes { from, to, head: Box::new(response) }
    }

    fn write_common(&self, headers: &mut HeaderMap) {
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        set(headers, ETAG, self.etag.clone());
        set(headers, CONTENT_TYPE, self.mime_type.clone());
        harmless(headers, &self.name);
    }
}

/// No browser runs or guesses at what a tenant made, and no shared cache keeps it.
pub(crate) fn harmless(headers: &mut HeaderMap, name: &str) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    set(headers, CONTENT_DISPOSITION, disposition(name));
}

/// `attachment` with the name twice: plain for old clients, and in full (RFC 6266, RFC 8187).
fn disposition(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name);
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' { c } else { '_' })
        .collect();
    let mut full = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'~') {
            full.push(char::from(byte));
        } else {
            full.push_str(&format!("%{byte:02X}"));
        }
    }
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{full}")
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: String) {
    headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_header() {
        assert_eq!(disposition("a/b.txt"), "attachment; filename=\"b.txt\"; filename*=UTF-8''b.txt");
        assert_eq!(
            disposition("é\"\r\nx: y"),
            "attachment; filename=\"____x: y\"; filename*=UTF-8''%C3%A9%22%0D%0Ax%3A%20y"
        );
    }
}
