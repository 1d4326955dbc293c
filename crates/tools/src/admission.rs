//! Admission of a call's arguments: other names translated, every problem listed with its pointer and what to change.

use domain::{Effect, limits};
use serde_json::{Map, Value};

use crate::alias::{Alias, Translated, translate};
use crate::catalog::Entry;
use crate::{ArgumentProblem, Descriptor, problem};

/// A call that may be queued, as far as its tool and arguments go.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// The tool's own name.
    pub tool: &'static str,
    /// The name that the caller used, when it was an alias.
    pub requested_tool: Option<String>,
    /// Its toolkit, for policy.
    pub toolkit: &'static str,
    /// Version of the tool.
    pub version: &'static str,
    /// What running it twice would do.
    pub effect: Effect,
    /// Which name each of the tool's own arguments was given under, when another.
    pub given_as: Vec<(String, String)>,
    /// Arguments in the tool's own names, validated.
    pub arguments: Value,
    /// Why the model wants it, when it said so among the arguments.
    pub description: Option<String>,
    /// The call's timeout, when it was among the arguments (1 to `max_timeout_ms`).
    pub timeout_ms: Option<u64>,
    /// What holds when nobody gives a timeout.
    pub default_timeout_ms: u64,
    /// The tool's largest timeout; policy may say less.
    pub max_timeout_ms: u64,
}

impl Admitted {
    /// The call's timeout from the submit's own field and the arguments.
    ///
    /// # Errors
    /// When both are given and differ, or the field is zero or above the tool's maximum. The pointer is into the submit's body.
    pub fn timeout(&self, field: Option<u64>) -> Result<u64, ArgumentProblem> {
        match (field, self.timeout_ms) {
            (Some(field), Some(argument)) if field != argument => Err(ArgumentProblem::new(
                "/timeout_ms",
                format!("the arguments ask for a timeout of {argument} ms; give only one of the two"),
            )),
            (Some(field), _) if field == 0 || field > self.max_timeout_ms => {
                Err(ArgumentProblem::new("/timeout_ms", timeout_range(self.max_timeout_ms)))
            }
            (field, argument) => Ok(field.or(argument).unwrap_or(self.default_timeout_ms)),
        }
    }
}

/// Why a call cannot be admitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdmitError {
    /// No tool has that name.
    #[error("there is no tool of that name")]
    UnknownTool {
        /// Names that are close to it, best first.
        nearest: Vec<String>,
    },
    /// The arguments are not those of the tool.
    #[error("some arguments are not valid")]
    Invalid(Vec<ArgumentProblem>),
}

pub(crate) fn admit(entry: &Entry, alias: Option<&Alias>, arguments: Value) -> Result<Admitted, AdmitError> {
    let Value::Object(given) = arguments else {
        return Err(AdmitError::Invalid(vec![ArgumentProblem::new("", "must be an object")]));
    };
    let descriptor = &entry.descriptor;
    let own = properties(&descriptor.input_schema);
    let mut translated = translate(given, alias, entry.spec.arguments, |name| own.contains_key(name));
    let mut problems = std::mem::take(&mut translated.problems);
    let timeout_ms = hoisted_timeout(&translated, descriptor, &mut problems);
    let description = hoisted_description(translated.description.take(), &mut problems);
    let given_as = std::mem::take(&mut translated.given_as);
    let mut arguments = Value::Object(translated.arguments);
    find_nul(&arguments, &mut Vec::new(), &mut problems);
    problems.extend(problem::of_schema(entry, alias, &arguments));
    if problems.is_empty() {
        whole_numbers(&mut arguments);
        problems.extend(entry.tool.check(&arguments));
    }
    if !problems.is_empty() {
        for problem in &mut problems {
            point_at_given_name(problem, &given_as);
        }
        return Err(AdmitError::Invalid(problems));
    }
    Ok(Admitted {
        tool: descriptor.name,
        requested_tool: alias.map(|alias| alias.name.to_owned()),
        toolkit: descriptor.toolkit,
        version: descriptor.version,
        effect: descriptor.effect,
        given_as,
        arguments,
        description,
        timeout_ms,
        default_timeout_ms: alias
            .and_then(|alias| alias.default_timeout_ms)
            .unwrap_or(descriptor.default_timeout_ms),
        max_timeout_ms: descriptor.max_timeout_ms,
    })
}

/// A JSON pointer from its steps.
pub(crate) fn pointer(steps: &[&str]) -> String {
    steps.iter().fold(String::new(), |mut pointer, step| {
        pointer.push('/');
        pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
        pointer
    })
}

pub(crate) fn properties(schema: &Value) -> &Map<String, Value> {
    schema.get("properties").and_then(Value::as_object).expect("schema::input always has properties")
}

fn timeout_range(max_timeout_ms: u64) -> String {
    format!("must be a whole number of milliseconds from 1 to {max_timeout_ms}")
}

fn hoisted_timeout(
    translated: &Translated,
    descriptor: &Descriptor,
    problems: &mut Vec<ArgumentProblem>,
) -> Option<u64> {
    let value = translated.timeout_ms.as_ref()?;
    let whole = value.as_u64().or_else(|| whole(value).and_then(|number| u64::try_from(number).ok()));
    let timeout_ms = whole.filter(|ms| (1..=descriptor.max_timeout_ms).contains(ms));
    if timeout_ms.is_none() {
        let name = &translated.timeout_name;
        let message = timeout_range(descriptor.max_timeout_ms);
        problems.push(ArgumentProblem::new(pointer(&[name]), format!("`{name}` as a timeout {message}")));
    }
    timeout_ms
}

fn hoisted_description(value: Option<Value>, problems: &mut Vec<ArgumentProblem>) -> Option<String> {
    match value? {
        Value::String(text)
            if text.chars().count() <= limits::DESCRIPTION_CHARS && domain::text::is_storable(&text) =>
        {
            Some(text)
        }
        _ => {
            problems.push(ArgumentProblem::new(
                "/description",
                format!("must be text of at most {} characters without NUL", limits::DESCRIPTION_CHARS),
            ));
            None
        }
    }
}

fn find_nul(value: &Value, steps: &mut Vec<String>, problems: &mut Vec<ArgumentProblem>) {
    let mut here = |steps: &[String]| {
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        problems.push(ArgumentProblem::new(
            pointer(&steps).replace('\0', "\u{fffd}"),
            "must not contain NUL (U+0000)",
        ));
    };
    match value {
        Value::String(text) if text.contains('\0') => here(steps),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                steps.push(index.to_string());
                find_nul(item, steps, problems);
                steps.pop();
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                steps.push(name.clone());
                if name.contains('\0') {
                    problems.push(ArgumentProblem::new(
                        pointer(&steps.iter().map(String::as_str).collect::<Vec<_>>())
                            .replace('\0', "\u{fffd}"),
                        "must not contain NUL (U+0000) in its name",
                    ));
                }
                find_nul(field, steps, problems);
                steps.pop();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `5.0` is an integer to JSON Schema and none to serde.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(_) => {
            if let Some(number) = whole(value) {
                *value = number.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn whole(value: &Value) -> Option<i64> {
    let number = value.as_f64().filter(|_| value.is_f64())?;
    (number.fract() == 0.0 && number.abs() < 9.0e15).then_some(number as i64)
}

fn point_at_given_name(problem: &mut ArgumentProblem, given_as: &[(String, String)]) {
    for (own, given) in given_as {
        let prefix = pointer(&[own]);
        if let Some(rest) = problem.pointer.strip_prefix(&prefix)
            && (rest.is_empty() || rest.starts_with('/'))
        {
            problem.pointer = format!("{}{rest}", pointer(&[given]));
            return;
        }
    }
}
