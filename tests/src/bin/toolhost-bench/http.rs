//! The measuring client: HTTP/1.1 on one connection that is kept, and nothing else that costs time.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

use crate::fork_exec::{COMMAND, PRINTED};

/// How long an HTTP request waits for a call's end.
const WAIT_MS: u64 = 60_000;

/// One kept connection with one key.
#[derive(Debug)]
pub(crate) struct Http {
    sender: SendRequest<Full<Bytes>>,
    address: String,
    authorization: String,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as JSON, given that the status is one of these.
    ///
    /// # Errors
    /// When it is another; the message has the body.
    pub(crate) fn expect(&self, statuses: &[u16]) -> Result<Value> {
        let text = || String::from_utf8_lossy(&self.body).into_owned();
        ensure!(statuses.contains(&self.status), "answered {}: {}", self.status, text());
        serde_json::from_slice(&self.body).with_context(text)
    }
}

impl Http {
    /// Connects to an address (`host:port`).
    ///
    /// # Errors
    /// When nobody listens.
    pub(crate) async fn connect(address: &str, key: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, address: address.to_owned(), authorization: format!("Bearer {key}") })
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: Bytes) -> Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.address)
            .header("authorization", &self.authorization)
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status().as_u16();
        Ok(Answer { status, body: response.into_body().collect().await?.to_bytes() })
    }

    /// GET, as JSON.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value> {
        self.send("GET", path, Bytes::new()).await?.expect(&[200])
    }

    /// A new session of the default image and the smallest size.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn create_session(&mut self) -> Result<Session> {
        let body = Bytes::from(json!({"size": "small"}).to_string());
        let session = self.send("POST", "/v1/sessions", body).await?.expect(&[201])?;
        let id = session["id"].as_str().context("a session has an id")?;
        Ok(Session { path: format!("/v1/sessions/{id}") })
    }

    /// Ends a session.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn end_session(&mut self, session: &Session) -> Result<()> {
        let answer = self.send("DELETE", &session.path, Bytes::new()).await?;
        ensure!(answer.status < 300, "answered {}: {}", answer.status, String::from_utf8_lossy(&answer.body));
        Ok(())
    }

    /// Runs the measured command in a session: from the request's first byte to the answer's last one. The answer
    /// is checked after the clock has stopped.
    ///
    /// # Errors
    /// When the call is refused, does not end in time, or does not print what it should.
    pub(crate) async fn echo(&mut self, session: &Session) -> Result<Duration> {
        let body = Bytes::from_static(ECHO.as_bytes());
        let path = format!("{}/calls", session.path);
        let since = Instant::now();
        let answer = self.send("POST", &path, body).await?;
        let taken = since.elapsed();
        ended(&answer)?;
        Ok(taken)
    }

    /// The same, for the call itself.
    ///
    /// # Errors
    /// As [`Self::echo`].
    pub(crate) async fn echo_call(&mut self, session: &Session) -> Result<Value> {
        let path = format!("{}/calls", session.path);
        ended(&self.send("POST", &path, Bytes::from_static(ECHO.as_bytes())).await?)
    }
}

/// A session of ours.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    path: String,
}

const ECHO: &str = r#"{"tool":"bash","arguments":{"command":"echo hi"},"wait_ms":60000}"#;

fn ended(answer: &Answer) -> Result<Value> {
    let call = answer.expect(&[200])?;
    let output = call["result"]["output"].as_str().unwrap_or_default();
    ensure!(call["status"] == "succeeded" && output.trim_end() == PRINTED.trim_end(), "not a good end: {call}");
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prepared_body_is_the_measured_command() {
        let body: Value = serde_json::from_str(ECHO).expect("is JSON");
        assert_eq!(body, json!({"tool": "bash", "arguments": {"command": COMMAND}, "wait_ms": WAIT_MS}));
    }
}
