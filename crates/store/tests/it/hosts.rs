//! Hosts: sessions go where there is room, in no more than there is, and nowhere else.

use anyhow::{Context, Result, bail};
use domain::policy::EffectiveLimits;
use domain::{HostId, SessionEndReason, SessionStatus, ShellId, StreamName, TenantStatus, WorkerId};
use futures_util::future::join_all;
use store::testing::{TestDatabase, new_session, operator, tenant, worker_on};
use store::{
    AuditFilter, CreatedSession, Fence, HostCapacity, HostOrder, HostShare, NewSession, NoRoom, OutputOwner,
    Page, Retention, SessionFence, SessionWish, Store, TenantRetention, WorkerRoom,
};

use crate::calls::{outcome, output, queued, started};

/// A host with so much memory, and a worker on it.
async fn host(store: &Store, name: &str, memory_mb: u64) -> Result<(HostId, WorkerId)> {
    let id = store.register_host(name).await?;
    let capacity =
        HostCapacity { memory_mb: Some(memory_mb), cpu_overcommit: 1.0, ..HostCapacity::default() };
    store.set_host_capacity(id, capacity).await?;
    Ok((id, worker_on(store, id).await?))
}

fn limits() -> EffectiveLimits {
    EffectiveLimits { sessions: 10_000, ..EffectiveLimits::default() }
}

fn sized(memory_mb: u32, assign: Option<WorkerId>) -> NewSession {
    let mut new = new_session(assign);
    new.size = None;
    new.resources.memory_mb = memory_mb;
    new
}

#[tokio::test]
async fn no_more_memory_is_promised_than_there_is_when_all_come_at_once() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let contexts = [tenant(&store, "acme").await?, tenant(&store, "other").await?];
    let (first, worker) = host(&store, "first", 4_096).await?;
    let (second, _) = host(&store, "second", 2_048).await?;
    // A quarter of the first is set aside for its warm pool.
    let pool = HostShare { cpus: 2.0, memory_mb: 1_024, disk_mb: 2_048, sandboxes: 2 };
    store.set_worker_room(worker, WorkerRoom { sessions: None, pool }).await?;
    let limits = limits();
    let all = (0..30).map(|n| store.create_session(&contexts[n % 2], new_session(None), &limits, None));
    let mut made = 0;
    for created in join_all(all).await {
        match created? {
            CreatedSession::Created(session) => {
                assert!(session.host_id.is_some());
                made += 1;
            }
            CreatedSession::NoRoom(NoRoom::Full) => {}
            other => bail!("{other:?}"),
        }
    }
    assert_eq!(made, (3_072 + 2_048) / 512);
    let hosts = store.list_hosts(&operator()).await?;
    let used: Vec<_> = hosts.iter().map(|host| (host.id, host.used.memory_mb, host.pool.memory_mb)).collect();
    assert_eq!(used, [(first, 3_072, 1_024), (second, 2_048, 0)]);
    // The refusals are in the trail, and larger than any host is another matter.
    let refused = AuditFilter { allowed: Some(false), ..AuditFilter::default() };
    let trail = store.list_audit(&contexts[0], &refused, Page::default()).await?;
    assert_eq!(trail.items[0].reason.as_deref(), Some("capacity"));
    let huge = store.create_session(&contexts[0], sized(5_000, None), &limits, None).await?;
    assert!(matches!(huge, CreatedSession::NoRoom(NoRoom::TooLarge)), "{huge:?}");
    // What ends makes room.
    let sessions = store.claim_sessions(worker, 100).await?;
    let fence = SessionFence::of(&sessions[0]).context("claimed")?;
    store.end_session(&fence, domain::SessionEnd::because(SessionEndReason::Deleted)).await?;
    let again = store.create_session(&contexts[0], new_session(None), &limits, None).await?;
    assert!(matches!(again, CreatedSession::Created(session) if session.host_id == Some(first)));
    Ok(())
}

#[tokio::test]
async fn a_session_goes_to_the_host_with_most_room_but_stays_near_who_asks() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (near, here) = host(&store, "near", 10_000).await?;
    let (far, there) = host(&store, "far", 10_000).await?;
    let limits = limits();
    let mut placed = Vec::new();
    for _ in 0..4 {
        match store.create_session(&context, sized(1_500, Some(here)), &limits, None).await? {
            CreatedSession::Created(session) => placed.push((session.host_id, session.worker_id)),
            other => bail!("{other:?}"),
        }
    }
    // Until the far one has a fifth more of its memory free.
    let (near, far) = ((Some(near), Some(here)), (Some(far), None));
    assert_eq!(placed, [near, near, far, near]);
    // Only its own host's worker takes what was placed and not assigned.
    assert!(store.claim_sessions(here, 10).await?.is_empty());
    assert_eq!(store.claim_sessions(there, 10).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn sessions_that_waited_for_a_host_are_placed_within_its_room() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let limits = limits();
    for _ in 0..3 {
        let made = store.create_session(&context, new_session(None), &limits, None).await?;
        assert!(matches!(made, CreatedSession::Created(session) if session.host_id.is_none()));
    }
    let (_, worker) = host(&store, "late", 1_024).await?;
    assert_eq!(store.claim_sessions(worker, 10).await?.len(), 2);
    assert_eq!(store.claim_sessions(worker, 10).await?.len(), 0);
    let (_, second) = host(&store, "later", 1_024).await?;
    assert_eq!(store.claim_sessions(second, 10).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_host_is_cordoned_drained_and_opened_again() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, operator, limits) = (tenant(&store, "acme").await?, operator(), limits());
    let (id, worker) = host(&store, "only", 4_096).await?;
    let create = |assign| store.create_session(&context, new_session(assign), &limits, None);
    let CreatedSession::Created(running) = create(Some(worker)).await? else { bail!("created") };
    let CreatedSession::Created(waiting) = create(None).await? else { bail!("created") };
    assert_eq!(store.order_host(&operator, id, HostOrder::Cordon).await?.schedule.as_str(), "cordoned");
    assert!(matches!(create(None).await?, CreatedSession::NoRoom(NoRoom::Cordoned)));
    assert_eq!(store.get_session(&context, waiting.id).await?.host_id, None, "it waits for another");
    assert!(store.claim_sessions(worker, 10).await?.is_empty());
    store.ask_ends().await?;
    assert!(store.sessions_wanting_change(worker).await?.is_empty());

    let draining = store.order_host(&operator, id, HostOrder::Drain { within_s: Some(0) }).await?;
    assert!(draining.drain_by.is_some());
    store.ask_ends().await?;
    let wishes = store.sessions_wanting_change(worker).await?;
    assert!(
        matches!(&wishes[..], [(session, SessionWish::End(end))]
            if session.id == running.id && end.reason == SessionEndReason::HostDrained),
        "{wishes:?}"
    );
    let opened = store.order_host(&operator, id, HostOrder::Uncordon).await?;
    assert_eq!((opened.schedule.as_str(), opened.drain_by), ("open", None));
    assert_eq!(store.claim_sessions(worker, 10).await?[0].id, waiting.id);
    let nobody = HostId::from_uuid(uuid::Uuid::nil());
    assert!(store.order_host(&operator, nobody, HostOrder::Cordon).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_suspended_tenant_has_nothing_open_whenever_it_was_made() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, limits) = (tenant(&store, "acme").await?, limits());
    let (_, worker) = host(&store, "only", 4_096).await?;
    let CreatedSession::Created(owned) =
        store.create_session(&context, new_session(Some(worker)), &limits, None).await?
    else {
        bail!("created")
    };
    store.set_tenant_status(&operator(), context.tenant_id(), TenantStatus::Suspended).await?;
    // Made by a process that has not heard of it yet.
    let CreatedSession::Created(late) =
        store.create_session(&context, new_session(None), &limits, None).await?
    else {
        bail!("created")
    };
    let call = queued(&store, &context, late.id).await?;
    store.ask_ends().await?;
    let ended = store.get_session(&context, late.id).await?;
    assert_eq!(
        (ended.status, ended.ended.map(|end| end.reason)),
        (SessionStatus::Ended, Some(SessionEndReason::TenantSuspended))
    );
    assert!(store.get_call(&context, call.id).await?.status.is_terminal());
    let wishes = store.sessions_wanting_change(worker).await?;
    assert!(
        matches!(&wishes[..], [(session, SessionWish::End(end))]
            if session.id == owned.id && end.reason == SessionEndReason::TenantSuspended),
        "{wishes:?}"
    );
    store.set_tenant_status(&operator(), context.tenant_id(), TenantStatus::Active).await?;
    let again = store.create_session(&context, new_session(Some(worker)), &limits, None).await?;
    assert!(matches!(again, CreatedSession::Created(session) if session.worker_id == Some(worker)));
    Ok(())
}

/// An installation that is some days old.
struct Old {
    store: Store,
    context: domain::TenantContext,
    worker: domain::WorkerId,
    raw: sqlx::PgConnection,
}

async fn old() -> Result<Old> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (_, worker) = host(&store, "only", 100_000).await?;
    let mut raw = database.superuser().await?;
    let days = "SELECT toolhost_ensure_partitions((now() AT TIME ZONE 'UTC')::date - 10, 13)";
    sqlx::Executor::execute(&mut raw, days).await?;
    Ok(Old { store, context, worker, raw })
}

#[tokio::test]
async fn a_tenant_keeps_less_than_others_when_it_is_told_to() -> Result<()> {
    let Old { store, context, worker, mut raw } = old().await?;
    let other = tenant(&store, "other").await?;
    let mut ids = Vec::new();
    for context in [&context, &other] {
        let session = store::testing::running_session(&store, context, worker).await?;
        let mut of_tenant = Vec::new();
        for days in [5, 3, 0] {
            of_tenant.push(aged(&store, &mut raw, context, session.id, worker, days).await?);
        }
        ids.push(of_tenant);
    }
    // A shell of the call of three days ago has a log of its own.
    let [_, three, _] = ids[0][..] else { bail!("three") };
    let log = uuid::Uuid::from_u128(three.uuid().as_u128() ^ 1);
    for statement in [
        "INSERT INTO shells (id, tenant_id, session_id, call_id, operation, output_owner, command, status, ended_at, next_offset)
             SELECT $1, tenant_id, session_id, id, 0, $1, 'true', 'exited', now(), 3 FROM calls WHERE id = $2",
        "INSERT INTO output_chunks (owner, log_offset, tenant_id, stream, stream_offset, bytes)
             SELECT $1, 0, tenant_id, 1, 0, 'log' FROM calls WHERE id = $2",
    ] {
        sqlx::query(statement).bind(log).bind(three.uuid()).execute(&mut raw).await?;
    }
    let retention = TenantRetention { calls_days: Some(4), events_days: None, output_days: Some(1) };
    store.set_tenant_retention(&operator(), context.tenant_id(), retention).await?;
    let installation = Retention { output_days: 7, events_days: 7, calls_days: 30 };
    store.prune_tenants(installation).await?;
    store.prune_tenants(installation).await?;
    // Five days: gone. Three: the call and its events, without output. Today's: everything.
    let [five, three, today] = ids[0][..] else { bail!("three") };
    assert!(store.get_call(&context, five).await.is_err());
    assert_eq!(store.get_call(&context, three).await?.status, domain::CallStatus::Succeeded);
    assert!(store.events(&context, three, 0, 100, 1_000).await?.pruned_before.is_some());
    let logs: i64 = sqlx::query_scalar("SELECT count(*) FROM output_chunks WHERE owner = $1")
        .bind(log)
        .fetch_one(&mut raw)
        .await?;
    assert_eq!(logs, 0, "its shell's log as well");
    for (context, call, stream, pruned) in [
        (&context, three, StreamName::Stdout, true),
        (&context, today, StreamName::Stdout, false),
        (&context, today, StreamName::Stderr, false),
        (&other, ids[1][1], StreamName::Stdout, false),
    ] {
        let range = store.output_range(context, OutputOwner::Call(call), stream, 0, 9).await?;
        assert_eq!(range.pruned, pruned, "{stream:?}");
    }
    let shell = OutputOwner::Shell(ShellId::from_uuid(log));
    assert!(store.output_range(&context, shell, StreamName::Stdout, 0, 9).await?.pruned);
    assert_eq!(store.events(&context, today, 0, 100, 1_000).await?.events.len(), 3);
    for call in &ids[1] {
        assert_eq!(store.events(&other, *call, 0, 100, 1_000).await?.events.len(), 3);
    }
    let row = sqlx::query("SELECT count(*) AS n FROM call_events WHERE call_id = ANY ($1)")
        .bind(vec![five.uuid(), three.uuid(), today.uuid()])
        .fetch_one(&mut raw)
        .await?;
    assert_eq!(sqlx::Row::try_get::<i64, _>(&row, "n")?, 6);
    // Never longer than the installation.
    let more = TenantRetention { calls_days: Some(90), ..TenantRetention::default() };
    assert_eq!(more.within(installation), installation);
    Ok(())
}

#[tokio::test]
async fn a_shell_that_runs_keeps_its_own_log_and_holds_up_nothing_else() -> Result<()> {
    let Old { store, context, worker, mut raw } = old().await?;
    let session = store::testing::running_session(&store, &context, worker).await?;
    let mut calls = Vec::new();
    for days in [5, 3] {
        calls.push(aged(&store, &mut raw, &context, session.id, worker, days).await?);
    }
    let [five, three] = calls[..] else { bail!("two") };
    // The oldest call went to the background, and its log is the shell's.
    sqlx::query(
        "INSERT INTO shells (id, tenant_id, session_id, call_id, operation, output_owner, command, status)
             SELECT gen_random_uuid(), tenant_id, session_id, id, 0, id, 'serve', 'running' FROM calls WHERE id = $1",
    )
    .bind(five.uuid())
    .execute(&mut raw)
    .await?;
    let retention = TenantRetention { calls_days: Some(4), events_days: None, output_days: Some(1) };
    store.set_tenant_retention(&operator(), context.tenant_id(), retention).await?;
    let installation = Retention { output_days: 7, events_days: 7, calls_days: 30 };
    let logs = "SELECT count(*) FROM output_chunks WHERE owner = $1";
    for (shell, of_five) in [("running", 1_i64), ("exited", 0)] {
        let statement = "UPDATE shells SET status = $1, ended_at = CASE $1 WHEN 'exited' THEN now() END";
        sqlx::query(statement).bind(shell).execute(&mut raw).await?;
        store.prune_tenants(installation).await?;
        for (call, expected) in [(five, of_five), (three, 0)] {
            let found: i64 = sqlx::query_scalar(logs).bind(call.uuid()).fetch_one(&mut raw).await?;
            assert_eq!(found, expected, "{call} while its shell is {shell}");
        }
        assert!(store.get_call(&context, five).await.is_err(), "it is older than calls are kept");
        store.get_call(&context, three).await?;
    }
    Ok(())
}

/// An ended call with events and output, as old as so many days.
async fn aged(
    store: &Store,
    raw: &mut sqlx::PgConnection,
    context: &domain::TenantContext,
    session: domain::SessionId,
    worker: domain::WorkerId,
    days: i64,
) -> Result<domain::CallId> {
    let call = started(store, context, session, worker).await?;
    let mut fence = Fence::of(&call).context("has a worker")?;
    let written = store.append_events(&fence, store::Announce::Started, vec![output(0, b"hello")]).await?;
    fence.after_seq = written.last_seq;
    let done = outcome(domain::CallStatus::Succeeded);
    store.finish_call(&fence, store::Announce::Nothing, Vec::new(), done).await?;
    let old = domain::id::uuid_at(store.clock().now() - chrono::TimeDelta::days(days), rand_of(&call.id));
    sqlx::Executor::execute(&mut *raw, "ALTER TABLE calls DISABLE TRIGGER calls_terminal_stays").await?;
    for statement in [
        "UPDATE calls SET id = $2, output_owner = $2 WHERE id = $1",
        "UPDATE call_events SET call_id = $2, owner = CASE WHEN owner IS NOT NULL THEN $2 END WHERE call_id = $1",
        "UPDATE output_chunks SET owner = $2 WHERE owner = $1",
    ] {
        sqlx::query(statement).bind(call.id.uuid()).bind(old).execute(&mut *raw).await?;
    }
    Ok(domain::CallId::from_uuid(old))
}

#[tokio::test]
async fn calls_of_a_tenant_go_behind_their_output_and_events_and_leave_none_of_them() -> Result<()> {
    let Old { store, context, worker, mut raw } = old().await?;
    let session = store::testing::running_session(&store, &context, worker).await?;
    let old = aged(&store, &mut raw, &context, session.id, worker, 8).await?;
    let kept = aged(&store, &mut raw, &context, session.id, worker, 2).await?;
    // Output and events are kept as long as everybody's, calls for a shorter time: to the second, where the others' days go whole.
    let retention = TenantRetention { calls_days: Some(7), ..TenantRetention::default() };
    store.set_tenant_retention(&operator(), context.tenant_id(), retention).await?;
    let installation = Retention { output_days: 7, events_days: 7, calls_days: 30 };
    store.prune_tenants(installation).await?;
    let left = async |raw: &mut sqlx::PgConnection, id: domain::CallId| {
        let row = sqlx::query(
            "SELECT (SELECT count(*) FROM calls WHERE id = $1) AS calls, (SELECT count(*) FROM call_events WHERE call_id = $1) AS events,
                 (SELECT count(*) FROM output_chunks WHERE owner = $1) AS output",
        );
        let row = row.bind(id.uuid()).fetch_one(raw).await?;
        let of = |column| sqlx::Row::try_get::<i64, _>(&row, column);
        anyhow::Ok((of("calls")?, of("events")?, of("output")?))
    };
    assert_eq!(left(&mut raw, old).await?, (0, 0, 0));
    assert_eq!(left(&mut raw, kept).await?, (1, 3, 1));

    // What turns out to be older than where the passes were is found when they begin anew.
    let next = aged(&store, &mut raw, &context, session.id, worker, 9).await?;
    sqlx::query("DELETE FROM tenant_pruned").execute(&mut raw).await?;
    store.prune_tenants(installation).await?;
    assert_eq!(left(&mut raw, next).await?, (0, 0, 0));
    Ok(())
}

fn rand_of(id: &domain::CallId) -> [u8; 10] {
    let bytes = id.uuid().into_bytes();
    bytes[6..].try_into().expect("ten bytes")
}
