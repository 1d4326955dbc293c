//! A call's events: where a reader may begin, and pages of them.

use domain::{CallId, Code, Event, TenantContext};
use store::{CallWatch, EventPage};

use crate::problem::Problem;
use crate::sse::CallSource;
use crate::state::ApiState;

/// A place to begin from: a number of this call that a client has seen, or 0.
pub(crate) fn parse_cursor(text: &str) -> Result<u64, Problem> {
    plain_number(text).ok_or_else(invalid_cursor)
}

/// A number of digits and nothing else.
pub(crate) fn plain_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// What a source of events begins with.
pub(crate) type Begun = (CallSource, crate::sse::FirstEvents);

/// The events after a cursor, as a source that goes on with what comes. `None` when the reader has seen the call's last event.
pub(crate) async fn follow(
    state: &ApiState,
    context: &TenantContext,
    call_id: CallId,
    cursor: u64,
    watch: CallWatch,
) -> Result<Option<Begun>, Problem> {
    let page = page(state, context, call_id, cursor, crate::sse::PAGE_EVENTS, crate::sse::PAGE_BYTES).await?;
    if page.ended && cursor == page.last_seq {
        return Ok(None);
    }
    Ok(Some(CallSource::new(state.clone(), context.clone(), call_id, cursor, watch, page)))
}

/// Events after a cursor.
pub(crate) async fn page(
    state: &ApiState,
    context: &TenantContext,
    call_id: CallId,
    cursor: u64,
    max_events: u32,
    max_bytes: u64,
) -> Result<EventPage, Problem> {
    let page = state.store.events(context, call_id, cursor, max_events, max_bytes).await?;
    if cursor > page.last_seq {
        return Err(invalid_cursor());
    }
    if let Some(pruned_before) = page.pruned_before {
        return Err(pruned(call_id).with("pruned_before", pruned_before));
    }
    Ok(page)
}

/// The log of a call is no longer kept; its result is.
pub(crate) fn pruned(call_id: CallId) -> Problem {
    let detail = "These events are no longer kept. The call with its result still is.";
    Problem::new(Code::EventsPruned, detail)
        .with("links", serde_json::json!({"call": format!("/v1/calls/{call_id}")}))
}

fn invalid_cursor() -> Problem {
    Problem::new(Code::InvalidCursor, "The cursor is not a number of an event of this call.")
}

/// An event as JSON.
pub(crate) fn to_wire(event: &Event) -> serde_json::Value {
    event.to_wire(|bytes| data_encoding::BASE64.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_plain_number() {
        assert_eq!(parse_cursor("0").ok(), Some(0));
        assert_eq!(parse_cursor("42").ok(), Some(42));
        for bad in ["", "-1", "+1", "1.0", " 1", "x", "99999999999999999999", "1\n2", "call_x:3"] {
            assert_eq!(
                parse_cursor(bad).err().map(|problem| problem.code),
                Some(Code::InvalidCursor),
                "{bad}"
            );
        }
    }
}
