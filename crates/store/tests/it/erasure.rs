//! Tenants that take everything with them: erasures that leave nothing.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use domain::policy::EffectiveLimits;
use domain::{Scope, SessionEnd, SessionEndReason, TenantStatus};
use sqlx::{AssertSqlSafe, Executor, Row};
use store::testing::{TestDatabase, new_session, operator, tenant};
use store::{Draft, ErasureAnswer, ErasureState, Finding, NewKey, SessionFence, Store, StoreError};

use crate::calls::worker;

mod traces;

pub(crate) use traces::{ADDRESS, MARK, begin, erase, files, found, life, marked, settle, store_on};

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_tenant_leaves_no_trace_of_what_it_said() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let neighbour = Box::pin(life(&store, "neighbour")).await?;
    let context = Box::pin(life(&store, MARK)).await?;
    let (id, operator) = (context.tenant_id(), operator());
    settle(&store).await?;
    let everywhere: BTreeSet<_> =
        found(&database, &[MARK, ADDRESS]).await?.into_iter().map(|(table, _)| table).collect();
    ensure!(everywhere.len() >= 13, "the tenant has left something nearly everywhere: {everywhere:?}");

    // Only who names it erases it.
    for wrong in ["", "neighbour-name", MARK] {
        ensure!(store.request_erasure(&operator, id, wrong).await? == ErasureAnswer::WrongName);
    }
    ensure!(matches!(store.erasure(&operator, id).await, Err(StoreError::NotFound { .. })));
    ensure!(store.get_tenant(&operator, id).await?.status == TenantStatus::Active);
    begin(&store, id, &marked("name")).await?;
    ensure!(store.get_tenant(&operator, id).await?.status == TenantStatus::Suspended);
    // There is no way back, and no new way in.
    let conflict = |error: Option<StoreError>| matches!(error, Some(StoreError::Conflict { .. }));
    ensure!(conflict(store.set_tenant_status(&operator, id, TenantStatus::Active).await.err()));
    ensure!(conflict(
        store
            .create_key(
                &operator,
                id,
                NewKey { name: "k".to_owned(), scopes: vec![Scope::CallsRead], ..NewKey::default() }
            )
            .await
            .err()
    ));
    let done = erase(&store, &operator, id).await?;

    let receipt = done.receipt.context("a receipt")?;
    ensure!(store.is_our_receipt(&receipt), "{receipt:?}");
    assert_eq!(found(&database, &[MARK, ADDRESS]).await?, []);
    for file in files(folder.path())? {
        let content = String::from_utf8_lossy(&std::fs::read(&file)?).into_owned();
        ensure!(
            !content.contains(MARK) && !file.to_string_lossy().contains(&id.to_string()),
            "{}",
            file.display()
        );
    }
    let deleted = &receipt.deleted;
    for (table, rows) in [
        ("calls", 3),
        ("output_chunks", 6),
        ("shells", 3),
        ("artifacts", 3),
        ("wheels", 1),
        ("artifact_objects", 4),
        ("sessions", 1),
        ("contexts", 1),
        ("api_keys", 2),
        ("roles", 1),
        ("file_versions", 3),
        ("file_reads", 1),
    ] {
        assert_eq!(deleted.get(table), Some(&rows), "{table}: {deleted:?}");
    }
    let object_bytes = 3 * marked("artifact 0").len() + marked("wheel").len();
    assert_eq!(receipt.object_bytes, object_bytes as u64);
    // What its keys still had under way brings nothing back.
    let mut draft = Draft::default();
    draft.push(b"late").await?;
    let late = store.announce_wheel(&context, &draft.seal().await?).await;
    ensure!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
    ensure!(receipt.kept["audit_log"] == receipt.trail_links && receipt.trail_findings == 0, "{receipt:?}");
    // What was used is still billed, the hour that was open too.
    ensure!(receipt.kept["usage_hours"] >= 1, "{receipt:?}");
    let mut superuser = database.superuser().await?;
    let billed = sqlx::query("SELECT sum(calls)::bigint AS calls FROM usage_hours WHERE tenant_id = $1")
        .bind(id.uuid());
    assert_eq!(billed.fetch_one(&mut superuser).await?.try_get::<i64, _>("calls")?, 3);
    // The trails hold, and asking again changes nothing.
    for tenant in [None, Some(id), Some(neighbour.tenant_id())] {
        assert_eq!(store.verify_audit(tenant, None).await?.findings, [], "{tenant:?}");
    }
    assert_eq!(begin(&store, id, "whatever").await?.receipt.as_ref(), Some(&receipt));
    // A receipt that says something else is none.
    let mut other = receipt.clone();
    other.deleted.insert("calls".to_owned(), 4);
    ensure!(!store.is_our_receipt(&other));
    ensure!(!store.is_our_receipt(&store::ErasureReceipt { trail_findings: 1, ..receipt.clone() }));
    let text = serde_json::to_string(&receipt)?;
    ensure!(store.is_our_receipt(&serde_json::from_str(&text)?));
    // Nobody else has lost anything.
    let of_neighbour: BTreeSet<_> =
        found(&database, &["neighbour-"]).await?.into_iter().map(|(table, _)| table).collect();
    assert_eq!(of_neighbour, everywhere);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_tells_of_a_tampering_from_before_and_no_session_is_made_any_more() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let context = Box::pin(life(&store, MARK)).await?;
    let id = context.tenant_id();
    settle(&store).await?;
    let mut superuser = database.superuser().await?;
    superuser.execute("SET session_replication_role = replica").await?;
    let change = format!(
        "UPDATE audit_log SET allowed = NOT allowed WHERE id = (SELECT min(id) FROM audit_log WHERE tenant_id = '{}')",
        id.uuid()
    );
    superuser.execute(AssertSqlSafe(change)).await?;
    superuser.execute("SET session_replication_role = origin").await?;
    begin(&store, id, &marked("name")).await?;
    let late = store.create_session(&context, new_session(None), &EffectiveLimits::default(), None).await;
    ensure!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
    let receipt = erase(&store, &operator(), id).await?.receipt.context("a receipt")?;
    ensure!(receipt.trail_findings >= 1, "{receipt:?}");
    ensure!(store.is_our_receipt(&receipt) && store.is_trail_of(&receipt).await?);
    // A trail that is gone altogether is not the one that was kept.
    superuser.execute("SET session_replication_role = replica").await?;
    for table in ["audit_erasures", "audit_heads", "audit_chain"] {
        let gone = format!("DELETE FROM {table} WHERE chain = '{}'", id.uuid());
        superuser.execute(AssertSqlSafe(gone)).await?;
    }
    ensure!(store.is_our_receipt(&receipt) && !store.is_trail_of(&receipt).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_trail_shows_whoever_touches_what_it_keeps() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let id = Box::pin(life(&store, MARK)).await?.tenant_id();
    settle(&store).await?;
    let checkpoint = store.verify_audit(Some(id), None).await?.head.context("a head")?;
    let mut superuser = database.superuser().await?;
    // Before there is a signed digest nobody empties a row, whoever they are.
    let empty = "UPDATE audit_log SET principal = '{\"key_id\": null, \"name\": \"erased\", \"address\": null}', target = NULL,
        reason = NULL, details = '{}'";
    let refused = superuser.execute(empty).await.err().context("is refused")?;
    ensure!(refused.to_string().contains("append-only"), "{refused}");
    begin(&store, id, &marked("name")).await?;
    erase(&store, &operator(), id).await?;
    let findings = async |checkpoint| anyhow::Ok(store.verify_audit(Some(id), checkpoint).await?.findings);
    assert_eq!(findings(Some(&checkpoint)).await?, [], "an older checkpoint is still in the chain");
    for change in
        ["allowed = NOT allowed", "at = at + interval '1 ms'", "action = 'x'", "details = '{\"a\": 1}'"]
    {
        let change = format!("UPDATE audit_log SET {change} WHERE tenant_id = '{}'", id.uuid());
        ensure!(superuser.execute(AssertSqlSafe(change)).await.is_err());
    }
    // As who has the database and none of the keys.
    superuser.execute("SET session_replication_role = replica").await?;
    for table in ["audit_log", "audit_chain", "audit_erasures"] {
        superuser
            .execute(AssertSqlSafe(format!("CREATE TEMP TABLE saved_{table} AS SELECT * FROM {table}")))
            .await?;
    }
    let last = sqlx::query("SELECT max(seq) AS seq FROM audit_chain WHERE chain = $1").bind(id.uuid());
    let last: i64 = last.fetch_one(&mut superuser).await?.try_get("seq")?;
    let row = format!("(SELECT entry_id FROM audit_chain WHERE chain = '{}' AND seq = 3)", id.uuid());
    let link = format!("chain = '{}' AND seq = 3", id.uuid());
    let differs = Finding::ErasureDiffers { to: last as u64 };
    for (tampering, expected) in [
        (format!("UPDATE audit_log SET allowed = NOT allowed WHERE id = {row}"), differs.clone()),
        (format!("UPDATE audit_log SET action = 'other' WHERE id = {row}"), differs.clone()),
        (format!("UPDATE audit_chain SET hash = sha256('x') WHERE {link}"), differs.clone()),
        (format!("DELETE FROM audit_log WHERE id = {row}"), differs.clone()),
        (
            format!("UPDATE audit_erasures SET digest = sha256('x') WHERE chain = '{}'", id.uuid()),
            Finding::ErasureForged,
        ),
        (
            format!("UPDATE audit_erasures SET seq = seq + 1 WHERE chain = '{}'", id.uuid()),
            Finding::ErasureForged,
        ),
    ] {
        let changed = superuser.execute(AssertSqlSafe(tampering.clone())).await?.rows_affected();
        ensure!(changed == 1, "{tampering}");
        let seen = findings(None).await?;
        ensure!(seen.contains(&expected), "{tampering}: {seen:?}");
        for table in ["audit_log", "audit_chain", "audit_erasures"] {
            let back = format!(
                "DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM saved_{table}"
            );
            superuser.execute(sqlx::raw_sql(AssertSqlSafe(back))).await?;
        }
        assert_eq!(findings(None).await?, [], "everything is as it was");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_is_cut_off_anywhere_goes_on_and_counts_exactly() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let id = Box::pin(life(&store, MARK)).await?.tenant_id();
    // An upload that was cut off, which no row knows.
    std::fs::write(folder.path().join(id.to_string()).join("cut-off"), MARK)?;
    begin(&store, id, &marked("name")).await?;
    let mut rounds = 0;
    let done = loop {
        rounds += 1;
        ensure!(rounds < 2_000, "{:?}", store.erasure(&operator(), id).await?);
        // Another process each time; two at once; and each is killed after a while that is different every time.
        let (one, two) =
            (store_on(&database, folder.path()).await?, store_on(&database, folder.path()).await?);
        let patience = std::time::Duration::from_millis(1 + 5 * (rounds % 40));
        let work = async |store: &Store| {
            settle(store).await?;
            while store.erase_tenants().await?.more {}
            anyhow::Ok(())
        };
        let (first, second) = tokio::join!(
            tokio::time::timeout(patience, work(&one)),
            tokio::time::timeout(patience * 2, work(&two)),
        );
        if let (Ok(Err(error)), _) | (_, Ok(Err(error))) = (first, second) {
            return Err(error);
        }
        let erasure = store.erasure(&operator(), id).await?;
        if erasure.state == ErasureState::Done {
            break erasure;
        }
    };
    assert_eq!(found(&database, &[MARK, ADDRESS]).await?, []);
    let receipt = done.receipt.context("a receipt")?;
    for (table, rows) in
        [("calls", 3), ("call_events", 9), ("output_chunks", 6), ("artifact_objects", 4), ("sessions", 1)]
    {
        assert_eq!(receipt.deleted.get(table), Some(&rows), "{table}: {receipt:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
    assert_eq!(store.verify_audit(Some(id), None).await?.findings, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_waits_for_what_still_runs() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let context = tenant(&store, "acme").await?;
    let session = store::testing::running_session(&store, &context, worker(&store).await?).await?;
    let erasure = begin(&store, context.tenant_id(), "acme").await?;
    assert_eq!((erasure.state, erasure.waits_for), (ErasureState::Ending, (1, 0)));
    settle(&store).await?;
    ensure!(!store.erase_tenants().await?.more, "nothing moves while a session runs");
    ensure!(store.get_session(&context, session.id).await?.end_requested);
    let end = SessionEnd::because(SessionEndReason::TenantSuspended);
    store.end_session(&SessionFence::of(&session).context("owned")?, end).await?;
    erase(&store, &operator(), context.tenant_id()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_tenant_are_found_by_index_in_every_table() -> Result<()> {
    let database = TestDatabase::new().await?;
    let mut raw = database.superuser().await?;
    let rows = sqlx::query(
        "SELECT c.relname::text AS name FROM pg_class c
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
           AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum
               AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = '(tenant_id IS NOT NULL)'))
         ORDER BY 1",
    );
    let without: Vec<String> =
        rows.fetch_all(&mut raw).await?.iter().map(|row| row.try_get("name")).collect::<Result<_, _>>()?;
    // Found by their calls' ids.
    assert_eq!(without, ["call_events", "output_chunks"], "an erasure of one tenant would read all of them");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_fails_leaves_the_others_their_pace() -> Result<()> {
    let (database, folder) = (TestDatabase::new().await?, tempfile::tempdir()?);
    let store = store_on(&database, folder.path()).await?;
    let stuck = Box::pin(life(&store, MARK)).await?.tenant_id();
    let other = Box::pin(life(&store, "neighbour")).await?.tenant_id();
    begin(&store, stuck, &marked("name")).await?;
    begin(&store, other, "neighbour-name").await?;
    settle(&store).await?;
    let fails = format!(
        "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF OLD.tenant_id = '{}' THEN RAISE EXCEPTION 'stuck'; END IF; RETURN OLD; END $$;
         CREATE TRIGGER fails BEFORE DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION fails()",
        stuck.uuid()
    );
    let mut raw = database.superuser().await?;
    raw.execute(sqlx::raw_sql(AssertSqlSafe(fails))).await?;
    let (mut passes, mut failed) = (0, 0);
    while store.erasure(&operator(), other).await?.state != ErasureState::Done {
        passes += 1;
        ensure!(passes < 20, "{:?}", store.erasure(&operator(), other).await?);
        settle(&store).await?;
        failed += store.erase_tenants().await?.failed;
    }
    ensure!(failed > 0, "nothing stood in its way");
    assert_eq!(store.erasure(&operator(), stuck).await?.state, ErasureState::Deleting);
    raw.execute("DROP TRIGGER fails ON sessions").await?;
    erase(&store, &operator(), stuck).await?;
    Ok(())
}
