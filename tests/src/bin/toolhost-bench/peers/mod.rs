//! Others that do a part of what we do, as `make bench-peers` installs them. Each is started and stopped by the measure that compares with it.

mod jupyter;
mod program;
mod swe_rex;

pub(crate) use jupyter::Jupyter;
pub(crate) use swe_rex::{SweRex, SweRexClient};

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::Program;
use serde_json::Value;

use crate::stack;

/// Where one of them is installed; nothing when it is not.
///
/// # Errors
/// When the bench has no folder.
fn installed(peer: &str, program: &str) -> Result<Option<PathBuf>> {
    let bench = stack::folder()?;
    let folder = bench.parent().context("the bench has no folder")?.join("bench-peers").join(peer);
    Ok(folder.join(program).exists().then_some(folder))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A job queue over Postgres, driven by a script of ours in its own language.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Its name and version.
    pub(crate) name: String,
    program: Program,
}

impl Queue {
    /// Graphile Worker on this database; nothing when it is not installed.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn graphile_worker(database: &str) -> Result<Option<Self>> {
        Self::start("graphile-worker", include_str!("graphile-worker.mjs"), database).await
    }

    /// pg-boss on this database; nothing when it is not installed.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn pg_boss(database: &str) -> Result<Option<Self>> {
        Self::start("pg-boss", include_str!("pg-boss.mjs"), database).await
    }

    async fn start(package: &str, script: &str, database: &str) -> Result<Option<Self>> {
        let Some(folder) = installed("node", &format!("node_modules/{package}"))? else { return Ok(None) };
        // Beside its packages, as that is where node looks for them.
        for (name, text) in
            [(format!("{package}.mjs"), script), ("load.mjs".to_owned(), include_str!("load.mjs"))]
        {
            std::fs::write(folder.join(name), text)?;
        }
        let manifest = std::fs::read(folder.join(format!("node_modules/{package}/package.json")))?;
        let version =
            serde_json::from_slice::<Value>(&manifest)?["version"].as_str().unwrap_or("?").to_owned();
        let mut command = program::script("node", &folder);
        command.arg(format!("{package}.mjs")).env("PEER_DATABASE", database);
        let mut program = Program::start(package, command)?;
        ensure!(program.line().await? == "ready", "{package} is not ready");
        Ok(Some(Self { name: format!("{package} {version}"), program }))
    }

    /// Jobs per second that it has taken in and done, over so long.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) async fn jobs_per_second(&mut self, slice: Duration) -> Result<f64> {
        self.program.say(&slice.as_millis().to_string()).await?;
        let line = self.program.line().await?;
        line.parse().with_context(|| format!("no rate: {line}"))
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it does not end.
    pub(crate) async fn stop(self) -> Result<()> {
        self.program.stop().await
    }
}

/// llm-sandbox: a container that runs code by the engine's API.
#[derive(Debug)]
pub(crate) struct LlmSandbox {
    program: Program,
}

impl LlmSandbox {
    /// A container of this image that waits; nothing when llm-sandbox is not installed.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start(image: &str, label: &str) -> Result<Option<Self>> {
        let Some(folder) = installed("llm-sandbox", "bin/python")? else { return Ok(None) };
        let mut command = program::script("bin/python", &folder);
        command.args(["-u", "-c", include_str!("llm_sandbox.py"), image, label]);
        let mut program = Program::start("llm-sandbox", command)?;
        ensure!(program.line().await? == "ready", "llm-sandbox is not ready");
        Ok(Some(Self { program }))
    }

    /// Runs the measured Python; the time that it took, by its own clock.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) async fn run(&mut self) -> Result<Duration> {
        self.program.say("run").await?;
        let line = self.program.line().await?;
        Ok(Duration::from_secs_f64(line.parse().with_context(|| format!("no time: {line}"))?))
    }

    /// Ends it and its container.
    ///
    /// # Errors
    /// When it does not end.
    pub(crate) async fn stop(self) -> Result<()> {
        self.program.stop().await
    }
}
