//! The container engine as an outsider sees it, through its command line: what is there, and doing harm to it.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

/// Label that names the installation of a container or volume.
pub const INSTALLATION: &str = "io.toolhost.installation";
/// Label that names the sandbox of a container.
pub const SANDBOX: &str = "io.toolhost.sandbox";

/// Runs the engine's client.
///
/// # Errors
/// When it fails; the message has what it said.
pub fn docker(arguments: &[&str]) -> Result<String> {
    let Output { status, stdout, stderr } =
        Command::new("docker").args(arguments).output().context("cannot run docker")?;
    ensure!(status.success(), "docker {}: {}", arguments.join(" "), String::from_utf8_lossy(&stderr).trim());
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}

/// Ids of an installation's containers, running or not.
///
/// # Errors
/// When the engine does not answer.
pub fn containers(installation: &str) -> Result<Vec<String>> {
    let filter = format!("label={INSTALLATION}={installation}");
    Ok(docker(&["ps", "-aq", "--no-trunc", "--filter", &filter])?.lines().map(str::to_owned).collect())
}

/// Names of an installation's volumes.
///
/// # Errors
/// When the engine does not answer.
pub fn volumes(installation: &str) -> Result<Vec<String>> {
    let filter = format!("label={INSTALLATION}={installation}");
    Ok(docker(&["volume", "ls", "-q", "--filter", &filter])?.lines().map(str::to_owned).collect())
}

/// Loop devices over files in this folder.
#[must_use]
pub fn loop_devices(folder: &str) -> Vec<String> {
    let listed = Command::new("losetup")
        .args(["-l", "-n", "-O", "NAME,BACK-FILE"])
        .env("PATH", "/sbin:/usr/sbin:/bin:/usr/bin")
        .output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| line.contains(folder)).map(str::to_owned).collect()
}

/// Processes whose command line or environment-free name contains this text, this process and its parents aside.
#[must_use]
pub fn processes_with(text: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (pid != std::process::id() && line.contains(text)).then(|| format!("{pid} {line}"))
        })
        .collect()
}
