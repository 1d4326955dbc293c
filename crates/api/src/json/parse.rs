//! Parsing with limits: depth, number of values, duplicate keys and text that cannot be stored are refused while parsing, so that
//! a small body cannot unfold into much memory first.

use std::cell::RefCell;
use std::fmt;

use domain::{Code, limits};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::pointer::{Pointer, Step};
use crate::problem::{FieldCode, Problem};

/// Why a text is no acceptable JSON, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Where, as far as the parser had come.
    pub pointer: Pointer,
    /// What is wrong, without repeating the text.
    pub message: String,
}

impl From<Malformed> for Problem {
    fn from(malformed: Malformed) -> Self {
        let Malformed { pointer, message } = malformed;
        Self::new(Code::MalformedJson, format!("The body is not acceptable JSON: {message}.")).field(
            pointer.to_string(),
            FieldCode::Invalid,
            message,
        )
    }
}

/// Parses a JSON text within [`limits::JSON_DEPTH`] and [`limits::JSON_NODES`].
///
/// # Errors
/// [`Malformed`] for what is not JSON, too deep, too large, has a key twice, or has text that Postgres refuses.
pub fn parse(text: &[u8]) -> Result<Value, Malformed> {
    let state = State::default();
    let mut parser = serde_json::Deserializer::from_slice(text);
    let parsed = Node { state: &state, depth: 0 }.deserialize(&mut parser);
    match parsed.and_then(|value| parser.end().map(|()| value)) {
        Ok(value) => Ok(value),
        Err(error) => {
            let refusal = state.refusal.borrow_mut().take();
            let message = refusal.or_else(|| not_utf8(text)).unwrap_or_else(|| syntax(&error));
            Err(Malformed { pointer: state.pointer.into_inner(), message })
        }
    }
}

/// Bytes that are no text at all: the parser's words for them are those for escapes.
fn not_utf8(text: &[u8]) -> Option<String> {
    let error = std::str::from_utf8(text).err()?;
    Some(format!("it is not valid UTF-8 (from byte {} on)", error.valid_up_to() + 1))
}

/// The parser's own sentence, which names the line and column and repeats nothing of the text.
fn syntax(error: &serde_json::Error) -> String {
    let message = error.to_string();
    if message.contains("surrogate") || message.contains("unicode code point") {
        return format!("a \\u escape is not a character (line {}, column {})", error.line(), error.column());
    }
    if message.contains("number out of range") {
        return format!("a number is out of range (line {}, column {})", error.line(), error.column());
    }
    message
}

#[derive(Default)]
struct State {
    pointer: RefCell<Pointer>,
    nodes: RefCell<usize>,
    refusal: RefCell<Option<String>>,
}

impl State {
    fn refuse<E: serde::de::Error>(&self, message: impl Into<String>) -> E {
        *self.refusal.borrow_mut() = Some(message.into());
        E::custom("refused")
    }

    fn count<E: serde::de::Error>(&self) -> Result<(), E> {
        let mut nodes = self.nodes.borrow_mut();
        *nodes += 1;
        if *nodes > limits::JSON_NODES {
            return Err(self.refuse(format!("it has more than {} values", limits::JSON_NODES)));
        }
        Ok(())
    }

    fn text<E: serde::de::Error>(&self, text: &str) -> Result<(), E> {
        if domain::text::is_storable(text) {
            Ok(())
        } else {
            Err(self.refuse("text must not contain NUL (U+0000)"))
        }
    }
}

/// One value at some depth.
#[derive(Clone, Copy)]
struct Node<'s> {
    state: &'s State,
    depth: usize,
}

impl<'s> Node<'s> {
    fn inner<E: serde::de::Error>(self) -> Result<Node<'s>, E> {
        if self.depth >= limits::JSON_DEPTH {
            return Err(self.state.refuse(format!("it is nested deeper than {} levels", limits::JSON_DEPTH)));
        }
        Ok(Node { state: self.state, depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.state.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    /// `5.0` is an integer to JSON Schema and none to serde.
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let whole = value.fract() == 0.0 && value.abs() < EXACT;
        Ok(if whole { (value as i64).into() } else { value.into() })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.state.text(text)?;
        Ok(text.into())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        self.state.text(&text)?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut array = Vec::new();
        self.state.pointer.borrow_mut().push(Step::Index(0));
        while let Some(item) = items.next_element_seed(inner)? {
            array.push(item);
            self.state.pointer.borrow_mut().next_index();
        }
        self.state.pointer.borrow_mut().pop();
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            self.state.count::<A::Error>()?;
            let refusal = if object.contains_key(&key) {
                Some("a key appears twice in one object")
            } else if domain::text::is_storable(&key) {
                None
            } else {
                Some("a key must not contain NUL (U+0000)")
            };
            self.state.pointer.borrow_mut().push(Step::Key(key));
            if let Some(refusal) = refusal {
                return Err(self.state.refuse(refusal));
            }
            let value = fields.next_value_seed(inner)?;
            let Some(Step::Key(key)) = self.state.pointer.borrow_mut().pop() else {
                return Err(A::Error::custom("the walk lost its place"));
            };
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> (String, String) {
        let malformed = parse(text.as_bytes()).expect_err(text);
        (malformed.pointer.to_string(), malformed.message)
    }

    #[test]
    fn what_is_refused_is_refused_at_its_place() {
        for (text, pointer, part) in [
            (r#"{"a": {"b": ["x", "\u0000"]}}"#, "/a/b/1", "NUL"),
            ("{\"a\\u0000\": 1}", "/a\u{fffd}", "NUL"),
            (r#"{"a": [1, "\ud800"]}"#, "/a/1", "escape"),
            (r#"{"a": "\udc00\ud800"}"#, "/a", "escape"),
            (r#"{"a": 1, "b": {"c": 1, "c": 2}}"#, "/b/c", "twice"),
            (r#"{"a": 1e999}"#, "/a", "out of range"),
            (r#"{"a": 1} x"#, "", "trailing"),
            ("", "", "EOF"),
            (r#"{"a": 01}"#, "/a", "number"),
            (r#"{"a": NaN}"#, "/a", "expected"),
        ] {
            let (at, message) = refused(text);
            assert_eq!(at, pointer, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(deep(limits::JSON_DEPTH).as_bytes()).is_ok());
        assert!(refused(&deep(limits::JSON_DEPTH + 1)).1.contains("nested"));
        assert!(refused(&"[".repeat(1_000_000)).1.contains("nested"));
        let wide = format!("[{}]", vec!["1"; limits::JSON_NODES].join(","));
        assert!(refused(&wide).1.contains("values"));
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let parsed = parse(b"[5.0, 5e2, -0.0, 1.5, 1e300]").expect("JSON");
        assert_eq!(parsed.to_string(), "[5,500,0,1.5,1e+300]");
    }

    #[test]
    fn invalid_utf8_is_refused() {
        for (text, from) in [(&b"\"\xff\""[..], "byte 2"), (b"{\"a\": \"\xc3\x28\"}", "byte 8")] {
            let message = parse(text).expect_err("not text").message;
            assert!(message.contains("UTF-8") && message.contains(from), "{message}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "[^\u{0}]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[^\u{0}]{0,6}", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn acceptable_json_is_read_as_serde_reads_it(value in any_json()) {
            prop_assert_eq!(parse(value.to_string().as_bytes()), Ok(value));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
