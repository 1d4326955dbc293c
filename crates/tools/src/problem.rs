//! What the schema finds wrong with arguments, in words that say what to change. Values are never repeated.

use jsonschema::Validator;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use serde_json::Value;

use crate::ArgumentProblem;
use crate::admission::{pointer, properties};
use crate::alias::Alias;
use crate::catalog::Entry;

/// What the schema finds wrong, each with its pointer.
pub(crate) fn of_schema(entry: &Entry, alias: Option<&Alias>, arguments: &Value) -> Vec<ArgumentProblem> {
    let validator: &Validator = &entry.validator;
    let mut problems = Vec::new();
    for error in validator.iter_errors(arguments) {
        let at = error.instance_path().as_str();
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                for name in unexpected {
                    problems.push(ArgumentProblem::new(
                        format!("{at}{}", pointer(&[name])),
                        unknown_field(entry, alias, at, name),
                    ));
                }
            }
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                problems.push(ArgumentProblem::new(
                    format!("{at}{}", pointer(&[name])),
                    format!("`{name}` is missing"),
                ));
            }
            kind => problems.push(ArgumentProblem::new(at, message(kind, &error))),
        }
    }
    problems
}

fn message(kind: &ValidationErrorKind, error: &jsonschema::ValidationError<'_>) -> String {
    match kind {
        ValidationErrorKind::Type { kind } => {
            let wanted = match kind {
                TypeKind::Single(one) => one.to_string(),
                TypeKind::Multiple(several) => {
                    several.iter().map(|one| one.to_string()).collect::<Vec<_>>().join(" or ")
                }
            };
            format!("must be of type {wanted}, not {}", type_of(error.instance()))
        }
        ValidationErrorKind::Enum { options } => {
            let options: Vec<String> =
                options.as_array().into_iter().flatten().map(ToString::to_string).collect();
            format!("must be one of {}", options.join(", "))
        }
        ValidationErrorKind::Minimum { limit } => format!("must be at least {limit}"),
        ValidationErrorKind::Maximum { limit } => format!("must be at most {limit}"),
        ValidationErrorKind::MinLength { limit: 1 } => "must not be empty".to_owned(),
        ValidationErrorKind::MinLength { limit } => format!("must have at least {limit} characters"),
        ValidationErrorKind::MaxLength { limit } => format!("must have at most {limit} characters"),
        ValidationErrorKind::MinItems { limit } => format!("must have at least {limit} items"),
        ValidationErrorKind::MaxItems { limit } => format!("must have at most {limit} items"),
        ValidationErrorKind::MaxProperties { limit } => format!("must have at most {limit} entries"),
        ValidationErrorKind::Pattern { pattern } => format!("must match {pattern}"),
        // The value itself may be long or secret; it is never repeated.
        _ => error.masked().to_string(),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Fields that no tool has yet, and what to do instead.
const LATER: &[(&str, &str)] = &[
    ("secrets", "named secrets are not available yet; leave it out"),
    ("tool_bridge", "calling tools from code is not available yet; leave it out"),
];

fn unknown_field(entry: &Entry, alias: Option<&Alias>, at: &str, name: &str) -> String {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
    if !at.is_empty() {
        return format!("`{shown}` is not a field here; leave it out");
    }
    if let Some((_, instead)) = LATER.iter().find(|(later, _)| *later == name) {
        return format!("`{name}`: {instead}");
    }
    let own = properties(&entry.descriptor.input_schema);
    let others = alias.map_or(&[][..], |alias| alias.arguments).iter().chain(entry.spec.arguments);
    let known = own.keys().map(String::as_str).chain(others.map(|other| other.name));
    let nearest = known
        .map(|candidate| (strsim::normalized_damerau_levenshtein(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((_, candidate)) => {
            format!("`{shown}` is not an argument of `{}`; did you mean `{candidate}`?", entry.spec.name)
        }
        None => {
            let names: Vec<String> = own.keys().map(|name| format!("`{name}`")).collect();
            format!("`{shown}` is not an argument of `{}`; it has {}", entry.spec.name, names.join(", "))
        }
    }
}
