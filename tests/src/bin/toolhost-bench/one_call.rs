//! P1: one warm `bash` call after the other, POST to result, in turn with the host's own fork and exec, and with
//! `docker exec`.

use std::process::Command;

use anyhow::Result;

use crate::Options;
use crate::measure::{self, Samples};
use crate::report::Row;
use crate::stack::{COMMAND, Stack};

const REPETITIONS: usize = 600;
const WITH_ENGINE: usize = 40;

pub(crate) async fn measure(stack: &Stack, options: &Options) -> Result<Vec<Row>> {
    let session = stack.warm_session().await?;
    for _ in 0..options.times(100) {
        stack.call(&session).await?;
        measure::host(COMMAND)?;
    }
    let (mut host, mut ours, mut engine) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..options.times(REPETITIONS) {
        host.add(measure::host(COMMAND)?);
        ours.add(stack.call(&session).await?);
    }
    let container = stack.container()?;
    for _ in 0..options.times(WITH_ENGINE) {
        engine.add(measure::run(Command::new("docker").args(["exec", &container, "bash", "-c", COMMAND]))?);
    }
    stack.delete(&session).await?;
    let floor = host.median();
    Ok(vec![
        Row::new("P1", "host fork+exec, median", floor, "ms", None),
        Row::new("P1", "warm call, median ÷ host", ours.median() / floor, "×", Some("≤ 1.2")),
        Row::new(
            "P1",
            "warm call, p95 ÷ host's p95",
            ours.quantile(0.95) / host.quantile(0.95),
            "×",
            Some("≤ 2"),
        ),
        Row::new("P1", "docker exec ÷ warm call", engine.median() / ours.median(), "×", Some("≥ 20")),
    ]
    .into_iter()
    .map(|row| row.of(ours.len()))
    .collect())
}
