//! The stack under measurement: the release build of `toolhost` as a process of its own, over a durable Postgres.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use server::postgres::Durability;
use tests::{Client, Host};

/// What is measured.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) host: Host,
    pub(crate) client: Client,
    metrics: String,
}

/// Sandboxes that wait.
pub(crate) const POOL: usize = 2;

impl Stack {
    pub(crate) async fn start() -> Result<Self> {
        let mut host = Box::pin(Host::prepare_with(Durability::Full)).await?;
        for (key, value) in [
            ("policy.limits.sessions", "200"),
            ("policy.limits.running_calls", "200"),
            ("worker.slots", "200"),
            ("sandbox.pool", &format!("[{{size = \"small\", count = {POOL}}}]")),
            ("log.filter", "info"),
        ] {
            host.set(key, value);
        }
        let process = host.serve(&["--with-worker"])?;
        let metrics = process.wait_for(|line| tests::host::address(line, "metrics are served"))?;
        let client = host.tenant("bench")?.client;
        Ok(Self { host, client, metrics })
    }

    /// A session that has run a command.
    pub(crate) async fn warm_session(&self) -> Result<String> {
        let session = self.client.session(json!({})).await?;
        for _ in 0..5 {
            self.call(&session).await?;
        }
        Ok(session)
    }

    /// POST to result of the command of all comparisons.
    pub(crate) async fn call(&self, session: &str) -> Result<Duration> {
        let body = json!({"tool": "bash", "arguments": {"command": COMMAND}, "wait_ms": 60_000});
        let path = format!("/v1/sessions/{session}/calls");
        let began = Instant::now();
        let reply = self.client.post(&path, &body).await?;
        let took = began.elapsed();
        let call = reply.expect(200)?;
        ensure!(call["result"]["structured"]["stdout"] == "hi\n", "{call:#}");
        Ok(took)
    }

    pub(crate) async fn delete(&self, session: &str) -> Result<()> {
        self.client.delete(&format!("/v1/sessions/{session}")).await.map(drop)
    }

    /// Waits until the pool is full and all ended sessions are gone.
    pub(crate) async fn settled(&self) -> Result<()> {
        tests::wait::until("the pool is full", || async {
            let metrics = self.client.at(&self.metrics).get("/metrics").await?;
            let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
            let ready: f64 = text
                .lines()
                .filter(|line| line.starts_with("toolhost_sandbox_pool"))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum();
            Ok(ready >= POOL as f64)
        })
        .await
        .context("the pool does not fill")
    }

    /// A container of ours, for `docker exec`.
    pub(crate) fn container(&self) -> Result<String> {
        let all = tests::engine::containers(&self.host.installation)?;
        all.first().cloned().context("there is a container")
    }
}

/// The command of all comparisons.
pub(crate) const COMMAND: &str = "echo hi";

/// A session's body, for those who create many.
pub(crate) fn small() -> Value {
    json!({"size": "small"})
}
