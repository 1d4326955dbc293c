//! A client that keeps everything of an answer.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// One credential at one service.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) base: String,
    pub(crate) key: String,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body, when the status is this one.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        self.json()
    }

    /// The problem, when it is this one and well formed.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.expect(status);
        assert_eq!(problem["code"], code, "{problem:#}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(problem["status"], status);
        assert_eq!(problem["type"], format!("/problems/{code}"));
        assert_eq!(problem["request_id"], self.header("x-request-id"));
        assert_eq!(matches!(status, 429 | 503), !self.header("retry-after").is_empty());
        for member in ["title", "detail", "instance"] {
            assert!(problem[member].is_string(), "{member}: {problem:#}");
        }
        assert!(problem["retryable"].is_boolean() && problem["errors"].is_array(), "{problem:#}");
        problem
    }
}

impl Client {
    pub(crate) fn new(base: &str, key: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { http, base: base.to_owned(), key: key.to_owned() }
    }

    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = self.http.request(method, format!("{}{path}", self.base));
        if self.key.is_empty() { request } else { request.bearer_auth(&self.key) }
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Reply {
        let response = request.send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await.expect("a body").to_vec();
        Reply { status, headers, bytes }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(self.request("GET", path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(self.request("POST", path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send(self.request("DELETE", path)).await
    }

    /// A fresh session's id.
    pub(crate) async fn session(&self) -> String {
        id_of(&self.post("/v1/sessions", &json!({})).await.expect(201))
    }

    /// A fresh call's id.
    pub(crate) async fn submit(&self, session: &str) -> String {
        let body = json!({"tool": "bash", "arguments": {"command": "true"}});
        id_of(&self.post(&format!("/v1/sessions/{session}/calls"), &body).await.expect(202))
    }

    /// Opens a stream. `headers` go with the request.
    pub(crate) async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Stream {
        let mut request = self.request("GET", path).header("accept", "text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Stream::new(request.send().await.expect("an answer"))
    }
}

/// The `id` of an object.
#[track_caller]
pub(crate) fn id_of(object: &Value) -> String {
    object["id"].as_str().expect("an id").to_owned()
}

/// One event as it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SseEvent {
    pub(crate) id: Option<u64>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

/// An open stream.
pub(crate) struct Stream {
    pub(crate) response_status: u16,
    pub(crate) headers: HeaderMap,
    body: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    pending: String,
    pub(crate) comments: usize,
    pub(crate) retry_ms: Option<u64>,
}

impl Stream {
    fn new(response: reqwest::Response) -> Self {
        Self {
            response_status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes_stream().boxed(),
            pending: String::new(),
            comments: 0,
            retry_ms: None,
        }
    }

    /// The next event; `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            while let Some((block, rest)) = self.pending.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.pending = rest;
                if let Some(event) = self.parse(&block) {
                    return Some(event);
                }
            }
            let chunk = tokio::time::timeout(Duration::from_secs(20), self.body.next()).await;
            let chunk = chunk.expect("something within 20 s")?.ok()?;
            self.pending.push_str(std::str::from_utf8(&chunk).expect("whole characters"));
        }
    }

    fn parse(&mut self, block: &str) -> Option<SseEvent> {
        let mut event = SseEvent { id: None, event: String::new(), data: Value::Null };
        for line in block.lines() {
            match line.split_once(": ").expect("a field") {
                ("", _) => self.comments += 1,
                ("id", id) => event.id = id.parse().ok(),
                ("event", kind) => kind.clone_into(&mut event.event),
                ("data", data) => event.data = serde_json::from_str(data).expect("one line of JSON"),
                ("retry", retry) => self.retry_ms = Some(retry.parse().expect("a number")),
                (other, _) => panic!("an unknown field {other}"),
            }
        }
        (!event.event.is_empty()).then_some(event)
    }

    /// Everything to the end of the stream.
    pub(crate) async fn rest(mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// The first event of a kind; what comes before is left out.
    pub(crate) async fn until(&mut self, kind: &str) -> SseEvent {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("no `{kind}` before the end"));
            if event.event == kind {
                return event;
            }
        }
    }
}

/// Those that have a number.
pub(crate) fn numbered(events: &[SseEvent]) -> Vec<SseEvent> {
    events.iter().filter(|event| event.id.is_some()).cloned().collect()
}
