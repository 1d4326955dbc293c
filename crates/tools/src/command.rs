//! What tools that run a command share: checks of their arguments, and the result that says how it went.

use std::collections::BTreeMap;

use domain::{StreamName, Truncation, limits};
use schemars::JsonSchema;
use serde::Serialize;

use crate::admission::pointer;
use crate::port::{Captured, CommandEnd};
use crate::shape::{self, Rest};
use crate::{ArgumentProblem, Conclusion, Context, ToolError, ToolOutput, path};

/// How a command went.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct Ran {
    /// What it wrote to stdout; head and tail when longer than the budget.
    pub(crate) stdout: String,
    /// What it wrote to stderr; head and tail when longer than the budget.
    pub(crate) stderr: String,
    /// Bytes written to stdout in all.
    pub(crate) stdout_bytes: u64,
    /// Bytes written to stderr in all.
    pub(crate) stderr_bytes: u64,
    /// Null while it runs and when a signal ended it.
    pub(crate) exit_code: Option<i32>,
    /// Signal that ended it, such as SIGKILL.
    pub(crate) signal: Option<String>,
    /// The call's timeout ended it.
    pub(crate) timed_out: bool,
    /// A cancel ended it.
    pub(crate) cancelled: bool,
    /// Wall time; null while it runs.
    pub(crate) duration_ms: Option<u64>,
    /// `stdout` or `stderr` do not show everything.
    pub(crate) truncated: bool,
}

/// Problems of a command's environment.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Vec<ArgumentProblem> {
    let mut problems = Vec::new();
    if env.len() > limits::ENV_PAIRS {
        problems
            .push(ArgumentProblem::new("/env", format!("must have at most {} entries", limits::ENV_PAIRS)));
    }
    for (name, value) in env {
        let mut letters = name.chars();
        let is_name = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
        let message = if !is_name {
            "is not the name of a variable: letters, digits and `_`, not starting with a digit".to_owned()
        } else if name.len() + value.len() >= limits::ENV_BYTES {
            format!("must be shorter than {} bytes with its name", limits::ENV_BYTES)
        } else {
            continue;
        };
        problems.push(ArgumentProblem::new(pointer(&["env", name]), message));
    }
    problems
}

/// The directory that a command starts in.
pub(crate) fn cwd(tool: &str, given: Option<&str>) -> Result<String, ToolError> {
    given.map_or_else(
        || Ok(path::WORKSPACE.to_owned()),
        |given| Ok(path::absolute(&path::resolve(tool, given)?)),
    )
}

/// The result of a command that is over.
pub(crate) fn ended(cx: &Context, end: &CommandEnd) -> ToolOutput<Ran> {
    ended_with(cx, end, "", Ended::Everything)
}

/// What an interrupt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The whole tree.
    Everything,
    /// The code, in an interpreter that lives on with whatever the code has started.
    CodeAlone,
}

/// The same, with more for the model after what it wrote.
pub(crate) fn ended_with(cx: &Context, end: &CommandEnd, more: &str, ended: Ended) -> ToolOutput<Ran> {
    let mut ran = written(cx, &end.stdout, &end.stderr);
    ran.exit_code = end.exit_code;
    ran.signal.clone_from(&end.signal);
    ran.timed_out = end.timed_out;
    ran.cancelled = end.cancelled;
    ran.duration_ms = Some(end.duration_ms);
    let (mut text, truncated) = text(cx, &end.stdout, &end.stderr, end.dropped_bytes);
    let conclusion = conclusion(end);
    let last = last_line(end, conclusion, ended);
    if !more.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(more);
    }
    if text.is_empty() {
        text.push_str("[no output]");
    }
    if let Some(last) = last {
        text.push('\n');
        text.push_str(&last);
    }
    ToolOutput {
        is_error: conclusion != Conclusion::Finished || end.exit_code != Some(0),
        exit_code: end.exit_code,
        signal: end.signal.clone(),
        system: remarks(end),
        truncated,
        conclusion,
        ..ToolOutput::new(ran, text)
    }
}

/// The structured part of what was written so far.
pub(crate) fn written(cx: &Context, stdout: &Captured, stderr: &Captured) -> Ran {
    let rest = Rest::Call(cx.call_id);
    let out = shape::raw(stdout, cx.output_budget_bytes, StreamName::Stdout, rest);
    let err = shape::raw(stderr, cx.output_budget_bytes, StreamName::Stderr, rest);
    Ran {
        truncated: out.truncated || err.truncated,
        stdout: out.text,
        stderr: err.text,
        stdout_bytes: stdout.total_bytes,
        stderr_bytes: stderr.total_bytes,
        ..Ran::default()
    }
}

/// Leaves escape sequences out of the structured part.
pub(crate) fn strip(cx: &Context, ran: &mut Ran, stdout: &Captured, stderr: &Captured) {
    let rest = Rest::Call(cx.call_id);
    ran.stdout = shape::stripped(stdout, cx.output_budget_bytes, StreamName::Stdout, rest).text;
    ran.stderr = shape::stripped(stderr, cx.output_budget_bytes, StreamName::Stderr, rest).text;
}

/// The text for the model of what was written so far.
pub(crate) fn text(
    cx: &Context,
    stdout: &Captured,
    stderr: &Captured,
    dropped_bytes: u64,
) -> (String, Option<Truncation>) {
    let shaped = shape::command(stdout, stderr, cx.output_budget_bytes, Rest::Call(cx.call_id));
    let truncation = shaped.truncated.then(|| Truncation {
        total_bytes: stdout.total_bytes + stderr.total_bytes,
        shown_bytes: shaped.shown_bytes,
        dropped_bytes,
        artifact_id: None,
    });
    (shaped.text, truncation)
}

fn conclusion(end: &CommandEnd) -> Conclusion {
    if end.sandbox_reset {
        Conclusion::SandboxReset
    } else if end.cancelled {
        Conclusion::Cancelled
    } else if end.timed_out {
        Conclusion::TimedOut
    } else if end.oom_killed && end.exit_code != Some(0) {
        // A child may have been killed while the command itself came through: then it only gets a remark.
        Conclusion::OutOfMemory
    } else if end.signal.is_some() {
        Conclusion::Signalled
    } else {
        Conclusion::Finished
    }
}

fn last_line(end: &CommandEnd, conclusion: Conclusion, ended: Ended) -> Option<String> {
    const CODE_ALONE: &str = "the code was interrupted; processes that it started may go on in the context";
    let how = match (&end.signal, end.exit_code) {
        (Some(signal), _) => format!("ended by {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "no exit code".to_owned(),
    };
    match conclusion {
        Conclusion::Finished if end.exit_code == Some(0) => None,
        Conclusion::Finished | Conclusion::Signalled => Some(format!("[{how}]")),
        Conclusion::OutOfMemory => {
            Some(format!("[out of memory: the sandbox's limit was reached and processes were killed; {how}]"))
        }
        Conclusion::TimedOut if ended == Ended::CodeAlone => {
            Some(format!("[timed out after {} ms: {CODE_ALONE}; give a larger timeout_ms]", end.duration_ms))
        }
        Conclusion::Cancelled if ended == Ended::CodeAlone => Some(format!("[cancelled: {CODE_ALONE}]")),
        Conclusion::TimedOut => Some(format!(
            "[timed out after {} ms: the command and everything it started were ended; give a larger timeout_ms, or \
             run it in the background]",
            end.duration_ms
        )),
        Conclusion::Cancelled => {
            Some("[cancelled: the command and everything it started were ended]".to_owned())
        }
        Conclusion::SandboxReset => Some(
            "[everything in the sandbox was ended, because one command could not be ended alone]".to_owned(),
        ),
    }
}

fn remarks(end: &CommandEnd) -> Option<String> {
    let mut remarks = Vec::new();
    if end.left_over > 0 {
        remarks.push(format!(
            "The command left {} process(es) running; they were ended. Use `background` for what should go on.",
            end.left_over
        ));
    }
    if end.oom_killed && end.exit_code == Some(0) {
        remarks.push("A process was killed because the sandbox ran out of memory.".to_owned());
    }
    if end.dropped_bytes > 0 {
        remarks.push(format!(
            "{} bytes from the middle of the output were not kept (a call keeps {} bytes).",
            end.dropped_bytes,
            limits::OUTPUT_BYTES
        ));
    }
    (!remarks.is_empty()).then(|| remarks.join(" "))
}
