//! The audit trail over HTTP: pages of JSON, or everything as lines.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::{Code, TenantContext};
use futures_util::stream;
use store::{AuditFilter, Listed};
use uuid::Uuid;

use super::accept::{Rows, rows};
use super::access::Tenant;
use super::extract::Params;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::wire::audit::AuditEntryView;
use crate::wire::lists::List;

/// Actions that one filter may name.
const ACTIONS: usize = 20;

/// Read the audit trail
///
/// Every decision and change of the tenant, newest first: who, what, from where, allowed or why not. With `Accept: application/x-ndjson`
/// everything that the filter leaves is sent as it is read, one object a line, without pages.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", security(("bearer" = ["audit:read"])),
    params(
        ("since" = Option<String>, Query, description = "Recorded at or after this time (RFC 3339)."),
        ("until" = Option<String>, Query, description = "Recorded before this time (RFC 3339)."),
        ("action" = Option<Vec<String>>, Query, description = "Actions, such as `call.submit`, or all that begin so, as `call.*`; several with commas, at most 20."),
        ("principal" = Option<String>, Query, description = "The id of the API key, or the name, of who did it."),
        ("target" = Option<String>, Query, description = "What it was done to: an id, or method and path of a refused request."),
        ("allowed" = Option<bool>, Query, description = "Only what was allowed, or only what was refused."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out. Not for lines."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of the trail, or all of it as lines.", content(
        (List<AuditEntryView> = "application/json"),
        (AuditEntryView = "application/x-ndjson")))))]
pub(crate) async fn list_audit(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let filter = filter(&mut params)?;
    match rows(&headers) {
        Rows::Lines => {
            params.finish()?;
            lines(state, context, filter).await
        }
        Rows::Page => page(&state, &context, &filter, params).await,
        Rows::Neither => {
            let detail = "This answers with `application/json` or `application/x-ndjson`.";
            Err(Problem::new(Code::NotAcceptable, detail))
        }
    }
}

fn filter(params: &mut Params) -> Result<AuditFilter, Problem> {
    let expected = "must be actions such as `call.submit` or `call.*`";
    let actions = params.parse_all("action", expected, |text| is_action(text).then(|| text.to_owned()))?;
    if actions.len() > ACTIONS {
        return Err(Problem::query("action", format!("must be at most {ACTIONS}")));
    }
    Ok(AuditFilter {
        since: params.parse("since", "must be a time in RFC 3339")?,
        until: params.parse("until", "must be a time in RFC 3339")?,
        actions,
        principal: params.take("principal")?,
        target: params.take("target")?,
        allowed: params.parse("allowed", "must be true or false")?,
    })
}

/// Words with points between them; the last may be `*`.
fn is_action(text: &str) -> bool {
    let words = text.strip_suffix(".*").unwrap_or(text);
    let word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    text.len() <= 60 && words.split('.').all(word)
}

async fn page(
    state: &ApiState,
    context: &TenantContext,
    filter: &AuditFilter,
    mut params: Params,
) -> Result<Response, Problem> {
    let (list, owner) = (format!("audit {filter:?}"), Some(context.tenant_id()));
    let page = params.page(state, &list, owner)?;
    params.finish()?;
    let listed = state.store.list_audit(context, filter, page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, owner, after));
    let data = listed.items.into_iter().map(AuditEntryView::from).collect();
    Ok(axum::Json(List::new(data, next)).into_response())
}

/// The first stretch is read before the answer begins, so that a database that is away is still a problem; later it can only
/// cut the answer off, which a client sees, as the body then has no end.
async fn lines(state: ApiState, context: TenantContext, filter: AuditFilter) -> Result<Response, Problem> {
    let first = state.store.export_audit(&context, &filter, None).await?;
    let (first, after) = written(first);
    let export = Export { state, context, filter };
    let rest = stream::try_unfold((export, after), |(export, after)| export.step(after));
    let body = Body::from_stream(stream::StreamExt::chain(stream::iter([Ok(first)]), rest));
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))], body).into_response())
}

struct Export {
    state: ApiState,
    context: TenantContext,
    filter: AuditFilter,
}

impl Export {
    async fn step(
        self,
        after: Option<Uuid>,
    ) -> Result<Option<(Bytes, (Self, Option<Uuid>))>, std::io::Error> {
        let Some(after) = after else { return Ok(None) };
        let listed = self.state.store.export_audit(&self.context, &self.filter, Some(after)).await;
        let (lines, after) = written(listed.map_err(std::io::Error::other)?);
        Ok(Some((lines, (self, after))))
    }
}

fn written(listed: Listed<store::AuditEntry>) -> (Bytes, Option<Uuid>) {
    let mut lines = Vec::new();
    for entry in listed.items.into_iter().map(AuditEntryView::from) {
        lines.extend(serde_json::to_vec(&entry).unwrap_or_default());
        lines.push(b'\n');
    }
    (lines.into(), listed.next)
}

#[cfg(test)]
mod tests {
    use super::is_action;

    #[test]
    fn actions_are_words_with_points() {
        for good in ["call.submit", "auth.refuse", "call.*", "key.create"] {
            assert!(is_action(good), "{good}");
        }
        for bad in ["", "*", ".*", "call.", "call.%", "Call", "call..x", "a'b", &"x".repeat(61)] {
            assert!(!is_action(bad), "{bad}");
        }
    }
}
