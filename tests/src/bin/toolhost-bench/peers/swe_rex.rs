//! SWE-ReX: a server that runs commands where it runs itself. It has no containers, queue or record of its own on this path.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde_json::json;
use tokio::time::sleep;

use super::program::{self, Program};
use super::{free_port, installed};
use crate::fork_exec::{COMMAND, PRINTED};
use crate::http::Http;

const LOOK: Duration = Duration::from_millis(100);
const START: Duration = Duration::from_secs(60);

/// The running server.
#[derive(Debug)]
pub(crate) struct SweRex {
    program: Program,
    address: String,
    token: String,
}

impl SweRex {
    /// Starts it; nothing when it is not installed.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start() -> Result<Option<Self>> {
        let Some(folder) = installed("swe-rex", "bin/swerex-remote")? else { return Ok(None) };
        let (port, token) = (free_port()?, format!("{:032x}", rand::random::<u128>()));
        let mut command = program::server("bin/swerex-remote", &folder);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--auth-token", &token]);
        let server = Self {
            program: Program::start("SWE-ReX", command)?,
            address: format!("127.0.0.1:{port}"),
            token,
        };
        let deadline = Instant::now() + START;
        while server.client().await.is_err() {
            ensure!(Instant::now() < deadline, "SWE-ReX does not listen");
            sleep(LOOK).await;
        }
        Ok(Some(server))
    }

    /// A client with a connection of its own that it keeps.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) async fn client(&self) -> Result<SweRexClient> {
        let http = Http::connect_with(&self.address, "x-api-key", &self.token).await?;
        let body = json!({"command": ["/bin/bash", "-c", COMMAND], "shell": false}).to_string();
        Ok(SweRexClient { http, body: body.into() })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it does not end.
    pub(crate) async fn stop(self) -> Result<()> {
        self.program.stop().await
    }
}

/// One client of it.
#[derive(Debug)]
pub(crate) struct SweRexClient {
    http: Http,
    body: Bytes,
}

impl SweRexClient {
    /// Runs the measured command by `/execute`.
    ///
    /// # Errors
    /// When it is refused or does not print what it should.
    pub(crate) async fn execute(&mut self) -> Result<()> {
        let answer = self.http.send("POST", "/execute", self.body.clone()).await?.expect(&[200])?;
        ensure!(answer["stdout"] == PRINTED, "SWE-ReX said {answer}");
        Ok(())
    }
}
