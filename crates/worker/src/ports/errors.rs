//! The agent's errors in the registry of this house.

use domain::Code;
use sandbox::protocol::{AgentError, ErrorCode};
use tools::ToolError;

/// What a tool is told when the agent could not do it.
pub(crate) fn of_agent(error: &AgentError) -> ToolError {
    let code = match error.code {
        ErrorCode::NotFound => Code::PathNotFound,
        ErrorCode::PermissionDenied => Code::PermissionDenied,
        ErrorCode::OutsideRoot => Code::PathOutsideWorkspace,
        ErrorCode::IsDirectory => Code::IsDirectory,
        ErrorCode::NotDirectory => Code::NotDirectory,
        ErrorCode::NotRegular => Code::NotRegularFile,
        ErrorCode::Exists => Code::AlreadyExists,
        ErrorCode::Conflict => Code::StaleRead,
        ErrorCode::Busy => Code::Conflict,
        ErrorCode::NoSpace => Code::NoSpace,
        ErrorCode::InvalidPath => Code::InvalidPath,
        ErrorCode::NotEmpty => Code::NotEmpty,
        ErrorCode::InvalidPattern => Code::InvalidArguments,
        ErrorCode::Ended => Code::ShellEnded,
        ErrorCode::StartFailed => Code::StartFailed,
        ErrorCode::LimitExceeded => Code::SandboxLimit,
        ErrorCode::Unsupported => return outdated(error),
        ErrorCode::Io => Code::PlatformError,
    };
    ToolError::new(code, error.message.clone())
}

/// The agent is frozen in its sandbox, and is of a version without this.
fn outdated(error: &AgentError) -> ToolError {
    ToolError::new(Code::SandboxOutdated, error.message.clone())
        .hint("Reset the session, or create a new one: its sandbox is then of the present version.")
}
