//! After a restore: nothing that was open goes on as if nothing had happened, and nothing that may run is given up.

use anyhow::{Context, Result};
use domain::{CallStatus, Effect};
use sqlx::Executor;
use store::testing::{TestDatabase, admission, operator, running_session, tenant, worker_on};
use store::{Admitted, NewSandbox, Restored};

use crate::calls::{queued, started};

#[tokio::test]
async fn a_dump_in_another_cluster_is_noticed_and_one_in_place_is_said() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let host = store.register_host("here").await?;
    assert_eq!(store.live_sandboxes(host).await?.restored_at, None, "a new installation was not restored");
    let worker = worker_on(&store, host).await?;
    let session = running_session(&store, &context, worker).await?;
    let new = NewSandbox {
        host_id: host,
        worker_id: worker,
        image: "i".to_owned(),
        size: None,
        runtime: "runc".to_owned(),
        workspace: None,
    };
    let warm = store.reserve_sandbox(&new).await?.sandbox_id;
    store.sandbox_started(warm, "container", "workspace").await?;
    let running = started(&store, &context, session.id, worker).await?;
    let waiting = queued(&store, &context, session.id).await?;
    let mut harmless = admission(&context, session.id);
    harmless.call.effect = Effect::Pure;
    let Admitted::Queued(harmless, _) = store.admit(harmless).await? else { anyhow::bail!("queued") };

    // What another cluster would say.
    let mut raw = database.superuser().await?;
    raw.execute("UPDATE installation SET cluster = 'another'").await?;
    assert_eq!(store.register_host("here").await?, host);
    let live = store.live_sandboxes(host).await?;
    assert!(live.restored_at.is_some());
    assert!(live.rows.is_empty(), "a warm one may have been claimed since: {:?}", live.rows);
    for (call, status) in
        [(running.id, CallStatus::Lost), (waiting.id, CallStatus::Lost), (harmless.id, CallStatus::Failed)]
    {
        let call = store.get_call(&context, call).await?;
        assert_eq!(call.status, status);
        let ended = call.ended.context("has ended")?;
        assert_eq!(ended.evidence["restored_from_backup"], true);
    }
    let after = store.get_session(&context, session.id).await?;
    assert!(after.epoch > session.epoch + 1_000, "agents may have seen later epochs than the backup");
    store.register_host("here").await?;
    assert_eq!(store.get_session(&context, session.id).await?.epoch, after.epoch, "noticed once");

    store.release_restored(&operator()).await?;
    assert_eq!(store.live_sandboxes(host).await?.restored_at, None);
    assert_eq!(store.mark_restored(&operator()).await?, Restored { sessions: 1, calls: 0 });
    assert!(store.live_sandboxes(host).await?.restored_at.is_some());
    Ok(())
}
