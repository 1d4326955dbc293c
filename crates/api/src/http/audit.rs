//! The audit trail over HTTP: pages of JSON, or everything as lines.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::{Code, OperatorContext, TenantContext, TenantId};
use futures_util::stream;
use store::{AuditFilter, Listed, Trail};
use uuid::Uuid;

use super::accept::{Rows, rows};
use super::access::{Operator, Tenant};
use super::extract::Params;
use super::usage::in_our_age;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::transfers::SearchPermit;
use crate::wire::audit::AuditEntryView;
use crate::wire::lists::List;

/// Actions that one filter may name.
const ACTIONS: usize = 20;

/// Who reads which trail.
enum Reader {
    Tenant(Box<TenantContext>),
    Operator(OperatorContext, Option<TenantId>),
}

impl Reader {
    fn trail(&self) -> Trail<'_> {
        match self {
            Self::Tenant(context) => Trail::Own(context),
            Self::Operator(operator, tenant_id) => Trail::Above(operator, *tenant_id),
        }
    }

    /// Whose cursors they are: an operator's belong to no tenant, and say in the list's name which trail they are of.
    fn list(&self, filter: &AuditFilter) -> (String, Option<TenantId>) {
        match self {
            Self::Tenant(context) => (format!("audit {filter:?}"), Some(context.tenant_id())),
            Self::Operator(_, tenant_id) => (format!("audit of {tenant_id:?} {filter:?}"), None),
        }
    }
}

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
    params: Params,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    answer(state, Reader::Tenant(Box::new(context)), params, &headers).await
}

/// Read any audit trail
///
/// As `GET /v1/audit`, for an operator: a tenant's trail, also that of a suspended or erased one, or without `tenant` the installation's own. There is what
/// lies above tenants: hosts, operators and their keys, and credentials that were refused without its being known whose they are.
#[utoipa::path(get, path = "/v1/admin/audit", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant" = Option<String>, Query, description = "This tenant's trail; the installation's own when left out."),
        ("since" = Option<String>, Query, description = "Recorded at or after this time (RFC 3339)."),
        ("until" = Option<String>, Query, description = "Recorded before this time (RFC 3339)."),
        ("action" = Option<Vec<String>>, Query, description = "Actions, such as `auth.refuse`, or all that begin so, as `host.*`; several with commas, at most 20."),
        ("principal" = Option<String>, Query, description = "The id of the API key, or the name, of who did it."),
        ("target" = Option<String>, Query, description = "What it was done to: an id, or method and path of a refused request."),
        ("allowed" = Option<bool>, Query, description = "Only what was allowed, or only what was refused."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out. Not for lines."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of the trail, or all of it as lines.", content(
        (List<AuditEntryView> = "application/json"),
        (AuditEntryView = "application/x-ndjson")))))]
pub(crate) async fn list_audit_of_all(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    mut params: Params,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let tenant_id = params.parse::<TenantId>("tenant", "must be a tenant's id")?;
    answer(state, Reader::Operator(operator, tenant_id), params, &headers).await
}

async fn answer(
    state: ApiState,
    reader: Reader,
    mut params: Params,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let filter = filter(&mut params)?;
    match rows(headers) {
        Rows::Lines => {
            params.finish()?;
            lines(state, reader, filter).await
        }
        Rows::Page => page(&state, &reader, &filter, params).await,
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
    let mut time = |name: &str| match params.parse(name, "must be a time in RFC 3339")? {
        Some(at) if !in_our_age(at) => Err(Problem::query(name, "must be a time of this age")),
        at => Ok(at),
    };
    Ok(AuditFilter {
        since: time("since")?,
        until: time("until")?,
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
    reader: &Reader,
    filter: &AuditFilter,
    mut params: Params,
) -> Result<Response, Problem> {
    let (list, owner) = reader.list(filter);
    let page = params.page(state, &list, owner)?;
    params.finish()?;
    let listed = state.store.list_audit(reader.trail(), filter, page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, owner, after));
    let data = listed.items.into_iter().map(AuditEntryView::from).collect();
    Ok(axum::Json(List::new(data, next)).into_response())
}

/// The first stretch is read before the answer begins, so that a database that is away is still a problem; later it can only
/// cut the answer off, which a client sees, as the body then has no end.
async fn lines(state: ApiState, reader: Reader, filter: AuditFilter) -> Result<Response, Problem> {
    let permit = match &reader {
        Reader::Tenant(context) => Some(state.transfers.open_search(context.tenant_id()).await?),
        Reader::Operator(..) => None,
    };
    let first = state.store.export_audit(reader.trail(), &filter, None).await?;
    let (first, after) = written(first);
    let export = Export { state, reader, filter, _permit: permit };
    let rest = stream::try_unfold((export, after), |(export, after)| export.step(after));
    let body = Body::from_stream(stream::StreamExt::chain(stream::iter([Ok(first)]), rest));
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))], body).into_response())
}

struct Export {
    state: ApiState,
    reader: Reader,
    filter: AuditFilter,
    _permit: Option<SearchPermit>,
}

impl Export {
    async fn step(
        self,
        after: Option<Uuid>,
    ) -> Result<Option<(Bytes, (Self, Option<Uuid>))>, std::io::Error> {
        let Some(after) = after else { return Ok(None) };
        let listed = self.state.store.export_audit(self.reader.trail(), &self.filter, Some(after)).await;
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
