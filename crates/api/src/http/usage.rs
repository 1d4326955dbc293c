//! Usage over HTTP: what a tenant's calls and sessions cost, and what could go better.

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use chrono::{DateTime, TimeDelta, Utc};
use domain::limits::{USAGE_DAYS, USAGE_DAYS_DEFAULT};
use domain::usage::{CallFigures, Period};
use domain::{SessionId, TenantId};
use store::{HourFilter, UsageGroup as Group};

use super::access::{Operator, Tenant};
use super::extract::{Id, Params};
use crate::problem::Problem;
use crate::service::usage;
use crate::state::ApiState;
use crate::wire::lists::List;
use crate::wire::usage::{
    SessionUsageView, UsageBy, UsageGroup, UsageHourView, UsageInsights, UsageView, groups, total,
};

const A_TIME: &str = "must be a time in RFC 3339";

/// Read usage
///
/// What the tenant's calls and sessions cost in a period: calls, outcomes, CPU time, bytes, median and 95th percentile of durations. The
/// period is widened to whole hours, at most 92 days; the last 30 days when left out. A call is counted in the hour of its end, within
/// seconds; the CPU time of a shell while it runs, with its call's tool.
#[utoipa::path(get, path = "/v1/usage", tag = "usage", security(("bearer" = ["usage:read"])),
    params(
        ("from" = Option<String>, Query, description = "Where the period begins (RFC 3339)."),
        ("to" = Option<String>, Query, description = "Where it ends (RFC 3339); now when left out."),
        ("group" = Option<UsageBy>, Query, description = "What `data` is summed up by; `tool` when left out."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Sessions of the page, 1 to 100; 20 when left out. Only by session."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same period. Only by session."),
    ),
    responses((status = 200, description = "What was used.", body = UsageView)))]
pub(crate) async fn get_usage(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let period = period(&state, &mut params)?;
    let by = params.parse("group", "must be `tool`, `day` or `session`")?.unwrap_or(UsageBy::Tool);
    let (group, page) = match by {
        UsageBy::Tool => (Group::Tool, None),
        UsageBy::Day => (Group::Day, None),
        UsageBy::Session => {
            let list = format!("usage {period:?}");
            let page = params.page(&state, &list, Some(context.tenant_id()))?;
            (Group::Tool, Some((list, page)))
        }
    };
    params.finish()?;
    let used = usage::usage(&state, &context, period, group).await?;
    let (data, next_cursor) = match page {
        None => (groups(&used.groups), None),
        Some((list, page)) => {
            let listed = usage::by_session(&state, &context, period, page).await?;
            let next = listed.next.map(|after| state.signer.cursor(&list, Some(context.tenant_id()), after));
            let of_session = |(id, figures): &(SessionId, CallFigures)| UsageGroup {
                key: id.to_string(),
                figures: figures.into(),
            };
            (listed.items.iter().map(of_session).collect(), next)
        }
    };
    Ok(Json(UsageView {
        object: "usage",
        from: period.from.into(),
        to: period.to.into(),
        group: by,
        total: (&total(&used.groups)).into(),
        sessions: (&used.sessions).into(),
        data,
        has_more: next_cursor.is_some(),
        next_cursor,
    }))
}

/// Read a session's usage
///
/// What its calls cost so far, by tool, and what the session itself took.
#[utoipa::path(get, path = "/v1/sessions/{session_id}/usage", tag = "usage", security(("bearer" = ["usage:read"])),
    params(("session_id" = String, Path, description = "The session.")),
    responses((status = 200, description = "What it used.", body = SessionUsageView)))]
pub(crate) async fn get_session_usage(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    Id(id): Id<SessionId>,
) -> Result<impl IntoResponse, Problem> {
    Ok(Json(SessionUsageView::from(usage::of_session(&state, &context, id).await?)))
}

/// List closed hours
///
/// Oldest first: what is billed. An hour appears some minutes after its end and never changes; hours in which nothing was used are
/// left out. Keep the last `next_cursor` (or the last hour as `from`) to go on where an export ended.
#[utoipa::path(get, path = "/v1/usage/hours", tag = "usage", security(("bearer" = ["usage:read"])),
    params(
        ("from" = Option<String>, Query, description = "Hours that begin at this time or later (RFC 3339)."),
        ("to" = Option<String>, Query, description = "Hours that begin before this time (RFC 3339)."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of hours.", body = List<UsageHourView>)))]
pub(crate) async fn list_usage_hours(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let filter = hours(&mut params)?;
    let (list, owner) = (format!("usage hours {filter:?}"), Some(context.tenant_id()));
    let page = params.page(&state, &list, owner)?;
    params.finish()?;
    let listed = state.store.usage_hours(&context, filter, page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, owner, after));
    Ok(Json(List::new(listed.items.into_iter().map(UsageHourView::from).collect(), next)))
}

/// List closed hours of all tenants
///
/// As `GET /v1/usage/hours`, for an operator who writes the bills.
#[utoipa::path(get, path = "/v1/admin/usage", tag = "admin", security(("bearer" = ["operator"])),
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant's."),
        ("from" = Option<String>, Query, description = "Hours that begin at this time or later (RFC 3339)."),
        ("to" = Option<String>, Query, description = "Hours that begin before this time (RFC 3339)."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100, description = "Items of the page, 1 to 100; 20 when left out."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, with the same filter."),
    ),
    responses((status = 200, description = "A page of hours.", body = List<UsageHourView>)))]
pub(crate) async fn list_usage_of_all(
    State(state): State<ApiState>,
    Operator(operator): Operator,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let tenant_id = params.parse::<TenantId>("tenant", "must be a tenant's id")?;
    let filter = HourFilter { tenant_id, ..hours(&mut params)? };
    let list = format!("usage of all {filter:?}");
    let page = params.page(&state, &list, None)?;
    params.finish()?;
    let listed = state.store.usage_hours_of_all(&operator, filter, page).await?;
    let next = listed.next.map(|after| state.signer.cursor(&list, None, after));
    Ok(Json(List::new(listed.items.into_iter().map(UsageHourView::from).collect(), next)))
}

/// Read insights
///
/// What could go better in a period (the last 30 days when left out), the most important first: tools that fail or are slow, calls that
/// wait, limits that refuse, and what to change about each.
#[utoipa::path(get, path = "/v1/usage/insights", tag = "usage", security(("bearer" = ["usage:read"])),
    params(
        ("from" = Option<String>, Query, description = "Where the period begins (RFC 3339)."),
        ("to" = Option<String>, Query, description = "Where it ends (RFC 3339); now when left out."),
    ),
    responses((status = 200, description = "What was found.", body = UsageInsights)))]
pub(crate) async fn get_usage_insights(
    State(state): State<ApiState>,
    Tenant(context): Tenant,
    mut params: Params,
) -> Result<impl IntoResponse, Problem> {
    let period = period(&state, &mut params)?;
    params.finish()?;
    let findings = usage::insights(&state, &context, period).await?;
    let (from, to) = (period.from.into(), period.to.into());
    Ok(Json(UsageInsights { object: "usage_insights", from, to, findings }))
}

fn period(state: &ApiState, params: &mut Params) -> Result<Period, Problem> {
    let from: Option<DateTime<Utc>> = params.parse("from", A_TIME)?;
    let to = params.parse("to", A_TIME)?.unwrap_or_else(|| state.store.clock().now());
    let from = match from {
        Some(from) => from,
        None => to
            .checked_sub_signed(TimeDelta::days(i64::from(USAGE_DAYS_DEFAULT)))
            .ok_or_else(|| Problem::query("to", "must be a time of this age"))?,
    };
    if !in_our_age(from) || !in_our_age(to) {
        return Err(Problem::query("from", "and `to` must be times of this age"));
    }
    if from >= to {
        return Err(Problem::query("from", "must lie before `to`"));
    }
    if to - from > TimeDelta::days(i64::from(USAGE_DAYS)) {
        let message = format!(
            "must lie at most {USAGE_DAYS} days before `to`; longer periods are read from `/v1/usage/hours`"
        );
        return Err(Problem::query("from", message));
    }
    Ok(Period::around(from, to))
}

fn hours(params: &mut Params) -> Result<HourFilter, Problem> {
    let from: Option<DateTime<Utc>> = params.parse("from", A_TIME)?;
    let to: Option<DateTime<Utc>> = params.parse("to", A_TIME)?;
    if [from, to].into_iter().flatten().any(|at| !in_our_age(at)) {
        return Err(Problem::query("from", "and `to` must be times of this age"));
    }
    Ok(HourFilter { tenant_id: None, from, to })
}

/// What the database can keep, and more than anybody needs.
pub(super) fn in_our_age(at: DateTime<Utc>) -> bool {
    (0..=253_402_300_799).contains(&at.timestamp())
}
