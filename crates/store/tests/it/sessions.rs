//! Sessions: limits, keys, filters, changes, ends, shells, retention.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use domain::event::OutputPiece;
use domain::policy::EffectiveLimits;
use domain::{CallStatus, SessionEnd, SessionEndReason, SessionStatus, ShellStatus, StreamName};
use futures_util::future::join_all;
use serde_json::json;
use store::testing::{TestDatabase, new_session, new_shell, running_session, tenant};
use store::{
    Announce, CreatedSession, Dropped, Fence, Idempotency, NewShell, OutputOwner, Page, Retention,
    SessionFence, SessionFilter, SessionPatch, SessionWish, ShellEnd, ShellLog, StoreError,
};

use crate::calls::{outcome, output, queued, started, today, worker};

#[tokio::test]
async fn the_limit_on_sessions_holds_when_all_come_at_once() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let limits = EffectiveLimits { sessions: 5, ..EffectiveLimits::default() };
    let creations = (0..100).map(|_| store.create_session(&context, new_session(None), &limits, None));
    let mut made = 0;
    for created in join_all(creations).await {
        match created? {
            CreatedSession::Created(session) => {
                assert_eq!((session.status, session.worker_id), (SessionStatus::Starting, None));
                made += 1;
            }
            CreatedSession::QuotaExceeded { limit: 5, in_use: 5 } => {}
            other => bail!("{other:?}"),
        }
    }
    assert_eq!(made, 5);
    Ok(())
}

#[tokio::test]
async fn one_key_makes_one_session() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let limits = EffectiveLimits::default();
    let key = |body| Some(Idempotency::of("POST sessions", "k", &body));
    let creations = (0..20)
        .map(|_| store.create_session(&context, new_session(None), &limits, key(json!({"image": "a"}))));
    let mut ids = Vec::new();
    for created in join_all(creations).await {
        match created? {
            CreatedSession::Created(session) | CreatedSession::Duplicate(session) => ids.push(session.id),
            other => bail!("{other:?}"),
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let other =
        store.create_session(&context, new_session(None), &limits, key(json!({"image": "b"}))).await?;
    assert!(matches!(other, CreatedSession::Mismatch { fields } if fields == ["image"]));
    Ok(())
}

#[tokio::test]
async fn sessions_are_claimed_once_listed_and_changed() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let limits = EffectiveLimits::default();
    let mut ids = Vec::new();
    for n in 0..4 {
        let mut new = new_session(None);
        new.metadata = BTreeMap::from([("n".to_owned(), n.to_string())]);
        let CreatedSession::Created(session) = store.create_session(&context, new, &limits, None).await?
        else {
            bail!("created")
        };
        ids.push(session.id);
    }
    let (first, second) = (worker(&store).await?, worker(&store).await?);
    let (mine, theirs) = (store.claim_sessions(first, 2).await?, store.claim_sessions(second, 9).await?);
    let mut claimed: Vec<_> = mine.iter().chain(&theirs).map(|session| session.id).collect();
    claimed.sort_unstable();
    assert_eq!((claimed, mine.len()), (ids.clone(), 2));
    assert!(mine.iter().all(|session| session.epoch == 1 && session.worker_id == Some(first)));

    let filter = SessionFilter {
        metadata: BTreeMap::from([("n".to_owned(), "2".to_owned())]),
        ..SessionFilter::default()
    };
    let found = store.list_sessions(&context, &filter, Page::default()).await?;
    assert_eq!(found.items.iter().map(|session| session.id).collect::<Vec<_>>(), [ids[2]]);
    let patch = SessionPatch { idle_timeout_s: Some(7), lifetime_s: Some(7_200), ..SessionPatch::default() };
    let changed = store.update_session(&context, ids[0], &patch).await?;
    assert_eq!((changed.idle_timeout_s, changed.lifetime_s), (7, 7_200));
    assert_eq!((changed.expires_at - changed.created_at).num_seconds(), 7_200);
    let reset = store.request_session_reset(&context, ids[0]).await?;
    assert_eq!(reset.reset_requested, 1);
    let owner = reset.worker_id.context("claimed")?;
    let wishes = store.sessions_wanting_change(owner).await?;
    assert!(matches!(wishes[0].1, SessionWish::Reset { request: 1 }));
    let fence = SessionFence::of(&reset).context("claimed")?;
    let done = store.session_reset_done(&fence, 1, 2).await?;
    assert_eq!((done.reset_done, done.generation), (1, 2));
    assert!(store.sessions_wanting_change(owner).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn an_ended_session_has_nothing_open() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let fence = SessionFence::of(&session).context("assigned")?;
    let running = started(&store, &context, session.id, worker).await?;
    let waiting = queued(&store, &context, session.id).await?;
    let new = new_shell(&store, running.id);
    let shell = store.create_shell(&fence, new).await?;
    assert_eq!(store.request_session_end(&context, session.id).await?.status, SessionStatus::Running);
    let wishes = store.sessions_wanting_change(worker).await?;
    assert!(matches!(&wishes[0].1, SessionWish::End(end) if end.reason == SessionEndReason::Deleted));
    let ended =
        store.end_session(&fence, SessionEnd::because(SessionEndReason::Oom).with("oom_kills", 1)).await?;
    assert_eq!(ended.ended.as_ref().map(|end| end.reason), Some(SessionEndReason::Oom));
    assert_eq!(store.get_call(&context, running.id).await?.status, CallStatus::Lost);
    assert_eq!(store.get_call(&context, waiting.id).await?.status, CallStatus::Failed);
    assert_eq!(store.events(&context, waiting.id, 1, 9, 9).await?.events.len(), 1);
    assert_eq!(store.get_shell(&context, session.id, shell.id).await?.status, ShellStatus::Exited);
    let again = store.end_session(&fence, SessionEnd::because(SessionEndReason::Idle)).await?;
    assert_eq!(again.ended, ended.ended, "it stays as it ended first");
    assert_eq!(store.request_session_end(&context, session.id).await?.status, SessionStatus::Ended);
    let changed = store.update_session(&context, session.id, &SessionPatch::default()).await;
    assert!(matches!(changed, Err(StoreError::Conflict { .. })));
    Ok(())
}

#[tokio::test]
async fn a_session_without_a_worker_ends_at_once() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let limits = EffectiveLimits::default();
    let created = store.create_session(&context, new_session(None), &limits, None).await?;
    let CreatedSession::Created(session) = created else { bail!("created") };
    let call = queued(&store, &context, session.id).await?;
    assert_eq!(store.request_session_end(&context, session.id).await?.status, SessionStatus::Ended);
    assert_eq!(store.get_call(&context, call.id).await?.status, CallStatus::Failed);
    Ok(())
}

#[tokio::test]
async fn idle_and_expired_are_told_by_the_database_s_clock() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let idle = running_session(&store, &context, worker).await?;
    let busy = running_session(&store, &context, worker).await?;
    let recent = running_session(&store, &context, worker).await?;
    let old = running_session(&store, &context, worker).await?;
    started(&store, &context, busy.id, worker).await?;
    let done = started(&store, &context, recent.id, worker).await?;
    let fence = Fence::of(&done).context("started")?;
    store.finish_call(&fence, Announce::Started, vec![], outcome(CallStatus::Succeeded)).await?;
    store.close().await;
    let store = database.store().await?;
    sqlx::query("UPDATE sessions SET last_active_at = last_active_at - interval '1 day' WHERE id <> $1")
        .bind(old.id.uuid())
        .execute(&mut superuser)
        .await?;
    sqlx::query("UPDATE sessions SET expires_at = clock_timestamp() WHERE id = $1")
        .bind(old.id.uuid())
        .execute(&mut superuser)
        .await?;
    let mut wishes: Vec<_> = store
        .sessions_wanting_change(worker)
        .await?
        .into_iter()
        .filter_map(|(session, wish)| match wish {
            SessionWish::End(end) => Some((session.id, end.reason)),
            SessionWish::Reset { .. } => None,
        })
        .collect();
    wishes.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(wishes, [(idle.id, SessionEndReason::Idle), (old.id, SessionEndReason::Expired)]);
    Ok(())
}

#[tokio::test]
async fn a_shell_s_log_grows_once_and_can_be_read_from_anywhere() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let fence = SessionFence::of(&session).context("assigned")?;
    let call = started(&store, &context, session.id, worker).await?;
    let writing = Fence::of(&call).context("started")?;
    store.append_events(&writing, Announce::Started, vec![output(0, b"before ")]).await?;
    let new = NewShell { log: ShellLog::OfCall, ..new_shell(&store, call.id) };
    let shell = store.create_shell(&fence, new.clone()).await?;
    assert_eq!(store.create_shell(&fence, new).await?.id, shell.id, "idempotent");
    let piece = |at: u64, stream, offset, bytes: &[u8]| OutputPiece {
        log_offset: at,
        stream,
        offset,
        bytes: bytes.to_vec(),
    };
    let mut watch = store.bus().subscribe_shell(shell.id);
    let pieces = vec![piece(7, StreamName::Stdout, 7, b"out"), piece(10, StreamName::Stderr, 0, b"err")];
    for _ in 0..2 {
        store.append_shell_output(&fence, shell.id, pieces.clone(), 13).await?;
    }
    watch.changed().await;
    let owner = OutputOwner::Shell(shell.id);
    let read = store.output_pieces(&context, owner, 8, 1 << 20).await?;
    assert_eq!(
        read.iter().map(|piece| piece.bytes.as_slice()).collect::<Vec<_>>(),
        [b"ut".as_slice(), b"err"]
    );
    assert_eq!((read[0].log_offset, read[0].offset), (8, 8));
    let durable = store.durable_output(owner).await?;
    assert_eq!((durable.log_offset, durable.stdout_offset, durable.stderr_offset), (13, 10, 3));
    let (head, tail) = store.output_head_tail(owner, StreamName::Stdout, 0..10, 6).await?;
    assert_eq!((head.as_slice(), tail.as_slice()), (b"before".as_slice(), b" out".as_slice()));
    let (head, tail) = store.output_head_tail(owner, StreamName::Stdout, 2..9, 6).await?;
    assert_eq!((head.as_slice(), tail.as_slice()), (b"fore o".as_slice(), b"u".as_slice()));
    let end = ShellEnd { exit_code: Some(3), ..ShellEnd::default() };
    assert_eq!(store.finish_shell(&fence, shell.id, end).await?.exit_code, Some(3));
    assert_eq!(store.finish_shell(&fence, shell.id, ShellEnd::default()).await?.exit_code, Some(3));
    assert!(store.shells_running(session.id).await?.is_empty());
    let stale = SessionFence { epoch: 9, ..fence };
    let refused = store.append_shell_output(&stale, shell.id, vec![], 99).await;
    assert!(matches!(refused, Err(StoreError::Stale { .. })));
    Ok(())
}

#[tokio::test]
async fn pruned_history_says_so_and_the_call_still_says_how_it_ended() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let mut superuser = database.superuser().await?;
    // Days of the template, which may have been made long ago.
    store.drop_old(Retention::default()).await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let call = started(&store, &context, session.id, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    store
        .finish_call(&fence, Announce::Started, vec![output(0, b"hi")], outcome(CallStatus::Succeeded))
        .await?;
    assert_eq!(store.drop_old(Retention::default()).await?, Dropped::default());
    let day = today(&mut superuser).await?;
    store.ensure_partitions(7).await?;
    let made = (store.ensure_partitions(7).await?, store.ensure_partitions(9).await?);
    // At midnight there is one more day to make.
    if today(&mut superuser).await? == day {
        assert_eq!(made, (0, 6), "the first are there");
    }
    // As if a week had gone by.
    for parent in ["call_events", "output_chunks"] {
        sqlx::query("SELECT toolhost_drop_partitions($1, (now() AT TIME ZONE 'UTC')::date + 1)")
            .bind(parent)
            .execute(&mut superuser)
            .await?;
    }
    let page = store.events(&context, call.id, 1, 100, 1 << 20).await?;
    assert_eq!((page.pruned_before, page.events.len(), page.last_seq), (Some(3), 0, 3));
    let at_the_end = store.events(&context, call.id, 3, 100, 1 << 20).await?;
    assert_eq!(at_the_end.pruned_before, None, "whoever has seen everything has missed nothing");
    assert!(store.output_range(&context, OutputOwner::Call(call.id), StreamName::Stdout, 0, 9).await?.pruned);
    assert_eq!(store.get_call(&context, call.id).await?.status, CallStatus::Succeeded);
    assert!(matches!(
        store.get_call(&context, store.clock().new_id()).await,
        Err(StoreError::NotFound { .. })
    ));
    Ok(())
}
