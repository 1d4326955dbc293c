//! `wait`: does nothing until a time, the end of a shell, or the end of a call. It takes no slot from calls that do something.

use std::time::Duration;

use async_trait::async_trait;
use domain::{CallId, Code, Effect, ShellStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect};
use crate::shell_log;
use crate::{Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput};

pub(crate) struct Wait;

/// Longest wait, in seconds.
const SECONDS: u32 = 3_600;
/// The call's time: the longest wait, and what it takes to begin and to answer.
const TIMEOUT_MS: u64 = (SECONDS as u64 + 60) * 1_000;
/// An offset that no log reaches: only the end of a shell is a change then.
const NO_OFFSET: u64 = u64::MAX;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// How long to wait, in seconds, up to 3600. With `until`: how long at most; then 3600 when left out.
    #[schemars(range(min = 0.0, max = SECONDS))]
    seconds: Option<f64>,
    /// Wait for the end of a shell or of a call of this session.
    until: Option<Until>,
}

/// What to wait for: one of the two.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Until {
    /// A shell, as bash returned it; or the name that it was started under, for the newest of that name.
    shell_id: Option<String>,
    /// Another call.
    call_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// What ended the wait: `time`, `shell` or `call`.
    ended_by: &'static str,
    /// How long it took, from when the call was first started.
    waited_ms: u64,
    /// What was waited for has ended. True for a plain wait.
    reached: bool,
    /// The shell's status: `running` or `exited`.
    shell_status: Option<&'static str>,
    /// The shell's exit code, when it has one.
    exit_code: Option<i32>,
    /// Name of the signal that ended the shell.
    signal: Option<String>,
    /// The call's status.
    call_status: Option<&'static str>,
}

#[async_trait]
impl Tool for Wait {
    const SPEC: Spec = Spec {
        name: "wait",
        aliases: &[Alias::new("sleep", Dialect::Mycoder)],
        arguments: &[],
        title: "Wait",
        description: "Waits for a time (`seconds`, up to 3600), or until a background shell or another call of the session has ended \
            (`until`), whichever is first, and says which. It runs nothing and takes no slot from other calls, unlike \
            `sleep` in bash. To read a shell's output as it comes use bash_output with wait_ms.",
        toolkit: "shell",
        version: "1.1.0",
        effect: Effect::Pure,
        permissions: Permissions { files: false, network: false, exec: false, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: TIMEOUT_MS,
        max_timeout_ms: TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems = Vec::new();
        let problem = |pointer: &str, message: &str| ArgumentProblem::new(pointer, message);
        match &input.until {
            None if input.seconds.is_none() => {
                problems.push(problem("/seconds", "say how long to wait, or what for with `until`"));
            }
            None => {}
            Some(Until { shell_id: Some(_), call_id: Some(_) } | Until { shell_id: None, call_id: None }) => {
                problems.push(problem("/until", "give one of the two, `shell_id` or `call_id`"));
            }
            Some(Until { shell_id: Some(name), .. }) => {
                let of_until = |found: ArgumentProblem| problem("/until/shell_id", &found.message);
                problems.extend(shell_log::check_name(name).map(of_until));
            }
            Some(Until { call_id: Some(id), .. }) if id.parse::<CallId>().is_err() => {
                problems
                    .push(problem("/until/call_id", "is not the id of a call: `call_` and 26 characters"));
            }
            Some(_) => {}
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let most = Duration::from_secs_f64(
            input.seconds.unwrap_or(f64::from(SECONDS)).clamp(0.0, f64::from(SECONDS)),
        );
        let left = || most.saturating_sub(cx.waits.elapsed());
        let until = input.until.unwrap_or(Until { shell_id: None, call_id: None });
        if let Some(name) = &until.shell_id {
            // One that does not exist is told before anything is waited for.
            let id = shell_log::find(cx, name).await?.id;
            cx.waits.rest();
            cx.shells.changed(id, NO_OFFSET, left()).await?;
            let shell = cx.shells.get(id).await?;
            let reached = shell.status == ShellStatus::Exited;
            let output = Output {
                ended_by: if reached { "shell" } else { "time" },
                reached,
                shell_status: Some(shell.status.as_str()),
                exit_code: shell.exit_code,
                signal: shell.signal,
                ..over(cx)
            };
            let text = if reached {
                format!("The shell {id} has ended{}.", how(&output))
            } else {
                format!("The shell {id} still runs after {} s.", seconds(output.waited_ms))
            };
            return Ok(ToolOutput::new(output, text));
        }
        if let Some(id) = until.call_id.and_then(|id| id.parse::<CallId>().ok()) {
            if id == cx.call_id {
                let message = "wait: a call cannot wait for its own end";
                return Err(
                    ToolError::new(Code::InvalidArguments, message).hint("Name another call of the session.")
                );
            }
            cx.waits.call(id, Duration::ZERO).await?;
            cx.waits.rest();
            let status = cx.waits.call(id, left()).await?;
            let reached = status.is_terminal();
            let output = Output {
                ended_by: if reached { "call" } else { "time" },
                reached,
                call_status: Some(status.as_str()),
                ..over(cx)
            };
            let text = if reached {
                format!("The call {id} has ended: {}.", status.as_str())
            } else {
                format!(
                    "The call {id} has not ended after {} s: {}.",
                    seconds(output.waited_ms),
                    status.as_str()
                )
            };
            return Ok(ToolOutput::new(output, text));
        }
        cx.waits.rest();
        cx.waits.time(left()).await?;
        let output = over(cx);
        let text = format!("Waited {} s.", seconds(output.waited_ms));
        Ok(ToolOutput::new(output, text))
    }
}

/// A wait that its time has ended.
fn over(cx: &Context) -> Output {
    Output {
        ended_by: "time",
        waited_ms: u64::try_from(cx.waits.elapsed().as_millis()).unwrap_or(u64::MAX),
        reached: true,
        shell_status: None,
        exit_code: None,
        signal: None,
        call_status: None,
    }
}

fn how(output: &Output) -> String {
    match (&output.signal, output.exit_code) {
        (Some(signal), _) => format!(" by {signal}"),
        (None, Some(code)) => format!(" with exit code {code}"),
        (None, None) => String::new(),
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{}", ms / 1_000, ms % 1_000 / 100)
}
