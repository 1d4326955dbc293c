//! P11: a warm call beside a million that have ended and a hundred tenants, against the same before they were there.
//!
//! The past is written straight into the tables, as rows of ended calls over the last days: what a call costs then depends on
//! the size of tables and indexes, and not on how they came to be filled.

use anyhow::{Result, ensure};
use serde_json::json;
use sqlx::{Connection, PgConnection, raw_sql};

use crate::bench::Bench;
use crate::figures::{Comparison, Ratio, Samples, alternate};
use crate::fork_exec;
use crate::http::{Http, Session};
use crate::report::{Goal, Row, Unit};

const PAST: &str = include_str!("p11_past.sql");
const CALLS: i64 = 1_000_000;
const CALLS_QUICK: i64 = 100_000;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let calls = if bench.effort.burst < 100 { CALLS_QUICK } else { CALLS };
    let mut http = bench.stack.client().await?;
    let session = http.create_session().await?;
    let before = compare(bench, &mut http, &session).await?;
    let mut database = PgConnection::connect(&bench.stack.database_url()).await?;
    let known: i64 = sqlx::query_scalar("SELECT count(*) FROM calls").fetch_one(&mut database).await?;
    ensure!(known < calls / 10, "the database is not empty: it has {known} calls");
    bench.progress.say(&format!("writing {calls} past calls"));
    raw_sql(sqlx::AssertSqlSafe(PAST.replace("$calls", &calls.to_string()))).execute(&mut database).await?;
    for tidy in ["VACUUM ANALYZE", "CHECKPOINT"] {
        raw_sql(tidy).execute(&mut database).await?;
    }
    let bytes: i64 =
        sqlx::query_scalar("SELECT pg_database_size(current_database())").fetch_one(&mut database).await?;
    let after = compare(bench, &mut http, &session).await?;
    http.end_session(&session).await?;
    // Both in units of the process that was started beside them.
    let (was, is) = (before.ratio(Samples::p50), after.ratio(Samples::p50));
    Ok(vec![
        Row::ratio(
            "P11",
            &format!("warm bash call beside {calls} past calls / on an empty database, p50"),
            Goal::AtMost(1.2),
            Ratio::of([is.median / was.median]),
        )
        .measured(format!("{:.2} ms / {:.2} ms", after.ours().p50(), before.ours().p50()))
        .samples(json!({"ours": after.ours().json(), "theirs": before.ours().json()})),
        Row::note("P11", "the database then", bytes as f64 / 1_048_576.0, Unit::Mebibytes),
    ])
}

async fn compare(bench: &mut Bench, http: &mut Http, session: &Session) -> Result<Comparison> {
    let effort = bench.effort;
    for _ in 0..effort.warm_up {
        http.echo(session).await?;
        fork_exec::once()?;
    }
    let mut comparison = Comparison::default();
    for round in 0..effort.rounds {
        bench.progress.step("calls and processes in turn, round", round, effort.rounds);
        let (ours, theirs) =
            alternate(effort, async || http.echo(session).await, async || fork_exec::once()).await?;
        comparison.add(ours, theirs);
    }
    Ok(comparison)
}
