//! Events on the wire, for the document only: `domain` writes them (`Event::to_wire`).

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::calls::CallStatus;
use super::results::{CallEnded, CallError, CallResult, CallUsage};

/// Which of a command's streams.
#[derive(Debug, Clone, Copy, ToSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamName {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// One numbered fact about a call: the `data` of a server-sent event whose `id` is `seq` and whose `event` is `type`.
/// Numbers start at 1 and have no gap; `call.ended` is always the last.
#[derive(Debug, Clone, ToSchema)]
pub struct CallEvent {
    /// 1, 2, 3 … without a gap.
    #[schema(minimum = 1)]
    pub seq: u64,
    /// What happened: `call.queued`, `call.started`, `call.output`, `call.progress`, `shell.started`, `artifact.created`, `call.ended`. More may come.
    #[schema(rename = "type", examples("call.output"))]
    pub kind: String,
    /// The call.
    pub call_id: String,
    /// When, by the database's clock.
    pub at: super::Time,
    /// `call.queued`: place in the tenant's queue.
    #[schema(nullable = false)]
    pub position: Option<u64>,
    /// `call.queued`: a guess.
    pub estimated_start_at: Option<super::Time>,
    /// `call.started`: rises with each start.
    #[schema(nullable = false)]
    pub attempt: Option<u32>,
    /// `call.output`: which stream.
    #[schema(nullable = false)]
    pub stream: Option<StreamName>,
    /// `call.output`: offset of its first byte in that stream.
    #[schema(nullable = false)]
    pub offset: Option<u64>,
    /// `call.output`: the bytes as text; never splits a character.
    #[schema(nullable = false)]
    pub text: Option<String>,
    /// `call.output`: the bytes in base64, when they are not UTF-8.
    #[schema(nullable = false)]
    pub base64: Option<String>,
    /// `call.progress`: for people.
    pub message: Option<String>,
    /// `call.progress`: 0 to 100.
    pub percent: Option<f64>,
    /// `shell.started`: the command goes on as this shell.
    #[schema(nullable = false)]
    pub shell_id: Option<String>,
    /// `artifact.created`: what was kept.
    #[schema(nullable = false)]
    pub artifact: Option<super::artifacts::ArtifactFacts>,
    /// `call.ended`: the terminal status.
    #[schema(nullable = false)]
    pub status: Option<CallStatus>,
    /// `call.ended`: what the tool returned.
    pub result: Option<CallResult>,
    /// `call.ended`: why it could not be done.
    pub error: Option<CallError>,
    /// `call.ended`: how it ended.
    #[schema(nullable = false)]
    pub ended: Option<CallEnded>,
    /// `call.ended`: what it used.
    #[schema(nullable = false)]
    pub usage: Option<CallUsage>,
}

/// A page of a call's events, oldest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventPage {
    /// Always `list`.
    #[schema(pattern = "^list$")]
    pub object: &'static str,
    /// The events.
    #[schema(value_type = Vec<CallEvent>)]
    pub data: Vec<Value>,
    /// There are more already.
    pub has_more: bool,
    /// The number to read on from with `?after=`.
    #[schema(examples("42"))]
    pub next_cursor: String,
    /// No more will come: the page reaches the call's last event.
    pub ended: bool,
}
