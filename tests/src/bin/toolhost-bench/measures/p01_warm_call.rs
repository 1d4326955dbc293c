//! P1: a warm `bash` call over HTTP, from POST to result, against starting the same command oneself.

use anyhow::{Context, Result};
use chrono::{DateTime, FixedOffset};
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::container::Engine;
use crate::figures::{Comparison, Ratio, Samples, alternate};
use crate::fork_exec;
use crate::http::{Http, Session};
use crate::report::{Goal, Row, Unit};

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let effort = bench.effort;
    let engine = Engine::like(bench.stack.installation()).await?;
    let waiting = engine.waiting().await?;
    let mut http = bench.stack.client().await?;
    let session = http.create_session().await?;
    bench.stack.pool_is_full(&mut bench.progress).await?;
    waiting.exec()?;
    waiting.exec_by_api().await?;
    for _ in 0..effort.warm_up {
        http.echo(&session).await?;
        fork_exec::once()?;
    }

    let mut comparison = Comparison::default();
    let (mut execs, mut execs_by_api) = (Samples::default(), Samples::default());
    let mut against_exec = Vec::new();
    for round in 0..effort.rounds {
        bench.progress.step("calls and processes in turn, round", round, effort.rounds);
        let (ours, theirs) =
            alternate(effort, async || http.echo(&session).await, async || fork_exec::once()).await?;
        let mut round_execs = Samples::default();
        for _ in 0..effort.engine_execs {
            round_execs.add(waiting.exec()?);
            execs_by_api.add(waiting.exec_by_api().await?);
        }
        against_exec.push(round_execs.p50() / ours.p50());
        execs.extend(&round_execs);
        comparison.add(ours, theirs);
    }
    waiting.remove().await?;
    let between_commits = between_commits(&mut http, &session, effort.block * 3).await?;
    http.end_session(&session).await?;

    let (ours, theirs) = (comparison.ours(), comparison.theirs());
    let samples = json!({"ours": ours.json(), "theirs": theirs.json()});
    let (p50, p95) = (comparison.ratio(Samples::p50), comparison.ratio(Samples::p95));
    Ok(vec![
        Row::ratio("P1", "warm bash call / host fork+exec, p50", Goal::AtMost(1.2), p50)
            .measured(format!("{:.2} ms / {:.2} ms", ours.p50(), theirs.p50()))
            .samples(samples.clone()),
        Row::ratio("P1", "warm bash call / host fork+exec, p95", Goal::AtMost(2.0), p95)
            .measured(format!("{:.2} ms / {:.2} ms", ours.p95(), theirs.p95()))
            .samples(samples),
        Row::ratio("P1", "docker exec / warm bash call, p50", Goal::AtLeast(20.0), Ratio::of(against_exec))
            .measured(format!("{:.1} ms / {:.2} ms", execs.p50(), ours.p50()))
            .samples(json!({"ours": ours.json(), "theirs": execs.json()})),
        Row::note(
            "P1",
            "the engine's exec by its API / warm bash call, p50",
            execs_by_api.p50() / ours.p50(),
            Unit::Times,
        )
        .measured(format!("{:.1} ms / {:.2} ms", execs_by_api.p50(), ours.p50()))
        .samples(json!({"ours": ours.json(), "theirs": execs_by_api.json()})),
        between_commits,
    ])
}

/// From the first commit to the second, by the database's clock: the process runs between them. What is missing to
/// the whole call is HTTP, admission, the second commit itself and the waiting for it.
async fn between_commits(http: &mut Http, session: &Session, calls: usize) -> Result<Row> {
    let mut samples = Samples::default();
    for _ in 0..calls {
        let call = http.echo_call(session).await?;
        samples.add((time(&call["ended_at"])? - time(&call["created_at"])?).to_std()?);
    }
    Ok(Row::note("P1", "of it, from the first commit to the second", samples.p50(), Unit::Milliseconds)
        .measured(format!("p95 {:.2} ms", samples.p95()))
        .samples(json!({"ours": samples.json()})))
}

fn time(value: &Value) -> Result<DateTime<FixedOffset>> {
    Ok(DateTime::parse_from_rfc3339(value.as_str().context("a time is text")?)?)
}
