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
    let steps = steps(&mut http, &session, effort.block * 3).await?;
    http.end_session(&session).await?;

    let (ours, theirs) = (comparison.ours(), comparison.theirs());
    let samples = json!({"ours": ours.json(), "theirs": theirs.json()});
    let (p50, p95) = (comparison.ratio(Samples::p50), comparison.ratio(Samples::p95));
    let mut rows = vec![
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
    ];
    rows.extend(steps);
    Ok(rows)
}

/// Where a call's time goes, by the times of its events.
async fn steps(http: &mut Http, session: &Session, calls: usize) -> Result<Vec<Row>> {
    let mut steps: Vec<(String, Samples)> = Vec::new();
    for _ in 0..calls {
        let call = http.echo_call(session).await?;
        let id = call["id"].as_str().context("a call has an id")?;
        let page = http.get(&format!("/v1/calls/{id}/events")).await?;
        let mut before = ("created".to_owned(), time(&call["created_at"])?);
        for event in page["data"].as_array().context("a page has data")? {
            let now = (event["type"].as_str().unwrap_or_default().to_owned(), time(&event["at"])?);
            let step = format!("{} → {}", before.0, now.0);
            let taken_ms = (now.1 - before.1).as_seconds_f64() * 1e3;
            match steps.iter_mut().find(|(name, _)| *name == step) {
                Some((_, samples)) => samples.add_ms(taken_ms),
                None => steps.push((step, Samples::default())),
            }
            before = now;
        }
    }
    let rows = steps.into_iter().map(|(step, samples)| {
        Row::note("P1", &format!("of it, {step}"), samples.p50(), Unit::Milliseconds)
            .measured(format!("p95 {:.2} ms", samples.p95()))
            .samples(json!({"ours": samples.json()}))
    });
    Ok(rows.collect())
}

fn time(value: &Value) -> Result<DateTime<FixedOffset>> {
    Ok(DateTime::parse_from_rfc3339(value.as_str().context("a time is text")?)?)
}
