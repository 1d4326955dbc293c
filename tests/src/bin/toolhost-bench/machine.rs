//! The machine and the versions that figures belong to.

use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::stack::Stack;

/// Both, as one object.
///
/// # Errors
/// When the database does not answer.
pub(crate) async fn describe(stack: &Stack) -> Result<Value> {
    let mut database = PgConnection::connect(&stack.database_url()).await?;
    let mut settings = Vec::new();
    for name in ["server_version", "fsync", "synchronous_commit"] {
        let value: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut database).await?;
        settings.push(format!("{name} {value}"));
    }
    database.close().await?;
    Ok(json!({
        "machine": {
            "cpu": field("/proc/cpuinfo", "model name"),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "memory": field("/proc/meminfo", "MemTotal"),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "load_before": load(),
        },
        "versions": {
            "toolhost": stack.cli(&["version"]).unwrap_or_default(),
            "commit": said("git", &["describe", "--always", "--dirty", "--abbrev=10"]),
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "postgres": settings.join(", "),
            "docker": said("docker", &["version", "--format", "{{.Server.Version}}"]),
            "runc": first_line(&said("runc", &["--version"])),
            "bash": first_line(&said("/bin/bash", &["--version"])),
        },
    }))
}

/// The load averages, to judge how much else was going on.
pub(crate) fn load() -> String {
    read("/proc/loadavg")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn field(path: &str, name: &str) -> String {
    let text = read(path);
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Memory that programs could still have, in MiB.
///
/// # Errors
/// Where the kernel does not tell.
pub(crate) fn available_mib() -> Result<f64> {
    let kib = field("/proc/meminfo", "MemAvailable");
    Ok(kib.trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// What a program prints; nothing where it is not installed.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
