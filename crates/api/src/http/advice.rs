//! What to do about a refusal. Codes without a sentence of their own get that of their kind.

use domain::Code;

/// What to do about a problem with this code.
pub(crate) fn advice(code: Code) -> &'static str {
    match code.as_str() {
        "malformed_json" => {
            "Send one JSON value in UTF-8, without NUL or lone surrogates, nested at most 64 deep."
        }
        "invalid_cursor" => {
            "Use a cursor as it was given, for the same list with the same filters, or begin without one."
        }
        "unauthenticated" => "Send `Authorization: Bearer` with a key that has not expired or been revoked.",
        "insufficient_scope" => {
            "Use a key with the scope that `detail` names; GET /v1/me lists those of yours."
        }
        "tenant_suspended" => "Ask the operator of this installation.",
        "not_found" => "Check the id and whose key you use: what belongs to another tenant looks the same.",
        "method_not_allowed" => "Use one of the methods in the `Allow` header.",
        "session_ended" => "Create another session; `session_end` says why this one ended.",
        "idempotency_in_progress" => "Wait a moment and send the same request again.",
        "idempotency_mismatch" => {
            "Use a new key for a new request, or send what was sent first: `errors` names the fields that differ."
        }
        "events_pruned" => "Read the call itself: its result is kept for longer than its events.",
        "body_too_large" => {
            "Send less in one request; upload files instead of writing them through arguments."
        }
        "unsupported_media_type" => "Send `Content-Type: application/json`.",
        "range_not_satisfiable" => "Ask for bytes that are there; `Content-Range` says how many.",
        "invalid_arguments" => {
            "Change the values that `errors` lists; GET /v1/tools/{name} has the tool's schema."
        }
        "unknown_tool" => "Use a name of GET /v1/tools; `detail` names those that are close.",
        "rate_limited" => "Wait as long as `Retry-After` says, and spread requests out.",
        "quota_exceeded" => "End what is not needed, or ask for a higher quota; the problem names the quota.",
        "queue_full" => "Wait as long as `Retry-After` says; calls are submitted faster than they run.",
        "internal" => "Try again; if it stays, tell the operator the `request_id`.",
        "capacity" => "Try again after `Retry-After`; if it stays, the installation is too small.",
        "engine_unavailable" => {
            "Try again after `Retry-After`; the operator has to look at the container engine."
        }
        "database_unavailable" => "Try again after `Retry-After`. What was accepted before is safe.",
        "shutting_down" => "Send the request again: another process takes it.",
        "policy_denied" => {
            "Use another tool, or ask whoever sets the policy; POST /v1/policies/explain says which rule decides."
        }
        "timeout" => {
            "Ask for more time with `timeout_ms`, or do less in one call; what was written so far is in the result."
        }
        "call_lost" => "Look at what the call was to change before doing it again: it may have happened.",
        "stale_read" => "Read the file again, then repeat the change.",
        "not_read" => "Read the file first, or name its content by `expected_sha256`.",
        "no_match" => "Copy the text exactly as it is in the file, blanks included.",
        "multiple_matches" => "Add lines around the text until it is in the file once, or set `replace_all`.",
        "no_space" => "Delete files in the workspace, or create a session with a larger disk.",
        _ => of_kind(code),
    }
}

fn of_kind(code: Code) -> &'static str {
    match (code.status(), code.retryable()) {
        (429 | 503, _) => "Wait as long as `Retry-After` says, then send the same request again.",
        (_, true) => "Send the same request again.",
        (403, _) => "Ask whoever gave you the key or set the policy.",
        (404 | 410, _) => "Check the name: there is nothing there.",
        (409, _) => "Look at the object as it is now, then decide whether the request still makes sense.",
        (500.., _) => "Tell the operator the `request_id`.",
        _ => "Change the request as `detail` and `errors` say.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_meaning_and_advice() {
        for code in Code::ALL {
            assert!(
                code.meaning().ends_with('.') && !code.meaning().starts_with(' '),
                "{code}: {}",
                code.meaning()
            );
            assert!(advice(*code).ends_with('.'), "{code}");
        }
    }
}
