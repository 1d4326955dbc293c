//! The floor itself: what a call cannot do without. An HTTP exchange, durable commits, and the process.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

use crate::bench::Bench;
use crate::figures::Samples;
use crate::fork_exec;
use crate::http::Http;
use crate::report::{Row, Unit};

/// Size of what a commit writes here; a call's row with its event is about this large.
const ROW_BYTES: usize = 1_000;
/// Commits that a call needs: before it starts, and its result.
const COMMITS: f64 = 2.0;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let mut http = bench.stack.client().await?;
    let mut database = PgConnection::connect(&bench.stack.database_url()).await?;
    database.execute("CREATE TABLE bench_floor (row text NOT NULL)").await?;
    let row = "x".repeat(ROW_BYTES);
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    let effort = bench.effort;
    for _ in 0..effort.warm_up {
        no_op(&mut http).await?;
        commit(&mut database, &row).await?;
        fork_exec::once()?;
    }
    let blocks = effort.rounds * effort.blocks;
    for block in 0..blocks {
        bench.progress.step("a no-op exchange, a durable commit and a process, in turn", block, blocks);
        for _ in 0..effort.block {
            samples[0].add(no_op(&mut http).await?);
        }
        for _ in 0..effort.block {
            samples[1].add(commit(&mut database, &row).await?);
        }
        for _ in 0..effort.block {
            samples[2].add(fork_exec::once()?);
        }
    }
    database.execute("DROP TABLE bench_floor").await?;
    database.close().await?;

    let [http, commit, process] = samples;
    let sum = http.p50() + COMMITS * commit.p50() + process.p50();
    let note = |what: &str, samples: &Samples| {
        Row::note("P0", what, samples.p50(), Unit::Milliseconds)
            .measured(format!("p95 {:.2} ms", samples.p95()))
            .samples(json!({"ours": samples.json()}))
    };
    Ok(vec![
        note("no-op HTTP exchange (GET /healthz)", &http),
        note("one durable commit (1 kB row, alone)", &commit),
        note("host fork+exec of bash -c 'echo hi'", &process),
        Row::note("P0", "exchange + 2 commits + process, over the process", sum / process.p50(), Unit::Times)
            .measured(format!("{sum:.2} ms")),
    ])
}

async fn no_op(http: &mut Http) -> Result<Duration> {
    let since = Instant::now();
    let answer = http.send("GET", "/healthz", Bytes::new()).await?;
    let taken = since.elapsed();
    anyhow::ensure!(answer.status == 200, "/healthz answered {}", answer.status);
    Ok(taken)
}

async fn commit(database: &mut PgConnection, row: &str) -> Result<Duration> {
    let since = Instant::now();
    sqlx::query("INSERT INTO bench_floor VALUES ($1)").bind(row).execute(database).await?;
    Ok(since.elapsed())
}
