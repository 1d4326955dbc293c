//! Lines of a call's output on the wire.

use serde::Serialize;
use utoipa::ToSchema;

use super::events::StreamName;

/// Lines of one stream of a call.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OutputLines {
    /// Always `output_lines`.
    #[schema(pattern = "^output_lines$")]
    pub object: &'static str,
    /// The call.
    #[schema(value_type = String)]
    pub call_id: domain::CallId,
    /// The stream.
    #[schema(value_type = StreamName)]
    pub stream: domain::StreamName,
    /// Lines that were asked for and those beside them, in order.
    pub lines: Vec<OutputLine>,
    /// Where to go on, as `from_offset` and `from_line`; null when the stream is over and all of it was looked at.
    pub next: Option<OutputPosition>,
    /// Bytes that the stream has so far.
    pub total_bytes: u64,
    /// Bytes of both streams that were dropped from the middle of a very long output. Line numbers behind them count what is kept.
    pub dropped_bytes: u64,
    /// The call has ended: no more will come.
    pub ended: bool,
}

/// One line, without its line end and control sequences.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OutputLine {
    /// Counted from 1.
    pub line: u64,
    /// Offset of its first byte in the stream.
    pub offset: u64,
    /// Its text.
    pub text: String,
    /// It was asked for; false for the lines beside a match.
    #[serde(rename = "match")]
    pub is_match: bool,
    /// Only its beginning is here (of the text 2,000 characters, of what is searched 16 KiB).
    pub cut: bool,
}

/// The start of a line.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct OutputPosition {
    /// Offset of its first byte.
    pub offset: u64,
    /// Its number.
    pub line: u64,
}
