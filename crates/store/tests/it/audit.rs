//! The audit trail can be trusted: what is sealed cannot be touched without being found.

use anyhow::{Context, Result, bail, ensure};
use chrono::{TimeDelta, Utc};
use domain::{Principal, TenantContext, TenantId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor, Row};
use store::testing::{TestDatabase, operator, tenant};
use store::{
    AuditFilter, AuditHead, AuditKeys, AuditRow, DatabaseConfig, Finding, Page, Sealed, Store, StoreError,
};

async fn record(store: &Store, context: &TenantContext, count: usize) -> Result<()> {
    for n in 0..count {
        let row = AuditRow {
            action: ["call.submit", "call.end", "scope.refuse"][n % 3],
            target: Some(format!("call_{n}")),
            allowed: n % 3 != 2,
            reason: (n % 3 == 2).then(|| "why not".to_owned()),
            details: json!({"n": n, "f": 0.1, "text": "a \"b\" ☃"}),
        };
        store.audit(context, row).await?;
    }
    Ok(())
}

async fn seal(store: &Store) -> Result<u64> {
    let mut sealed = 0;
    loop {
        match store.seal_audit().await? {
            Sealed::Some(rows) => sealed += rows,
            Sealed::Everything(rows) => return Ok(sealed + rows),
            Sealed::Elsewhere => tokio::task::yield_now().await,
        }
    }
}

async fn findings(store: &Store, tenant: TenantId) -> Result<Vec<Finding>> {
    Ok(store.verify_audit(Some(tenant), None).await?.findings)
}

/// As who has the database: triggers and row-level security do not hold.
async fn intruder(database: &TestDatabase) -> Result<PgConnection> {
    let mut connection = database.superuser().await?;
    connection.execute("SET session_replication_role = replica").await?;
    Ok(connection)
}

async fn run(intruder: &mut PgConnection, sql: String) -> Result<u64> {
    Ok(intruder.execute(AssertSqlSafe(sql)).await?.rows_affected())
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_sealed_once_whoever_seals_and_whoever_writes() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let contexts = [tenant(&store, "one").await?, tenant(&store, "two").await?];
    let writers = contexts.iter().map(|context| record(&store, context, 200));
    let sealers = (0..3).map(|_| async {
        let other = database.store().await?;
        let mut sealed = 0;
        for _ in 0..50 {
            if let Sealed::Some(rows) | Sealed::Everything(rows) = other.seal_audit().await? {
                sealed += rows;
            }
        }
        anyhow::Ok(sealed)
    });
    let (written, sealed) =
        tokio::join!(futures_util::future::join_all(writers), futures_util::future::join_all(sealers));
    written.into_iter().collect::<Result<Vec<_>>>()?;
    let before: u64 = sealed.into_iter().collect::<Result<Vec<_>>>()?.into_iter().sum();
    let rows = before + seal(&store).await?;
    ensure!(rows == 2 * 201, "{rows} rows were sealed: each tenant's creation and 200 more");
    for context in &contexts {
        let report = store.verify_audit(Some(context.tenant_id()), None).await?;
        assert_eq!((report.findings.as_slice(), report.links, report.pending), (&[][..], 201, 0));
    }
    Ok(())
}

#[tokio::test]
async fn a_row_that_is_committed_late_is_sealed_all_the_same() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    seal(&store).await?;
    let mut slow = database.superuser().await?;
    let insert = format!(
        "BEGIN; INSERT INTO audit_log (tenant_id, principal, action, allowed)
         VALUES ('{}', '{{\"key_id\": null, \"name\": \"slow\", \"address\": null}}', 'slow', true)",
        context.tenant_id().uuid()
    );
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut slow).await?;
    record(&store, &context, 3).await?;
    assert_eq!(seal(&store).await?, 0, "what came after waits for what is not over");
    slow.execute("COMMIT").await?;
    assert_eq!(seal(&store).await?, 4);
    assert_eq!(findings(&store, context.tenant_id()).await?, []);
    Ok(())
}

#[tokio::test]
async fn the_log_and_its_chain_are_append_only_and_a_tenant_sees_its_own_chain() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    record(&store, &context, 5).await?;
    record(&store, &other, 5).await?;
    seal(&store).await?;
    let mut superuser = database.superuser().await?;
    for table in ["audit_log", "audit_chain"] {
        for sql in [format!("DELETE FROM {table}"), format!("TRUNCATE {table}")] {
            let refused = superuser.execute(AssertSqlSafe(sql)).await.err().context("is refused")?;
            assert!(refused.to_string().contains("append-only"), "{refused}");
        }
    }
    let page = Page { limit: 4, after: None };
    let first = store.list_audit(&context, &AuditFilter::default(), page).await?;
    let rest = Page { limit: 4, after: first.next };
    let rest = store.list_audit(&context, &AuditFilter::default(), rest).await?;
    let sequences: Vec<_> =
        first.items.iter().chain(&rest.items).filter_map(|row| row.seal.clone()).collect();
    assert_eq!(sequences.iter().map(|seal| seal.sequence).collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1]);
    assert_eq!(rest.next, None);
    let head = store.verify_audit(Some(context.tenant_id()), None).await?.head.context("a head")?;
    assert_eq!(sequences[0].hash, head.hash);

    let by = |filter: AuditFilter| {
        let (store, context) = (store.clone(), context.clone());
        async move { Ok::<_, StoreError>(store.export_audit(&context, &filter, None).await?.items.len()) }
    };
    let all = AuditFilter::default;
    let call = |action: &str| AuditFilter { actions: vec![action.to_owned()], ..all() };
    assert_eq!(by(call("call.*")).await?, 4);
    assert_eq!(by(call("call.end")).await?, 2);
    assert_eq!(by(AuditFilter { allowed: Some(false), ..all() }).await?, 1);
    assert_eq!(by(AuditFilter { target: Some("call_3".to_owned()), ..all() }).await?, 1);
    assert_eq!(by(AuditFilter { principal: Some("acme".to_owned()), ..all() }).await?, 5);
    let middle = first.items[2].at;
    assert_eq!(by(AuditFilter { since: Some(middle), ..all() }).await?, 3);
    assert_eq!(by(AuditFilter { until: Some(middle), ..all() }).await?, 3);
    Ok(())
}

/// What an intruder does to the trail of `tenant`. The chain has `LINKS` links.
const LINKS: i64 = 40;

async fn tamper(
    kind: u32,
    random: &mut SmallRng,
    intruder: &mut PgConnection,
    tenant: TenantId,
) -> Result<()> {
    let chain = tenant.uuid();
    let seq = random.random_range(1..=LINKS);
    let other = 1 + (seq - 1 + random.random_range(1..LINKS)) % LINKS;
    let cut = random.random_range(1..=LINKS);
    let entry =
        |seq: i64| format!("(SELECT entry_id FROM audit_chain WHERE chain = '{chain}' AND seq = {seq})");
    let set = |what: &str| format!("UPDATE audit_log SET {what} WHERE id = {}", entry(seq));
    let delete = |from: i64, to: i64| {
        format!(
            "DELETE FROM audit_log WHERE id IN
             (SELECT entry_id FROM audit_chain WHERE chain = '{chain}' AND seq BETWEEN {from} AND {to});"
        )
    };
    let unlink = |from: i64, to: i64| {
        format!("DELETE FROM audit_chain WHERE chain = '{chain}' AND seq BETWEEN {from} AND {to};")
    };
    let copy = |at: &str, columns: &str, values: &str| {
        format!(
            "INSERT INTO audit_log (id, tenant_id, at, principal, action, target, allowed{columns}) OVERRIDING SYSTEM VALUE
             SELECT 1000000 + {seq}, tenant_id, {at}, principal, action, target, allowed{values} FROM audit_log WHERE id = {}",
            entry(seq)
        )
    };
    let sql = match kind {
        0 => set("at = at + interval '1 microsecond'"),
        1 => set("principal = jsonb_set(principal, '{name}', '\"somebody else\"')"),
        2 => set("action = action || 's'"),
        3 => set("target = coalesce(target, '') || '0'"),
        4 => set("allowed = NOT allowed"),
        5 => set("reason = CASE WHEN reason IS NULL THEN '' END"),
        6 => set("details = details || '{\"f\": 0.10}'"),
        7 => set("details = details - 'n' || '{\"x\": 1}'"),
        8 => set("tenant_id = (SELECT id FROM tenants WHERE name = 'other')"),
        9 => delete(seq, seq),
        10 => delete(seq, seq) + &unlink(seq, seq),
        11 => delete(cut, LINKS),
        12 => delete(cut, LINKS) + &unlink(cut, LINKS),
        13 => {
            delete(cut, LINKS)
                + &unlink(cut, LINKS)
                + &format!(
                    "UPDATE audit_heads SET seq = {cut} - 1, hash = coalesce((SELECT hash FROM audit_chain
                     WHERE chain = '{chain}' AND seq = {cut} - 1), hash) WHERE chain = '{chain}'"
                )
        }
        14 => unlink(seq, seq),
        15 => format!("DELETE FROM audit_heads WHERE chain = '{chain}'"),
        16 => {
            let bit = random.random_range(0..256);
            format!(
                "UPDATE audit_chain SET hash = set_bit(hash, {bit}, 1 - get_bit(hash, {bit})) WHERE chain = '{chain}' AND seq = {seq}"
            )
        }
        17 => format!(
            "UPDATE audit_log x SET at = y.at, principal = y.principal, action = y.action, target = y.target,
                 allowed = y.allowed, reason = y.reason, details = y.details
             FROM audit_log y WHERE (x.id = {a} AND y.id = {b}) OR (x.id = {b} AND y.id = {a})",
            a = entry(seq),
            b = entry(other)
        ),
        18 => format!(
            "UPDATE audit_chain SET seq = 1000000 WHERE chain = '{chain}' AND seq = {seq};
             UPDATE audit_chain SET seq = {seq} WHERE chain = '{chain}' AND seq = {other};
             UPDATE audit_chain SET seq = {other} WHERE chain = '{chain}' AND seq = 1000000;"
        ),
        19 => copy("at - interval '2 minutes'", "", ""),
        20 => {
            copy("at", "", "")
                + &format!(
                    "; INSERT INTO audit_chain SELECT '{chain}', {LINKS} + 1, 1000000 + {seq}, sha256('guess')"
                )
        }
        21 => {
            copy("at - interval '2 minutes'", "", "")
                + &format!(
                    "; INSERT INTO audit_chain SELECT gen_random_uuid(), 1, 1000000 + {seq}, sha256('guess')"
                )
        }
        22 => format!("UPDATE audit_heads SET seq = seq + {seq} WHERE chain = '{chain}'"),
        23 => format!("UPDATE audit_heads SET hash = sha256('guess') WHERE chain = '{chain}'"),
        24 => format!(
            "UPDATE audit_heads SET signed_at = signed_at + interval '1 second' WHERE chain = '{chain}'"
        ),
        _ => bail!("no such tampering"),
    };
    // A multi-statement text is one transaction.
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *intruder).await?;
    Ok(())
}

const KINDS: u32 = 25;

/// Whether this is what verification should say of that tampering.
fn names(kind: u32, findings: &[Finding]) -> bool {
    findings.iter().any(|finding| match kind {
        0..=8 | 16..=18 => matches!(finding, Finding::Changed { .. } | Finding::HeadDiffers { .. }),
        9 => matches!(finding, Finding::Deleted { .. }),
        10 | 14 => matches!(finding, Finding::LinksMissing { .. } | Finding::TailCut { .. }),
        11 => matches!(finding, Finding::Deleted { .. }),
        12 => matches!(finding, Finding::TailCut { .. }),
        13 | 22..=24 => matches!(finding, Finding::HeadForged),
        15 => matches!(finding, Finding::HeadMissing),
        19 | 21 => matches!(finding, Finding::Inserted { .. }),
        20 => matches!(finding, Finding::Unsigned { .. }),
        _ => false,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_a_thousand_random_tamperings_is_found_and_named() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    record(&store, &context, usize::try_from(LINKS)? - 1).await?;
    record(&store, &other, 5).await?;
    seal(&store).await?;
    let id = context.tenant_id();
    let mut intruder = intruder(&database).await?;
    for table in ["audit_log", "audit_chain", "audit_heads"] {
        run(&mut intruder, format!("CREATE TABLE saved_{table} AS SELECT * FROM {table}")).await?;
    }
    let restore = "DELETE FROM audit_log; DELETE FROM audit_chain; DELETE FROM audit_heads;
        INSERT INTO audit_log OVERRIDING SYSTEM VALUE SELECT * FROM saved_audit_log;
        INSERT INTO audit_chain SELECT * FROM saved_audit_chain; INSERT INTO audit_heads SELECT * FROM saved_audit_heads;";
    let mut random = SmallRng::seed_from_u64(7);
    assert_eq!(findings(&store, id).await?, []);
    for round in 0..1_000 {
        let kind = round % KINDS;
        tamper(kind, &mut random, &mut intruder, id).await?;
        let found = findings(&store, id).await?;
        ensure!(names(kind, &found), "round {round}, kind {kind}: {found:?}");
        sqlx::raw_sql(restore).execute(&mut intruder).await?;
        if round % 100 == 0 {
            assert_eq!(findings(&store, id).await?, [], "what was put back is as it was");
        }
    }
    assert_eq!(findings(&store, id).await?, []);
    Ok(())
}

/// Hashes the chain anew from a row on, as somebody could who knows how, and the key if they have it.
#[tokio::test]
async fn a_tail_cut_with_an_old_head_put_back_is_found_by_a_checkpoint() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let id = context.tenant_id();
    record(&store, &context, 9).await?;
    seal(&store).await?;
    let mut intruder = intruder(&database).await?;
    run(&mut intruder, "CREATE TABLE old_head AS SELECT * FROM audit_heads".to_owned()).await?;
    record(&store, &context, 5).await?;
    seal(&store).await?;
    let checkpoint = store.audit_heads().await?.into_iter().find(|head| head.tenant_id == Some(id));
    let checkpoint = checkpoint.context("a head")?;
    assert_eq!(checkpoint.sequence, 15);
    assert_eq!(store.verify_audit(Some(id), Some(&checkpoint)).await?.findings, []);

    let cut = "DELETE FROM audit_log WHERE id IN (SELECT entry_id FROM audit_chain WHERE seq > 10);
        DELETE FROM audit_chain WHERE seq > 10; DELETE FROM audit_heads; INSERT INTO audit_heads SELECT * FROM old_head";
    sqlx::raw_sql(cut).execute(&mut intruder).await?;
    assert_eq!(findings(&store, id).await?, [], "the database alone cannot tell");
    let cut = store.verify_audit(Some(id), Some(&checkpoint)).await?.findings;
    assert_eq!(cut, [Finding::TailCut { sequence: 10, signed: 15 }]);

    // The service goes on, and the chain grows beyond the checkpoint: it is another chain.
    record(&store, &context, 8).await?;
    seal(&store).await?;
    assert_eq!(findings(&store, id).await?, []);
    let grown = store.verify_audit(Some(id), Some(&checkpoint)).await?.findings;
    assert_eq!(grown, [Finding::CheckpointDiffers { sequence: 15 }]);
    let forged = AuditHead { sequence: 3, ..checkpoint };
    assert_eq!(store.verify_audit(Some(id), Some(&forged)).await?.findings, [Finding::CheckpointForged]);
    Ok(())
}

#[tokio::test]
async fn a_forged_head_is_never_extended_and_keys_can_be_changed() -> Result<()> {
    let database = TestDatabase::new().await?;
    let with = |keys: AuditKeys| {
        let config = DatabaseConfig { audit: keys, ..database.config() };
        async move { Store::connect(&config, &prometheus::Registry::new()).await }
    };
    let (old, new) = ([1_u8; 32], [2_u8; 32]);
    let store = with(AuditKeys::new(&old)).await?;
    let context = tenant(&store, "acme").await?;
    seal(&store).await?;
    let stranger = with(AuditKeys::new(&new)).await?;
    record(&store, &context, 1).await?;
    assert!(stranger.seal_audit().await.is_err(), "a head of another key is not one to build on");
    assert_eq!(findings(&stranger, context.tenant_id()).await?[0], Finding::HeadForged);

    let rotated = with(AuditKeys::new(&old).then(&new)).await?;
    assert_eq!(seal(&rotated).await?, 1);
    assert_eq!(findings(&rotated, context.tenant_id()).await?, []);
    assert_eq!(findings(&stranger, context.tenant_id()).await?, []);

    let mut intruder = intruder(&database).await?;
    run(&mut intruder, "UPDATE audit_heads SET hash = sha256('x')".to_owned()).await?;
    record(&store, &context, 1).await?;
    assert!(rotated.seal_audit().await.is_err());
    let head: Vec<u8> =
        sqlx::query("SELECT hash FROM audit_heads").fetch_one(&mut intruder).await?.try_get(0)?;
    let guess: Vec<u8> = sqlx::query("SELECT sha256('x')").fetch_one(&mut intruder).await?.try_get(0)?;
    assert_eq!(head, guess, "it was not signed anew");
    Ok(())
}

#[tokio::test]
async fn a_restored_dump_is_sealed_on_and_a_backdated_row_is_told() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    record(&store, &context, 3).await?;
    seal(&store).await?;
    record(&store, &context, 2).await?;
    let mut intruder = intruder(&database).await?;
    // What another cluster looks like: a smaller count of transactions than the rows say.
    let other = "UPDATE audit_sealer SET cluster = 'another', xid = '99999999999'; UPDATE audit_log SET xid = '99999999999'";
    sqlx::raw_sql(other).execute(&mut intruder).await?;
    assert_eq!(seal(&store).await?, 2);
    record(&store, &context, 2).await?;
    assert_eq!(seal(&store).await?, 2);
    assert_eq!(findings(&store, context.tenant_id()).await?, []);

    let at = Utc::now() - TimeDelta::minutes(5);
    let insert = format!(
        "INSERT INTO audit_log (tenant_id, at, principal, action, allowed)
         SELECT tenant_id, '{}', principal, 'call.submit', true FROM audit_log WHERE tenant_id IS NOT NULL LIMIT 1",
        at.to_rfc3339()
    );
    run(&mut intruder, insert).await?;
    assert!(matches!(findings(&store, context.tenant_id()).await?[..], [Finding::Inserted { .. }]));
    seal(&store).await?;
    let found = findings(&store, context.tenant_id()).await?;
    assert!(matches!(found[..], [Finding::Backdated { sequence: 9, .. }]), "{found:?}");
    Ok(())
}

#[tokio::test]
async fn rows_above_tenants_have_a_chain_too() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    store.create_operator_key(&operator(), "ops", None).await?;
    seal(&store).await?;
    let report = store.verify_audit(None, None).await?;
    assert_eq!((report.links, report.findings.len()), (1, 0));
    assert!(store.audit_chains().await?.contains(&None));
    let mut intruder = intruder(&database).await?;
    let name = Principal::system().name;
    run(
        &mut intruder,
        format!("UPDATE audit_log SET principal = jsonb_set(principal, '{{name}}', '\"{name}\"')"),
    )
    .await?;
    assert!(matches!(
        store.verify_audit(None, None).await?.findings[..],
        [Finding::Changed { sequence: 1, .. }]
    ));
    Ok(())
}
