//! A client of the API for one key: short names for what tests do all the time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::{Follower, SseEvent};

/// Nothing in a test takes longer than this unless something hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A field of what a tool returned for programs; null when it has none.
#[must_use]
pub fn structured<'a>(call: &'a Value, field: &str) -> &'a Value {
    &call["result"]["structured"][field]
}

/// A client with one key.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: String,
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub bytes: Vec<u8>,
}

impl Reply {
    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    /// A header as text, empty when it is missing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body, given that the status is this one.
    ///
    /// # Errors
    /// When it is another; the message has the body.
    pub fn expect(self, status: u16) -> Result<Value> {
        ensure!(
            self.status == status,
            "expected {status}, got {}: {}",
            self.status,
            String::from_utf8_lossy(&self.bytes)
        );
        Ok(self.json())
    }

    /// The body of a problem, given that it is this one, and one by RFC 9457.
    ///
    /// # Errors
    /// When it is not.
    pub fn problem(self, status: u16, code: &str) -> Result<Value> {
        let kind = self.header("content-type").to_owned();
        let body = self.expect(status)?;
        ensure!(kind.starts_with("application/problem+json"), "a problem of type {kind:?}: {body}");
        ensure!(body["code"] == code && body["status"] == status, "expected {code}: {body}");
        for field in ["type", "title", "request_id", "retryable"] {
            ensure!(!body[field].is_null(), "a problem without {field}: {body}");
        }
        Ok(body)
    }
}

impl Client {
    /// A client of the API at `base` (`http://host:port`).
    ///
    /// # Panics
    /// When no HTTP client can be made.
    #[must_use]
    pub fn new(base: &str, key: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client without TLS can be made");
        Self { http, base: base.to_owned(), key: key.to_owned() }
    }

    /// The same service with another key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// Another process of the same installation, with the same key.
    #[must_use]
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.to_owned(), ..self.clone() }
    }

    /// Where the API is.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A request with the key.
    ///
    /// # Panics
    /// When the method is none.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = method.parse().expect("a method");
        let request = self.http.request(method, format!("{}{path}", self.base));
        if self.key.is_empty() { request } else { request.bearer_auth(&self.key) }
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn send(&self, request: RequestBuilder) -> Result<Reply> {
        let response = request.timeout(PATIENCE).send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Reply { status, headers, bytes: response.bytes().await?.to_vec() })
    }

    /// GET.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.send(self.request("GET", path)).await
    }

    /// DELETE.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn delete(&self, path: &str) -> Result<Reply> {
        self.send(self.request("DELETE", path)).await
    }

    /// POST of JSON.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.send(self.request("POST", path).json(body)).await
    }

    /// POST of JSON with an idempotency key.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn post_once(&self, path: &str, body: &Value, key: &str) -> Result<Reply> {
        self.send(self.request("POST", path).json(body).header("idempotency-key", key)).await
    }

    /// A new session; its id.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn session(&self, body: Value) -> Result<String> {
        let session = self.post("/v1/sessions", &body).await?.expect(201)?;
        id_of(&session)
    }

    /// Submits a call; its id.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn submit(&self, session_id: &str, tool: &str, arguments: Value) -> Result<String> {
        self.submit_with(session_id, json!({"tool": tool, "arguments": arguments})).await
    }

    /// Submits a call with all fields given; its id.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn submit_with(&self, session_id: &str, body: Value) -> Result<String> {
        let reply = self.post(&format!("/v1/sessions/{session_id}/calls"), &body).await?;
        ensure!(
            matches!(reply.status, 200 | 202),
            "{}: {}",
            reply.status,
            String::from_utf8_lossy(&reply.bytes)
        );
        id_of(&reply.json())
    }

    /// Runs a tool to its end; the call.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn run(&self, session_id: &str, tool: &str, arguments: Value) -> Result<Value> {
        let body = json!({"tool": tool, "arguments": arguments, "wait_ms": 60_000});
        let reply = self.post(&format!("/v1/sessions/{session_id}/calls"), &body).await?;
        ensure!(
            matches!(reply.status, 200 | 202),
            "{}: {}",
            reply.status,
            String::from_utf8_lossy(&reply.bytes)
        );
        let call = reply.json();
        if call["ended_at"].is_null() { self.ended(&id_of(&call)?).await } else { Ok(call) }
    }

    /// Runs a command to its end; the call.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn bash(&self, session_id: &str, command: &str) -> Result<Value> {
        self.run(session_id, "bash", json!({"command": command})).await
    }

    /// Runs a command that must come to its end; what it wrote to stdout.
    ///
    /// # Errors
    /// When it is refused, or comes to no end of its own.
    pub async fn stdout(&self, session_id: &str, command: &str) -> Result<String> {
        let call = self.bash(session_id, command).await?;
        ensure!(call["status"] == "succeeded", "{command}: {call:#}");
        Ok(call["result"]["structured"]["stdout"].as_str().context("stdout")?.to_owned())
    }

    /// Follows a call to its end without cuts.
    ///
    /// # Errors
    /// When the stream breaks its contract or nothing comes for too long.
    pub async fn follow(&self, call_id: &str) -> Result<Vec<SseEvent>> {
        tokio::time::timeout(PATIENCE, Follower::new(self, call_id).to_end())
            .await
            .with_context(|| format!("{call_id} did not end"))?
    }

    /// Waits for a call's end; the call.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn ended(&self, call_id: &str) -> Result<Value> {
        self.follow(call_id).await?;
        self.call(call_id).await
    }

    /// A call as it is now.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn call(&self, call_id: &str) -> Result<Value> {
        self.get(&format!("/v1/calls/{call_id}")).await?.expect(200)
    }

    /// All stored events of a call, read page by page.
    ///
    /// # Errors
    /// When they cannot be had.
    pub async fn stored_events(&self, call_id: &str) -> Result<Vec<Value>> {
        let mut events: Vec<Value> = Vec::new();
        loop {
            let after = events.last().map_or(0, |event| event["seq"].as_u64().unwrap_or(0));
            let path = format!("/v1/calls/{call_id}/events?after={after}");
            let page = self
                .send(self.request("GET", &path).header("accept", "application/json"))
                .await?
                .expect(200)?;
            let data = page["data"].as_array().context("a page has data")?;
            events.extend(data.iter().cloned());
            if page["has_more"] != true {
                return Ok(events);
            }
            ensure!(!data.is_empty(), "an empty page that has more");
        }
    }
}

/// The `id` of an object.
///
/// # Errors
/// When it has none.
pub fn id_of(object: &Value) -> Result<String> {
    object["id"].as_str().map(str::to_owned).with_context(|| format!("no id in {object}"))
}
