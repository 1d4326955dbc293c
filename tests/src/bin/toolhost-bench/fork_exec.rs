//! The floor of a call: this process starts the same command itself and reads its output through pipes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The command that is measured everywhere.
pub(crate) const COMMAND: &str = "echo hi";
/// What it prints.
pub(crate) const PRINTED: &str = "hi\n";

/// Starts `bash -c 'echo hi'` (by `posix_spawn`, the cheapest way that there is) and waits for its end.
///
/// # Errors
/// When it cannot be started or does not print what it should.
pub(crate) fn once() -> Result<Duration> {
    let since = Instant::now();
    let output = Command::new("/bin/bash")
        .args(["-c", COMMAND])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .context("cannot start bash")?;
    let taken = since.elapsed();
    ensure!(
        output.status.success() && output.stdout == PRINTED.as_bytes(),
        "bash on the host said {output:?}"
    );
    Ok(taken)
}
