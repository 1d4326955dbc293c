//! What the store says, as problems.

use domain::{Code, SessionEnd};
use store::{NoRoom, StoreError};

use crate::problem::{FieldCode, Problem};

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable { operation, ref source } => {
                tracing::warn!(
                    operation,
                    source = source.as_ref().map(tracing::field::display),
                    "the database does not answer"
                );
                Self::new(Code::DatabaseUnavailable, "The database does not answer at the moment. Try again.")
            }
            StoreError::Storage { operation, ref source } => {
                tracing::warn!(operation, error = %source, "the object store does not answer");
                Self::new(
                    Code::StorageUnavailable,
                    "The object store does not answer. Try again in a moment.",
                )
            }
            StoreError::NotFound { .. } => Self::not_found(),
            StoreError::Conflict { message, .. } => {
                Self::new(Code::Conflict, format!("{}.", capital(message)))
            }
            StoreError::Stale { .. } => {
                Self::new(Code::Conflict, "The object changed meanwhile. Read it again and decide anew.")
            }
            StoreError::Unstorable { field, .. } => Self::new(
                Code::MalformedJson,
                "Text must not contain NUL (U+0000).",
            )
            .field(format!("/{field}"), FieldCode::Invalid, "must not contain NUL (U+0000)"),
            StoreError::Internal { operation, ref source } => Self::internal(operation, source),
        }
    }
}

/// The session is over: the problem carries its typed end.
pub(crate) fn session_ended(end: &SessionEnd) -> Problem {
    let end_as_json = serde_json::to_value(end).unwrap_or_default();
    Problem::new(Code::SessionEnded, end.message.clone()).with("session_end", end_as_json)
}

/// The idempotency key was used for another request.
pub(crate) fn idempotency_mismatch(fields: Vec<String>) -> Problem {
    let detail =
        "This Idempotency-Key was used for a request with other values. Use a fresh key for a new request.";
    fields.into_iter().fold(Problem::new(Code::IdempotencyMismatch, detail), |problem, field| {
        problem.field(
            format!("/{}", crate::json::escape(&field)),
            FieldCode::Differs,
            "differs from the first request",
        )
    })
}

/// The tenant has as many sessions as it may.
pub(crate) fn session_quota(limit: u32, in_use: u32) -> Problem {
    let detail = format!("{in_use} of {limit} sessions are open. End one, or wait until one ends.");
    Problem::new(Code::QuotaExceeded, detail)
        .retry_after_ms(5_000)
        .with("quota", "sessions")
        .with("limit", limit)
        .with("in_use", in_use)
}

/// The tenant has stored as much as it may.
pub(crate) fn stored_bytes(limit: u64, in_use: u64) -> Problem {
    let detail = format!(
        "{in_use} of {limit} bytes of output, artifacts and wheels are kept. Delete artifacts or wheels, or wait until output expires."
    );
    Problem::new(Code::QuotaExceeded, detail)
        .retry_after_ms(60_000)
        .with("quota", "stored_bytes")
        .with("limit", limit)
        .with("in_use", in_use)
}

/// No host takes the session.
pub(crate) fn no_room(why: NoRoom) -> Problem {
    let (reason, detail, retry_after_ms) = match why {
        NoRoom::Full => (
            "full",
            "No host has room for a session of this size at the moment. Try again, or ask for a smaller one.",
            5_000,
        ),
        NoRoom::TooLarge => (
            "too_large",
            "The session is larger than any host of this installation. Ask for a smaller one.",
            60_000,
        ),
        NoRoom::Cordoned => {
            ("cordoned", "No host takes new sessions at the moment. Try again later.", 30_000)
        }
        NoRoom::NoRuntime => (
            "no_runtime",
            "No host that could take the session has its container runtime. Ask for another one.",
            60_000,
        ),
        NoRoom::EngineDown => {
            let detail = "The container engine that would run the session does not answer. Sessions that run go on; try again.";
            return Problem::new(Code::EngineUnavailable, detail).retry_after_ms(5_000);
        }
    };
    Problem::new(Code::Capacity, detail).retry_after_ms(retry_after_ms).with("reason", reason)
}

fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
