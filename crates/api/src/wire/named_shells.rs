//! A named shell on the wire.

use domain::{CallId, NamedShell, SessionId};
use serde::Serialize;
use utoipa::ToSchema;

use super::Time;

/// A name under which a session's commands run one after the other, each as the one before left off.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = NamedShell)]
pub struct NamedShellView {
    /// Always `named_shell`.
    #[schema(pattern = "^named_shell$")]
    pub object: &'static str,
    /// Its name: what `bash` takes as `shell`.
    pub name: String,
    /// The session that it belongs to.
    #[schema(value_type = String)]
    pub session_id: SessionId,
    /// Directory where its next command begins.
    pub cwd: String,
    /// The call that runs in it; further ones wait for that.
    #[schema(value_type = Option<String>)]
    pub call_id: Option<CallId>,
    /// The call that left it as it is; null for one in which no command has left anything.
    #[schema(value_type = Option<String>)]
    pub left_by: Option<CallId>,
    /// When it was first used.
    pub created_at: Time,
    /// When it was last left.
    pub changed_at: Time,
}

impl From<NamedShell> for NamedShellView {
    fn from(shell: NamedShell) -> Self {
        Self {
            object: "named_shell",
            name: shell.name.to_string(),
            session_id: shell.session_id,
            cwd: shell.cwd,
            call_id: shell.call_id,
            left_by: shell.left_by,
            created_at: Time(shell.created_at),
            changed_at: Time(shell.changed_at),
        }
    }
}

/// A named shell that was forgotten.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeletedNamedShell {
    /// Always `named_shell`.
    #[schema(pattern = "^named_shell$")]
    pub object: &'static str,
    /// Its name.
    pub name: String,
    /// Always true.
    pub deleted: bool,
}
