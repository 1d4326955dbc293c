//! How often one call is a commit, read from what Postgres says that it was asked: every statement with the transaction that it was part of.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use domain::CallStatus;
use futures_util::future::join_all;
use sqlx::{Executor, PgConnection, Row};
use store::testing::{Durability, TestDatabase, admission, running_session, tenant, until};
use store::{Admitted, Announce, CallChange, Fence, Store};

use crate::calls::{outcome, output, started, worker};

const PATIENCE: Duration = Duration::from_secs(60);
/// Before each statement in the log: its process and its transaction.
const PREFIX: &str = "<%p %v>";
/// What a store does by itself: its clock is measured, marks of use are written, and it listens and looks who else does.
const BY_ITSELF: [&str; 6] = [
    "SELECT clock_timestamp() AS now",
    "SET last_active_at",
    "SET last_used_at",
    "INSERT INTO stored_bytes",
    "pg_stat_activity",
    "LISTEN ",
];

/// A database of a server of its own that tells every statement.
struct Told {
    database: TestDatabase,
    superuser: PgConnection,
}

impl Told {
    async fn new() -> Result<Self> {
        let database = TestDatabase::private(Durability::Off).await?;
        let mut superuser = database.superuser().await?;
        // Its own reading is not of the store's.
        superuser.execute("SET log_statement = 'none'").await?;
        superuser.execute("ALTER SYSTEM SET log_statement = 'all'").await?;
        superuser.execute("ALTER SYSTEM SET log_line_prefix = '<%p %v>'").await?;
        superuser.execute("SELECT pg_reload_conf()").await?;
        // Whoever is connected already hears of it too, a pooler's connections among them.
        let mut told = Self { database, superuser };
        until("the prefix is heard of", PATIENCE, async || {
            let shown = sqlx::query_scalar("SHOW log_line_prefix").fetch_one(&mut told.superuser).await;
            shown.is_ok_and(|prefix: String| prefix == PREFIX)
        })
        .await;
        Ok(told)
    }

    /// Everything that was said so far.
    async fn log(&mut self) -> Result<String> {
        let log = "SELECT pg_read_file(regexp_replace(current_setting('data_directory'), '[^/]*$', 'log'))";
        Ok(sqlx::query_scalar(log).fetch_one(&mut self.superuser).await?)
    }

    /// The transactions since then that the store was asked for, each with its statements. This reading's own connection is not in it.
    async fn since(&mut self, mark: usize) -> Result<Vec<String>> {
        let log = self.log().await?;
        let mut transactions: BTreeMap<&str, String> = BTreeMap::new();
        let mut order = Vec::new();
        for said in log[mark..].split("\n<") {
            let Some((of, said)) = said.trim_start_matches('<').split_once('>') else { continue };
            let transaction = of.split_once(' ').context("the prefix")?.1;
            let Some(statement) = said.strip_prefix("LOG:  ").and_then(|said| said.split_once(": ")) else {
                continue;
            };
            // The server says other things too.
            if statement.0 != "statement" && !statement.0.starts_with("execute ") {
                continue;
            }
            if !transactions.contains_key(transaction) {
                order.push(transaction);
            }
            let all = transactions.entry(transaction).or_default();
            all.push_str(statement.1);
            all.push('\n');
        }
        let all = order.into_iter().filter_map(|transaction| transactions.remove(transaction));
        // Of one that is alone the beginning was before the mark.
        let is_whole = |text: &String| text.trim() != "COMMIT";
        let is_own = |text: &String| BY_ITSELF.iter().any(|own| text.contains(own));
        Ok(all.filter(|text| is_whole(text) && !is_own(text)).collect())
    }
}

fn with<'a>(transactions: &'a [String], what: &str) -> Vec<&'a String> {
    transactions.iter().filter(|text| text.contains(what)).collect()
}

#[tokio::test]
async fn one_call_is_two_commits_and_hints_are_in_neither() -> Result<()> {
    let mut told = Told::new().await?;
    let store = told.database.store().await?;
    let elsewhere = told.database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    // Connections are open and plans are made.
    for _ in 0..3 {
        one_call(&store, &context, session.id, worker).await?;
    }
    // Until both know of each other, no hint need be sent.
    for attempt in 0.. {
        let mark = told.log().await?.len();
        let came =
            hint_came(&store, &elsewhere, &context, session.id, worker, Duration::from_secs(1)).await?;
        if came && told.since(mark).await?.iter().any(|text| text.contains("pg_notify($1, payload)")) {
            break;
        }
        ensure!(attempt < 60, "no hint comes");
    }

    let mark = told.log().await?.len();
    let id = one_call(&store, &context, session.id, worker).await?;
    let transactions = told.since(mark).await?;
    let (hints, commits): (Vec<_>, Vec<_>) =
        transactions.into_iter().partition(|text| text.contains("pg_notify"));
    ensure!(commits.len() == 2, "{} commits: {commits:#?}", commits.len());
    ensure!(commits[0].contains("INSERT INTO calls") && commits[1].contains("INSERT INTO call_events"));
    ensure!(
        hints.iter().all(|text| text.lines().all(is_a_hint)),
        "a hint is nobody's transaction but its own: {hints:#?}"
    );
    ensure!(store.get_call(&context, id).await?.status == CallStatus::Succeeded);

    // With somebody elsewhere who wants to know, hints are sent, and still the call is two commits.
    let mark = told.log().await?.len();
    let came = hint_came(&store, &elsewhere, &context, session.id, worker, PATIENCE).await?;
    ensure!(came, "no hint came");
    let transactions = told.since(mark).await?;
    let (hints, rest): (Vec<_>, Vec<_>) =
        transactions.into_iter().partition(|text| text.contains("pg_notify"));
    ensure!(!hints.is_empty(), "none was seen: {rest:#?}");
    ensure!(hints.iter().all(|text| text.lines().all(is_a_hint)), "{hints:#?}");
    let commits: Vec<_> =
        rest.iter().filter(|text| text.contains("INSERT INTO") || text.contains("UPDATE ")).collect();
    ensure!(commits.len() == 2, "{commits:#?}");
    ensure!(rest.iter().all(|text| !text.to_uppercase().contains("NOTIFY")), "{rest:#?}");
    // Nor is one sent by the database itself, within what it was asked.
    let own = "SELECT count(*) AS n FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc ILIKE '%notify%'";
    ensure!(told.superuser.fetch_one(own).await?.try_get::<i64, _>("n")? == 0);
    Ok(())
}

/// A line of the statement that sends hints, and nothing else.
fn is_a_hint(line: &str) -> bool {
    line.starts_with("SELECT pg_notify($1, ") || line.trim().is_empty()
}

/// A call that starts at once and whose end comes with all that it did.
async fn one_call(
    store: &Store,
    context: &domain::TenantContext,
    session: domain::SessionId,
    worker: domain::WorkerId,
) -> Result<domain::CallId> {
    let call = started(store, context, session, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    let done = outcome(CallStatus::Succeeded);
    store.finish_call(&fence, Announce::Started, vec![output(0, b"hi")], done).await?;
    Ok(call.id)
}

/// A call whose end is waited for by somebody of another process; whether a hint came there in time.
async fn hint_came(
    store: &Store,
    elsewhere: &Store,
    context: &domain::TenantContext,
    session: domain::SessionId,
    worker: domain::WorkerId,
    patience: Duration,
) -> Result<bool> {
    let call = started(store, context, session, worker).await?;
    let mut watch = elsewhere.bus().subscribe_call(call.id);
    let fence = Fence::of(&call).context("started")?;
    store.finish_call(&fence, Announce::Started, Vec::new(), outcome(CallStatus::Succeeded)).await?;
    Ok(matches!(tokio::time::timeout(patience, watch.changed()).await, Ok(CallChange::Wake)))
}

#[tokio::test]
async fn calls_at_the_same_time_share_their_commits() -> Result<()> {
    const CALLS: usize = 48;
    let mut told = Told::new().await?;
    let store = told.database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    one_call(&store, &context, session.id, worker).await?;

    // While the session is locked no lane can commit, and what comes meanwhile gathers.
    let mut other = told.database.superuser().await?;
    other.execute("BEGIN; SELECT FROM sessions FOR UPDATE").await?;
    let mark = told.log().await?.len();
    let admit = || {
        let mut admission = admission(&context, session.id);
        admission.reservation = Some(worker);
        store.admit(admission)
    };
    let admitting = join_all((0..CALLS).map(|_| admit()));
    let releasing = async {
        until("a lane waits for the lock", PATIENCE, async || {
            let waiting = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            let row = told.superuser.fetch_one(waiting).await.expect("asks");
            row.try_get::<i64, _>("n").expect("a number") > 0
        })
        .await;
        other.execute("COMMIT").await
    };
    let (admitted, released) = tokio::join!(admitting, releasing);
    released?;
    let mut fences = Vec::new();
    for admitted in admitted {
        let Admitted::Started(call) = admitted? else { anyhow::bail!("a call was not started") };
        fences.push(Fence::of(&call).context("started")?);
    }
    let transactions = told.since(mark).await?;
    let admissions = with(&transactions, "INSERT INTO calls").len();
    ensure!((1..=3).contains(&admissions), "{CALLS} calls were admitted in {admissions} commits");

    let mark = told.log().await?.len();
    let ends = fences.iter().map(|fence| {
        let done = outcome(CallStatus::Succeeded);
        store.finish_call(fence, Announce::Started, vec![output(0, b"hi")], done)
    });
    for ended in join_all(ends).await {
        ended?;
    }
    let transactions = told.since(mark).await?;
    let ends = with(&transactions, "INSERT INTO call_events").len();
    ensure!((1..=3).contains(&ends), "{CALLS} calls ended in {ends} commits");
    Ok(())
}
