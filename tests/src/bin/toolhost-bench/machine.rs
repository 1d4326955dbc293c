//! The machine and the versions that figures belong to.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

/// Facts for the report.
pub(crate) fn describe() -> Value {
    json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "load": fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "engine": said("docker", &["version", "--format", "{{.Server.Version}}"]),
        "commit": said("git", &["rev-parse", "--short", "HEAD"]),
    })
}

fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_once(':')).map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
