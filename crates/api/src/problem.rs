//! A refusal with its code: what the service layer answers when it cannot do something. Knows no HTTP beyond the code's own status.

use domain::Code;
use serde::Serialize;
use serde_json::{Map, Value};

/// Why a request was refused. Faces turn it into their own form: RFC 9457 over HTTP.
///
/// `detail` reaches the client: it never carries what another tenant owns, nor an internal message.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Which kind.
    pub code: Code,
    /// What happened and what to change.
    pub detail: String,
    /// When trying again may help, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Each wrong value with its place.
    pub errors: Vec<FieldError>,
    /// Further members of the problem.
    pub extensions: Map<String, Value>,
}

/// One wrong value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// JSON pointer into the request's body, or `?name` for a query parameter.
    pub pointer: String,
    /// What is wrong with it, for programs.
    pub code: FieldCode,
    /// What to change.
    pub message: String,
}

/// What can be wrong with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldCode {
    /// It is missing.
    Required,
    /// There is no such field.
    UnknownField,
    /// It has another type.
    WrongType,
    /// It is not acceptable.
    Invalid,
    /// It is above what is allowed, or there are too many.
    LimitExceeded,
    /// It differs from the first request with the same idempotency key.
    Differs,
}

impl Problem {
    /// A problem of a kind.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            retry_after_ms: default_retry_ms(code),
            errors: Vec::new(),
            extensions: Map::new(),
        }
    }

    /// The same for every object that is not there or not the caller's.
    #[must_use]
    pub fn not_found() -> Self {
        Self::new(Code::NotFound, "There is nothing with this id, or it is not yours.")
    }

    /// A bug or an unexpected failure: the cause goes to the log, never to the client.
    pub fn internal(operation: &'static str, cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(operation, %cause, "request failed");
        Self::new(Code::Internal, "The request could not be completed. It is logged under its request id.")
    }

    /// One wrong query parameter.
    pub fn query(name: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::new(Code::InvalidRequest, format!("The query parameter `{name}` {message}.")).field(
            format!("?{name}"),
            FieldCode::Invalid,
            message,
        )
    }

    /// The same with one more wrong value.
    #[must_use]
    pub fn field(mut self, pointer: impl Into<String>, code: FieldCode, message: impl Into<String>) -> Self {
        self.errors.push(FieldError { pointer: pointer.into(), code, message: message.into() });
        self
    }

    /// The same with these wrong values.
    #[must_use]
    pub fn fields(mut self, errors: Vec<FieldError>) -> Self {
        self.errors = errors;
        self
    }

    /// The same with a time to wait.
    #[must_use]
    pub fn retry_after_ms(mut self, retry_after_ms: u64) -> Self {
        self.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// The same with one more member.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extensions.insert(name.to_owned(), value.into());
        self
    }

    /// The same with every pointer moved beneath another.
    #[must_use]
    pub fn beneath(mut self, prefix: &str) -> Self {
        for error in &mut self.errors {
            error.pointer.insert_str(0, prefix);
        }
        self
    }

    /// The members that RFC 9457 and API.md name, without those that only a face knows (`instance`, `request_id`).
    #[must_use]
    pub fn members(&self) -> Map<String, Value> {
        let mut members = Map::new();
        let code = self.code;
        members.insert("type".to_owned(), format!("/problems/{code}").into());
        members.insert("title".to_owned(), code.title().into());
        members.insert("status".to_owned(), code.status().into());
        members.insert("detail".to_owned(), self.detail.clone().into());
        members.insert("code".to_owned(), code.as_str().into());
        members.insert("retryable".to_owned(), code.retryable().into());
        if let Some(retry_after_ms) = self.retry_after_ms {
            members.insert("retry_after_ms".to_owned(), retry_after_ms.into());
        }
        let errors = serde_json::to_value(&self.errors).unwrap_or_default();
        members.insert("errors".to_owned(), errors);
        for (name, value) in &self.extensions {
            members.entry(name.clone()).or_insert_with(|| value.clone());
        }
        members
    }
}

/// How long to wait when the one who refuses does not know better.
fn default_retry_ms(code: Code) -> Option<u64> {
    match code.status() {
        429 | 503 => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_cannot_replace_a_member() {
        let members = Problem::new(Code::Conflict, "no").with("code", "other").with("links", "x").members();
        assert_eq!(members["code"], "conflict");
        assert_eq!(members["links"], "x");
        assert_eq!(members["status"], 409);
    }

    #[test]
    fn whoever_is_told_to_wait_is_told_how_long() {
        for code in Code::ALL {
            let waits = Problem::new(*code, "").retry_after_ms.is_some();
            assert_eq!(waits, matches!(code.status(), 429 | 503), "{code}");
        }
    }
}
