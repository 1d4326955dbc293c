//! P10: what it takes in memory: the service alone, and each idle session with its container.

use anyhow::{Context, Result};
use serde_json::json;

use crate::bench::Bench;
use crate::container;
use crate::machine;
use crate::report::{Goal, Row, Unit};

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    // Without a pool, so that the containers are the sessions'.
    bench.stack.restart_with_pool(0, &mut bench.progress).await?;
    bench.stack.has_settled(&mut bench.progress).await?;
    let idle = bench.stack.memory_kib("VmRSS")? as f64 / 1024.0;
    let available = machine::available_mib()?;
    let sessions = bench.effort.burst / 2;
    let mut http = bench.stack.client().await?;
    let mut open = Vec::new();
    for number in 0..sessions {
        bench.progress.step("session", number, sessions);
        let session = http.create_session().await?;
        http.echo(&session).await?;
        open.push(session);
    }
    let with_sessions = bench.stack.memory_kib("VmRSS")? as f64 / 1024.0;
    let machine = (available - machine::available_mib()?).max(0.0) / sessions as f64;
    let containers = container::memory_mib(bench.stack.installation())?;
    let shims = container::shims_mib(bench.stack.installation())?;
    let count = sessions as f64;
    let (service, container, shim) =
        ((with_sessions - idle).max(0.0) / count, containers.iter().sum::<f64>() / count, shims / count);
    bench.progress.say("ending the sessions");
    for session in &open {
        http.end_session(session).await?;
    }
    bench.stack.has_settled(&mut bench.progress).await?;
    let median = {
        let mut sorted = containers.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().context("no container")?
    };
    let samples = json!({"idle_mib": idle, "with_sessions_mib": with_sessions, "sessions": sessions,
        "containers_mib": containers, "shims_mib": shims, "machine_mib_each": machine});
    Ok(vec![
        Row::memory("P10", "the service, idle (resident)", Goal::AtMost(60.0), idle).samples(samples),
        Row::memory(
            "P10",
            "a session: its container and the service's part",
            Goal::AtMost(6.0),
            service + container,
        )
        .measured(format!(
            "{container:.2} MiB (median {median:.2}) and {service:.2} MiB, of {sessions} sessions"
        )),
        Row::memory(
            "P10",
            "1,000 idle sessions, by what the machine had less for each of these",
            Goal::AtMost(8_192.0),
            idle + machine * 1_000.0,
        )
        .measured(format!("{machine:.2} MiB each, the kernel's and the engine's part included")),
        Row::note(
            "P10",
            "the engine's own process for it (resident, shared pages counted each time)",
            shim,
            Unit::Mebibytes,
        ),
    ])
}
