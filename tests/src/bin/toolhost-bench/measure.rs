//! Samples and what is told of them, and the things that everything is compared with.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Times of one thing, in seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The value below which this part of them lies.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((part * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
    }
}

/// What the machine itself needs for the command: fork, exec, and its output.
pub(crate) fn host(command: &str) -> Result<Duration> {
    run(Command::new("bash").args(["-c", command]))
}

/// Runs a program that must succeed; how long it took until its output was there.
pub(crate) fn run(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let took = began.elapsed();
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(took)
}
