//! What it means for a session that a sandbox could not be made: try again, for how long, and what to say in the end.
//!
//! # Design notes
//!
//! *A session that has served has files, and an end takes them away.* So nothing that a slow, full or hung host could cause ends one
//! soon: not an agent that dials late, nor a container that does not start or ends at once, nor an image that is just being built
//! anew. What the engine or the database do not answer is not counted at all; a session that nobody uses meanwhile ends as idle.
//!
//! *The image is blamed only where it is to blame*: when it is not there, or when it has never run in this session and its containers end.

use domain::{SessionEnd, SessionEndReason};
use sandbox::{GoneReason, SandboxError};
use serde_json::{Map, Value};

/// Tries for a session that never served, so that what cannot run is said within seconds.
const TRIES_NEW: u32 = 3;
/// Tries for a session with files: at the longest pause, five minutes of tries that fail at once, and longer of those that take their time.
const TRIES_SERVED: u32 = 60;

/// What a session has behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Past {
    /// No sandbox ever served it.
    New,
    /// It has had a sandbox, and so its image runs here and it may have files.
    Served,
}

/// What to do after an attempt that failed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// Try again; it counts as a failure of the sandbox.
    Failed,
    /// Try again for as long as it takes.
    Wait,
    /// The session has to end.
    End(SessionEnd),
    /// It is not this worker's any more.
    Leave,
}

/// The verdict on an attempt, after so many failures before it.
pub(super) fn verdict(error: &SandboxError, past: Past, failures: u32) -> Verdict {
    let end = match error {
        SandboxError::ImageUnavailable { image, reason } => {
            let end = of_image(image, reason);
            if past == Past::New {
                return Verdict::End(end);
            }
            end
        }
        SandboxError::CannotStart { image, reason } => match past {
            Past::New => of_image(image, reason),
            Past::Served => {
                because(SessionEndReason::ContainerGone, Map::new()).with("seen", reason.as_str())
            }
        },
        SandboxError::ContainerEnded(gone) => {
            let reason = match (past, gone.reason) {
                // It ended by itself, and it never ran here.
                (Past::New, GoneReason::AgentGone) => SessionEndReason::ImageUnavailable,
                (Past::New, GoneReason::ContainerGone | GoneReason::Oom) | (Past::Served, _) => {
                    gone.reason.session_end()
                }
            };
            because(reason, gone.evidence.clone())
        }
        SandboxError::AgentUnreachable { evidence } => because(SessionEndReason::AgentGone, evidence.clone()),
        SandboxError::Fenced | SandboxError::ShuttingDown => return Verdict::Leave,
        SandboxError::EngineUnavailable(_)
        | SandboxError::RuntimeUnavailable { .. }
        | SandboxError::HostUnsafe { .. }
        | SandboxError::Engine(_)
        | SandboxError::Ledger(_)
        | SandboxError::WorkspaceOwner { .. }
        | SandboxError::Gone(_)
        | SandboxError::Busy => return Verdict::Wait,
    };
    let tries = match past {
        Past::New => TRIES_NEW,
        Past::Served => TRIES_SERVED,
    };
    let made = failures.saturating_add(1);
    if made < tries { Verdict::Failed } else { Verdict::End(end.with("tries", made)) }
}

fn of_image(image: &str, seen: &str) -> SessionEnd {
    because(SessionEndReason::ImageUnavailable, Map::new()).with("image", image).with("seen", seen)
}

fn because(reason: SessionEndReason, evidence: Map<String, Value>) -> SessionEnd {
    SessionEnd { evidence, ..SessionEnd::because(reason) }
}

#[cfg(test)]
mod tests {
    use sandbox::{EngineError, Gone};

    use super::*;

    fn missing() -> SandboxError {
        SandboxError::ImageUnavailable { image: "i:1".to_owned(), reason: "not here".to_owned() }
    }

    fn does_not_start() -> SandboxError {
        SandboxError::CannotStart { image: "i:1".to_owned(), reason: "no".to_owned() }
    }

    fn ended(reason: GoneReason) -> SandboxError {
        let evidence = Map::from_iter([("exit_code".to_owned(), Value::from(1))]);
        SandboxError::ContainerEnded(Gone { reason, evidence })
    }

    fn silent() -> SandboxError {
        SandboxError::AgentUnreachable { evidence: Map::new() }
    }

    /// How a session ends that meets nothing but this, and after how many attempts.
    fn end(error: &SandboxError, past: Past) -> (SessionEndReason, u32) {
        for failures in 0..1_000 {
            match verdict(error, past, failures) {
                Verdict::Failed => {}
                Verdict::End(end) => return (end.reason, failures + 1),
                other => panic!("{other:?}"),
            }
        }
        panic!("it never ends: {error:?}")
    }

    #[test]
    fn only_an_image_that_is_missing_or_never_ran_is_blamed() {
        use SessionEndReason::{AgentGone, ContainerGone, ImageUnavailable, Oom};
        for (error, of_new, of_served) in [
            (missing(), (ImageUnavailable, 1), ImageUnavailable),
            (does_not_start(), (ImageUnavailable, TRIES_NEW), ContainerGone),
            (ended(GoneReason::AgentGone), (ImageUnavailable, TRIES_NEW), AgentGone),
            (ended(GoneReason::ContainerGone), (ContainerGone, TRIES_NEW), ContainerGone),
            (ended(GoneReason::Oom), (Oom, TRIES_NEW), Oom),
            (silent(), (AgentGone, TRIES_NEW), AgentGone),
        ] {
            assert_eq!(end(&error, Past::New), of_new, "{error:?}");
            assert_eq!(end(&error, Past::Served), (of_served, TRIES_SERVED), "{error:?}");
        }
    }

    #[test]
    fn what_the_engine_does_not_answer_ends_no_session_however_often() {
        let hung = EngineError::TimedOut { operation: "inspect", limit: std::time::Duration::from_secs(1) };
        for error in [SandboxError::from(hung), SandboxError::Busy] {
            for past in [Past::New, Past::Served] {
                assert_eq!(verdict(&error, past, u32::MAX), Verdict::Wait, "{error:?}");
            }
        }
    }

    #[test]
    fn the_end_says_what_was_seen_and_how_often_it_was_tried() {
        let Verdict::End(end) = verdict(&ended(GoneReason::AgentGone), Past::Served, TRIES_SERVED) else {
            panic!("it ends")
        };
        assert_eq!(
            (&end.evidence["exit_code"], &end.evidence["tries"]),
            (&1.into(), &(TRIES_SERVED + 1).into())
        );
    }
}
