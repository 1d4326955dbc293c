//! Quotas that are counted elsewhere: CPU-hours of a day, as the meter knows them.
//!
//! # Design notes
//!
//! The meter counts a call within seconds of its end, and a shell while it runs; a process asks it every two seconds at most. So a tenant may go over its
//! quota by what runs in that time and by what runs already, shells included; in return hardly any call pays for the look.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Days, NaiveTime, Utc};
use domain::policy::EffectiveLimits;
use domain::{Code, TenantContext, TenantId};
use store::AuditRow;

use crate::problem::Problem;
use crate::state::ApiState;
use crate::wire::Time;

const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Tenants that are remembered at once.
const KNOWN: usize = 10_000;

/// CPU time of tenants' calls and shells since the day began, as of a moment ago.
#[derive(Debug, Default)]
pub(crate) struct CpuToday {
    known: Mutex<HashMap<TenantId, Known>>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    until: Instant,
    day: DateTime<Utc>,
    used_ms: u64,
}

/// The refusal of new calls, when the tenant has used up its CPU-hours of the day.
pub(crate) async fn cpu_used_up(
    state: &ApiState,
    context: &TenantContext,
    limits: &EffectiveLimits,
) -> Result<Option<Problem>, Problem> {
    let limit = limits.cpu_hours_per_day;
    let now = state.store.clock().now();
    let today = now.date_naive().and_time(NaiveTime::MIN).and_utc();
    let used_ms = used(state, context, today).await?;
    let used = used_ms as f64 / 3_600_000.0;
    if used < limit {
        return Ok(None);
    }
    let resets_at = today.checked_add_days(Days::new(1)).unwrap_or(today);
    let wait = (resets_at - now).num_milliseconds().max(1_000).unsigned_abs();
    let detail = format!(
        "The tenant's calls and shells have used {used:.2} of {limit} CPU-hours of this day (UTC). New calls are taken on from the next day."
    );
    let shown = serde_json::to_value(Time(resets_at)).unwrap_or_default();
    Ok(Some(
        Problem::new(Code::QuotaExceeded, detail)
            .retry_after_ms(wait)
            .with("quota", "cpu_hours_per_day")
            .with("limit", limit)
            .with("used", (used * 1_000.0).round() / 1_000.0)
            .with("resets_at", shown),
    ))
}

/// Records a refusal by quota.
pub(crate) async fn refused(state: &ApiState, context: &TenantContext, problem: Problem) -> Problem {
    let row = AuditRow {
        action: "call.submit",
        target: None,
        allowed: false,
        reason: Some(problem.code.as_str().to_owned()),
        details: serde_json::Value::Object(problem.extensions.clone()),
    };
    if let Err(error) = state.store.audit(context, row).await {
        tracing::warn!(%error, "a refusal by quota could not be recorded");
    }
    problem
}

async fn used(state: &ApiState, context: &TenantContext, today: DateTime<Utc>) -> Result<u64, Problem> {
    let tenant_id = context.tenant_id();
    let now = Instant::now();
    {
        let known = state.cpu_today.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&tenant_id)
            && now < known.until
            && known.day == today
        {
            return Ok(known.used_ms);
        }
    }
    let used_ms = state.store.cpu_ms_since(context, today).await?;
    let mut known = state.cpu_today.known.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= KNOWN {
        known.retain(|_, known| now < known.until);
    }
    if known.len() < KNOWN {
        known.insert(tenant_id, Known { until: now + KNOWN_FOR, day: today, used_ms });
    }
    Ok(used_ms)
}
