//! P5: a session and its first result, from the pool and a hundred at once, against a warm call and a cold
//! `docker run`.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use futures_util::future::join_all;

use crate::Options;
use crate::measure::{self, Samples};
use crate::report::Row;
use crate::stack::{COMMAND, Stack, small};

const FROM_POOL: usize = 24;
const COLD: usize = 10;
const AT_ONCE: usize = 100;

pub(crate) async fn measure(stack: &Stack, options: &Options) -> Result<Vec<Row>> {
    let session = stack.warm_session().await?;
    let (mut warm, mut pooled, mut cold) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..options.times(FROM_POOL) {
        stack.settled().await?;
        warm.add(stack.call(&session).await?);
        let began = Instant::now();
        let fresh = stack.client.session(small()).await?;
        stack.call(&fresh).await?;
        pooled.add(began.elapsed());
        stack.delete(&fresh).await?;
    }
    stack.delete(&session).await?;
    stack.settled().await?;
    for _ in 0..options.times(COLD) {
        let image = "toolhost/sandbox:latest";
        let mut command = Command::new("docker");
        command.args(["run", "--rm", "--network", "none", image, "bash", "-c", COMMAND]);
        cold.add(measure::run(&mut command)?);
    }
    let count = if options.quick { AT_ONCE / 5 } else { AT_ONCE };
    let outcomes = join_all((0..count).map(|_| one(stack))).await;
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).take(3) {
        eprintln!("P5: one of {count} failed: {error:#}");
    }
    let mut burst = Samples::default();
    for (took, session) in outcomes.into_iter().flatten() {
        burst.add(took);
        stack.delete(&session).await?;
    }
    Ok(vec![
        Row::new(
            "P5",
            "session + first result from the pool ÷ warm call",
            pooled.median() / warm.median(),
            "×",
            Some("≤ 10"),
        )
        .of(pooled.len()),
        Row::new("P5", "cold docker run, median", cold.median(), "ms", None).of(cold.len()),
        Row::new("P5", "many sessions at once, failed", failed as f64, "", Some("0")).of(count),
        Row::new(
            "P5",
            "many sessions at once, median ÷ cold docker run",
            burst.median() / cold.median(),
            "×",
            Some("≤ 2"),
        )
        .of(count),
    ])
}

async fn one(stack: &Stack) -> Result<(std::time::Duration, String)> {
    let began = Instant::now();
    let session = stack.client.session(small()).await?;
    let call = stack.client.bash(&session, COMMAND).await?;
    anyhow::ensure!(call["status"] == "succeeded", "{call:#}");
    Ok((began.elapsed(), session))
}
