//! Jupyter Kernel Gateway: an IPython kernel that stays, spoken to over its WebSocket. It runs where the gateway runs, without a sandbox.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::program::{self, Program};
use super::{free_port, installed};
use crate::fork_exec::{PYTHON, PYTHON_PRINTED};
use crate::http::Http;

const LOOK: Duration = Duration::from_millis(100);
const START: Duration = Duration::from_secs(60);

/// A gateway with one kernel.
#[derive(Debug)]
pub(crate) struct Jupyter {
    program: Program,
    socket: WebSocketStream<TcpStream>,
    asked: u64,
}

impl Jupyter {
    /// Starts a gateway and a kernel; nothing when it is not installed.
    ///
    /// # Errors
    /// When they do not start.
    pub(crate) async fn start() -> Result<Option<Self>> {
        let Some(folder) = installed("jupyter", "bin/jupyter-kernelgateway")? else { return Ok(None) };
        let (port, token) = (free_port()?, format!("{:032x}", rand::random::<u128>()));
        let mut command = program::server("bin/jupyter-kernelgateway", &folder);
        command.args(["--KernelGatewayApp.ip=127.0.0.1", &format!("--KernelGatewayApp.port={port}")]);
        command.env("KG_AUTH_TOKEN", &token).env("KG_PORT_RETRIES", "0");
        let program = Program::start("Jupyter Kernel Gateway", command)?;
        let (address, authorization) = (format!("127.0.0.1:{port}"), format!("token {token}"));
        let deadline = Instant::now() + START;
        let mut http = loop {
            match Http::connect_with(&address, "authorization", &authorization).await {
                Ok(http) => break http,
                Err(error) => ensure!(Instant::now() < deadline, "the gateway does not listen: {error:#}"),
            }
            sleep(LOOK).await;
        };
        let wish = Bytes::from(json!({"name": "python3"}).to_string());
        let kernel = http.send("POST", "/api/kernels", wish).await?.expect(&[201])?;
        let id = kernel["id"].as_str().context("a kernel has an id")?;
        let mut request = format!("ws://{address}/api/kernels/{id}/channels").into_client_request()?;
        request.headers_mut().insert("authorization", authorization.parse()?);
        let stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        let (socket, _) = tokio_tungstenite::client_async(request, stream).await?;
        Ok(Some(Self { program, socket, asked: 0 }))
    }

    /// Runs the measured Python: from the request to what it printed and the kernel's reply, whichever comes last.
    ///
    /// # Errors
    /// When the kernel does not run it well.
    pub(crate) async fn execute(&mut self) -> Result<Duration> {
        self.asked += 1;
        let id = format!("bench-{}", self.asked);
        let content = json!({"code": PYTHON, "silent": false, "store_history": false, "user_expressions": {},
            "allow_stdin": false, "stop_on_error": true});
        let header = json!({"msg_id": id, "msg_type": "execute_request", "username": "bench", "session": "bench",
            "version": "5.3", "date": chrono::Utc::now().to_rfc3339()});
        let request = json!({"channel": "shell", "header": header, "parent_header": {}, "metadata": {},
            "content": content, "buffers": []});
        let request = Message::text(request.to_string());
        let since = Instant::now();
        self.socket.send(request).await?;
        let (mut printed, mut replied) = (String::new(), false);
        while printed != PYTHON_PRINTED || !replied {
            let message = self.socket.next().await.context("the gateway closed the connection")??;
            let Message::Text(text) = message else { continue };
            let said: Value = serde_json::from_str(text.as_str())?;
            if said["parent_header"]["msg_id"] != id.as_str() {
                continue;
            }
            match said["msg_type"].as_str() {
                Some("stream") => printed.push_str(said["content"]["text"].as_str().unwrap_or_default()),
                Some("execute_reply") => {
                    ensure!(said["content"]["status"] == "ok", "the kernel said {said}");
                    replied = true;
                }
                _ => {}
            }
        }
        Ok(since.elapsed())
    }

    /// Ends the gateway and its kernel.
    ///
    /// # Errors
    /// When they do not end.
    pub(crate) async fn stop(self) -> Result<()> {
        drop(self.socket);
        self.program.stop().await
    }
}
