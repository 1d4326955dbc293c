//! The peers that every container service is measured by: the engine's own `exec` and `run`, with our hardening.
//!
//! The hardening is read from a sandbox that runs and not written down again, so that it is the same. Its mounts are
//! replaced by a plain volume as workspace, because they belong to that sandbox.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bollard::Docker;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, ExecConfig, HostConfig, Mount, MountType};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptions, RemoveContainerOptionsBuilder,
};
use futures_util::{Stream, StreamExt, TryStreamExt};
use tests::engine;

use crate::fork_exec::{COMMAND, PRINTED};

/// Label of the containers that are made here.
const LABEL: &str = "io.toolhost.bench";
/// An unprivileged user, as tools have one.
const USER: &str = "65000:65000";

/// The engine, and the hardening that its containers get.
#[derive(Debug)]
pub(crate) struct Engine {
    docker: Docker,
    image: String,
    host_config: HostConfig,
    installation: String,
}

impl Engine {
    /// The engine that this installation uses, with the hardening of a sandbox of its that runs now.
    ///
    /// # Errors
    /// When the engine does not answer or no sandbox runs.
    pub(crate) async fn like(installation: &str) -> Result<Self> {
        let sandboxes = engine::containers(installation)?;
        let sandbox = sandboxes.first().context("no sandbox runs")?;
        let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
        let inspected = docker.inspect_container(sandbox, None).await?;
        let mut host_config = inspected.host_config.context("the engine does not tell a sandbox's limits")?;
        host_config.binds = None;
        host_config.mounts = Some(vec![Mount {
            typ: Some(MountType::VOLUME),
            target: Some("/workspace".to_owned()),
            ..Mount::default()
        }]);
        let image = inspected.image.context("the engine does not tell a sandbox's image")?;
        Ok(Self { docker, image, host_config, installation: installation.to_owned() })
    }

    /// A cold `docker run` of the measured command through the engine's API: from the request that creates the container to its exit code,
    /// its output read. The container is removed after the clock has stopped.
    ///
    /// # Errors
    /// When the engine refuses or the command does not print what it should.
    pub(crate) async fn run(&self) -> Result<Duration> {
        let since = Instant::now();
        let id = self.create(&["/bin/bash", "-c", COMMAND]).await?;
        let options = AttachContainerOptionsBuilder::default().stdout(true).stderr(true).stream(true).build();
        let AttachContainerResults { output, .. } = self.docker.attach_container(&id, Some(options)).await?;
        self.docker.start_container(&id, None).await?;
        let printed = text(output).await?;
        let ended =
            self.docker.wait_container(&id, None).next().await.context("the engine does not tell the end")?;
        let taken = since.elapsed();
        let exit_code = ended?.status_code;
        self.remove(&id).await?;
        ensure!(
            exit_code == 0 && printed == PRINTED,
            "docker run ended with {exit_code} and said {printed:?}"
        );
        Ok(taken)
    }

    /// A container that waits for `exec`s.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn waiting(&self) -> Result<Waiting<'_>> {
        let id = self.create(&["/bin/sleep", "infinity"]).await?;
        self.docker.start_container(&id, None).await?;
        Ok(Waiting { engine: self, id })
    }

    async fn create(&self, command: &[&str]) -> Result<String> {
        let body = ContainerCreateBody {
            image: Some(self.image.clone()),
            entrypoint: Some(Vec::new()),
            cmd: Some(command.iter().map(|&word| word.to_owned()).collect()),
            user: Some(USER.to_owned()),
            working_dir: Some("/".to_owned()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            labels: Some(HashMap::from([(LABEL.to_owned(), self.installation.clone())])),
            host_config: Some(self.host_config.clone()),
            ..ContainerCreateBody::default()
        };
        Ok(self.docker.create_container(None::<CreateContainerOptions>, body).await?.id)
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        Ok(self.docker.remove_container(id, Some(options)).await?)
    }
}

/// A container that waits for `exec`s.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    engine: &'a Engine,
    id: String,
}

impl Waiting<'_> {
    /// The measured command by the program `docker exec`.
    ///
    /// # Errors
    /// When the engine refuses or the command does not print what it should.
    pub(crate) fn exec(&self) -> Result<Duration> {
        let mut command = Command::new("docker");
        command.args(["exec", &self.id, "/bin/bash", "-c", COMMAND]).stdin(Stdio::null());
        let since = Instant::now();
        let output = command.output().context("cannot start docker")?;
        let taken = since.elapsed();
        ensure!(
            output.status.success() && output.stdout == PRINTED.as_bytes(),
            "docker exec said {output:?}"
        );
        Ok(taken)
    }

    /// The same through the engine's API: from the request that creates the exec to its exit code, its output read.
    ///
    /// # Errors
    /// When the engine refuses or the command does not print what it should.
    pub(crate) async fn exec_by_api(&self) -> Result<Duration> {
        let docker = &self.engine.docker;
        let config = ExecConfig {
            cmd: Some(["/bin/bash", "-c", COMMAND].map(str::to_owned).to_vec()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..ExecConfig::default()
        };
        let since = Instant::now();
        let exec = docker.create_exec(&self.id, config).await?.id;
        let started = docker.start_exec(&exec, None::<StartExecOptions>).await?;
        let StartExecResults::Attached { output, .. } = started else {
            anyhow::bail!("the engine did not attach")
        };
        let printed = text(output).await?;
        let exit_code = docker.inspect_exec(&exec).await?.exit_code;
        let taken = since.elapsed();
        ensure!(
            exit_code == Some(0) && printed == PRINTED,
            "docker exec ended with {exit_code:?} and {printed:?}"
        );
        Ok(taken)
    }

    /// Removes the container.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn remove(self) -> Result<()> {
        self.engine.remove(&self.id).await
    }
}

async fn text(output: impl Stream<Item = Result<LogOutput, bollard::errors::Error>>) -> Result<String> {
    let pieces: Vec<String> = output.map_ok(|piece| piece.to_string()).try_collect().await?;
    Ok(pieces.concat())
}

/// The label, as `key=value`, of containers that are swept with this installation.
pub(crate) fn label(installation: &str) -> String {
    format!("{LABEL}={installation}")
}

/// The image of the installation's sandboxes.
///
/// # Errors
/// When none runs.
pub(crate) fn image(installation: &str) -> Result<String> {
    let sandboxes = engine::containers(installation)?;
    let sandbox = sandboxes.first().context("no sandbox runs")?;
    Ok(engine::docker(&["inspect", "--format", "{{.Config.Image}}", sandbox])?.trim().to_owned())
}

/// Removes what a bench of this installation left, and says what it was.
pub(crate) fn sweep(installation: &str) -> Vec<String> {
    let filter = format!("label={}", label(installation));
    let left = engine::docker(&["ps", "-aq", "--no-trunc", "--filter", &filter]).unwrap_or_default();
    let left: Vec<String> =
        left.lines().map(str::to_owned).chain(engine::containers(installation).unwrap_or_default()).collect();
    for container in &left {
        let _ = engine::docker(&["rm", "-f", "-v", container]);
    }
    for volume in engine::volumes(installation).unwrap_or_default() {
        let _ = engine::docker(&["volume", "rm", "-f", &volume]);
    }
    left.into_iter().map(|id| format!("container {id}")).collect()
}

/// What the installation's running containers have in memory by their control groups, in MiB each: what the engine's `stats` shows,
/// without what could be dropped of files.
///
/// # Errors
/// When the engine does not tell.
pub(crate) fn memory_mib(installation: &str) -> Result<Vec<f64>> {
    let ids = engine::containers(installation)?;
    let mut arguments = vec!["stats", "--no-stream", "--format", "{{.MemUsage}}"];
    arguments.extend(ids.iter().map(String::as_str));
    let said = engine::docker(&arguments)?;
    said.lines().map(|line| mib(line.split('/').next().unwrap_or(line).trim())).collect()
}

/// Time of the processor that everything in the installation's containers has used, in milliseconds, as their control groups tell.
pub(crate) fn cpu_ms(installation: &str) -> Option<f64> {
    let ids = engine::containers(installation).ok()?;
    let mut arguments = vec!["inspect", "--format", "{{.State.Pid}}"];
    arguments.extend(ids.iter().map(String::as_str));
    engine::docker(&arguments).ok()?.lines().map(|pid| cpu_ms_of_group(pid.trim())).sum()
}

/// The same of the group of one process, in either version of control groups.
fn cpu_ms_of_group(pid: &str) -> Option<f64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        if controllers.split(',').any(|controller| controller == "cpuacct") {
            let text = std::fs::read_to_string(format!("/sys/fs/cgroup/cpuacct{path}/cpuacct.usage")).ok()?;
            return Some(text.trim().parse::<f64>().ok()? / 1e6);
        }
        let stat = std::fs::read_to_string(format!("/sys/fs/cgroup{path}/cpu.stat")).ok()?;
        let used = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        controllers.is_empty().then_some(used.trim().parse::<f64>().ok()? / 1e3)
    })
}

/// A size as the engine prints it, such as `3.9MiB`.
fn mib(text: &str) -> Result<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).context("a size without a unit")?;
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "B" => 1.0 / 1_048_576.0,
        "KiB" => 1.0 / 1_024.0,
        "MiB" => 1.0,
        "GiB" => 1_024.0,
        _ => anyhow::bail!("an unknown unit: {text}"),
    };
    Ok(number.trim().parse::<f64>().with_context(|| format!("no size: {text}"))? * factor)
}

/// Resident memory of the engine's processes that stand beside the installation's containers, in MiB together.
///
/// # Errors
/// When the engine does not tell.
pub(crate) fn shims_mib(installation: &str) -> Result<f64> {
    let ids = engine::containers(installation)?;
    let mut kib = 0_u64;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if line.contains("containerd-shim") && ids.iter().any(|id| line.contains(id.as_str())) {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            kib += resident
                .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or_default();
        }
    }
    Ok(kib as f64 / 1024.0)
}

#[cfg(test)]
mod size_tests {
    use super::*;

    #[test]
    fn sizes_of_the_engine_are_read() {
        assert_eq!(mib("3.5MiB").expect("a size"), 3.5);
        assert_eq!(mib("512KiB").expect("a size"), 0.5);
        assert!(mib("12").is_err() && mib("1XB").is_err());
    }
}
