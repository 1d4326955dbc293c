//! What an interpreter leaves beside its output: the value of the last expression, an error, tables, charts and pictures.
//!
//! The session's code runs in the same process and could have written it: it is parsed and bounded here like output, and
//! nothing in it can name what is not its own.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::{ContentBlock, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most pieces of one result.
const BLOCKS: usize = 32;
/// Longest text of an error or a value that the result repeats, in characters.
const TEXT_CHARS: usize = 70_000;
/// Most pieces that are in files.
const FILES: usize = 16;
/// Media types that a piece may have.
const MEDIA_TYPES: [&str; 11] = [
    "application/json",
    "application/vnd.toolhost.chart+json",
    "application/vnd.toolhost.table+json",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/svg+xml",
    "image/webp",
    "text/html",
    "text/latex",
    "text/markdown",
];

/// An exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Raised {
    /// Its class.
    pub(crate) name: String,
    /// Its message.
    pub(crate) value: String,
    /// Where it was raised, as the interpreter prints it.
    #[serde(default)]
    pub(crate) traceback: String,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Piece {
    Text {
        mime_type: Option<String>,
        text: String,
    },
    Json {
        mime_type: String,
        json: Value,
    },
    Image {
        mime_type: String,
        data: String,
    },
    Kept {
        mime_type: String,
        name: String,
    },
    #[serde(other)]
    Unknown,
}

/// One piece of what code has shown.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    /// As it goes into the result.
    Block(ContentBlock),
    /// Too large for that: in a file of this name, in the folder that the call was given for it.
    InFile { mime_type: String, name: String },
}

/// See the module.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Report {
    /// The text of the last expression's value.
    pub(crate) result: Option<String>,
    /// What ended the code.
    pub(crate) error: Option<Raised>,
    #[serde(default)]
    content: Vec<Piece>,
    /// Pieces that were too many or too large.
    #[serde(default)]
    left_out: u32,
    /// Runs of this interpreter, this one included.
    #[serde(default)]
    pub(crate) executions: u32,
    /// Why the code was not run.
    #[serde(default)]
    pub(crate) setup: Option<String>,
}

impl Report {
    /// `None` when there is none, or what is there is not one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut report: Self = serde_json::from_slice(bytes).ok()?;
        let cut =
            |text: &mut String| *text = text.replace('\0', "\u{fffd}").chars().take(TEXT_CHARS).collect();
        report.result.as_mut().map(cut);
        report.setup.as_mut().map(cut);
        if let Some(error) = &mut report.error {
            [&mut error.name, &mut error.value, &mut error.traceback].into_iter().for_each(cut);
        }
        Some(report)
    }

    /// The pieces, and how many there are beside them that cannot be shown.
    pub(crate) fn into_parts(self) -> (Vec<Part>, usize) {
        let offered = self.content.len().saturating_add(self.left_out as usize);
        let mut files = 0;
        let parts: Vec<Part> = self
            .content
            .into_iter()
            .filter_map(accept)
            .filter(|part| {
                files += usize::from(matches!(part, Part::InFile { .. }));
                files <= FILES || matches!(part, Part::Block(_))
            })
            .take(BLOCKS)
            .collect();
        let missing = offered - parts.len();
        (parts, missing)
    }
}

/// Whether a value has at most so many levels. What was parsed is never deeper than the parser goes, so that this ends.
fn is_within(value: &Value, levels: usize) -> bool {
    let Some(levels) = levels.checked_sub(1) else { return false };
    match value {
        Value::Array(values) => values.iter().all(|value| is_within(value, levels)),
        Value::Object(fields) => fields.values().all(|value| is_within(value, levels)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

fn accept(piece: Piece) -> Option<Part> {
    let known = |mime_type: &str| MEDIA_TYPES.contains(&mime_type);
    let text = |mime_type, text| Part::Block(ContentBlock::Text { mime_type, text, artifact_id: None });
    match piece {
        Piece::Text { mime_type: None, text: plain } => Some(text(None, plain)),
        Piece::Text { mime_type: Some(mime_type), text: rich } => {
            known(&mime_type).then(|| text(Some(mime_type), rich))
        }
        Piece::Json { mime_type, json } => (known(&mime_type) && is_within(&json, limits::JSON_DEPTH))
            .then_some(Part::Block(ContentBlock::Json { mime_type, json })),
        Piece::Image { mime_type, data } => {
            let is_picture = mime_type.starts_with("image/") && known(&mime_type);
            let is_whole = is_picture && STANDARD.decode(&data).is_ok();
            is_whole.then_some(Part::Block(ContentBlock::Image {
                mime_type,
                data: Some(data),
                artifact_id: None,
            }))
        }
        Piece::Kept { mime_type, name } => {
            let is_name = (1..=3).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_digit());
            let is_kind = known(&mime_type) || mime_type == "text/plain";
            (is_name && is_kind).then_some(Part::InFile { mime_type, name })
        }
        Piece::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_code_forges_names_nothing_of_others() {
        let forged = br#"{"report": 1, "result": "a\u0000b", "content": [
            {"type": "image", "mime_type": "image/png", "data": "AA==", "artifact_id": "art_00000000000000000000000001"},
            {"type": "image", "mime_type": "image/png", "data": "not base64"},
            {"type": "image", "mime_type": "text/html", "data": "AA=="},
            {"type": "file", "artifact_id": "art_00000000000000000000000001"},
            {"type": "kept", "mime_type": "image/png", "name": "../../workspace/secret"},
            {"type": "kept", "mime_type": "application/x-else", "name": "0"},
            {"type": "kept", "mime_type": "image/png", "name": "0"},
            {"type": "text", "text": "plain"}]}"#;
        let report = Report::parse(forged).expect("a report");
        assert_eq!(report.result.as_deref(), Some("a\u{fffd}b"));
        let (parts, missing) = report.into_parts();
        assert_eq!(
            parts,
            [
                Part::Block(ContentBlock::Image {
                    mime_type: "image/png".to_owned(),
                    data: Some("AA==".to_owned()),
                    artifact_id: None
                }),
                Part::InFile { mime_type: "image/png".to_owned(), name: "0".to_owned() },
                Part::Block(ContentBlock::Text {
                    mime_type: None,
                    text: "plain".to_owned(),
                    artifact_id: None
                }),
            ]
        );
        assert_eq!(missing, 5);
        assert!(Report::parse(b"").is_none() && Report::parse(b"{").is_none());
    }

    #[test]
    fn what_is_deeper_than_an_answer_may_be_is_left_out() {
        for (levels, shown) in [(63, 1), (64, 0), (100, 0)] {
            let json = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
            let forged = format!(
                r#"{{"content": [{{"type": "json", "mime_type": "application/json", "json": {json}}}], "left_out": 4294967295}}"#
            );
            let (parts, missing) = Report::parse(forged.as_bytes()).expect("a report").into_parts();
            assert_eq!(parts.len(), shown, "{levels} levels");
            assert!(missing >= u32::MAX as usize);
        }
        let bottomless = format!(
            r#"{{"content": [{{"type": "json", "mime_type": "application/json", "json": {}"#,
            "[".repeat(100_000)
        );
        assert!(Report::parse(bottomless.as_bytes()).is_none());
    }
}
