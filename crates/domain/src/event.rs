//! An event: one numbered fact about a call.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{ArtifactFacts, CallEnded, CallError, CallId, CallResult, CallStatus, CallUsage, ShellId};

/// Which of a command's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamName {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl StreamName {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// The number in the database.
    #[must_use]
    pub const fn number(self) -> i16 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    /// The stream of a number in the database.
    #[must_use]
    pub const fn from_number(number: i16) -> Option<Self> {
        match number {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// One event of a call: number, time and what happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The call.
    pub call_id: CallId,
    /// 1, 2, 3 … without a gap.
    pub seq: u64,
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// What happened.
    pub body: EventBody,
}

/// What happened. Everything but output is kept as JSON; output is kept as bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the last of its call; most are moved, few are kept"
)]
pub enum EventBody {
    /// It was admitted and waits.
    #[serde(rename = "call.queued")]
    Queued {
        /// Its place in the tenant's queue.
        position: u64,
        /// A guess at when it starts.
        estimated_start_at: Option<DateTime<Utc>>,
    },
    /// It was started, or taken over by another worker.
    #[serde(rename = "call.started")]
    Started {
        /// Rises with each start.
        attempt: u32,
    },
    /// It wrote something.
    #[serde(skip)]
    Output(OutputPiece),
    /// It tells how far it is.
    #[serde(rename = "call.progress")]
    Progress {
        /// For people.
        message: Option<String>,
        /// 0 to 100.
        percent: Option<f64>,
    },
    /// Its command goes on in the background.
    #[serde(rename = "shell.started")]
    ShellStarted {
        /// The shell.
        shell_id: ShellId,
    },
    /// It made a file that is kept. After a takeover the same artifact may be told of twice.
    #[serde(rename = "artifact.created")]
    ArtifactCreated {
        /// The artifact.
        artifact: ArtifactFacts,
    },
    /// It is over; always the last event.
    #[serde(rename = "call.ended")]
    Ended {
        /// Its terminal status.
        status: CallStatus,
        /// What the tool returned.
        result: Option<CallResult>,
        /// Why it could not be done.
        error: Option<CallError>,
        /// How it ended.
        ended: CallEnded,
        /// What it used.
        usage: CallUsage,
    },
}

/// A piece of output. Its bytes never split a UTF-8 character, unless what was written is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPiece {
    /// Offset of its first byte in the one log of stdout and stderr together.
    pub log_offset: u64,
    /// Which stream.
    pub stream: StreamName,
    /// Offset of its first byte in that stream.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl EventBody {
    /// Every type on the wire.
    pub const KINDS: &'static [&'static str] =
        &["call.queued", "call.started", "call.output", "call.progress", "shell.started", "call.ended"];

    /// The type on the wire and in the database.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "call.queued",
            Self::Started { .. } => "call.started",
            Self::Output(_) => "call.output",
            Self::Progress { .. } => "call.progress",
            Self::ShellStarted { .. } => "shell.started",
            Self::ArtifactCreated { .. } => "artifact.created",
            Self::Ended { .. } => "call.ended",
        }
    }

    /// Whether no event follows.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

impl Event {
    /// The event's JSON on the wire: `{seq, type, call_id, at, …}`. Output that is not UTF-8 comes as `base64`, encoded by the
    /// given function.
    #[must_use]
    pub fn to_wire(&self, base64: impl Fn(&[u8]) -> String) -> Value {
        let mut wire = Map::new();
        wire.insert("seq".to_owned(), self.seq.into());
        wire.insert("type".to_owned(), self.body.kind().into());
        wire.insert("call_id".to_owned(), self.call_id.to_string().into());
        wire.insert("at".to_owned(), timestamp(self.at).into());
        match &self.body {
            EventBody::Output(piece) => {
                wire.insert("stream".to_owned(), piece.stream.as_str().into());
                wire.insert("offset".to_owned(), piece.offset.into());
                match std::str::from_utf8(&piece.bytes) {
                    Ok(text) => wire.insert("text".to_owned(), text.into()),
                    Err(_) => wire.insert("base64".to_owned(), base64(&piece.bytes).into()),
                };
            }
            EventBody::Queued { .. }
            | EventBody::Started { .. }
            | EventBody::Progress { .. }
            | EventBody::ShellStarted { .. }
            | EventBody::ArtifactCreated { .. }
            | EventBody::Ended { .. } => {
                if let Ok(Value::Object(fields)) = serde_json::to_value(&self.body) {
                    wire.extend(fields.into_iter().filter(|(name, _)| name != "type"));
                }
            }
        }
        Value::Object(wire)
    }
}

/// A time as the wire writes it: RFC 3339, UTC, microseconds.
#[must_use]
pub fn timestamp(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn event(body: EventBody) -> Event {
        Event { call_id: CallId::from_uuid(Uuid::from_u128(1)), seq: 3, at: DateTime::UNIX_EPOCH, body }
    }

    fn output(bytes: &[u8]) -> EventBody {
        EventBody::Output(OutputPiece {
            log_offset: 9,
            stream: StreamName::Stderr,
            offset: 5,
            bytes: bytes.to_vec(),
        })
    }

    #[test]
    fn text_is_text_and_other_bytes_are_base64() {
        let text = event(output("h\u{e9}".as_bytes())).to_wire(|_| unreachable!("is text"));
        assert_eq!(text["text"], "h\u{e9}");
        assert_eq!((&text["stream"], &text["offset"]), (&"stderr".into(), &5.into()));
        let binary = event(output(&[0xff])).to_wire(|bytes| format!("{bytes:?}"));
        assert_eq!(binary["base64"], "[255]");
        assert!(binary.get("text").is_none());
    }

    #[test]
    fn other_events_carry_their_fields_beside_the_common_ones() {
        let wire = event(EventBody::Started { attempt: 2 }).to_wire(|_| String::new());
        assert_eq!(wire["type"], "call.started");
        assert_eq!((&wire["seq"], &wire["attempt"]), (&3.into(), &2.into()));
        assert_eq!(wire["at"], "1970-01-01T00:00:00.000000Z");
    }
}
