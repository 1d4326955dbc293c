//! A process that works while the schema becomes that of the next release under it.

use std::time::Duration;

use anyhow::{Context, Result};
use domain::CallStatus;
use sqlx::Executor;
use store::testing::{TestDatabase, admission, running_session, tenant, until};
use store::{Admitted, Announce, CallFilter, ClaimCursor, Fence, Page, SchemaFit, Store};

use crate::calls::{claim, outcome, output, queued, started, worker};

/// Every statement of the main path is prepared before and used after: a plan that was made for the old schema must still hold.
#[tokio::test]
async fn a_running_process_goes_on_when_the_next_release_expands_the_schema() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    assert_eq!(store.schema().await?.fit(), SchemaFit::Same);
    for round in 0..3 {
        if round == 1 {
            database.expand().await?;
            assert_eq!(store.schema().await?.fit(), SchemaFit::Newer);
        }
        let session = running_session(&store, &context, worker).await?;
        let direct = started(&store, &context, session.id, worker).await?;
        let waiting = queued(&store, &context, session.id).await?;
        let claimed = store.claim_calls(worker, &claim(&context, 4), &mut ClaimCursor::default()).await?;
        assert_eq!(claimed.iter().map(|call| call.id).collect::<Vec<_>>(), [waiting.id]);
        for call in [&direct, &claimed[0]] {
            let mut fence = Fence::of(call).context("has a worker")?;
            let appended = store.append_events(&fence, Announce::Started, vec![output(0, b"x")]).await?;
            fence.after_seq = appended.last_seq;
            store.finish_call(&fence, Announce::Nothing, Vec::new(), outcome(CallStatus::Succeeded)).await?;
            assert_eq!(store.get_call(&context, call.id).await?.status, CallStatus::Succeeded);
            assert!(!store.events(&context, call.id, 0, 100, 1 << 20).await?.events.is_empty());
        }
        assert_eq!(
            store.list_calls(&context, &CallFilter::default(), Page::default()).await?.items.len(),
            2 * (round + 1)
        );
        store.renew_lease(worker).await?;
        store.counts().await?;
        store.ensure_partitions(8).await?;
        while let store::Sealed::Some(_) = store.seal_audit().await? {}
    }
    // An old binary's own migrations change nothing of it.
    assert_eq!(Store::migrate(&database.url()).await?.applied, 0);
    assert_eq!(Store::schema_at(&database.url()).await?.newer.len(), 1);
    let admitted =
        store.admit(admission(&context, running_session(&store, &context, worker).await?.id)).await?;
    assert!(matches!(admitted, Admitted::Queued(..)));
    Ok(())
}

#[tokio::test]
async fn a_migration_that_waits_for_a_table_lets_pass_what_came_after_it() -> Result<()> {
    let database = TestDatabase::new().await?;
    // As before the migration that changes calls.
    database
        .execute(
            "DELETE FROM _sqlx_migrations WHERE version >= 44;
             ALTER TABLE calls DROP COLUMN in_line, DROP COLUMN turn_at; ALTER TABLE shells DROP COLUMN log_overdue",
        )
        .await?;
    let (mut dump, mut other) = (database.superuser().await?, database.superuser().await?);
    dump.execute("BEGIN; LOCK TABLE calls IN ACCESS SHARE MODE").await?;
    let url = database.url();
    let migration = tokio::spawn(async move { Store::migrate(&url).await });
    let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
    until("it waits for the table", Duration::from_secs(60), async || {
        sqlx::query_scalar(waits).fetch_one(&mut other).await.unwrap_or(false)
    })
    .await;
    let passes = tokio::time::timeout(Duration::from_secs(60), other.execute("SELECT count(*) FROM calls"));
    passes.await.context("a reader waits for as long as the dump")??;
    assert!(!migration.is_finished());
    dump.execute("ROLLBACK").await?;
    assert_eq!(migration.await??.applied, 1);
    assert_eq!(Store::schema_at(&database.url()).await?.fit(), SchemaFit::Same);
    Ok(())
}
