//! A server that a killed process of ours has left behind on the data.

use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use super::{POLL, STOP_LIMIT};

/// Stops a server that a killed process of ours has left behind on this data.
pub(super) async fn stop(data: &Path) -> Result<()> {
    let pid_file = data.join("postmaster.pid");
    let Some(pid) = recorded_pid(&pid_file)? else { return Ok(()) };
    if !is_alive(pid) {
        return Ok(());
    }
    if !is_server_on(pid, data) {
        return fs::remove_file(&pid_file).with_context(|| format!("cannot remove {}", pid_file.display()));
    }
    tracing::info!(pid, "stopping the Postgres server that an earlier run left behind");
    for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGKILL] {
        send(pid, signal);
        let deadline = Instant::now() + STOP_LIMIT;
        while Instant::now() < deadline {
            if !is_alive(pid) {
                return Ok(());
            }
            sleep(POLL).await;
        }
    }
    bail!("the Postgres server of an earlier run (pid {pid}) does not end")
}

fn recorded_pid(pid_file: &Path) -> Result<Option<u32>> {
    match fs::read_to_string(pid_file) {
        Ok(text) => Ok(text.lines().next().and_then(|line| line.trim().parse().ok())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", pid_file.display())),
    }
}

pub(super) fn is_alive(pid: u32) -> bool {
    // A zombie has no command line; it holds nothing.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn is_server_on(pid: u32, data: &Path) -> bool {
    let is_postgres =
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres");
    let works_there = fs::read_link(format!("/proc/{pid}/cwd"))
        .is_ok_and(|folder| data.canonicalize().is_ok_and(|data| data == folder));
    is_postgres && works_there
}

pub(super) fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // It may have ended already; then there is nobody to tell.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
