//! P3: stateless `python_execute`, each call an interpreter without memory of the last, against `python3 -c` on the host.

use anyhow::Result;
use serde_json::json;

use crate::bench::Bench;
use crate::container;
use crate::figures::{Comparison, Samples, alternate};
use crate::fork_exec;
use crate::http::Http;
use crate::peers::LlmSandbox;
use crate::report::{Goal, Row, Unit};

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let effort = bench.effort;
    let mut http = bench.stack.client().await?;
    let session = http.create_session().await?;
    bench.stack.pool_is_full(&mut bench.progress).await?;
    let call = Http::call_body("python_execute", &json!({"code": fork_exec::PYTHON}));
    for _ in 0..effort.warm_up.min(20) {
        http.timed(&session, &call, fork_exec::PYTHON_PRINTED).await?;
        fork_exec::python()?;
    }
    let (image, label) =
        (container::image(bench.stack.installation())?, container::label(bench.stack.installation()));
    let mut llm_sandbox = LlmSandbox::start(&image, &label).await?;
    let (mut comparison, mut theirs_in_a_container) = (Comparison::default(), Samples::default());
    for round in 0..effort.rounds {
        bench.progress.step("interpreters in turn, round", round, effort.rounds);
        let (ours, theirs) = alternate(
            effort,
            async || Ok(http.timed(&session, &call, fork_exec::PYTHON_PRINTED).await?.0),
            async || fork_exec::python(),
        )
        .await?;
        comparison.add(ours, theirs);
        if let Some(llm_sandbox) = &mut llm_sandbox {
            for _ in 0..effort.engine_execs {
                theirs_in_a_container.add(llm_sandbox.run().await?);
            }
        }
    }
    let is_installed = llm_sandbox.is_some();
    if let Some(llm_sandbox) = llm_sandbox {
        llm_sandbox.stop().await?;
    }
    http.end_session(&session).await?;
    let (ours, theirs) = (comparison.ours(), comparison.theirs());
    Ok(vec![
        Row::ratio(
            "P3",
            "python_execute / host python3 -c, p50",
            Goal::AtMost(0.4),
            comparison.ratio(Samples::p50),
        )
        .measured(format!("{:.2} ms / {:.2} ms", ours.p50(), theirs.p50()))
        .samples(json!({"ours": ours.json(), "theirs": theirs.json()})),
        if is_installed {
            let times = theirs_in_a_container.p50() / ours.p50();
            Row::note("P3", "llm-sandbox in a container that stays / python_execute, p50", times, Unit::Times)
                .measured(format!("{:.1} ms / {:.2} ms", theirs_in_a_container.p50(), ours.p50()))
                .samples(json!({"ours": ours.json(), "theirs": theirs_in_a_container.json()}))
        } else {
            Row::missing("P3", "llm-sandbox in a container that stays / python_execute, p50", None)
        },
    ])
}
