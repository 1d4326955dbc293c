//! Leases: zombies are refused, the dead are taken over once, slots and limits hold across workers.

use anyhow::{Context, Result, bail};
use domain::limits::CALL_ATTEMPTS;
use domain::{CallStatus, Code, EventBody, SessionEndReason, SessionStatus, WorkerId};
use futures_util::future::join_all;
use sqlx::PgConnection;
use store::testing::{TestDatabase, running_session, tenant, worker_on};
use store::{Announce, ClaimCursor, Fence, NewSandbox, SessionFence, Store, StoreError};

use crate::calls::{claim, outcome, output, queued, started, worker};

/// Lets a lease be over, as if its worker had been silent for long.
async fn expire(superuser: &mut PgConnection, worker: WorkerId) -> Result<()> {
    sqlx::query(
        "UPDATE workers SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE id = $1",
    )
    .bind(worker.uuid())
    .execute(superuser)
    .await?;
    Ok(())
}

/// Lets a worker be old enough to take over.
async fn seasoned(store: &Store, superuser: &mut PgConnection) -> Result<WorkerId> {
    let id = worker(store).await?;
    sqlx::query("UPDATE workers SET takeover_from = clock_timestamp() WHERE id = $1")
        .bind(id.uuid())
        .execute(superuser)
        .await?;
    Ok(id)
}

#[tokio::test]
async fn a_zombie_writes_nothing_after_its_calls_were_taken() -> Result<()> {
    let database = TestDatabase::new().await?;
    let (zombie_store, store) = (database.store().await?, database.store().await?);
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let zombie = worker(&zombie_store).await?;
    let session = running_session(&zombie_store, &context, zombie).await?;
    let call = started(&zombie_store, &context, session.id, zombie).await?;
    let mut old = Fence::of(&call).context("started")?;
    old.after_seq =
        zombie_store.append_events(&old, Announce::Started, vec![output(0, b"a")]).await?.last_seq;
    let waiting = queued(&store, &context, session.id).await?;

    let heir = seasoned(&store, &mut superuser).await?;
    assert!(store.takeover(heir).await?.is_empty(), "a live worker is left alone");
    zombie_store.stand_in_line(&old).await?;
    zombie_store.begin_turn(&old).await?;
    expire(&mut superuser, zombie).await?;
    // Nobody has taken the call yet.
    for written in [zombie_store.stand_in_line(&old).await, zombie_store.begin_turn(&old).await] {
        assert!(matches!(written, Err(StoreError::Stale { .. })), "{written:?}");
    }
    let taken = store.takeover(heir).await?;
    assert_eq!(taken.sessions.iter().map(|session| session.epoch).collect::<Vec<_>>(), [session.epoch + 1]);
    assert_eq!(taken.calls.iter().map(|call| (call.id, call.attempt)).collect::<Vec<_>>(), [(call.id, 2)]);
    assert!(store.takeover(heir).await?.is_empty(), "once");
    assert_eq!(store.slots_of_worker(heir).await?, [(context.tenant_id(), 1)]);

    let stale = |result: Result<_, StoreError>| matches!(result, Err(StoreError::Stale { .. }));
    let write = zombie_store.append_events(&old, Announce::Nothing, vec![output(1, b"z")]).await;
    assert!(stale(write));
    let write =
        zombie_store.finish_call(&old, Announce::Nothing, vec![], outcome(CallStatus::Succeeded)).await;
    assert!(stale(write));
    assert!(matches!(zombie_store.renew_lease(zombie).await, Err(StoreError::Stale { .. })));
    let fence = SessionFence::of(&session).context("assigned")?;
    assert!(matches!(zombie_store.session_running(&fence, 2).await, Err(StoreError::Stale { .. })));
    let end = domain::SessionEnd::because(SessionEndReason::Oom);
    assert!(matches!(zombie_store.end_session(&fence, end).await, Err(StoreError::Stale { .. })));
    let claimed = zombie_store.claim_calls(zombie, &claim(&context, 4), &mut ClaimCursor::default()).await?;
    assert!(claimed.is_empty());
    assert!(zombie_store.claim_sessions(zombie, 5).await?.is_empty());

    let mut new = Fence::of(&taken.calls[0]).context("taken")?;
    assert_eq!(new.after_seq, old.after_seq);
    new.after_seq = store.append_events(&new, Announce::Started, vec![output(1, b"b")]).await?.last_seq;
    store.finish_call(&new, Announce::Nothing, vec![], outcome(CallStatus::Succeeded)).await?;
    let events = store.events(&context, call.id, 0, 100, 1 << 20).await?.events;
    let text: Vec<u8> = events
        .iter()
        .filter_map(
            |event| if let EventBody::Output(piece) = &event.body { Some(piece.bytes.clone()) } else { None },
        )
        .flatten()
        .collect();
    assert_eq!(text, b"ab");
    assert_eq!(events.len(), 5, "two starts, two pieces, one end");
    let claimed = store.claim_calls(heir, &claim(&context, 4), &mut ClaimCursor::default()).await?;
    assert_eq!(claimed.iter().map(|call| call.id).collect::<Vec<_>>(), [waiting.id]);
    Ok(())
}

#[tokio::test]
async fn an_event_after_the_end_is_refused_and_so_is_a_second_end() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let call = started(&store, &context, session.id, worker).await?;
    let mut fence = Fence::of(&call).context("started")?;
    let ends = [CallStatus::Succeeded, CallStatus::Failed, CallStatus::TimedOut, CallStatus::Lost];
    let ends = ends.map(|status| store.finish_call(&fence, Announce::Started, vec![], outcome(status)));
    let ends = join_all(ends).await;
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 1);
    assert!(ends.iter().filter_map(|end| end.as_ref().err()).all(StoreError::is_stale));
    fence.after_seq = 2;
    let late = store.append_events(&fence, Announce::Nothing, vec![output(0, b"late")]).await;
    assert!(matches!(late, Err(StoreError::Stale { .. })));
    let mut superuser = database.superuser().await?;
    let direct =
        sqlx::query("UPDATE calls SET status = 'running', ended_at = NULL, ended = NULL WHERE id = $1")
            .bind(call.id.uuid())
            .execute(&mut superuser)
            .await;
    assert!(direct.is_err(), "the database itself keeps an end");
    let twice = sqlx::query(
        "INSERT INTO call_events (call_id, seq, tenant_id, type) SELECT id, 99, tenant_id, 'call.ended' FROM calls WHERE id = $1",
    )
    .bind(call.id.uuid())
    .execute(&mut superuser)
    .await;
    assert!(twice.is_err(), "and there is one end only");
    Ok(())
}

#[tokio::test]
async fn a_write_that_is_tried_again_is_there_once() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let call = started(&store, &context, session.id, worker).await?;
    let mut fence = Fence::of(&call).context("started")?;
    let pieces = || vec![output(0, b"a"), output(1, b"b")];
    let first = store.append_events(&fence, Announce::Started, pieces()).await?;
    let second = store.append_events(&fence, Announce::Started, pieces()).await?;
    assert_eq!((first.first_seq, first.last_seq, first.at), (second.first_seq, second.last_seq, second.at));
    let other = store.append_events(&fence, Announce::Started, vec![output(0, b"a"), output(9, b"b")]).await;
    assert!(matches!(other, Err(StoreError::Stale { .. })), "another batch is not the same one");
    fence.after_seq = first.last_seq;
    for _ in 0..2 {
        store.finish_call(&fence, Announce::Nothing, vec![], outcome(CallStatus::Succeeded)).await?;
    }
    let other = store.finish_call(&fence, Announce::Nothing, vec![], outcome(CallStatus::Failed)).await;
    assert!(matches!(other, Err(StoreError::Stale { .. })));
    assert_eq!(store.events(&context, call.id, 0, 100, 1 << 20).await?.events.len(), 4);
    Ok(())
}

#[tokio::test]
async fn a_lease_that_is_over_but_not_taken_can_be_revived() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let worker = seasoned(&store, &mut superuser).await?;
    let session = running_session(&store, &context, worker).await?;
    let call = started(&store, &context, session.id, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    expire(&mut superuser, worker).await?;
    let refused = store.append_events(&fence, Announce::Started, vec![output(0, b"a")]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "not stale: nobody has taken it");
    store.renew_lease(worker).await?;
    store.append_events(&fence, Announce::Started, vec![output(0, b"a")]).await?;

    // Back from an outage it must not take the others, who may be about to renew too.
    let other = crate::calls::worker(&store).await?;
    let theirs = running_session(&store, &context, other).await?;
    expire(&mut superuser, other).await?;
    assert!(store.takeover(worker).await?.is_empty());
    store.renew_lease(other).await?;
    assert_eq!(store.get_session(&context, theirs.id).await?.worker_id, Some(other));
    Ok(())
}

#[tokio::test]
async fn two_heirs_share_nothing_twice() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let dead = worker(&store).await?;
    for _ in 0..5 {
        let session = running_session(&store, &context, dead).await?;
        started(&store, &context, session.id, dead).await?;
    }
    let (first, second) = (seasoned(&store, &mut superuser).await?, seasoned(&store, &mut superuser).await?);
    expire(&mut superuser, dead).await?;
    let both = join_all([store.takeover(first), store.takeover(second)]).await;
    let mut calls = Vec::new();
    for taken in both {
        calls.extend(taken?.calls.into_iter().map(|call| (call.id, call.attempt)));
    }
    assert_eq!(calls.len(), 5);
    assert!(calls.iter().all(|(_, attempt)| *attempt == 2));
    Ok(())
}

#[tokio::test]
async fn a_call_that_takes_its_workers_down_is_quarantined() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let mut owner = worker(&store).await?;
    let session = running_session(&store, &context, owner).await?;
    let call = started(&store, &context, session.id, owner).await?;
    for attempt in 2..=CALL_ATTEMPTS {
        let heir = seasoned(&store, &mut superuser).await?;
        expire(&mut superuser, owner).await?;
        let taken = store.takeover(heir).await?;
        assert_eq!(taken.calls[0].attempt, attempt);
        owner = heir;
    }
    let heir = seasoned(&store, &mut superuser).await?;
    expire(&mut superuser, owner).await?;
    let taken = store.takeover(heir).await?;
    assert!(taken.calls.is_empty() && taken.quarantined == [call.id]);
    let call = store.get_call(&context, call.id).await?;
    assert_eq!(call.status, CallStatus::Failed);
    assert_eq!(call.error.map(|error| error.code), Some(Code::PlatformError));
    Ok(())
}

#[tokio::test]
async fn an_orphan_that_slipped_in_is_found_by_the_next_pass() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let (dead, heir) = (worker(&store).await?, seasoned(&store, &mut superuser).await?);
    let session = running_session(&store, &context, dead).await?;
    expire(&mut superuser, dead).await?;
    assert_eq!(store.takeover(heir).await?.sessions.len(), 1);
    let call = queued(&store, &context, session.id).await?;
    // As a claim of the dead worker whose commit came late would leave it.
    sqlx::query("UPDATE calls SET status = 'starting', attempt = 1, worker_id = $2 WHERE id = $1")
        .bind(call.id.uuid())
        .bind(dead.uuid())
        .execute(&mut superuser)
        .await?;
    let taken = store.takeover(heir).await?;
    assert_eq!(taken.calls.iter().map(|call| (call.id, call.attempt)).collect::<Vec<_>>(), [(call.id, 2)]);
    assert_eq!(store.calls_of_worker(heir).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_lost_host_ends_its_sessions_but_only_after_a_warning() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let running = started(&store, &context, session.id, worker).await?;
    let waiting = queued(&store, &context, session.id).await?;
    let silence = "UPDATE hosts SET last_seen_at = clock_timestamp() - interval '1 hour'";
    sqlx::query(silence).execute(&mut superuser).await?;
    assert_eq!(store.end_lost_hosts().await?, 0, "a lease still lives");
    expire(&mut superuser, worker).await?;
    assert_eq!(store.end_lost_hosts().await?, 0, "marked, not ended: it may be about to renew");
    store.renew_lease(worker).await?;
    expire(&mut superuser, worker).await?;
    sqlx::query(silence).execute(&mut superuser).await?;
    assert_eq!(store.end_lost_hosts().await?, 0, "the renewal took the mark away");
    sqlx::query("UPDATE hosts SET lost_at = lost_at - interval '1 minute'").execute(&mut superuser).await?;
    assert_eq!(store.end_lost_hosts().await?, 1);
    let session = store.get_session(&context, session.id).await?;
    assert_eq!(session.ended.map(|end| end.reason), Some(SessionEndReason::HostLost));
    assert_eq!(store.get_call(&context, running.id).await?.status, CallStatus::Lost);
    assert_eq!(store.get_call(&context, waiting.id).await?.status, CallStatus::Failed);
    Ok(())
}

#[tokio::test]
async fn slots_of_a_tenant_hold_across_workers() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let workers = [worker(&store).await?, worker(&store).await?, worker(&store).await?];
    let asks = (0..15).map(|n| store.acquire_slots(workers[n % 3], context.tenant_id(), 10, 3));
    let granted: Vec<_> = join_all(asks).await.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(granted.iter().sum::<u32>(), 10);
    let held = store.slots_of_worker(workers[0]).await?[0].1;
    store.release_slots(workers[0], context.tenant_id(), held).await?;
    assert_eq!(store.acquire_slots(workers[1], context.tenant_id(), 10, 99).await?, held);
    expire(&mut superuser, workers[1]).await?;
    assert!(store.acquire_slots(workers[2], context.tenant_id(), 10, 99).await? > 0, "the dead hold nothing");
    Ok(())
}

#[tokio::test]
async fn sandboxes_are_rows_before_and_after_they_are_containers() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let host_id = store.register_host("host").await?;
    let worker_id = worker_on(&store, host_id).await?;
    let session = running_session(&store, &context, worker_id).await?;
    let fence = SessionFence::of(&session).context("assigned")?;
    let new = NewSandbox {
        host_id,
        worker_id,
        image: "i".to_owned(),
        size: None,
        runtime: "runc".to_owned(),
        workspace: None,
    };
    let (first, second) = (store.reserve_sandbox(&new).await?, store.reserve_sandbox(&new).await?);
    assert_ne!(first.tool_uid, second.tool_uid);
    let claimed = store.claim_sandbox(first.sandbox_id, &fence, 1).await;
    assert!(matches!(claimed, Err(StoreError::Conflict { .. })), "not warm yet");
    store.sandbox_started(first.sandbox_id, "c1", "w1").await?;
    for _ in 0..2 {
        store.claim_sandbox(first.sandbox_id, &fence, 1).await?;
    }
    store.sandbox_started(second.sandbox_id, "c2", "w2").await?;
    let claimed = store.claim_sandbox(second.sandbox_id, &fence, 1).await;
    assert!(matches!(claimed, Err(StoreError::Conflict { .. })), "the session has one");
    let stale = SessionFence { epoch: fence.epoch + 1, ..fence };
    assert!(matches!(store.claim_sandbox(second.sandbox_id, &stale, 1).await, Err(StoreError::Stale { .. })));

    let live = store.live_sandboxes(host_id).await?;
    assert_eq!(live.rows.iter().filter(|row| row.abandoned).count(), 0);
    assert_eq!(store.sandbox_of_session(session.id).await?.map(|row| row.sandbox_id), Some(first.sandbox_id));
    let heir = NewSandbox { workspace: Some(("w1".to_owned(), first.tool_uid)), ..new.clone() };
    assert!(
        matches!(store.reserve_sandbox(&heir).await, Err(StoreError::Conflict { .. })),
        "its uid still lives"
    );
    store.sandbox_removed(first.sandbox_id).await?;
    assert_eq!(store.workspace_of_session(session.id).await?, Some(("w1".to_owned(), first.tool_uid)));
    assert_eq!(store.live_sandboxes(host_id).await?.workspaces, ["w1"]);
    assert_eq!(store.reserve_sandbox(&heir).await?.tool_uid, first.tool_uid);
    store.end_session(&fence, domain::SessionEnd::because(SessionEndReason::Deleted)).await?;
    assert!(store.live_sandboxes(host_id).await?.workspaces.is_empty());
    expire(&mut superuser, worker_id).await?;
    let live = store.live_sandboxes(host_id).await?;
    assert!(live.rows.iter().all(|row| row.abandoned), "its worker is gone and nobody's session has them");
    Ok(())
}

#[tokio::test]
async fn a_drained_worker_gets_nothing_more() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    queued(&store, &context, session.id).await?;
    store.drain_worker(worker).await?;
    assert!(store.claim_calls(worker, &claim(&context, 4), &mut ClaimCursor::default()).await?.is_empty());
    let mut superuser = database.superuser().await?;
    let heir = seasoned(&store, &mut superuser).await?;
    store.deregister_worker(worker).await?;
    let taken = store.takeover(heir).await?;
    assert_eq!(taken.sessions.len(), 1, "what it left can be taken at once");
    assert_eq!(taken.sessions[0].status, SessionStatus::Running);
    if !taken.calls.is_empty() {
        bail!("a queued call stays queued");
    }
    Ok(())
}
