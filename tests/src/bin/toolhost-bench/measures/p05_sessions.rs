//! P5: a new session and its first result, one after the other and a hundred at once.
//!
//! The hundred are measured twice: with a pool that has a sandbox for each, which is what the goal speaks of, and with
//! the usual small pool, where nearly all of them wait for the engine. None may fail in either.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use serde_json::json;

use crate::bench::Bench;
use crate::container::Engine;
use crate::figures::{Ratio, Samples};
use crate::http::{Http, Session};
use crate::report::{Goal, Row, Unit};

/// Sessions after which the ratio is taken once; the median of these is the figure.
const PER_ROUND: usize = 30;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let mut rows = vec![one_after_the_other(bench).await?];

    bench.stack.has_settled(&mut bench.progress).await?;
    let engine = Engine::like(bench.stack.installation()).await?;
    let mut runs = Samples::default();
    let small_pool = burst(bench, "small pool").await?;
    cold_runs(bench, &engine, &mut runs).await?;
    let burst_size = bench.effort.burst;
    bench.stack.serve_with_pool(burst_size, &mut bench.progress).await?;
    let full_pool = burst(bench, "full pool").await?;
    // Without the pool's refill beside it.
    bench.stack.serve(&mut bench.progress).await?;
    cold_runs(bench, &engine, &mut runs).await?;

    let over_run = |burst: &Burst| burst.samples.p50() / runs.p50();
    let measured = |burst: &Burst| {
        format!("{:.0} ms (p95 {:.0}) / {:.0} ms", burst.samples.p50(), burst.samples.p95(), runs.p50())
    };
    let samples = |burst: &Burst| json!({"ours": burst.samples.json(), "theirs": runs.json()});
    rows.extend([
        failures(&format!("{burst_size} sessions at once, from the pool: failed"), &full_pool),
        Row::ratio(
            "P5",
            &format!("{burst_size} sessions at once, from the pool / one docker run, p50"),
            Goal::AtMost(2.0),
            Ratio::of([over_run(&full_pool)]),
        )
        .measured(measured(&full_pool))
        .samples(samples(&full_pool)),
        failures(&format!("{burst_size} sessions at once, pool of a few: failed"), &small_pool),
        Row::note(
            "P5",
            &format!("{burst_size} sessions at once, pool of a few / one docker run, p50"),
            over_run(&small_pool),
            Unit::Times,
        )
        .measured(measured(&small_pool))
        .samples(samples(&small_pool)),
    ]);
    Ok(rows)
}

async fn one_after_the_other(bench: &mut Bench) -> Result<Row> {
    let mut http = bench.stack.client().await?;
    let warm = http.create_session().await?;
    for _ in 0..bench.effort.warm_up {
        http.echo(&warm).await?;
    }
    let (mut ours, mut calls) = (Samples::default(), Samples::default());
    let mut ratios = Vec::new();
    let (mut round_ours, mut round_calls) = (Samples::default(), Samples::default());
    let sessions = bench.effort.sessions;
    for number in 0..sessions {
        bench.progress.step("session", number, sessions);
        bench.stack.pool_is_full(&mut bench.progress).await?;
        round_calls.add(http.echo(&warm).await?);
        let (taken, session) = first_result(&mut http).await?;
        round_ours.add(taken);
        http.end_session(&session).await?;
        if (number + 1) % PER_ROUND == 0 || number + 1 == sessions {
            ratios.push(round_ours.p50() / round_calls.p50());
            ours.extend(&std::mem::take(&mut round_ours));
            calls.extend(&std::mem::take(&mut round_calls));
        }
    }
    http.end_session(&warm).await?;
    let what = "session from the pool and first result / warm call, p50";
    Ok(Row::ratio("P5", what, Goal::AtMost(10.0), Ratio::of(ratios))
        .measured(format!("{:.1} ms (p95 {:.1}) / {:.2} ms", ours.p50(), ours.p95(), calls.p50()))
        .samples(json!({"ours": ours.json(), "theirs": calls.json()})))
}

async fn first_result(http: &mut Http) -> Result<(Duration, Session)> {
    let since = Instant::now();
    let session = http.create_session().await?;
    http.echo(&session).await?;
    Ok((since.elapsed(), session))
}

/// What became of sessions that were made at once.
struct Burst {
    samples: Samples,
    errors: Vec<String>,
}

async fn burst(bench: &mut Bench, pool: &str) -> Result<Burst> {
    let size = bench.effort.burst;
    let mut clients = Vec::new();
    for _ in 0..size {
        clients.push(bench.stack.client().await?);
    }
    bench.progress.say(&format!("{size} sessions at once, {pool}"));
    let results = join_all(clients.iter_mut().map(first_result)).await;
    let mut burst = Burst { samples: Samples::default(), errors: Vec::new() };
    let mut sessions = Vec::new();
    for (http, result) in clients.iter_mut().zip(results) {
        match result {
            Ok((taken, session)) => {
                burst.samples.add(taken);
                sessions.push((http, session));
            }
            Err(error) => burst.errors.push(format!("{error:#}")),
        }
    }
    bench.progress.say(&format!("ending {size} sessions"));
    for ended in
        join_all(sessions.into_iter().map(async |(http, session)| http.end_session(&session).await)).await
    {
        ended?;
    }
    Ok(burst)
}

fn failures(what: &str, burst: &Burst) -> Row {
    let row = Row::failures("P5", what, burst.errors.len());
    match burst.errors.first() {
        Some(first) => {
            row.measured(first.chars().take(120).collect()).samples(json!({"errors": burst.errors}))
        }
        None => row,
    }
}

async fn cold_runs(bench: &mut Bench, engine: &Engine, runs: &mut Samples) -> Result<()> {
    bench.stack.has_settled(&mut bench.progress).await?;
    let half = bench.effort.engine_runs / 2;
    for number in 0..half {
        bench.progress.step("docker run", number, half);
        runs.add(engine.run().await?);
    }
    Ok(())
}
