//! Code in a context: how a call names one, and what its result says of the context. The same for every language.

use domain::{Code, CodeContext, ContextId, Language, limits};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::code_report::Report;
use crate::command::Ended;
use crate::port::{CommandEnd, ContextEnd, ContextRef};
use crate::{ArgumentProblem, ToolError, ToolOutput};

/// Longest name of a context.
pub(crate) const NAME_CHARS: usize = limits::CONTEXT_NAME_CHARS;
/// Bytes from the end of stderr that an error repeats.
const STDERR_BYTES: usize = 2_000;

/// A context, as a run has found and left it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InContext {
    /// Its id.
    id: String,
    /// Its name.
    name: Option<String>,
    /// Runs of its interpreter, this one included: 1 in a new one.
    executions: u32,
    /// Why what earlier calls had left there was lost before this run, if it was.
    lost_before: Option<String>,
    /// Why the state was lost by this run, if it was.
    lost: Option<String>,
}

/// Problems of the arguments that name a context.
pub(crate) fn check(context_id: Option<&str>, context: Option<&str>) -> Vec<ArgumentProblem> {
    let mut problems = Vec::new();
    if context_id.is_some_and(|id| id.parse::<ContextId>().is_err()) {
        let message = "is not the id of a context: `ctx_` and 26 characters; give a name with `context`";
        problems.push(ArgumentProblem::new("/context_id", message));
    }
    if context_id.is_some() && context.is_some() {
        problems.push(ArgumentProblem::new("/context", "give one of the two, `context` or `context_id`"));
    }
    if context.is_some_and(|name| name.chars().any(char::is_control)) {
        problems.push(ArgumentProblem::new("/context", "must not have control characters"));
    }
    problems
}

/// The context that a call names, if it names one.
pub(crate) fn named(
    tool: &str,
    context_id: Option<String>,
    context: Option<String>,
) -> Result<Option<ContextRef>, ToolError> {
    let not_a_context = |_| {
        ToolError::new(Code::ContextNotFound, format!("{tool}: there is no such context in this session"))
    };
    let by_id = context_id.map(|id| id.parse().map(ContextRef::Id).map_err(not_a_context)).transpose()?;
    Ok(by_id.or_else(|| context.map(ContextRef::Name)))
}

/// What a result says of the context that its code ran in.
pub(crate) struct Told {
    /// What the end of the code has ended.
    pub(crate) ended: Ended,
    state: InContext,
    remarks: Vec<String>,
}

impl Told {
    /// Fails when the interpreter ended by itself: the code's result is not known then.
    pub(crate) fn of(
        tool: &str,
        ended: ContextEnd,
        report: &Report,
    ) -> Result<(CommandEnd, Self), ToolError> {
        let ContextEnd { context, end, lost } = ended;
        let by_itself = !end.timed_out && !end.cancelled && !end.sandbox_reset;
        if let (Some(reason), true) = (&lost, by_itself) {
            return Err(died(tool, &context, &end, reason));
        }
        let lost_before = (report.executions == 1 && context.interpreter > 1)
            .then(|| context.lost.map_or_else(|| "unknown".to_owned(), |lost| lost.reason));
        let what_ended = if lost.is_some() { Ended::Everything } else { Ended::CodeAlone };
        let mut remarks = Vec::new();
        if let Some(reason) = &lost_before {
            remarks.push(format!(
                "This is a new interpreter of the context, as the one before {}: the variables, imports and functions \
                 of earlier calls are gone; files are as they were.",
                sentence(reason)
            ));
        }
        if let Some(reason) = &lost {
            remarks.push(format!(
                "The code did not heed the interrupt, so its interpreter {}: the context's variables are lost and the \
                 next call starts a new one.",
                sentence(reason)
            ));
        } else if !by_itself {
            remarks.push(interrupted(context.language).to_owned());
        }
        let state = InContext {
            id: context.id.to_string(),
            name: context.name,
            executions: report.executions,
            lost_before,
            lost,
        };
        Ok((end, Self { ended: what_ended, state, remarks }))
    }

    /// Adds it to the result.
    pub(crate) fn in_result<T>(mut self, result: &mut ToolOutput<T>) -> InContext {
        self.remarks.extend(result.system.take());
        result.system = (!self.remarks.is_empty()).then(|| self.remarks.join(" "));
        if let Some(system) = &result.system {
            result.output.push_str(&format!("\n[{system}]"));
        }
        self.state
    }
}

/// What an interrupt has left.
fn interrupted(language: Language) -> &'static str {
    match language {
        Language::Python => "The code was interrupted; the context keeps its variables.",
        Language::Javascript => {
            "The code was interrupted; the context keeps its variables, and timers, requests and loops that await go \
             on in it."
        }
    }
}

/// The error of code whose interpreter ended under it.
fn died(tool: &str, context: &CodeContext, end: &CommandEnd, reason: &str) -> ToolError {
    let last = if end.stderr.tail.is_empty() { &end.stderr.head } else { &end.stderr.tail };
    let last =
        String::from_utf8_lossy(&last[last.len().saturating_sub(STDERR_BYTES)..]).replace('\0', "\u{fffd}");
    let message = format!(
        "{tool}: the interpreter of the context {} while it ran the code; the context's variables are lost.",
        sentence(reason)
    );
    ToolError::new(Code::InterpreterDied, message)
        .hint(
            "The next call in this context starts a new interpreter: import and compute again what it needs.",
        )
        .details(json!({
            "context_id": context.id.to_string(),
            "reason": reason,
            "signal": end.signal,
            "exit_code": end.exit_code,
            "stderr": last,
        }))
}

/// What became of an interpreter, in words.
fn sentence(reason: &str) -> &'static str {
    match reason {
        "restarted" => "was restarted",
        "deleted" => "was deleted",
        "timeout" => "was ended after a timeout",
        "cancelled" => "was ended after a cancel",
        "oom" => "was ended for want of memory",
        "signal" => "crashed",
        "exited" => "exited",
        "sandbox_replaced" => "went away with its sandbox",
        _ => "ended",
    }
}
