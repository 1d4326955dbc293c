//! Tenancy: another tenant's id is one that does not exist, the database itself says so too, and no dropped future
//! leaves a tenant behind.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use domain::StreamName;
use rand::RngExt;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use store::testing::{TestDatabase, admission, new_shell, operator, running_session, tenant, until};
use store::{
    Admitted, Announce, AuditFilter, AuditRow, CallFilter, ContextWish, CreatedContext, Fence, NewContext,
    NewKey, OutputOwner, Page, SessionFence, SessionFilter, SessionPatch, StoreError,
};

use crate::calls::{outcome, output, queued, started, today, worker};
use crate::wheels::made;

#[tokio::test]
async fn every_tenant_function_answers_another_tenant_s_id_like_one_that_does_not_exist() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (owner, thief) = (tenant(&store, "owner").await?, tenant(&store, "thief").await?);
    let worker = worker(&store).await?;
    let session = running_session(&store, &owner, worker).await?;
    let call = started(&store, &owner, session.id, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    let new = new_shell(&store, call.id);
    let shell = store.create_shell(&SessionFence::of(&session).context("assigned")?, new).await?;
    store.append_events(&fence, Announce::Started, vec![output(0, b"secret")]).await?;
    let waiting = queued(&store, &owner, session.id).await?;
    let new = || NewContext {
        id: store.clock().new_id(),
        name: Some("main".to_owned()),
        language: domain::Language::Javascript,
        cwd: "/workspace".to_owned(),
        env: BTreeMap::new(),
        metadata: BTreeMap::new(),
    };
    let CreatedContext::New(context) = store.create_context(&owner, session.id, new(), None).await? else {
        bail!("a new context")
    };
    let (key, _) = store.create_own_key(&owner, NewKey { name: "k".to_owned(), ..NewKey::default() }).await?;
    let wheel = made(&store, &owner, "tiny-1.0-py3-none-any.whl", b"secret").await?;

    let gone = |result: Result<(), StoreError>| matches!(result, Err(StoreError::NotFound { .. }));
    assert!(gone(store.get_session(&thief, session.id).await.map(drop)));
    assert!(gone(store.update_session(&thief, session.id, &SessionPatch::default()).await.map(drop)));
    assert!(gone(store.request_session_end(&thief, session.id).await.map(drop)));
    assert!(gone(store.request_session_reset(&thief, session.id).await.map(drop)));
    assert!(gone(store.get_call(&thief, call.id).await.map(drop)));
    assert!(gone(store.request_cancel(&thief, call.id).await.map(drop)));
    assert!(gone(store.request_cancel(&thief, waiting.id).await.map(drop)));
    assert!(gone(store.queue_place(&thief, waiting.id).await.map(drop)));
    assert!(gone(store.events(&thief, call.id, 0, 9, 9).await.map(drop)));
    for kept in [OutputOwner::Call(call.id), OutputOwner::Shell(shell.id)] {
        assert!(gone(store.output_range(&thief, kept, StreamName::Stdout, 0, 9).await.map(drop)));
        assert!(gone(store.output_pieces(&thief, kept, 0, 9).await.map(drop)));
    }
    assert!(gone(store.get_shell(&thief, session.id, shell.id).await.map(drop)));
    assert!(gone(store.revoke_own_key(&thief, key.id).await.map(drop)));
    assert!(gone(store.get_wheel(&thief, &wheel.name).await.map(drop)));
    assert!(gone(store.delete_wheel(&thief, &wheel.name).await));
    assert!(store.list_wheels(&thief, None, Page::default()).await?.items.is_empty());
    assert!(store.list_shells(&thief, session.id).await?.is_empty());
    assert!(store.list_sessions(&thief, &SessionFilter::default(), Page::default()).await?.items.is_empty());
    let filter = CallFilter { session_id: Some(session.id), ..CallFilter::default() };
    assert!(store.list_calls(&thief, &filter, Page::default()).await?.items.is_empty());
    assert!(store.list_own_keys(&thief, Page::default()).await?.items.is_empty());
    let trail =
        store.list_audit(&thief, &AuditFilter::default(), Page { limit: 100, after: None }).await?.items;
    assert_eq!(trail.iter().map(|row| row.action.as_str()).collect::<Vec<_>>(), ["tenant.create"]);
    assert!(matches!(store.admit(admission(&thief, session.id)).await?, Admitted::SessionNotFound));
    let own = running_session(&store, &thief, worker).await?.id;
    let mut after = admission(&thief, own);
    after.call.after_call_id = Some(call.id);
    assert!(matches!(store.admit(after).await?, Admitted::AfterNotFound));
    for session in [session.id, own] {
        assert!(gone(store.get_shell(&thief, session, shell.id).await.map(drop)));
        assert!(gone(store.get_context(&thief, session, context.id).await.map(drop)));
        for wish in [ContextWish::Interrupt, ContextWish::Restart, ContextWish::Delete] {
            assert!(gone(store.wish_for_context(&thief, session, context.id, wish).await.map(drop)));
        }
        assert!(store.list_contexts(&thief, session).await?.is_empty());
        assert!(store.list_named_shells(&thief, session).await?.is_empty());
    }
    assert!(gone(store.create_context(&thief, session.id, new(), None).await.map(drop)));
    assert_eq!(store.get_context(&owner, session.id, context.id).await?, context, "nothing was touched");

    assert!(!store.get_call(&owner, call.id).await?.cancel_requested, "nothing was touched");
    assert!(!store.get_session(&owner, session.id).await?.end_requested);
    store
        .finish_call(
            &Fence { after_seq: 2, ..fence },
            Announce::Nothing,
            vec![],
            outcome(domain::CallStatus::Succeeded),
        )
        .await?;
    Ok(())
}

/// A connection as a login role that is a plain member of our roles, in the given role.
async fn connected_as(database: &TestDatabase, role: &str) -> Result<PgConnection> {
    let mut connection = database.superuser().await?;
    connection.execute(AssertSqlSafe(format!("SET ROLE {role}"))).await?;
    Ok(connection)
}

#[tokio::test]
async fn the_database_itself_hides_other_tenants_from_the_app_role() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (owner, thief) = (tenant(&store, "owner").await?, tenant(&store, "thief").await?);
    let worker = worker(&store).await?;
    let session = running_session(&store, &owner, worker).await?;
    let call = started(&store, &owner, session.id, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    store.append_events(&fence, Announce::Started, vec![output(0, b"secret")]).await?;
    store.create_own_key(&owner, NewKey { name: "k".to_owned(), ..NewKey::default() }).await?;
    made(&store, &owner, "tiny-1.0-py3-none-any.whl", b"secret").await?;

    let mut app = connected_as(&database, "toolhost_app").await?;
    let visible = [
        "tenants",
        "api_keys",
        "sessions",
        "calls",
        "call_events",
        "output_chunks",
        "shells",
        "idempotency_keys",
        "audit_log",
        "wheels",
        "artifact_objects",
    ];
    for who in [None, Some(thief.tenant_id()), Some(owner.tenant_id())] {
        for table in visible {
            let setting = who.map(|id| id.uuid().to_string()).unwrap_or_default();
            app.execute(AssertSqlSafe(format!(
                "SELECT set_config('toolhost.tenant_id', '{setting}', false)"
            )))
            .await?;
            let count = format!(
                "SELECT count(*) FROM {table} WHERE {} = $1",
                if table == "tenants" { "id" } else { "tenant_id" }
            );
            let row =
                sqlx::query(AssertSqlSafe(count)).bind(owner.tenant_id().uuid()).fetch_one(&mut app).await?;
            let seen: i64 = row.get(0);
            let expected = who == Some(owner.tenant_id()) && !matches!(table, "shells" | "idempotency_keys");
            assert_eq!(seen > 0, expected, "{table} as {who:?}");
        }
    }
    // With another tenant set, rows of this one can be neither made nor changed.
    app.execute(AssertSqlSafe(format!(
        "SELECT set_config('toolhost.tenant_id', '{}', false)",
        thief.tenant_id().uuid()
    )))
    .await?;
    let changed = sqlx::query("UPDATE calls SET cancel_requested = true").execute(&mut app).await?;
    assert_eq!(changed.rows_affected(), 0);
    for insert in [
        "INSERT INTO artifact_objects (tenant_id, sha256, size_bytes) VALUES ($1, sha256('x'), 1)",
        "INSERT INTO wheels (id, tenant_id, file_name, project, version, size_bytes, sha256)
             VALUES (gen_random_uuid(), $1, 'other-1.0-py3-none-any.whl', 'other', '1.0', 6, sha256('secret'))",
    ] {
        let made = sqlx::query(insert).bind(owner.tenant_id().uuid()).execute(&mut app).await;
        assert!(made.is_err(), "{insert}");
    }
    let made = sqlx::query(
        "INSERT INTO audit_log (tenant_id, principal, action, allowed) VALUES ($1, '{}', 'x', true)",
    )
    .bind(owner.tenant_id().uuid())
    .execute(&mut app)
    .await;
    assert!(made.is_err());
    for forbidden in [
        "SELECT secret_hash FROM api_keys",
        "SELECT * FROM sandboxes",
        "SELECT * FROM tenant_slots",
        "SELECT * FROM hosts",
        "DELETE FROM calls",
        "UPDATE wheels SET file_name = 'other-1.0-py3-none-any.whl'",
        "UPDATE wheels SET tenant_id = toolhost_tenant()",
        "DELETE FROM artifact_objects",
        "UPDATE call_events SET seq = 0",
        "UPDATE tenants SET name = 'x'",
        "DELETE FROM audit_log",
        "TRUNCATE calls",
        "CREATE TABLE x (y integer)",
        "SELECT toolhost_drop_partitions('calls', current_date + 9)",
    ] {
        assert!(app.execute(forbidden).await.is_err(), "{forbidden}");
    }
    // A partition read directly would pass by its parent's policy, so nobody may.
    let mut superuser = database.superuser().await?;
    let partitions = sqlx::query("SELECT relname::text FROM pg_class WHERE relispartition AND relkind = 'r'")
        .fetch_all(&mut superuser)
        .await?;
    assert!(partitions.len() > 20);
    for role in ["toolhost_app", "toolhost_system"] {
        let mut connection = connected_as(&database, role).await?;
        for partition in &partitions {
            let read = format!("SELECT 1 FROM {}", partition.get::<String, _>(0));
            assert!(connection.execute(AssertSqlSafe(read)).await.is_err());
        }
    }
    // The trail cannot be rewritten by anyone through SQL.
    for rewriting in ["UPDATE audit_log SET allowed = true", "DELETE FROM audit_log", "TRUNCATE audit_log"] {
        assert!(superuser.execute(rewriting).await.is_err(), "{rewriting}");
    }
    Ok(())
}

/// Futures of tenants' reads and writes are dropped at random moments, and none leaves its tenant to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_future_never_leaves_its_tenant_behind() -> Result<()> {
    const ROUNDS: usize = 600;
    let database = TestDatabase::new().await?;
    let mut config = database.config();
    config.max_connections = 4;
    let registry = prometheus::Registry::new();
    let store = store::Store::connect(&config, &registry).await?;
    let worker = worker(&store).await?;
    let mut tenants = Vec::new();
    for n in 0..3 {
        let context = tenant(&store, &format!("t{n}")).await?;
        let session = running_session(&store, &context, worker).await?;
        tenants.push((context, session.id));
    }
    let mut finished = 0;
    // Follows what the machine takes, so that about half of them finish however fast it is.
    let mut limit_us = 1_500_u64;
    for round in 0..ROUNDS {
        let (context, session) = tenants[round % 3].clone();
        let other = &tenants[(round + 1) % 3];
        let patience = Duration::from_micros(rand::rng().random_range(0..limit_us));
        let acting = {
            let (store, context) = (store.clone(), context.clone());
            async move {
                match round % 4 {
                    0 => store.get_session(&context, session).await.map(drop),
                    1 => store.update_session(&context, session, &SessionPatch::default()).await.map(drop),
                    2 => store.audit(&context, AuditRow::done("test", session)).await,
                    _ => store.list_calls(&context, &CallFilter::default(), Page::default()).await.map(drop),
                }
            }
        };
        let has_finished = if round % 2 == 0 {
            // Dropped in place …
            tokio::time::timeout(patience, acting).await.is_ok()
        } else {
            // … or with its task.
            let task = tokio::spawn(acting);
            tokio::time::sleep(patience).await;
            task.abort();
            task.await.is_ok()
        };
        finished += usize::from(has_finished);
        let next_us = if has_finished { limit_us * 9 / 10 } else { limit_us * 11 / 10 };
        limit_us = next_us.clamp(50, 1_000_000);
        match store.get_session(&other.0, session).await {
            Err(StoreError::NotFound { .. }) => {}
            answer => bail!("round {round}: {answer:?}"),
        }
        assert_eq!(store.get_session(&other.0, other.1).await?.tenant_id, other.0.tenant_id());
    }
    assert!(
        finished > 20 && finished < ROUNDS - 20,
        "{finished} of {ROUNDS} finished: the moments are not spread"
    );
    let broken: u64 = registry
        .gather()
        .iter()
        .filter(|family| family.name() == "toolhost_store_errors_total")
        .flat_map(|family| family.get_metric())
        .filter(|metric| metric.get_label().iter().any(|label| label.value() == "internal"))
        .map(|metric| metric.get_counter().get_value() as u64)
        .sum();
    assert_eq!(broken, 0, "no connection was handed out inside a transaction");
    let mut superuser = database.superuser().await?;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    until("no transaction is open", Duration::from_secs(60), async || {
        let row = sqlx::query(open).fetch_one(&mut superuser).await;
        row.expect("counts").get::<i64, _>(0) == 0
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_login_role_without_privileges_is_enough() -> Result<()> {
    let database = TestDatabase::new().await?;
    let mut superuser = database.superuser().await?;
    for statement in [
        "CREATE ROLE plain LOGIN CREATEROLE",
        "GRANT toolhost_app, toolhost_system TO plain",
        "CREATE DATABASE plain_owned OWNER plain",
    ] {
        superuser.execute(statement).await?;
    }
    let name = database.url().rsplit_once('/').context("a path")?.1.to_owned();
    drop(name);
    let url = database.url().replace("postgres@", "plain@");
    let (before, after) = url.split_once("localhost/").context("a database")?;
    let socket = after.split_once('?').context("a socket")?.1;
    let url = format!("{before}localhost/plain_owned?{socket}");
    let mut schema =
        PgConnection::connect(&database.url().replace(after, &format!("plain_owned?{socket}"))).await?;
    schema.execute("ALTER SCHEMA public OWNER TO plain").await?;
    let report = store::Store::migrate(&url).await?;
    assert_eq!(report.applied, report.total);
    assert_eq!(store::Store::migrate(&url).await?.applied, 0, "twice changes nothing");
    let config = store::DatabaseConfig { url, ..database.config() };
    let store = store::Store::connect(&config, &prometheus::Registry::new()).await?;
    assert_eq!(store.schema().await?.fit(), store::SchemaFit::Same);
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let call = started(&store, &context, session.id, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    store
        .finish_call(&fence, Announce::Started, vec![output(0, b"x")], outcome(domain::CallStatus::Succeeded))
        .await?;
    assert_eq!(store.events(&context, call.id, 0, 9, 9).await?.events.len(), 3);
    assert_eq!(store.list_tenants(&operator(), Page::default()).await?.items.len(), 1);
    let day = today(&mut superuser).await?;
    store.ensure_partitions(7).await?;
    let made = store.ensure_partitions(8).await?;
    // At midnight there is one more day to make.
    if today(&mut superuser).await? == day {
        assert_eq!(made, 3);
    }
    Ok(())
}
