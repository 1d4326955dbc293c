//! Usage: every end is counted once, closed hours stay, and reading costs the same however much there is.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use domain::call::Outcome;
use domain::usage::{CallFigures, Period};
use domain::{CallEnded, CallError, CallStatus, CallUsage, Code, EndReason, TenantContext, WorkerId};
use sqlx::{Connection, Executor, PgConnection, Row};
use store::testing::{
    TestDatabase, admission, new_shell, operator, running_session, tenant, until, until_some, worker_on,
};
use store::{
    Announce, CallDecision, Fence, HourFilter, Metered, NewShell, Page, Sealed, SessionFence, ShellEnd,
    Store, UsageGroup,
};

use crate::calls::{outcome, queued, started, worker};

async fn meter(store: &Store) -> Result<()> {
    while !matches!(store.seal_audit().await?, Sealed::Everything(0)) {}
    while store.meter_usage().await? != Metered::Nothing {}
    Ok(())
}

fn around_now(store: &Store) -> Period {
    let now = store.clock().now();
    Period::around(now - TimeDelta::days(1), now + TimeDelta::hours(1))
}

async fn totals(store: &Store, context: &TenantContext) -> Result<CallFigures> {
    let mut total = CallFigures::default();
    let usage = store.usage(context, around_now(store), UsageGroup::Tool).await?;
    usage.groups.values().for_each(|figures| total.add(figures));
    Ok(total)
}

async fn end(store: &Store, context: &TenantContext, worker: WorkerId, outcome: Outcome) -> Result<()> {
    let session = running_session(store, context, worker).await?;
    let call = started(store, context, session.id, worker).await?;
    let fence = Fence::of(&call).context("has a worker")?;
    store.finish_call(&fence, Announce::Started, Vec::new(), outcome).await?;
    Ok(())
}

fn costly(status: CallStatus, duration_ms: u64) -> Outcome {
    let usage = CallUsage {
        queue_ms: 3,
        duration_ms,
        cpu_ms: 40,
        bytes_in: 10,
        bytes_out: 1_000,
        ..CallUsage::default()
    };
    Outcome { usage, ..outcome(status) }
}

/// Every way in which a call can end, for two tenants.
async fn some_history(store: &Store, context: &TenantContext, other: &TenantContext) -> Result<()> {
    let worker = worker(store).await?;
    for n in 0..20 {
        end(store, context, worker, costly(CallStatus::Succeeded, 100 + n)).await?;
    }
    end(store, context, worker, costly(CallStatus::Failed, 9_000)).await?;
    end(store, context, worker, costly(CallStatus::TimedOut, 60_000)).await?;
    end(store, other, worker, costly(CallStatus::Succeeded, 7)).await?;
    let session = running_session(store, context, worker).await?;
    // Cancelled while it waits: no worker writes an end.
    let waiting = queued(store, context, session.id).await?;
    store.request_cancel(context, waiting.id).await?;
    store.request_cancel(context, waiting.id).await?;
    // Cancelled while it runs: asked for, and then ended.
    let running = started(store, context, session.id, worker).await?;
    store.request_cancel(context, running.id).await?;
    let fence = Fence::of(&running).context("has a worker")?;
    store.finish_call(&fence, Announce::Started, Vec::new(), costly(CallStatus::Cancelled, 50)).await?;
    let mut refused = admission(context, session.id);
    refused.decision = CallDecision::Denied {
        error: CallError::new(Code::PolicyDenied, "no"),
        ended: CallEnded::because(EndReason::Denied),
    };
    store.admit(refused).await?;
    Ok(())
}

#[tokio::test]
async fn every_end_is_counted_once_however_often_the_meter_is_killed() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    Box::pin(some_history(&store, &context, &other)).await?;
    while !matches!(store.seal_audit().await?, Sealed::Everything(0)) {}
    // Cut off at every point of a pass, also while it commits; two at a time.
    for n in 0..60 {
        let pass = || tokio::time::timeout(Duration::from_micros(n * 150), store.meter_usage());
        let _ = tokio::join!(pass(), pass());
    }
    meter(&store).await?;
    let total = totals(&store, &context).await?;
    assert_eq!((total.calls, total.succeeded, total.failed, total.timed_out), (25, 20, 1, 1));
    assert_eq!((total.cancelled, total.denied, total.lost), (2, 1, 0));
    assert_eq!((total.cpu_ms, total.bytes_in, total.bytes_out), (23 * 40, 23 * 10, 23 * 1_000));
    let p50 = total.percentile(0.5).context("some ran")?;
    assert!((90..=130).contains(&p50), "{p50}");
    assert!(total.percentile(1.0).context("some ran")? > 50_000);
    assert_eq!(totals(&store, &other).await?.calls, 1);
    assert_eq!(store.meter_usage().await?, Metered::Nothing);

    let page = Page { limit: 10, after: None };
    let first = store.usage_by_session(&context, around_now(&store), page).await?;
    assert_eq!((first.items.len(), first.items[0].1.calls), (10, 3));
    let all = Page { limit: 100, after: first.next };
    let rest = store.usage_by_session(&context, around_now(&store), all).await?;
    let calls: u64 = first.items.iter().chain(&rest.items).map(|(_, figures)| figures.calls).sum();
    assert_eq!((calls, rest.next), (25, None));
    let (session, figures) = &first.items[0];
    let alone = store.usage_of_session(&context, *session).await?;
    assert_eq!(&alone.tools["bash"], figures);
    assert!(store.usage_of_session(&other, *session).await.is_err(), "another tenant's is not found");
    Ok(())
}

/// A clock that was set back, and a line in which a call ended: neither stops the sums of the others.
#[tokio::test]
async fn a_call_that_ended_before_its_begin_took_no_time() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    for _ in 0..3 {
        end(&store, &context, worker, costly(CallStatus::Succeeded, 100)).await?;
    }
    database
        .execute(
            "SET session_replication_role = replica; -- An ended call is nobody's to change.
             WITH c AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM calls)
             UPDATE calls SET usage = NULL, in_line = c.n = 2, turn_at = CASE c.n WHEN 3 THEN ended_at + interval '1 hour' END,
                 started_at = ended_at + CASE c.n WHEN 1 THEN interval '5 ms' ELSE interval '-1 hour' END
             FROM c WHERE c.id = calls.id",
        )
        .await?;
    meter(&store).await?;
    let total = totals(&store, &context).await?;
    assert_eq!((total.calls, total.succeeded, total.duration_ms), (3, 3, 0));
    Ok(())
}

#[tokio::test]
async fn what_shells_take_is_counted_as_it_is_told_and_once() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let fence = SessionFence::of(&session).context("assigned")?;
    let call = started(&store, &context, session.id, worker).await?;
    let shell = |id| NewShell { id, ..new_shell(&store, call.id) };
    let (first, second) = (store.clock().new_id(), store.clock().new_id());
    for id in [first, second] {
        store.create_shell(&fence, shell(id)).await?;
    }
    let midnight = store.clock().now() - TimeDelta::hours(2);
    for (told, expected) in [(1_000, 1_300), (1_000, 1_300), (700, 1_300), (5_000, 5_300)] {
        store.shells_took(worker, &[(first, told), (second, 300)]).await?;
        // Cut off at every point of a pass.
        for n in 0..10 {
            let _ = tokio::time::timeout(Duration::from_micros(n * 300), store.meter_usage()).await;
        }
        meter(&store).await?;
        assert_eq!(store.cpu_ms_since(&context, midnight).await?, expected);
    }
    let elsewhere = worker_on(&store, store.register_host("elsewhere").await?).await?;
    store.shells_took(elsewhere, &[(first, 90_000)]).await?;
    store.finish_shell(&fence, first, ShellEnd { cpu_ms: 6_000, ..ShellEnd::default() }).await?;
    store.finish_shell(&fence, second, ShellEnd::default()).await?;
    let call_fence = Fence::of(&call).context("has a worker")?;
    let done = costly(CallStatus::Succeeded, 100);
    store.finish_call(&call_fence, Announce::Started, Vec::new(), done).await?;
    meter(&store).await?;
    let total = totals(&store, &context).await?;
    assert_eq!((total.cpu_ms, total.calls, total.succeeded), (6_300 + 40, 1, 1));
    assert!(total.percentile(0.5).context("one ran")? > 50, "a shell has no duration");
    assert_eq!(store.usage_of_session(&context, session.id).await?.tools["bash"].cpu_ms, 6_300 + 40);
    assert_eq!(store.cpu_ms_since(&other, midnight).await?, 0);

    // One whose call is not kept any more, beside one whose call is: both are of the same tool.
    let late = started(&store, &context, session.id, worker).await?;
    let (orphan, beside) = (store.clock().new_id(), store.clock().new_id());
    store.create_shell(&fence, shell(orphan)).await?;
    store.create_shell(&fence, NewShell { call_id: late.id, ..shell(beside) }).await?;
    let mut raw = database.superuser().await?;
    sqlx::query("DELETE FROM calls WHERE id = $1").bind(call.id.uuid()).execute(&mut raw).await?;
    store.shells_took(worker, &[(orphan, 20), (beside, 30)]).await?;
    meter(&store).await?;
    assert_eq!(totals(&store, &context).await?.cpu_ms, 6_300 + 40 + 50);
    Ok(())
}

#[tokio::test]
async fn a_crash_of_the_database_neither_loses_nor_doubles_what_was_used() -> Result<()> {
    let database = TestDatabase::private(store::testing::Durability::On).await?;
    let store = database.store().await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    Box::pin(some_history(&store, &context, &other)).await?;
    while !matches!(store.seal_audit().await?, Sealed::Everything(0)) {}
    let metering = tokio::spawn({
        let store = store.clone();
        async move { while store.meter_usage().await.is_ok_and(|done| done == Metered::Some) {} }
    });
    database.crash().await?;
    database.start().await?;
    metering.await?;
    // Connections from before the crash break when they are used.
    let counted = until_some("the database is back", Duration::from_secs(60), async || {
        meter(&store).await.ok()?;
        totals(&store, &context).await.ok()
    })
    .await;
    assert_eq!(counted.calls, 25);
    Ok(())
}

#[tokio::test]
async fn hours_are_closed_once_with_what_sessions_took_in_them() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    let worker = worker(&store).await?;
    let mut raw = database.superuser().await?;
    let hour: DateTime<Utc> = raw
        .fetch_one("SELECT date_trunc('hour', clock_timestamp(), 'UTC') - interval '5 hours' AS hour")
        .await?
        .try_get("hour")?;
    // Three sessions: through the whole hour, ended in its middle, and begun after it.
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(running_session(&store, &context, worker).await?.id);
    }
    for (session, started, ended) in [(0, -600, None), (1, 600, Some(1_800)), (2, 3_600, None)] {
        let ended = ended.map(|seconds| hour + TimeDelta::seconds(seconds));
        sqlx::query(
            "UPDATE sessions SET started_at = $2, ended_at = $3, status = CASE WHEN $3::timestamptz IS NULL THEN status ELSE 'ended' END,
                 end_reason = CASE WHEN $3::timestamptz IS NOT NULL THEN 'deleted' END WHERE id = $1",
        )
        .bind(sessions[session].uuid())
        .bind(hour + TimeDelta::seconds(started))
        .bind(ended)
        .execute(&mut raw)
        .await?;
    }
    sqlx::query("UPDATE usage_meter SET closed_until = $1").bind(hour).execute(&mut raw).await?;
    meter(&store).await?;

    let operator = operator();
    let only = HourFilter { to: Some(hour + TimeDelta::hours(2)), ..HourFilter::default() };
    let hours = store.usage_hours(&context, only, Page::default()).await?;
    assert_eq!(
        hours.items.iter().map(|row| row.hour).collect::<Vec<_>>(),
        [hour, hour + TimeDelta::hours(1)]
    );
    let first = &hours.items[0].sessions;
    assert_eq!(first.seconds.get("small"), Some(&(3_600.0 + 1_200.0)));
    assert!((first.gb_seconds - 4_800.0 / 2.0).abs() < 0.01, "{first:?}");
    assert_eq!(hours.items[1].sessions.seconds.get("small"), Some(&7_200.0));
    assert_eq!(store.usage_hours_of_all(&operator, only, Page::default()).await?.items, hours.items);
    assert!(store.usage_hours(&other, only, Page::default()).await?.items.is_empty());
    // By cursor, one at a time.
    let one = Page { limit: 1, after: None };
    let page = store.usage_hours(&context, only, one).await?;
    let next = store.usage_hours(&context, only, Page { after: page.next, ..one }).await?;
    assert_eq!((page.items[0].hour, next.items[0].hour, next.next), (hour, hour + TimeDelta::hours(1), None));

    // What comes late is counted where it can still be billed.
    end(&store, &context, worker, costly(CallStatus::Succeeded, 5)).await?;
    raw.execute("ALTER TABLE calls DISABLE TRIGGER calls_terminal_stays").await?;
    sqlx::query("UPDATE calls SET ended_at = $1").bind(hour).execute(&mut raw).await?;
    meter(&store).await?;
    assert_eq!(store.usage_hours(&context, only, Page::default()).await?.items, hours.items);
    assert_eq!(totals(&store, &context).await?.calls, 1);
    let changed = sqlx::query("UPDATE usage_hours SET calls = 7").execute(&mut raw).await;
    assert!(changed.is_err(), "a closed hour cannot be changed");

    // Closed and open hours together are the whole time.
    let period = Period::around(hour, store.clock().now());
    let seconds = store.usage(&context, period, UsageGroup::Day).await?.sessions.seconds["small"];
    let since = |start: i64| (store.clock().now() - hour).num_milliseconds() as f64 / 1_000.0 - start as f64;
    let expected = since(0) + since(3_600) + 1_200.0;
    ensure!((seconds - expected).abs() < 30.0, "{seconds} is not {expected}");
    Ok(())
}

/// Ends every other connection and waits until it has ended: only then has it told all that it read.
async fn alone(raw: &mut PgConnection) {
    let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    until("nobody else is connected", Duration::from_secs(60), async || {
        let left: i64 = sqlx::query_scalar(others).fetch_one(&mut *raw).await.expect("counts");
        left == 0
    })
    .await;
}

#[tokio::test]
async fn reading_usage_looks_at_indexes_only() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let mut raw = database.superuser().await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?.id;
    let fill = "INSERT INTO tenants (id, name) SELECT gen_random_uuid(), 'filler ' || n FROM generate_series(1, 50) n;
        INSERT INTO usage_calls SELECT t.id, date_trunc('hour', now(), 'UTC') - n * interval '1 hour', 'bash', n % 20,
                1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1 FROM tenants t, generate_series(1, 600) n;
        INSERT INTO usage_session_calls SELECT u.*, toolhost_uuid_floor(u.hour) FROM usage_calls u;
        INSERT INTO usage_refusals SELECT tenant_id, hour, 'a', 'b', 1 FROM usage_calls;
        INSERT INTO usage_hours SELECT gen_random_uuid(), tenant_id, hour, 1, 0, 1, 1, 1, '{}', 0, now() FROM usage_calls;
        INSERT INTO sessions (id, tenant_id, image, cpus, memory_mb, disk_mb, pids, runtime, idle_timeout_s, lifetime_s, expires_at,
                status, started_at, ended_at, end_reason)
            SELECT gen_random_uuid(), t.id, 'i', 1, 1, 1, 1, 'r', 1, 1, now(), 'ended', now(), now() - interval '9 days', 'idle'
            FROM tenants t, generate_series(1, 200);
        ANALYZE";
    for statement in fill.split(';') {
        raw.execute(sqlx::AssertSqlSafe(statement.to_owned())).await?;
    }
    let scans = async |raw: &mut PgConnection| -> Result<(i64, i64)> {
        let row = raw
            .fetch_one(
                "SELECT sum(seq_scan)::bigint AS sequential, sum(idx_scan)::bigint AS by_index FROM pg_stat_user_tables
                 WHERE relname ~ '^(usage_(calls|session_calls|refusals|hours)|sessions|calls|call_events)'",
            )
            .await?;
        Ok((row.try_get("sequential")?, row.try_get("by_index")?))
    };
    store.close().await;
    raw.close().await?;
    let mut raw = database.superuser().await?;
    alone(&mut raw).await;
    let before = scans(&mut raw).await?;
    let store = database.store().await?;
    let period = around_now(&store);
    store.usage(&context, period, UsageGroup::Tool).await?;
    store.usage(&context, period, UsageGroup::Day).await?;
    store.usage_by_session(&context, period, Page::default()).await?;
    store.usage_of_session(&context, session).await?;
    store.usage_hours(&context, HourFilter::default(), Page::default()).await?;
    store.usage_hours_of_all(&operator(), HourFilter::default(), Page::default()).await?;
    store.refusals(&context, period).await?;
    store.cpu_ms_since(&context, period.from).await?;
    store.close().await;
    alone(&mut raw).await;
    let after = scans(&mut raw).await?;
    ensure!(after.1 >= before.1 + 8, "{} reads of an index", after.1 - before.1);
    assert_eq!(after.0, before.0, "no table was read from its beginning to its end");
    Ok(())
}
