//! P6: a session of a size that no pool has, and its first result, against a cold `docker run` with the same hardening.

use anyhow::Result;
use serde_json::json;

use crate::bench::Bench;
use crate::container::Engine;
use crate::figures::{Comparison, Samples};
use crate::report::{Goal, Row};

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let engine = Engine::like(bench.stack.installation()).await?;
    let mut http = bench.stack.client().await?;
    let (rounds, pairs) = (bench.effort.rounds, bench.effort.engine_runs / 2);
    let mut comparison = Comparison::default();
    for round in 0..rounds {
        bench.progress.step("cold sessions and containers in turn, round", round, rounds);
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..pairs {
            // What ended before is removed beside neither of the two.
            bench.stack.has_settled(&mut bench.progress).await?;
            let since = std::time::Instant::now();
            let session = http.create_session_of("medium").await?;
            http.echo(&session).await?;
            ours.add(since.elapsed());
            http.end_session(&session).await?;
            bench.stack.has_settled(&mut bench.progress).await?;
            theirs.add(engine.run().await?);
        }
        comparison.add(ours, theirs);
    }
    let (ours, theirs) = (comparison.ours(), comparison.theirs());
    Ok(vec![
        Row::ratio(
            "P6",
            "session without a pool and first result / docker run, p50",
            Goal::AtMost(1.15),
            comparison.ratio(Samples::p50),
        )
        .measured(format!("{:.0} ms (p95 {:.0}) / {:.0} ms", ours.p50(), ours.p95(), theirs.p50()))
        .samples(json!({"ours": ours.json(), "theirs": theirs.json()})),
    ])
}
