//! With many tenants and a past, what is asked often stays on indexes: read from the plans of the statements as they were really sent.
//!
//! `auto_explain` writes the plan of every statement into the log of the test's own Postgres. Each question is asked often enough that a
//! prepared statement may have been given its generic plan.

use anyhow::{Context, Result, bail, ensure};
use chrono::TimeDelta;
use domain::usage::Period;
use domain::{CallId, CallStatus, Principal, Scope, SessionId, TenantContext, TenantId};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection, raw_sql};
use store::testing::{Durability, TestDatabase, operator, running_session, tenant};
use store::{
    Announce, AuditFilter, CallFilter, ClaimCursor, Dropped, Fence, HourFilter, Page, Retention,
    SessionFilter, Store, Trail, UsageGroup,
};

use crate::calls::{claim, outcome, output, queued, started, today, worker};

const PAST: &str = include_str!("../../../../tests/src/bin/toolhost-bench/measures/p11_past.sql");
const CALLS: u32 = 20_000;
/// Postgres decides at the sixth execution whether one plan does for all.
const TIMES: usize = 8;
/// A table with fewer rows may be read whole.
const LARGE: f32 = 900.0;

/// A database with a past, whose log tells plans.
struct Past {
    database: TestDatabase,
    store: Store,
    superuser: PgConnection,
    /// One of the hundred tenants.
    context: TenantContext,
    session: SessionId,
    call: CallId,
    large: Vec<String>,
}

impl Past {
    async fn of(calls: u32) -> Result<Self> {
        let database = TestDatabase::private(Durability::Off).await?;
        let mut superuser = database.superuser().await?;
        let seed = PAST.replace("$calls", &calls.to_string()) + include_str!("plans_seed.sql");
        raw_sql(AssertSqlSafe(seed)).execute(&mut superuser).await.context("seed")?;
        raw_sql("VACUUM ANALYZE").execute(&mut superuser).await?;
        raw_sql(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_preload_libraries = auto_explain', current_database());
                EXECUTE format('ALTER DATABASE %I SET auto_explain.log_min_duration = 0', current_database());
                EXECUTE format('ALTER DATABASE %I SET auto_explain.log_format = json', current_database()); END $$",
        )
        .execute(&mut superuser)
        .await?;
        let large =
            sqlx::query_scalar("SELECT relname::text FROM pg_class WHERE relkind = 'r' AND reltuples >= $1")
                .bind(LARGE)
                .fetch_all(&mut superuser)
                .await?;
        let (tenant_id, session, call) = sqlx::query_as(
            "SELECT tenant_id, session_id, id FROM calls WHERE tenant_id = (SELECT id FROM tenants WHERE name = 'past-7') LIMIT 1",
        )
        .fetch_one(&mut superuser)
        .await?;
        let principal = Principal { key_id: None, name: "test".to_owned(), address: None, issuer: None };
        let tenant_id = TenantId::from_uuid(tenant_id);
        let context = TenantContext::verified(tenant_id, principal, Scope::tenant_default(), Vec::new());
        let store = database.store().await?;
        let (session, call) = (SessionId::from_uuid(session), CallId::from_uuid(call));
        Ok(Self { database, store, superuser, context, session, call, large })
    }

    /// Asks, and fails when any plan of it reads one of the large tables whole, or none touches the table that it should.
    async fn stays_on_indexes<T>(
        &mut self,
        what: &str,
        of: &str,
        mut ask: impl AsyncFnMut(&Store, &TenantContext) -> Result<T>,
    ) -> Result<()> {
        let since = self.log().await?.len();
        for _ in 0..TIMES {
            ask(&self.store, &self.context).await.context(what.to_owned())?;
        }
        let log = self.log().await?;
        let mut touched = 0;
        for plan in plans(&log[since..])? {
            let mut scans = Vec::new();
            gather(&plan["Plan"], &mut scans);
            touched += scans.iter().filter(|(_, relation)| relation.starts_with(of)).count();
            for (kind, relation) in scans {
                ensure!(
                    kind != "Seq Scan" || !self.large.contains(&relation),
                    "{what} reads all of {relation}:\n{}\n{:#}",
                    plan["Query Text"].as_str().unwrap_or_default(),
                    plan["Plan"]
                );
            }
        }
        ensure!(touched >= TIMES, "{what}: only {touched} plans were seen that touch {of}");
        Ok(())
    }

    async fn log(&mut self) -> Result<String> {
        let log = "SELECT pg_read_file(regexp_replace(current_setting('data_directory'), '[^/]*$', 'log'))";
        Ok(sqlx::query_scalar(log).fetch_one(&mut self.superuser).await?)
    }
}

/// The plans in a stretch of the log.
fn plans(log: &str) -> Result<Vec<Value>> {
    let mut plans = Vec::new();
    let mut parts = log.split("  plan:\n").skip(1).peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        match serde_json::Deserializer::from_str(part).into_iter::<Value>().next() {
            Some(Ok(plan)) => plans.push(plan),
            // What the store does by itself is just being written. What was asked for was written before it was answered.
            None if is_last => {}
            Some(Err(error)) if is_last && error.is_eof() => {}
            Some(Err(error)) => return Err(error.into()),
            None => bail!("no plan"),
        }
    }
    Ok(plans)
}

/// Which relations a plan scans, and how.
fn gather(node: &Value, scans: &mut Vec<(String, String)>) {
    if let (Some(kind), Some(relation)) = (node["Node Type"].as_str(), node["Relation Name"].as_str()) {
        scans.push((kind.to_owned(), relation.to_owned()));
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        gather(child, scans);
    }
}

#[tokio::test]
async fn what_is_asked_often_stays_on_indexes() -> Result<()> {
    let mut past = Past::of(CALLS).await?;
    lists(&mut past).await?;
    usage(&mut past).await?;
    audit(&mut past).await?;
    claims_and_writes(&mut past).await
}

async fn claims_and_writes(past: &mut Past) -> Result<()> {
    let context = tenant(&past.store, "busy").await?;
    let worker = worker(&past.store).await?;
    let session = running_session(&past.store, &context, worker).await?.id;
    past.context = context.clone();
    let mut cursor = ClaimCursor::default();
    past.stays_on_indexes("claim", "calls", async |store, context| {
        queued(store, context, session).await?;
        store.tenants_waiting(worker).await?;
        let claimed = store.claim_calls(worker, &claim(context, 4), &mut cursor).await?;
        ensure!(claimed.len() == 1, "claimed {}", claimed.len());
        let fence = Fence::of(&claimed[0]).context("claimed")?;
        store.finish_call(&fence, Announce::Started, Vec::new(), outcome(CallStatus::Succeeded)).await?;
        Ok(())
    })
    .await?;
    past.stays_on_indexes("a call that starts at once", "calls", async |store, context| {
        let call = started(store, context, session, worker).await?;
        let mut fence = Fence::of(&call).context("started")?;
        let appended = store.append_events(&fence, Announce::Started, vec![output(0, b"hi")]).await?;
        fence.after_seq = appended.last_seq;
        store.finish_call(&fence, Announce::Nothing, Vec::new(), outcome(CallStatus::Succeeded)).await?;
        store.events(context, call.id, 0, 100, 1 << 20).await?;
        Ok(())
    })
    .await?;
    past.stays_on_indexes("what a worker still has", "calls", async |store, _| {
        Ok(store.calls_of_worker(worker).await?)
    })
    .await?;
    past.stays_on_indexes("takeover", "sessions", async |store, _| Ok(store.takeover(worker).await?)).await?;
    past.stays_on_indexes("sealing", "audit_log", async |store, context| {
        store.audit(context, store::AuditRow::done("test.done", "test")).await?;
        Ok(store.seal_audit().await?)
    })
    .await
}

async fn lists(past: &mut Past) -> Result<()> {
    let (session, call) = (past.session, past.call);
    let page = || Page { limit: 50, after: None };
    past.stays_on_indexes("one call", "calls", async |store, context| {
        Ok(store.get_call(context, call).await?)
    })
    .await?;
    past.stays_on_indexes("its events", "call_events", async |store, context| {
        Ok(store.events(context, call, 0, 100, 1 << 20).await?)
    })
    .await?;
    let now = past.store.clock().now();
    let filters = [
        ("calls", CallFilter::default()),
        ("calls of a session", CallFilter { session_id: Some(session), ..CallFilter::default() }),
        ("calls that failed", CallFilter { status: vec![CallStatus::Failed], ..CallFilter::default() }),
        ("calls of a tool", CallFilter { tool: Some("bash".to_owned()), ..CallFilter::default() }),
        (
            "calls of a day",
            CallFilter { created_after: Some(now - TimeDelta::days(1)), ..CallFilter::default() },
        ),
    ];
    for (what, filter) in filters {
        past.stays_on_indexes(what, "calls", async |store, context| {
            let listed = store.list_calls(context, &filter, page()).await?;
            ensure!(listed.items.is_empty() == (what == "calls that failed"), "{} calls", listed.items.len());
            Ok(())
        })
        .await?;
    }
    past.stays_on_indexes("sessions", "sessions", async |store, context| {
        Ok(store.list_sessions(context, &SessionFilter::default(), page()).await?)
    })
    .await
}

async fn usage(past: &mut Past) -> Result<()> {
    let session = past.session;
    let page = || Page { limit: 50, after: None };
    let now = past.store.clock().now();
    let period = || Period::around(now - TimeDelta::days(2), now);
    for group in [UsageGroup::Tool, UsageGroup::Day] {
        past.stays_on_indexes("usage", "usage_calls", async |store, context| {
            Ok(store.usage(context, period(), group).await?)
        })
        .await?;
    }
    past.stays_on_indexes("usage by session", "usage_session_calls", async |store, context| {
        Ok(store.usage_by_session(context, period(), page()).await?)
    })
    .await?;
    past.stays_on_indexes("usage of a session", "usage_session_calls", async |store, context| {
        Ok(store.usage_of_session(context, session).await?)
    })
    .await?;
    past.stays_on_indexes("closed hours", "usage_hours", async |store, context| {
        Ok(store.usage_hours(context, HourFilter::default(), page()).await?)
    })
    .await?;
    past.stays_on_indexes("closed hours of all", "usage_hours", async |store, _| {
        Ok(store.usage_hours_of_all(&operator(), HourFilter::default(), page()).await?)
    })
    .await?;
    past.stays_on_indexes("refusals", "usage_refusals", async |store, context| {
        Ok(store.refusals(context, period()).await?)
    })
    .await?;
    past.stays_on_indexes("cpu time", "usage_calls", async |store, context| {
        Ok(store.cpu_ms_since(context, now - TimeDelta::days(2)).await?)
    })
    .await
}

async fn audit(past: &mut Past) -> Result<()> {
    let page = || Page { limit: 50, after: None };
    let now = past.store.clock().now();
    let filters = [
        AuditFilter::default(),
        AuditFilter { since: Some(now - TimeDelta::days(1)), ..AuditFilter::default() },
        AuditFilter { actions: vec!["call.*".to_owned()], ..AuditFilter::default() },
        AuditFilter { target: Some("nobody".to_owned()), ..AuditFilter::default() },
    ];
    for filter in filters {
        past.stays_on_indexes("audit", "audit_log", async |store, context| {
            Ok(store.list_audit(context, &filter, page()).await?)
        })
        .await?;
        for tenant_id in [Some(past.context.tenant_id()), None] {
            past.stays_on_indexes("audit for operators", "audit_log", async |store, _| {
                Ok(store.list_audit(Trail::Above(&operator(), tenant_id), &filter, page()).await?)
            })
            .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn retention_drops_the_days_that_are_over_and_nothing_else() -> Result<()> {
    let mut past = Past::of(2_000).await?;
    let days = "SELECT count(DISTINCT (created_at AT TIME ZONE 'UTC')::date) FROM calls";
    let before: i64 = sqlx::query_scalar(days).fetch_one(&mut past.superuser).await?;
    ensure!(before >= 6, "the past has only {before} days");
    let retention = Retention { calls_days: 3, events_days: 2, output_days: 1 };
    let day = today(&mut past.superuser).await?;
    let dropped = past.store.drop_old(retention).await?;
    ensure!(dropped.calls > 0 && dropped.events > dropped.calls, "{dropped:?}");
    let too_old = "SELECT count(*) FROM calls WHERE (created_at AT TIME ZONE 'UTC')::date < (now() AT TIME ZONE 'UTC')::date - 3";
    let too_old: i64 = sqlx::query_scalar(too_old).fetch_one(&mut past.superuser).await?;
    let kept: i64 = sqlx::query_scalar(days).fetch_one(&mut past.superuser).await?;
    ensure!((3..=4).contains(&kept) && kept < before, "{kept} of {before} days were kept");
    let again = past.store.drop_old(retention).await?;
    // At midnight one more day is over.
    if today(&mut past.superuser).await? == day {
        assert_eq!((too_old, again), (0, Dropped::default()), "it is done");
    }
    let listed =
        past.store.list_calls(&past.context, &CallFilter::default(), Page { limit: 10, after: None }).await?;
    assert_eq!(listed.items.len(), 10);
    drop(past.database);
    Ok(())
}
