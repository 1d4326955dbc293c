//! The floor of a call: this process starts the same command itself and reads its output through pipes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The command that is measured everywhere.
pub(crate) const COMMAND: &str = "echo hi";
/// What it prints.
pub(crate) const PRINTED: &str = "hi\n";

/// The Python that is measured everywhere.
pub(crate) const PYTHON: &str = "print(1)";
/// What it prints.
pub(crate) const PYTHON_PRINTED: &str = "1\n";

/// Starts `python3 -c 'print(1)'` and waits for its end.
///
/// # Errors
/// When it cannot be started or does not print what it should.
pub(crate) fn python() -> Result<Duration> {
    run(Command::new(interpreter()).args(["-c", PYTHON]), PYTHON_PRINTED)
}

/// The distribution's interpreter, which is what a sandbox has too. A `python3` before it in the path may be a script that manages versions
/// and takes ten times as long.
fn interpreter() -> &'static str {
    const OF_THE_DISTRIBUTION: &str = "/usr/bin/python3";
    if Path::new(OF_THE_DISTRIBUTION).exists() { OF_THE_DISTRIBUTION } else { "python3" }
}

/// Starts `bash -c 'echo hi'` (by `posix_spawn`, the cheapest way that there is) and waits for its end.
///
/// # Errors
/// When it cannot be started or does not print what it should.
pub(crate) fn once() -> Result<Duration> {
    run(Command::new("/bin/bash").args(["-c", COMMAND]), PRINTED)
}

fn run(command: &mut Command, printed: &str) -> Result<Duration> {
    let since = Instant::now();
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .context("cannot start it on the host")?;
    let taken = since.elapsed();
    ensure!(
        output.status.success() && output.stdout == printed.as_bytes(),
        "{:?} on the host said {output:?}",
        command.get_program()
    );
    Ok(taken)
}
