//! The measuring client: HTTP/1.1 on one connection that is kept, and nothing else that costs time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::fork_exec::{COMMAND, PRINTED};

/// How long an HTTP request waits for a call's end.
const WAIT_MS: u64 = 60_000;

/// One kept connection with one key.
#[derive(Debug)]
pub(crate) struct Http {
    sender: SendRequest<Full<Bytes>>,
    address: String,
    credential: (&'static str, String),
    traceparent: Option<String>,
    echo: Bytes,
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
        Self::connect_with(address, "authorization", &format!("Bearer {key}")).await
    }

    /// Connects to an address of somebody else, with a credential in this header.
    ///
    /// # Errors
    /// When nobody listens.
    pub(crate) async fn connect_with(address: &str, header: &'static str, value: &str) -> Result<Self> {
        let sender = open(address).await?;
        let echo = json!({"tool": "bash", "arguments": {"command": COMMAND}, "wait_ms": WAIT_MS});
        let (address, credential) = (address.to_owned(), (header, value.to_owned()));
        Ok(Self { sender, address, credential, traceparent: None, echo: Bytes::from(echo.to_string()) })
    }

    /// As [`Self::echo`], as a part of this trace (a `traceparent`).
    ///
    /// # Errors
    /// As [`Self::echo`].
    pub(crate) async fn traced_echo(&mut self, session: &Session, traceparent: &str) -> Result<Duration> {
        self.traceparent = Some(traceparent.to_owned());
        let taken = self.echo(session).await;
        self.traceparent = None;
        taken
    }

    /// Sends a request and reads the whole answer. A connection that the service has closed in a pause is opened anew.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: Bytes) -> Result<Answer> {
        if self.sender.is_closed() {
            self.sender = open(&self.address).await?;
        }
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.address)
            .header(self.credential.0, &self.credential.1)
            .header("content-type", "application/json");
        let request = match &self.traceparent {
            Some(traceparent) => request.header("traceparent", traceparent),
            None => request,
        };
        let request = request.body(Full::new(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status().as_u16();
        Ok(Answer { status, body: response.into_body().collect().await?.to_bytes() })
    }

    /// A new session of the default image and the smallest size.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn create_session(&mut self) -> Result<Session> {
        self.create_session_of("small").await
    }

    /// A new session of the default image and this size.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn create_session_of(&mut self, size: &str) -> Result<Session> {
        let body = Bytes::from(json!({"size": size}).to_string());
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
        Ok(self.timed_echo(session).await?.0)
    }

    /// The same, for the call itself.
    ///
    /// # Errors
    /// As [`Self::echo`].
    pub(crate) async fn echo_call(&mut self, session: &Session) -> Result<Value> {
        Ok(self.timed_echo(session).await?.1)
    }

    async fn timed_echo(&mut self, session: &Session) -> Result<(Duration, Value)> {
        let body = self.echo.clone();
        self.timed(session, &body, PRINTED).await
    }

    /// Submits a call and does not wait for it; its id.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn submit(
        &mut self,
        session: &Session,
        tool: &str,
        arguments: &Value,
    ) -> Result<String> {
        let body = json!({"tool": tool, "arguments": arguments}).to_string();
        let call =
            self.send("POST", &format!("{}/calls", session.path), body.into()).await?.expect(&[202])?;
        Ok(call["id"].as_str().context("a call has an id")?.to_owned())
    }

    /// Opens an event stream. The connection serves nothing else any more.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn stream(mut self, path: &str) -> Result<Incoming> {
        let request = Request::builder()
            .uri(path)
            .header("host", &self.address)
            .header(self.credential.0, &self.credential.1)
            .header("accept", "text/event-stream")
            .body(Full::new(Bytes::new()))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        ensure!(response.status() == 200, "a stream was answered {}", response.status());
        Ok(response.into_body())
    }

    /// The body of a call that is waited for.
    pub(crate) fn call_body(tool: &str, arguments: &Value) -> Bytes {
        json!({"tool": tool, "arguments": arguments, "wait_ms": WAIT_MS}).to_string().into()
    }

    /// Submits a call that has to print this, and its time as for [`Self::echo`].
    ///
    /// # Errors
    /// As [`Self::echo`].
    pub(crate) async fn timed(
        &mut self,
        session: &Session,
        body: &Bytes,
        printed: &str,
    ) -> Result<(Duration, Value)> {
        let (taken, call) = self.timed_any(session, body).await?;
        ensure!(call["result"]["structured"]["stdout"] == printed, "not what it should print: {call}");
        Ok((taken, call))
    }

    /// The same, whatever it prints.
    ///
    /// # Errors
    /// When the call is refused, or does not end well in time.
    pub(crate) async fn timed_any(&mut self, session: &Session, body: &Bytes) -> Result<(Duration, Value)> {
        let path = format!("{}/calls", session.path);
        let since = Instant::now();
        let answer = self.send("POST", &path, body.clone()).await?;
        let taken = since.elapsed();
        let call = answer.expect(&[200])?;
        ensure!(call["status"] == "succeeded", "not a good end: {call}");
        Ok((taken, call))
    }
}

async fn open(address: &str) -> Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// A session of ours.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    path: String,
}
