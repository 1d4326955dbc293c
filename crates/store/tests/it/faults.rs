//! Faults: Postgres dies and comes back, answers are lost, processes are told of each other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use chrono::{DateTime, TimeDelta, Utc};
use domain::CallStatus;
use futures_util::future::join_all;
use sqlx::{Executor, PgConnection, Row};
use store::testing::{Durability, TestDatabase, admission, running_session, tenant, until, until_some};
use store::{
    Admitted, Announce, CallChange, CallFilter, DatabaseConfig, Fence, Hint, Page, Store, StoreError,
};

use crate::calls::{outcome, output, queued, started, worker};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_crash_of_postgres_is_unavailable_and_then_over() -> Result<()> {
    let database = TestDatabase::private(Durability::On).await?;
    let store = database.store().await?;
    // For what is asked while there is no database, and has to be refused.
    let config = DatabaseConfig { timeout: Duration::from_secs(2), ..database.config() };
    let impatient = Store::connect(&config, &prometheus::Registry::new()).await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let call = started(&store, &context, session.id, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    let kept = queued(&store, &context, session.id).await?;

    database.crash().await?;
    let start = Instant::now();
    let read = impatient.get_call(&context, call.id).await;
    assert!(matches!(read, Err(StoreError::Unavailable { .. })), "{read:?}");
    let admitted = impatient.admit(admission(&context, session.id)).await;
    assert!(matches!(admitted, Err(StoreError::Unavailable { .. })), "{admitted:?}");
    assert!(matches!(impatient.renew_lease(worker).await, Err(StoreError::Unavailable { .. })));
    assert!(matches!(impatient.ping().await, Err(StoreError::Unavailable { .. })));
    assert!(matches!(impatient.claim_sessions(worker, 1).await, Err(StoreError::Unavailable { .. })));
    assert!(start.elapsed() < Duration::from_secs(30));

    database.start().await?;
    until("the lease is renewed", PATIENCE, async || match impatient.renew_lease(worker).await {
        Ok(_) => true,
        Err(StoreError::Unavailable { .. }) => false,
        Err(error) => panic!("{error}"),
    })
    .await;
    // Connections from before the crash break when they are used.
    let found =
        until_some("the call is found", PATIENCE, async || match store.get_call(&context, kept.id).await {
            Err(StoreError::Unavailable { .. }) => None,
            found => Some(found),
        })
        .await?;
    assert_eq!(found.status, CallStatus::Queued, "2xx means committed");
    // The renewal was for a few seconds.
    database.execute("UPDATE workers SET lease_expires_at = clock_timestamp() + interval '1 hour'").await?;
    store
        .finish_call(&fence, Announce::Started, vec![output(0, b"hi")], outcome(CallStatus::Succeeded))
        .await?;
    assert_eq!(store.get_call(&context, call.id).await?.status, CallStatus::Succeeded);
    Ok(())
}

/// Every backend of the store is killed again and again while calls are admitted and finished. Each admission that was answered is
/// there once, each write is there once, and what fails fails as unavailable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_when_connections_die_at_any_moment() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let mut superuser = database.superuser().await?;
    let killer = tokio::spawn(async move {
        let mut killed = 0;
        for _ in 0..30 {
            // At no moment that has to do with what the store is at.
            tokio::time::sleep(Duration::from_millis(61)).await;
            let row = sqlx::query(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .fetch_one(&mut superuser)
            .await?;
            killed += row.get::<i64, _>(0);
        }
        anyhow::Ok(killed)
    });
    let runs = (0..8).map(|_| {
        let (store, context) = (store.clone(), context.clone());
        async move {
            let mut answered = Vec::new();
            for _ in 0..60 {
                let mut admission = admission(&context, session.id);
                admission.reservation = Some(worker);
                let call = match store.admit(admission).await {
                    Ok(Admitted::Started(call)) => call,
                    Err(StoreError::Unavailable { .. }) => continue,
                    other => bail!("{other:?}"),
                };
                let mut fence = Fence::of(&call).context("started")?;
                let appended = loop {
                    match store
                        .append_events(&fence, Announce::Started, vec![output(0, b"a"), output(1, b"b")])
                        .await
                    {
                        Ok(appended) => break appended,
                        Err(StoreError::Unavailable { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                };
                assert_eq!(appended.last_seq, 3);
                fence.after_seq = appended.last_seq;
                loop {
                    match store
                        .finish_call(&fence, Announce::Nothing, vec![], outcome(CallStatus::Succeeded))
                        .await
                    {
                        Ok(_) => break,
                        Err(StoreError::Unavailable { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                answered.push(call.id);
            }
            Ok(answered)
        }
    });
    let runs: Vec<_> = runs.map(tokio::spawn).collect();
    let mut answered = Vec::new();
    for run in join_all(runs).await {
        answered.extend(run??);
    }
    let killed = killer.await??;
    assert!(killed > 0, "nothing died");
    let mut superuser = database.superuser().await?;
    let rows = sqlx::query("SELECT id, status, last_seq FROM calls").fetch_all(&mut superuser).await?;
    let ended = rows.iter().filter(|row| row.get::<&str, _>("status") == "succeeded").count();
    assert_eq!(ended, answered.len());
    let row = sqlx::query(
        "SELECT count(*) FROM calls c WHERE c.status = 'succeeded' AND (c.last_seq <> 4 OR
             (SELECT array_agg(seq ORDER BY seq) FROM call_events e WHERE e.call_id = c.id) <> ARRAY[1, 2, 3, 4]::bigint[])",
    )
    .fetch_one(&mut superuser)
    .await?;
    assert_eq!(row.get::<i64, _>(0), 0, "gaps or twins");
    let trail = "SELECT count(*) FROM audit_log WHERE action IN ('call.submit', 'call.start', 'call.end')";
    let row = sqlx::query(trail).fetch_one(&mut superuser).await?;
    let unanswered = rows.len() - answered.len();
    assert_eq!(
        row.get::<i64, _>(0),
        (answered.len() * 3 + unanswered) as i64,
        "one audit row for each change"
    );
    Ok(())
}

#[tokio::test]
async fn another_process_is_told_and_after_a_gap_everybody_is_woken() -> Result<()> {
    let database = TestDatabase::new().await?;
    let (here, there) = (database.store().await?, database.store().await?);
    let context = tenant(&here, "acme").await?;
    let worker = worker(&here).await?;
    let session = running_session(&here, &context, worker).await?;
    let mut queue = there.bus().subscribe_queue();
    let call = started(&here, &context, session.id, worker).await?;
    let mut watch = there.bus().subscribe_call(call.id);
    let mut fence = Fence::of(&call).context("started")?;
    let told = async {
        // Both listeners may still be on their way, so one event may be missed; the next is not.
        for n in 0_u64.. {
            let announce = if n == 0 { Announce::Started } else { Announce::Nothing };
            fence.after_seq = here.append_events(&fence, announce, vec![output(n, b"x")]).await?.last_seq;
            if let Ok(change) = tokio::time::timeout(Duration::from_millis(300), watch.changed()).await {
                assert!(matches!(change, CallChange::Wake), "the events are in the table");
                break;
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, told).await.context("told")??;
    queued(&here, &context, session.id).await?;
    let hinted = async { while queue.next().await != Hint::Queued(session.id) {} };
    tokio::time::timeout(PATIENCE, hinted).await.context("a hint of the queue")?;

    let mut superuser = database.superuser().await?;
    superuser
        .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'toolhost-listen'")
        .await?;
    let woken = async { while queue.next().await != Hint::Everything {} };
    tokio::time::timeout(PATIENCE, woken).await.context("woken after the gap")?;
    Ok(())
}

#[tokio::test]
async fn the_clock_is_the_database_s_and_ids_carry_it() -> Result<()> {
    let database = TestDatabase::new().await?;
    let mut superuser = database.superuser().await?;
    let began = Instant::now();
    let store = database.store().await?;
    let before = theirs(&mut superuser).await?;
    let ours = store.clock().now();
    let id: domain::CallId = store.clock().new_id();
    let after = theirs(&mut superuser).await?;
    // Every measurement was made in this time, and is wrong by no more. An id carries whole milliseconds.
    let error = TimeDelta::from_std(began.elapsed())? + TimeDelta::milliseconds(1);
    let carried = domain::id::time_of(id.uuid()).context("a version 7 uuid")?;
    for time in [ours, carried] {
        assert!(before - error <= time && time <= after + error, "{time}: {before} to {after}, {error}");
    }
    Ok(())
}

async fn theirs(superuser: &mut PgConnection) -> Result<DateTime<Utc>> {
    Ok(sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(superuser).await?)
}

#[tokio::test]
async fn closing_writes_what_waits() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let admissions: Vec<_> = (0..50)
        .map(|_| {
            let (store, admission) = (store.clone(), admission(&context, session.id));
            tokio::spawn(async move { store.admit(admission).await })
        })
        .collect();
    tokio::task::yield_now().await;
    store.close().await;
    let mut admitted = 0;
    for admission in admissions {
        match admission.await? {
            Ok(Admitted::Queued(..)) => admitted += 1,
            Err(StoreError::Unavailable { .. }) => {}
            other => bail!("{other:?}"),
        }
    }
    let after = database.store().await?;
    let page = after.list_calls(&context, &CallFilter::default(), Page { limit: 100, after: None }).await?;
    assert_eq!(page.items.len(), admitted);
    Ok(())
}
