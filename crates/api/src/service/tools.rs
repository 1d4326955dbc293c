//! The catalogue: what there is, and whether a call's tool and arguments are acceptable.

use domain::policy::{Question, evaluate};
use domain::{Code, TenantContext, TenantId};
use serde_json::{Map, Value};
use tools::heavy::heavy;
use tools::{AdmitError, Admitted, Descriptor, Filter};

use super::policies;
use crate::problem::{FieldCode, FieldError, Problem};
use crate::state::ApiState;

/// Tools that the caller's policies allow, by filter.
pub(crate) fn list<'a>(state: &'a ApiState, context: &TenantContext, filter: &Filter) -> Vec<&'a Descriptor> {
    let layers = policies::layers(state, context, None);
    let allowed =
        |tool: &&Descriptor| evaluate(&layers, Question { tool: tool.name, toolkit: tool.toolkit }).allowed;
    state.catalog.list(filter).into_iter().filter(allowed).collect()
}

/// One tool, by its own name or another.
pub(crate) fn get<'a>(state: &'a ApiState, name: &str) -> Result<&'a Descriptor, Problem> {
    state.catalog.get(name).map(|resolved| resolved.descriptor).ok_or_else(|| {
        let nearest = state.catalog.nearest(name);
        let detail = format!("There is no tool `{}`; {}.", shown(name), hint(&nearest));
        Problem::new(Code::NotFound, detail).with("nearest", nearest)
    })
}

/// The tool of a call.
pub(crate) fn resolve<'a>(state: &'a ApiState, name: &str) -> Result<&'a Descriptor, Problem> {
    state.catalog.get(name).map(|resolved| resolved.descriptor).ok_or_else(|| {
        let nearest = state.catalog.nearest(name);
        refuse(name, AdmitError::UnknownTool { nearest })
    })
}

/// Checks a call's tool and arguments; a pattern of the tenant's in its turn.
pub(crate) async fn admit(
    state: &ApiState,
    tenant_id: TenantId,
    tool: &str,
    arguments: Map<String, Value>,
) -> Result<Admitted, Problem> {
    let admit = || state.catalog.admit(tool, Value::Object(arguments));
    let admitted = if state.catalog.checks_a_pattern(tool) { heavy(tenant_id, admit).await } else { admit() };
    admitted.map_err(|error| refuse(tool, error))
}

/// The catalogue's refusal as a problem, with pointers into the request's body.
pub(crate) fn refuse(tool: &str, error: AdmitError) -> Problem {
    let shown = shown(tool);
    match error {
        AdmitError::UnknownTool { nearest } => {
            let hint = hint(&nearest);
            Problem::new(Code::UnknownTool, format!("There is no tool `{shown}`; {hint}."))
                .field("/tool", FieldCode::Invalid, hint)
                .with("nearest", nearest)
        }
        AdmitError::Invalid(problems) => {
            let errors: Vec<FieldError> = problems
                .into_iter()
                .map(|problem| FieldError {
                    code: code_of(&problem.message),
                    pointer: format!("/arguments{}", problem.pointer),
                    message: problem.message,
                })
                .collect();
            let first = errors.first().map_or("", |error| error.message.as_str());
            let detail =
                format!("The arguments of `{shown}` are not valid ({} in all): {first}.", errors.len());
            Problem::new(Code::InvalidArguments, detail).fields(errors)
        }
    }
}

/// A name as it may be repeated.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// What to do about a name that no tool has.
fn hint(nearest: &[String]) -> String {
    match nearest {
        [] => "GET /v1/tools lists what there is".to_owned(),
        names => format!("perhaps `{}`", names.join("`, `")),
    }
}

/// The catalogue tells what is wrong in words.
fn code_of(message: &str) -> FieldCode {
    if message.ends_with(" is missing") {
        FieldCode::Required
    } else if message.starts_with("must be of type") {
        FieldCode::WrongType
    } else if message.contains("is not an argument of") || message.contains("is not a field here") {
        FieldCode::UnknownField
    } else if message.starts_with("must be at most") || message.starts_with("must have at most") {
        FieldCode::LimitExceeded
    } else {
        FieldCode::Invalid
    }
}
