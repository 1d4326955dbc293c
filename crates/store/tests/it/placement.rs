//! Where sessions may not go: hosts whose engine is down or lacks their runtime, and workers that keep as many as they may. What nobody takes ends.

use anyhow::{Context, Result, bail};
use domain::policy::EffectiveLimits;
use domain::{HostId, SessionEndReason, SessionId, SessionStatus, TenantContext, WorkerId};
use sqlx::PgConnection;
use store::testing::{TestDatabase, new_session, tenant, worker_on};
use store::{
    AuditFilter, CreatedSession, EngineState, HostCapacity, NewSession, NoRoom, Page, SessionWish, Store,
    WorkerRoom,
};

use crate::calls::queued;

async fn host(store: &Store, name: &str, memory_mb: u64) -> Result<(HostId, WorkerId)> {
    let id = store.register_host(name).await?;
    let capacity =
        HostCapacity { memory_mb: Some(memory_mb), cpu_overcommit: 1.0, ..HostCapacity::default() };
    store.set_host_capacity(id, capacity).await?;
    Ok((id, worker_on(store, id).await?))
}

async fn create(store: &Store, context: &TenantContext, new: NewSession) -> Result<CreatedSession> {
    let limits = EffectiveLimits { sessions: 10_000, ..EffectiveLimits::default() };
    Ok(store.create_session(context, new, &limits, None).await?)
}

async fn refusal(store: &Store, context: &TenantContext, new: NewSession) -> Result<NoRoom> {
    match create(store, context, new).await? {
        CreatedSession::NoRoom(why) => Ok(why),
        other => bail!("{other:?}"),
    }
}

async fn placed(store: &Store, context: &TenantContext, new: NewSession) -> Result<(SessionId, HostId)> {
    match create(store, context, new).await? {
        CreatedSession::Created(session) => Ok((session.id, session.host_id.context("has a host")?)),
        other => bail!("{other:?}"),
    }
}

#[tokio::test]
async fn sessions_go_where_an_engine_works_and_are_refused_when_none_could_take_them() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (large, of_large) = host(&store, "large", 8_192).await?;
    let (small, of_small) = host(&store, "small", 1_024).await?;
    let sized = |memory_mb| {
        let mut new = new_session(Some(of_large));
        (new.size, new.resources.memory_mb) = (None, memory_mb);
        new
    };
    // Nobody has said anything yet.
    assert_eq!(placed(&store, &context, sized(512)).await?.1, large);
    store.set_worker_engine(of_large, EngineState::Down, None).await?;
    assert_eq!(placed(&store, &context, sized(512)).await?.1, small);
    // The small one works, but could never take it.
    assert_eq!(refusal(&store, &context, sized(2_048)).await?, NoRoom::EngineDown);
    let trail = AuditFilter { allowed: Some(false), ..AuditFilter::default() };
    let trail = store.list_audit(&context, &trail, Page::default()).await?;
    assert_eq!(trail.items[0].reason.as_deref(), Some("engine_unavailable"));
    // One of its kind is enough.
    let beside = worker_on(&store, large).await?;
    assert_eq!(placed(&store, &context, sized(2_048)).await?.1, large);
    store.deregister_worker(beside).await?;
    store.set_worker_engine(of_small, EngineState::Down, None).await?;
    assert_eq!(refusal(&store, &context, sized(512)).await?, NoRoom::EngineDown);
    let hosts = store.list_hosts(&store::testing::operator()).await?;
    assert!(hosts.iter().all(|host| host.engine == Some(EngineState::Down)), "{hosts:?}");

    let runtimes = ["runc".to_owned(), "runsc".to_owned()];
    store.set_worker_engine(of_large, EngineState::Works, Some(&runtimes)).await?;
    store.set_worker_engine(of_small, EngineState::Works, Some(&runtimes[..1])).await?;
    let on = |runtime: &str, memory_mb| NewSession { runtime: runtime.to_owned(), ..sized(memory_mb) };
    assert_eq!(placed(&store, &context, on("runsc", 512)).await?.1, large);
    assert_eq!(refusal(&store, &context, on("kata", 512)).await?, NoRoom::NoRuntime);
    assert_eq!(refusal(&store, &context, on("kata", 10_000)).await?, NoRoom::TooLarge);
    Ok(())
}

#[tokio::test]
async fn a_session_that_waits_for_a_host_waits_for_one_whose_engine_works() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let CreatedSession::Created(waiting) = create(&store, &context, new_session(None)).await? else {
        bail!("created")
    };
    let (_, worker) = host(&store, "late", 4_096).await?;
    store.set_worker_engine(worker, EngineState::Down, None).await?;
    assert!(store.claim_sessions(worker, 10).await?.is_empty());
    store.set_worker_engine(worker, EngineState::Works, None).await?;
    assert_eq!(store.claim_sessions(worker, 10).await?[0].id, waiting.id);
    Ok(())
}

#[tokio::test]
async fn a_host_takes_no_more_sessions_than_its_workers_keep() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (id, worker) = host(&store, "only", 100_000).await?;
    let room = |sessions| WorkerRoom { sessions, ..WorkerRoom::default() };
    store.set_worker_room(worker, room(Some(2))).await?;
    for _ in 0..2 {
        placed(&store, &context, new_session(None)).await?;
    }
    assert_eq!(refusal(&store, &context, new_session(None)).await?, NoRoom::Full);
    // Another worker of the host has room of its own, and one of the version before says nothing.
    let beside = worker_on(&store, id).await?;
    store.set_worker_room(beside, room(Some(1))).await?;
    placed(&store, &context, new_session(None)).await?;
    assert_eq!(refusal(&store, &context, new_session(None)).await?, NoRoom::Full);
    store.set_worker_room(beside, room(None)).await?;
    placed(&store, &context, new_session(None)).await?;
    Ok(())
}

async fn set(raw: &mut PgConnection, session: SessionId, what: &'static str) -> Result<()> {
    let statement = match what {
        "old" => "UPDATE sessions SET expires_at = clock_timestamp() - interval '1 second' WHERE id = $1",
        "unused" => {
            "UPDATE sessions SET last_active_at = clock_timestamp() - interval '61 seconds', idle_timeout_s = 1 WHERE id = $1"
        }
        "unused for less" => {
            "UPDATE sessions SET last_active_at = clock_timestamp() - interval '30 seconds', idle_timeout_s = 1 WHERE id = $1"
        }
        other => bail!("{other}"),
    };
    sqlx::query(statement).bind(session.uuid()).execute(raw).await?;
    Ok(())
}

#[tokio::test]
async fn sessions_that_no_worker_takes_end_like_others() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    host(&store, "only", 100_000).await?;
    let mut raw = database.superuser().await?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(placed(&store, &context, new_session(None)).await?.0);
    }
    let [old, unused, less, busy, deleted] = ids[..] else { bail!("five") };
    let waiting = queued(&store, &context, old).await?;
    queued(&store, &context, busy).await?;
    for (session, what) in [(old, "old"), (unused, "unused"), (less, "unused for less"), (busy, "unused")] {
        set(&mut raw, session, what).await?;
    }
    store.request_session_end(&context, deleted).await?;
    // What somebody deletes ends at once.
    assert_eq!(store.ask_ends().await?, 2);
    for (session, reason) in [
        (old, Some(SessionEndReason::Expired)),
        (unused, Some(SessionEndReason::Idle)),
        (less, None),
        (busy, None),
        (deleted, Some(SessionEndReason::Deleted)),
    ] {
        let session = store.get_session(&context, session).await?;
        assert_eq!(session.ended.as_ref().map(|end| end.reason), reason);
        let status = if reason.is_some() { SessionStatus::Ended } else { SessionStatus::Starting };
        assert_eq!(session.status, status);
        assert!(session.ended.is_none_or(|end| end.message == end.reason.message()));
    }
    assert_eq!(store.get_call(&context, waiting.id).await?.status, domain::CallStatus::Failed);
    assert_eq!(store.ask_ends().await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_session_that_waits_for_its_sandbox_is_idle_after_a_minute_without_calls() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (_, worker) = host(&store, "only", 100_000).await?;
    let mut raw = database.superuser().await?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(placed(&store, &context, new_session(Some(worker))).await?.0);
    }
    let [unused, less, busy] = ids[..] else { bail!("three") };
    queued(&store, &context, busy).await?;
    for (session, what) in [(unused, "unused"), (less, "unused for less"), (busy, "unused")] {
        set(&mut raw, session, what).await?;
    }
    let wishes = store.sessions_wanting_change(worker).await?;
    assert!(
        matches!(&wishes[..], [(session, SessionWish::End(end))]
            if session.id == unused && session.status == SessionStatus::Starting && end.reason == SessionEndReason::Idle),
        "{wishes:?}"
    );
    Ok(())
}

#[tokio::test]
async fn sessions_that_fit_nowhere_hide_none_that_could_be_placed() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (_, gone) = host(&store, "gone", 400_000).await?;
    let mut waiting = Vec::new();
    for n in 0..21 {
        let mut new = new_session(None);
        // None of them is of another's size.
        (new.size, new.resources.memory_mb) = (None, if n < 20 { 8_192 + n } else { 512 });
        waiting.push(placed(&store, &context, new).await?.0);
    }
    store.deregister_worker(gone).await?;
    let (small, worker) = host(&store, "small", 1_024).await?;
    store.claim_sessions(worker, 1).await?;
    assert_eq!(store.get_session(&context, waiting[20]).await?.host_id, Some(small));
    Ok(())
}
