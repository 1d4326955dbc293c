//! From checked JSON to a request's type, with the pointer of the first value that does not fit and the nearest field for one that
//! does not exist.

use domain::Code;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::pointer::{Pointer, Step};
use crate::problem::{FieldCode, Problem};

/// Decodes a value. Pointers start at `prefix`.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value, prefix: &str) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let mut pointer = Pointer::default();
        for segment in error.path() {
            match segment {
                Segment::Seq { index } => pointer.push(Step::Index(*index)),
                Segment::Map { key } => pointer.push(Step::Key(key.clone())),
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        describe(format!("{prefix}{pointer}"), value, prefix, &error.inner().to_string())
    })
}

/// serde tells what is wrong only in words; these are the words of its own macros.
fn describe(at: String, value: &Value, prefix: &str, message: &str) -> Problem {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field") {
        let (name, known) = quoted.split_first().map_or(("", &[][..]), |(name, known)| (*name, known));
        let at = with_last(at, name);
        return invalid(at, FieldCode::UnknownField, unknown_field(name, known));
    }
    if let (true, Some(name)) = (message.starts_with("missing field"), quoted.first()) {
        return invalid(format!("{at}/{name}"), FieldCode::Required, format!("`{name}` is missing"));
    }
    if message.starts_with("unknown variant") {
        let known = quoted.get(1..).unwrap_or_default();
        return invalid(at, FieldCode::Invalid, format!("must be one of {}", known.join(", ")));
    }
    let code = if message.starts_with("invalid type") { FieldCode::WrongType } else { FieldCode::Invalid };
    let found = value.pointer(at.strip_prefix(prefix).unwrap_or_default()).map_or("nothing", kind_of);
    let message = match message.split_once("expected ") {
        // What was given may be long or secret: it is named by its type.
        Some((_, expected)) => format!("must be {expected}, not {found}"),
        None => message.to_owned(),
    };
    invalid(at, code, message)
}

fn invalid(pointer: String, code: FieldCode, message: String) -> Problem {
    let place = if pointer.is_empty() { "The body".to_owned() } else { format!("`{pointer}`") };
    Problem::new(Code::InvalidArguments, format!("{place}: {message}.")).field(pointer, code, message)
}

/// serde names an unknown field sometimes in the path and always in the message.
fn with_last(at: String, name: &str) -> String {
    let last = format!("/{}", super::pointer::escape(name));
    if at.ends_with(&last) { at } else { at + &last }
}

pub(super) fn unknown_field(name: &str, known: &[&str]) -> String {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
    let nearest = known
        .iter()
        .map(|candidate| (strsim::normalized_damerau_levenshtein(&shown, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((_, candidate)) => format!("`{shown}` is not a field here; did you mean `{candidate}`?"),
        None if known.is_empty() => format!("`{shown}` is not a field here; no fields are expected"),
        None => format!("`{shown}` is not a field here; it has `{}`", known.join("`, `")),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "this number",
        Value::String(_) => "this text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Request {
        tool: String,
        timeout_ms: Option<u64>,
        #[serde(default)]
        metadata: BTreeMap<String, String>,
        inner: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Inner {
        mode: Mode,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        Fast,
        Slow,
    }

    #[test]
    fn each_fault_is_told_at_its_place() {
        for (body, pointer, code, part) in [
            (json!({"tool": 1}), "/tool", FieldCode::WrongType, "a string"),
            (json!({}), "/tool", FieldCode::Required, "missing"),
            (json!({"tool": "x", "timeout": 1}), "/timeout", FieldCode::UnknownField, "`timeout_ms`"),
            (json!({"tool": "x", "timeout_ms": -1}), "/timeout_ms", FieldCode::Invalid, "u64"),
            (json!({"tool": "x", "timeout_ms": 1.5}), "/timeout_ms", FieldCode::WrongType, "u64"),
            (json!({"tool": "x", "metadata": {"a": 1}}), "/metadata/a", FieldCode::WrongType, "a string"),
            (json!({"tool": "x", "inner": {"mode": "odd"}}), "/inner/mode", FieldCode::Invalid, "fast, slow"),
            (json!({"tool": "x", "inner": {"mod": "fast"}}), "/inner/mod", FieldCode::UnknownField, "`mode`"),
            (
                json!({"tool": "x", "list": [{"mode": "fast"}, {}]}),
                "/list/1/mode",
                FieldCode::Required,
                "missing",
            ),
            (json!([]), "", FieldCode::Required, ""),
        ] {
            let problem = decode::<Request>(&body, "").expect_err("does not fit");
            let error = &problem.errors[0];
            assert_eq!(problem.code, Code::InvalidArguments);
            if body.is_object() {
                assert_eq!(
                    (error.pointer.as_str(), error.code),
                    (pointer, code),
                    "{body}: {}",
                    error.message
                );
                assert!(error.message.contains(part), "{body}: {}", error.message);
            }
        }
    }

    #[test]
    fn a_prefix_comes_before_every_pointer() {
        let problem = decode::<Request>(&json!({"tool": 1}), "/calls/3").expect_err("does not fit");
        assert_eq!(problem.errors[0].pointer, "/calls/3/tool");
    }
}
