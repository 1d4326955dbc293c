//! What a call's end means: from how its tool's run came out to status, reason and words. Pure.
//!
//! # Design notes
//!
//! `execute` returns an [`Execution`], [`report`] decides. A command that exits non-zero, dies of a signal or is
//! killed for want of memory has been *run to its end*: the call succeeded, its result says `is_error`, and
//! `ended.reason` says `signal` or `oom`. A call whose session ended or was reset under it failed: nothing about it
//! is uncertain, as everything that it ran is gone. Only a sandbox that vanished makes a call `lost`, and only one
//! whose tool has effects and may have begun.

use domain::call::Outcome;
use domain::{CallEnded, CallError, CallResult, CallStatus, CallUsage, Code, Effect, EndReason};
use serde_json::{Map, Value, json};
use tools::{Conclusion, Fate, Finished, ToolError};

/// Why this worker ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody asked for it.
    Cancelled,
    /// Its time ran out.
    TimedOut,
    /// Its session ended.
    SessionEnded,
    /// Its session was reset.
    SessionReset,
}

/// How the run of a call's tool came out.
#[derive(Debug)]
pub(crate) enum Execution {
    /// The tool returned.
    Returned(Finished),
    /// The tool could not do it.
    Refused(ToolError),
    /// The tool panicked.
    Panicked,
    /// It was ended, and what it ran did not answer in time.
    Unanswered,
    /// The sandbox it ran in is gone.
    SandboxGone(Map<String, Value>),
    /// This worker may not act any more.
    Abandoned,
}

/// What is to be done about a call.
#[derive(Debug)]
pub(crate) enum Report {
    /// Write this.
    End(Box<Outcome>),
    /// Nothing has happened that could not happen again: run it in the session's next sandbox.
    RunAgain,
    /// Nothing: somebody else decides.
    Nothing,
}

/// What else is known when a call ends.
#[derive(Debug, Clone)]
pub(crate) struct Circumstances {
    /// The tool's effect class.
    pub(crate) effect: Effect,
    /// Something with effects was asked of the sandbox (or may have been, by a worker before).
    pub(crate) may_have_begun: bool,
    /// Why this worker ended the call, if it did.
    pub(crate) cause: Option<Cause>,
    /// How often it was run again already.
    pub(crate) runs: u32,
    /// What it used.
    pub(crate) usage: CallUsage,
    /// The call's timeout.
    pub(crate) timeout_ms: u64,
    /// What a command that did not come to its end had written.
    pub(crate) partial: Option<CallResult>,
}

/// Times that a call is run again because its sandbox went away.
const RUNS: u32 = 3;

/// Decides how a call ends.
pub(crate) fn report(execution: Execution, circumstances: Circumstances) -> Report {
    let cause = circumstances.cause;
    match execution {
        Execution::Abandoned => Report::Nothing,
        Execution::Returned(finished) => end(returned(finished, &circumstances), circumstances.usage),
        Execution::Refused(error) => match error.fate {
            Fate::Abandoned => Report::Nothing,
            Fate::SandboxLost => {
                let evidence = match error.details {
                    Value::Object(evidence) => evidence,
                    _ => Map::new(),
                };
                gone(evidence, circumstances)
            }
            Fate::Cancelled | Fate::TimedOut | Fate::Failed => {
                end(refused(error, &circumstances), circumstances.usage)
            }
        },
        Execution::Panicked => end(panicked(), circumstances.usage),
        Execution::Unanswered => {
            let evidence = json!({"ended": "by force, as what it ran did not end in time"});
            let cause = cause.unwrap_or(Cause::TimedOut);
            let ending = ended_by(cause, circumstances.partial, evidence, circumstances.timeout_ms);
            end(ending, circumstances.usage)
        }
        Execution::SandboxGone(evidence) => gone(evidence, circumstances),
    }
}

struct Ending {
    status: CallStatus,
    result: Option<CallResult>,
    error: Option<CallError>,
    ended: CallEnded,
}

fn end(ending: Ending, usage: CallUsage) -> Report {
    let Ending { status, result, error, ended } = ending;
    Report::End(Box::new(Outcome { status, result, error, ended, usage }))
}

fn returned(finished: Finished, circumstances: &Circumstances) -> Ending {
    let Finished { result, conclusion } = finished;
    let succeeded = |reason| Ending {
        status: CallStatus::Succeeded,
        ended: CallEnded::because(reason),
        error: None,
        result: Some(result.clone()),
    };
    match conclusion {
        Conclusion::Finished => succeeded(EndReason::Exited),
        Conclusion::Signalled => succeeded(EndReason::Signal),
        Conclusion::OutOfMemory => {
            let mut ending = succeeded(EndReason::Oom);
            ending.ended.hint = Some("Use less memory, or create a session with a larger size.".to_owned());
            ending
        }
        Conclusion::TimedOut => {
            ended_by(Cause::TimedOut, Some(result), no_evidence(), circumstances.timeout_ms)
        }
        Conclusion::Cancelled => {
            let cause = circumstances.cause.unwrap_or(Cause::Cancelled);
            ended_by(cause, Some(result), no_evidence(), circumstances.timeout_ms)
        }
        Conclusion::SandboxReset => {
            let evidence = json!({"sandbox": "everything in it was ended, because one command could not be ended alone"});
            ended_by(Cause::SessionReset, Some(result), evidence, circumstances.timeout_ms)
        }
    }
}

fn no_evidence() -> Value {
    Value::Object(Map::new())
}

/// A call that was ended rather than ended itself, with what it had until then.
fn ended_by(cause: Cause, result: Option<CallResult>, evidence: Value, timeout_ms: u64) -> Ending {
    let (status, reason, error, hint) = match cause {
        Cause::Cancelled => (
            CallStatus::Cancelled,
            EndReason::Cancelled,
            CallError::new(Code::Cancelled, "The call was cancelled; what it ran was ended."),
            None,
        ),
        Cause::TimedOut => (
            CallStatus::TimedOut,
            EndReason::Timeout,
            CallError::new(
                Code::Timeout,
                format!("The call's time of {timeout_ms} ms ran out; what it ran was ended."),
            ),
            Some("Give a larger timeout_ms, do less at once, or run the command in the background."),
        ),
        Cause::SessionEnded => (
            CallStatus::Failed,
            EndReason::SessionEnded,
            CallError::new(
                Code::SessionEnded,
                "The session ended while the call ran; what it ran was ended.",
            ),
            None,
        ),
        Cause::SessionReset => (
            CallStatus::Failed,
            EndReason::SessionReset,
            CallError::new(
                Code::SandboxLost,
                "The sandbox was reset while the call ran; what it ran was ended.",
            ),
            Some("Try again."),
        ),
    };
    let hint = hint.map(str::to_owned);
    let error = CallError { hint: hint.clone(), ..error };
    Ending { status, result, error: Some(error), ended: CallEnded { reason, evidence, hint } }
}

fn refused(error: ToolError, circumstances: &Circumstances) -> Ending {
    match error.fate {
        Fate::Cancelled => {
            let cause = circumstances.cause.unwrap_or(Cause::Cancelled);
            ended_by(cause, None, no_evidence(), circumstances.timeout_ms)
        }
        Fate::TimedOut => ended_by(Cause::TimedOut, None, no_evidence(), circumstances.timeout_ms),
        Fate::Failed | Fate::SandboxLost | Fate::Abandoned => {
            let reason = match error.code {
                Code::PlatformError | Code::Internal => EndReason::PlatformError,
                _ => EndReason::ToolError,
            };
            let ToolError { code, message, hint, details, .. } = error;
            let result = CallResult { is_error: true, output: message.clone(), ..CallResult::default() };
            Ending {
                status: CallStatus::Failed,
                result: Some(result),
                error: Some(CallError { code, message, hint, retryable: code.retryable(), details }),
                ended: CallEnded::because(reason),
            }
        }
    }
}

fn panicked() -> Ending {
    Ending {
        status: CallStatus::Failed,
        result: None,
        error: Some(CallError::new(Code::PlatformError, "The tool crashed. This is a bug of the platform.")),
        ended: CallEnded::because(EndReason::PlatformError),
    }
}

fn gone(evidence: Map<String, Value>, circumstances: Circumstances) -> Report {
    let usage = circumstances.usage.clone();
    let evidence = Value::Object(evidence);
    // What it ran died with the sandbox, and it was to be ended anyway.
    if let Some(cause) = circumstances.cause {
        return end(ended_by(cause, circumstances.partial, evidence, circumstances.timeout_ms), usage);
    }
    let certain = circumstances.effect != Effect::Effectful || !circumstances.may_have_begun;
    if certain && circumstances.runs < RUNS {
        return Report::RunAgain;
    }
    if certain {
        return end(
            Ending {
                status: CallStatus::Failed,
                result: None,
                error: Some(CallError::new(Code::SandboxLost, "The sandbox went away again and again.")),
                ended: CallEnded { reason: EndReason::PlatformError, evidence, hint: None },
            },
            usage,
        );
    }
    let hint = "The workspace is kept: look at it before doing the same again.".to_owned();
    let message =
        "The sandbox went away while the call ran; it may have had effects, and its outcome is not known.";
    let error = CallError { hint: Some(hint.clone()), ..CallError::new(Code::CallLost, message) };
    end(
        Ending {
            status: CallStatus::Lost,
            result: circumstances.partial,
            error: Some(error),
            ended: CallEnded { reason: EndReason::Lost, evidence, hint: Some(hint) },
        },
        usage,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circumstances(effect: Effect, cause: Option<Cause>) -> Circumstances {
        Circumstances {
            effect,
            may_have_begun: true,
            cause,
            runs: 0,
            usage: CallUsage::default(),
            timeout_ms: 1_000,
            partial: Some(CallResult { output: "so far".to_owned(), ..CallResult::default() }),
        }
    }

    fn finished(conclusion: Conclusion) -> Execution {
        Execution::Returned(Finished {
            result: CallResult { output: "partial".to_owned(), ..CallResult::default() },
            conclusion,
        })
    }

    fn outcome(report: Report) -> Outcome {
        match report {
            Report::End(outcome) => *outcome,
            other => panic!("not an end: {other:?}"),
        }
    }

    #[test]
    fn what_ran_to_its_end_succeeded() {
        for (conclusion, reason) in [
            (Conclusion::Finished, EndReason::Exited),
            (Conclusion::Signalled, EndReason::Signal),
            (Conclusion::OutOfMemory, EndReason::Oom),
        ] {
            let outcome = outcome(report(finished(conclusion), circumstances(Effect::Effectful, None)));
            assert_eq!((outcome.status, outcome.ended.reason), (CallStatus::Succeeded, reason));
            assert!(outcome.error.is_none());
        }
    }

    #[test]
    fn what_was_ended_keeps_its_partial_result() {
        for (cause, status, reason) in [
            (Cause::Cancelled, CallStatus::Cancelled, EndReason::Cancelled),
            (Cause::SessionEnded, CallStatus::Failed, EndReason::SessionEnded),
            (Cause::SessionReset, CallStatus::Failed, EndReason::SessionReset),
        ] {
            let outcome = outcome(report(
                finished(Conclusion::Cancelled),
                circumstances(Effect::Effectful, Some(cause)),
            ));
            assert_eq!((outcome.status, outcome.ended.reason), (status, reason));
            assert_eq!(outcome.result.expect("partial").output, "partial");
        }
        let outcome = outcome(report(finished(Conclusion::TimedOut), circumstances(Effect::Effectful, None)));
        assert_eq!((outcome.status, outcome.ended.reason), (CallStatus::TimedOut, EndReason::Timeout));
    }

    #[test]
    fn only_effects_that_may_have_begun_are_lost() {
        let lost =
            outcome(report(Execution::SandboxGone(Map::new()), circumstances(Effect::Effectful, None)));
        assert_eq!((lost.status, lost.ended.reason), (CallStatus::Lost, EndReason::Lost));
        assert_eq!(lost.result.expect("what was last known").output, "so far");
        let mut not_begun = circumstances(Effect::Effectful, None);
        not_begun.may_have_begun = false;
        assert!(matches!(report(Execution::SandboxGone(Map::new()), not_begun), Report::RunAgain));
        let pure = circumstances(Effect::Pure, None);
        assert!(matches!(report(Execution::SandboxGone(Map::new()), pure.clone()), Report::RunAgain));
        let tired = Circumstances { runs: RUNS, ..pure };
        assert_eq!(outcome(report(Execution::SandboxGone(Map::new()), tired)).status, CallStatus::Failed);
    }

    #[test]
    fn a_call_that_was_cancelled_is_not_lost_with_its_sandbox() {
        let cancelled = circumstances(Effect::Effectful, Some(Cause::Cancelled));
        assert_eq!(
            outcome(report(Execution::SandboxGone(Map::new()), cancelled)).status,
            CallStatus::Cancelled
        );
    }

    #[test]
    fn a_failing_tool_fails_with_its_own_words() {
        let error = ToolError::new(Code::PathNotFound, "there is no a.txt").hint("list the files");
        let outcome = outcome(report(Execution::Refused(error), circumstances(Effect::Pure, None)));
        assert_eq!((outcome.status, outcome.ended.reason), (CallStatus::Failed, EndReason::ToolError));
        let error = outcome.error.expect("an error");
        assert_eq!((error.code, error.hint.as_deref()), (Code::PathNotFound, Some("list the files")));
    }

    #[test]
    fn nothing_is_written_without_the_right_to() {
        let abandoned = ToolError::new(Code::PlatformError, "").fate(Fate::Abandoned);
        for execution in [Execution::Abandoned, Execution::Refused(abandoned)] {
            assert!(matches!(report(execution, circumstances(Effect::Effectful, None)), Report::Nothing));
        }
    }
}
