//! An SSE client that does what browsers do: parses by the standard, and resumes by `Last-Event-ID` after a cut.
//! It can cut its own connections at random, and refuses a gap or a repetition in the numbers.

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use rand::RngExt;
use serde_json::Value;

use crate::Client;

/// Pause before coming back to a service that did not answer.
const RECONNECT: std::time::Duration = std::time::Duration::from_millis(100);

/// One event as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    /// Its type.
    pub event: String,
    /// Its number, if it has one.
    pub id: Option<u64>,
    /// Its data, parsed.
    pub data: Value,
}

/// Splits a byte stream into events.
#[derive(Debug, Default)]
pub struct Parser {
    pending: Vec<u8>,
    event: String,
    id: Option<u64>,
    data: Vec<String>,
    /// Milliseconds that the server asked to wait before coming back.
    pub retry_ms: Option<u64>,
    /// Comments seen: heartbeats.
    pub comments: u64,
}

impl Parser {
    /// Takes more bytes, gives the events that they complete.
    ///
    /// # Errors
    /// When what comes is no event stream.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>> {
        self.pending.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = std::str::from_utf8(&line[..end]).context("an event stream is UTF-8")?;
            let line = line.strip_suffix('\r').unwrap_or(line);
            ensure!(!line.contains('\r'), "a bare carriage return in a line: {line:?}");
            if line.is_empty() {
                events.extend(self.dispatch()?);
            } else {
                self.field(line)?;
            }
        }
        Ok(events)
    }

    fn field(&mut self, line: &str) -> Result<()> {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "" => self.comments += 1,
            "event" => value.clone_into(&mut self.event),
            // The end of a shell's log has its number with a word behind it.
            "id" => {
                let number = value.strip_suffix("-end").unwrap_or(value);
                self.id = Some(number.parse().with_context(|| format!("an id that is no number: {value:?}"))?)
            }
            "data" => self.data.push(value.to_owned()),
            "retry" => self.retry_ms = Some(value.parse().context("retry is a number")?),
            other => bail!("an unknown field: {other:?}"),
        }
        Ok(())
    }

    fn dispatch(&mut self) -> Result<Option<SseEvent>> {
        let (event, id, data) =
            (std::mem::take(&mut self.event), self.id.take(), std::mem::take(&mut self.data).join("\n"));
        if event.is_empty() && data.is_empty() {
            return Ok(None);
        }
        let data = if data.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&data).with_context(|| format!("data that is no JSON: {data:?}"))?
        };
        Ok(Some(SseEvent { event, id, data }))
    }
}

/// Follows one call to its end.
#[derive(Debug)]
pub struct Follower {
    client: Client,
    path: String,
    cuts: u32,
    /// Numbered events, in order.
    pub events: Vec<SseEvent>,
    /// Connections that it took.
    pub connections: u32,
    /// How often the service asked it to come back.
    pub told_to_reconnect: u32,
    other: Option<Client>,
}

impl Follower {
    /// A follower of a call that never cuts.
    #[must_use]
    pub fn new(client: &Client, call_id: &str) -> Self {
        Self {
            client: client.clone(),
            path: format!("/v1/calls/{call_id}/events"),
            cuts: 0,
            events: Vec::new(),
            connections: 0,
            told_to_reconnect: 0,
            other: None,
        }
    }

    /// The same over two processes, as behind a balancer: each connection goes to the other one.
    #[must_use]
    pub fn over(mut self, other: &Client) -> Self {
        self.other = Some(other.clone());
        self
    }

    /// The same with up to this many cuts after a random number of bytes.
    #[must_use]
    pub fn with_cuts(mut self, cuts: u32) -> Self {
        self.cuts = cuts;
        self
    }

    /// Number of the last event seen.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.events.last().and_then(|event| event.id).unwrap_or(0)
    }

    /// Whether the call's last event was seen.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.events.last().is_some_and(|event| event.event == "call.ended")
    }

    /// Follows until the call has ended, coming back after cuts of either side.
    ///
    /// # Errors
    /// When the stream breaks its contract.
    pub async fn to_end(mut self) -> Result<Vec<SseEvent>> {
        while !self.ended() {
            let limit = (self.cuts > 0).then(|| {
                self.cuts -= 1;
                rand::rng().random_range(1..4_000)
            });
            self.connect(limit, |_| true).await?;
        }
        Ok(self.events)
    }

    /// Follows until an event satisfies `last`.
    ///
    /// # Errors
    /// When the stream breaks its contract, or the call ends before.
    pub async fn until(&mut self, last: impl Fn(&SseEvent) -> bool) -> Result<SseEvent> {
        while !self.ended() {
            self.connect(None, |event| !last(event)).await?;
            if let Some(event) = self.events.last().filter(|event| last(event)) {
                return Ok(event.clone());
            }
        }
        bail!("the call ended before: {:?}", self.events)
    }

    /// One connection: reads until the end of the call, the limit, a disconnection, or `go_on` says no.
    async fn connect(&mut self, limit: Option<usize>, go_on: impl Fn(&SseEvent) -> bool) -> Result<()> {
        self.connections += 1;
        let other = self.other.as_ref().filter(|_| self.connections.is_multiple_of(2));
        let client = other.unwrap_or(&self.client);
        let mut request = client.request("GET", &self.path).header("accept", "text/event-stream");
        if self.last() > 0 {
            request = request.header("last-event-id", self.last());
        }
        // The service may be restarting; the caller's own time limit bounds the attempts.
        let Some(response) =
            request.send().await.ok().filter(|response| !is_temporary(response.status().as_u16()))
        else {
            tokio::time::sleep(RECONNECT).await;
            return Ok(());
        };
        ensure!(response.status() == 200, "an event stream answered {}", response.status());
        let mut parser = Parser::default();
        let mut read = 0;
        let mut body = response.bytes_stream();
        while let Some(Ok(piece)) = body.next().await {
            let piece = match limit {
                Some(limit) if read + piece.len() >= limit => piece.slice(..limit - read),
                _ => piece,
            };
            read += piece.len();
            for event in parser.push(&piece)? {
                self.take(event.clone())?;
                if event.id.is_some() && !go_on(&event) {
                    return Ok(());
                }
            }
            if self.ended() || limit.is_some_and(|limit| read >= limit) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn take(&mut self, event: SseEvent) -> Result<()> {
        self.told_to_reconnect += u32::from(event.event == "reconnect");
        let Some(id) = event.id else { return Ok(()) };
        ensure!(id == self.last() + 1, "event {id} after event {}", self.last());
        ensure!(!self.ended(), "an event after the last: {event:?}");
        ensure!(event.data["seq"] == id, "the number in the data differs: {event:?}");
        ensure!(event.data["type"] == event.event.as_str(), "the type in the data differs: {event:?}");
        self.events.push(event);
        Ok(())
    }
}

fn is_temporary(status: u16) -> bool {
    matches!(status, 429 | 502..=504)
}

/// Text of all output of one stream in these events.
#[must_use]
pub fn output_of(events: &[SseEvent], stream: &str) -> String {
    events
        .iter()
        .filter(|event| event.event == "call.output" && event.data["stream"] == stream)
        .filter_map(|event| event.data["text"].as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_the_bytes_are_cut() {
        let text = b"retry: 1500\n: hello\n\nid: 1\nevent: call.started\ndata: {\"seq\":1,\ndata: \"a\":\"\xc3\xa9\"}\n\nevent: end\ndata: {}\n\n";
        for cut in 0..text.len() {
            let mut parser = Parser::default();
            let mut events = parser.push(&text[..cut]).expect("parses");
            events.extend(parser.push(&text[cut..]).expect("parses"));
            assert_eq!(events.len(), 2, "cut at {cut}");
            assert_eq!((events[0].id, &events[0].data["a"]), (Some(1), &Value::from("é")));
            assert_eq!((events[1].id, events[1].event.as_str()), (None, "end"));
            assert_eq!((parser.retry_ms, parser.comments), (Some(1500), 1));
        }
    }
}
