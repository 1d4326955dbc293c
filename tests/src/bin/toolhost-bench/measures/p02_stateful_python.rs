//! P2: `python_execute` in a context whose interpreter waits, against starting a shell on the host and against a kernel of Jupyter.

use anyhow::Result;
use serde_json::json;

use crate::bench::Bench;
use crate::figures::{Comparison, Samples, alternate};
use crate::fork_exec;
use crate::http::Http;
use crate::peers::Jupyter;
use crate::report::{Goal, Row};

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let effort = bench.effort;
    let mut http = bench.stack.client().await?;
    let session = http.create_session().await?;
    bench.stack.pool_is_full(&mut bench.progress).await?;
    let call = Http::call_body("python_execute", &json!({"code": fork_exec::PYTHON, "context": "bench"}));
    for _ in 0..effort.warm_up {
        http.timed(&session, &call, fork_exec::PYTHON_PRINTED).await?;
        fork_exec::once()?;
    }
    let mut jupyter = Jupyter::start().await?;
    if let Some(jupyter) = &mut jupyter {
        for _ in 0..effort.warm_up {
            jupyter.execute().await?;
        }
    }
    let (mut comparison, mut against_jupyter) = (Comparison::default(), Comparison::default());
    for round in 0..effort.rounds {
        bench.progress.step("code in a context and processes in turn, round", round, effort.rounds);
        let (ours, theirs) = alternate(
            effort,
            async || Ok(http.timed(&session, &call, fork_exec::PYTHON_PRINTED).await?.0),
            async || fork_exec::once(),
        )
        .await?;
        comparison.add(ours, theirs);
        if let Some(jupyter) = &mut jupyter {
            let (ours, theirs) = alternate(
                effort,
                async || Ok(http.timed(&session, &call, fork_exec::PYTHON_PRINTED).await?.0),
                async || jupyter.execute().await,
            )
            .await?;
            // Theirs over ours.
            against_jupyter.add(theirs, ours);
        }
    }
    http.end_session(&session).await?;
    let (ours, theirs) = (comparison.ours(), comparison.theirs());
    let peer = peer_row(jupyter.is_some(), &against_jupyter);
    if let Some(jupyter) = jupyter {
        jupyter.stop().await?;
    }
    Ok(vec![
        Row::ratio(
            "P2",
            "python_execute in a context / host fork+exec of bash, p50",
            Goal::AtMost(0.8),
            comparison.ratio(Samples::p50),
        )
        .measured(format!("{:.2} ms / {:.2} ms", ours.p50(), theirs.p50()))
        .samples(json!({"ours": ours.json(), "theirs": theirs.json()})),
        peer,
    ])
}

fn peer_row(is_installed: bool, comparison: &Comparison) -> Row {
    let (what, goal) = ("Jupyter Kernel Gateway / python_execute in a context, p50", Goal::AtLeast(10.0));
    if !is_installed {
        return Row::missing("P2", what, goal);
    }
    let (theirs, ours) = (comparison.ours(), comparison.theirs());
    Row::ratio("P2", what, goal, comparison.ratio(Samples::p50))
        .measured(format!("{:.2} ms / {:.2} ms", theirs.p50(), ours.p50()))
        .samples(json!({"ours": ours.json(), "theirs": theirs.json()}))
}
