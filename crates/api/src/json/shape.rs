//! What does not fit in a body, all of it at once. serde stops at the first fault; this walks the body along the schema that the
//! document publishes for it, so that what is told and what is documented are the same.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::check::Checks;
use super::pointer::{Pointer, Step};
use crate::problem::FieldCode;

/// Schemas of the document, by name.
static SCHEMAS: LazyLock<Value> = LazyLock::new(|| crate::openapi()["components"]["schemas"].take());

/// Where a value is that does not fit, and what to put there so that the rest can be looked at.
pub(crate) struct Misfit {
    steps: Vec<Step>,
    instead: Option<Value>,
}

/// Walks a body along the schema of that name. Items of the fields `apart` are left to be looked at one by one.
pub(crate) fn misfits(name: &str, apart: &[&str], body: &Value, checks: &mut Checks) -> Vec<Misfit> {
    let mut walk = Walk { apart, at: Pointer::default(), checks, found: Vec::new() };
    if let Some(schema) = SCHEMAS.get(name) {
        walk.value(schema, body, false);
    }
    walk.found
}

/// The body without what does not fit.
pub(crate) fn mended(body: &Value, misfits: Vec<Misfit>) -> Value {
    let mut body = body.clone();
    for Misfit { mut steps, instead } in misfits {
        let last = steps.pop();
        let parent = steps.iter().try_fold(&mut body, |value, step| match step {
            Step::Key(key) => value.get_mut(key.as_str()),
            Step::Index(index) => value.get_mut(*index),
        });
        match (parent, last, instead) {
            (Some(Value::Object(fields)), Some(Step::Key(key)), Some(value)) => {
                fields.insert(key, value);
            }
            (Some(Value::Object(fields)), Some(Step::Key(key)), None) => {
                fields.remove(&key);
            }
            (Some(Value::Array(items)), Some(Step::Index(index)), Some(value)) => {
                if let Some(item) = items.get_mut(index) {
                    *item = value;
                }
            }
            _ => {}
        }
    }
    body
}

/// The body without the value at a pointer; `None` when there is no such value.
pub(crate) fn without(body: &Value, pointer: &str) -> Option<Value> {
    let (parent, last) = pointer.rsplit_once('/')?;
    let last = last.replace("~1", "/").replace("~0", "~");
    let mut body = body.clone();
    body.pointer_mut(parent)?.as_object_mut()?.remove(&last)?;
    Some(body)
}

struct Walk<'a> {
    apart: &'a [&'a str],
    at: Pointer,
    checks: &'a mut Checks,
    found: Vec<Misfit>,
}

impl Walk<'_> {
    /// One value. `needed` says that it cannot just be left out.
    fn value(&mut self, schema: &Value, value: &Value, needed: bool) {
        let (schema, nullable) = resolve(schema);
        if value.is_null() && nullable {
            return;
        }
        match (kind(schema), value) {
            ("object", Value::Object(fields)) => self.object(schema, fields),
            ("array", Value::Array(items)) => self.array(schema, items),
            (kind, value) => {
                if let Some((code, message)) = misfit(kind, schema, value) {
                    self.add(code, message, needed.then(|| placeholder(schema)));
                }
            }
        }
    }

    fn object(&mut self, schema: &Value, fields: &Map<String, Value>) {
        let none = Map::new();
        let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let others = schema.get("additionalProperties");
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, value) in fields {
            if self.checks.is_full() {
                return;
            }
            self.at.push(Step::Key(name.clone()));
            match (known.get(name), others) {
                (Some(property), _) => self.value(property, value, required.contains(&name.as_str())),
                (None, Some(Value::Bool(false))) => {
                    let names: Vec<&str> = known.keys().map(String::as_str).collect();
                    self.add(FieldCode::UnknownField, super::decode::unknown_field(name, &names), None);
                }
                (None, Some(other @ Value::Object(_))) => self.value(other, value, false),
                (None, _) => {}
            }
            self.at.pop();
        }
        for name in required.into_iter().filter(|name| !fields.contains_key(*name)) {
            self.at.push(Step::Key(name.to_owned()));
            let instead = placeholder(resolve(&known[name]).0);
            self.add(FieldCode::Required, format!("`{name}` is missing"), Some(instead));
            self.at.pop();
        }
    }

    fn array(&mut self, schema: &Value, items: &[Value]) {
        if let [Step::Key(name)] = self.at.steps()
            && self.apart.contains(&name.as_str())
        {
            return;
        }
        for (index, item) in items.iter().enumerate() {
            if self.checks.is_full() {
                return;
            }
            self.at.push(Step::Index(index));
            self.value(&schema["items"], item, true);
            self.at.pop();
        }
    }

    fn add(&mut self, code: FieldCode, message: String, instead: Option<Value>) {
        self.checks.add(self.at.to_string(), code, message);
        self.found.push(Misfit { steps: self.at.steps().to_vec(), instead });
    }
}

/// The schema itself behind a reference, and whether null does as well.
fn resolve(schema: &Value) -> (&Value, bool) {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return (&SCHEMAS[name], false);
    }
    let null = Value::from("null");
    let choices = schema["oneOf"].as_array().into_iter().flatten();
    let (nulls, others): (Vec<&Value>, Vec<&Value>) = choices.partition(|choice| choice["type"] == null);
    match (nulls.as_slice(), others.as_slice()) {
        ([_], [one]) => (resolve(one).0, true),
        _ => (schema, schema["type"].as_array().is_some_and(|kinds| kinds.contains(&null))),
    }
}

fn kind(schema: &Value) -> &str {
    let kinds = schema["type"].as_array().into_iter().flatten();
    let several = kinds.filter_map(Value::as_str).find(|kind| *kind != "null");
    several.or(schema["type"].as_str()).unwrap_or_default()
}

/// What is wrong with a value that has no parts.
fn misfit(kind: &str, schema: &Value, value: &Value) -> Option<(FieldCode, String)> {
    let wrong = |wanted: String| {
        let found = kind_of(value);
        Some((FieldCode::WrongType, format!("must be {wanted}, not {found}")))
    };
    match (kind, value) {
        ("string", Value::String(text)) => {
            let words = schema["enum"].as_array()?;
            let known = words.iter().any(|word| word == text.as_str());
            (!known).then(|| (FieldCode::Invalid, one_of(words)))
        }
        ("integer", Value::Number(number)) if !number.is_f64() => {
            in_range(schema, value, whole_number(schema))
        }
        ("number", Value::Number(_)) => in_range(schema, value, number(schema)),
        ("boolean", Value::Bool(_)) | ("", _) => None,
        ("string", _) => wrong(
            schema["enum"]
                .as_array()
                .map_or("text".to_owned(), |words| one_of(words).trim_start_matches("must be ").to_owned()),
        ),
        ("integer", _) => wrong(whole_number(schema)),
        ("number", _) => wrong(number(schema)),
        ("boolean", _) => wrong("true or false".to_owned()),
        ("array", _) => wrong(format!("a list{}", of_texts(&schema["items"]))),
        _ => wrong(format!("an object{}", of_texts(&schema["additionalProperties"]))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn of_texts(part: &Value) -> &'static str {
    if part["type"] == "string" { " of texts" } else { "" }
}

fn one_of(words: &[Value]) -> String {
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    match words.as_slice() {
        [only] => format!("must be {only}"),
        several => format!("must be one of {}", several.join(", ")),
    }
}

fn in_range(schema: &Value, value: &Value, wanted: String) -> Option<(FieldCode, String)> {
    let (least, most) = bounds(schema);
    let value = value.as_f64()?;
    if most.is_some_and(|most| value > most) {
        return Some((FieldCode::LimitExceeded, format!("must be {wanted}")));
    }
    least.is_some_and(|least| value < least).then(|| (FieldCode::Invalid, format!("must be {wanted}")))
}

/// Bounds as the schema says, or those of the type.
fn bounds(schema: &Value) -> (Option<f64>, Option<f64>) {
    let most = match schema["format"].as_str() {
        Some("int32") => Some(f64::from(u32::MAX)),
        _ => None,
    };
    (schema["minimum"].as_f64(), schema["maximum"].as_f64().or(most))
}

fn whole_number(schema: &Value) -> String {
    let limit = |name: &str| schema[name].as_f64().map(|limit| format!("{limit:.0}"));
    range("a whole number", limit("minimum"), limit("maximum"))
}

fn number(schema: &Value) -> String {
    let limit = |name: &str| schema[name].as_f64().map(|limit| limit.to_string());
    range("a number", limit("minimum"), limit("maximum"))
}

fn range(what: &str, least: Option<String>, most: Option<String>) -> String {
    match (least, most) {
        (Some(least), Some(most)) => format!("{what} from {least} to {most}"),
        (Some(least), None) => format!("{what}, at least {least}"),
        (None, Some(most)) => format!("{what}, at most {most}"),
        (None, None) => what.to_owned(),
    }
}

/// A value of the type, so that what is around it can be decoded.
fn placeholder(schema: &Value) -> Value {
    if let Some(word) = schema["enum"].as_array().and_then(|words| words.first()) {
        return word.clone();
    }
    match kind(schema) {
        "string" => "-".into(),
        "integer" => schema["minimum"].as_u64().unwrap_or(0).into(),
        "number" => schema["minimum"].as_f64().unwrap_or(0.0).into(),
        "boolean" => false.into(),
        "array" => Value::Array(Vec::new()),
        "object" => placeholder_object(schema),
        _ => Value::Null,
    }
}

fn placeholder_object(schema: &Value) -> Value {
    let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.map(|name| (name.to_owned(), placeholder(resolve(&schema["properties"][name]).0))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(name: &str, body: &Value) -> Vec<(String, String)> {
        let mut checks = Checks::default();
        misfits(name, &[], body, &mut checks);
        let problem = checks.finish().expect_err("does not fit");
        problem.errors.into_iter().map(|error| (error.pointer, error.message)).collect()
    }

    #[test]
    fn every_fault_is_told_in_plain_words() {
        let body = json!({
            "arguments": [], "wait_ms": "x", "timeout_ms": -1, "metadata": {"a": 1, "b": "fine"}, "description": 5,
            "version": null, "tol": "bash", "what": 1,
        });
        let mut found = found("SubmitCall", &body);
        found.sort();
        let found: Vec<(&str, &str)> =
            found.iter().map(|(at, message)| (at.as_str(), message.as_str())).collect();
        assert_eq!(
            found[..6],
            [
                ("/arguments", "must be an object, not a list"),
                ("/description", "must be text, not a number"),
                ("/metadata/a", "must be text, not a number"),
                ("/timeout_ms", "must be a whole number from 1 to 600000"),
                ("/tol", "`tol` is not a field here; did you mean `tool`?"),
                ("/tool", "`tool` is missing"),
            ]
        );
        assert_eq!(found[6], ("/wait_ms", "must be a whole number from 0 to 60000, not text"));
        assert_eq!((found.len(), found[7].0), (8, "/what"));
    }

    #[test]
    fn what_is_left_can_be_decoded() {
        let body = json!({
            "size": "huge", "resources": {"cpus": "1", "gpus": 1}, "env": 3, "lifetime_s": 1.5,
            "network": {"mode": "open"}, "policy": {"tools": {"enabled": ["bash", 2], "disabled": "x"}, "limits": {"pids": 5_000_000_000_u64}},
            "metadata": {"job": "42"},
        });
        let mut checks = Checks::default();
        let misfits = misfits("CreateSession", &[], &body, &mut checks);
        assert_eq!(misfits.len(), 12);
        let mended = mended(&body, misfits);
        let session: crate::wire::sessions::CreateSession = serde_json::from_value(mended).expect("decodes");
        assert_eq!(session.metadata["job"], "42");
    }
}
