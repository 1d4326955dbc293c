//! The end of a session: its calls and shells first, then its row, then its sandbox and files.

use std::sync::Arc;
use std::time::Duration;

use domain::SessionEnd;
use sandbox::WorkspaceFate;
use tokio::time::timeout;

use super::start::Lineage;
use super::{OwnedSession, Phase, Serving};
use crate::call::Cause;
use crate::tenure::{Tenure, Unwritten};

/// Time that calls and shells get to write how they ended. What they ran dies with the sandbox in any case.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// Ends what runs in the session, and waits until it has written its end.
pub(super) async fn stop_everything(
    tenure: &Tenure,
    session: &OwnedSession,
    cause: Cause,
    shell_reason: &'static str,
) {
    let calls = tenure.calls_of(session.id);
    let shells = session.shells();
    for call in &calls {
        call.end(cause);
    }
    for shell in &shells {
        shell.stop(shell_reason);
    }
    let all = async {
        for call in calls {
            call.over.cancelled().await;
        }
        for shell in shells {
            shell.over.cancelled().await;
        }
    };
    if timeout(STOP_LIMIT, all).await.is_err() {
        tracing::warn!(session = %session.id, "some calls of a session took too long to end");
    }
}

/// Ends a session for good. False when this worker had no right to it any more.
pub(super) async fn finish(
    tenure: &Arc<Tenure>,
    session: &OwnedSession,
    serving: Option<Serving>,
    lineage: Lineage,
    end: SessionEnd,
) -> bool {
    tenure.board.lock().serve(session.id, false);
    session.enter(Phase::Ended);
    stop_everything(tenure, session, Cause::SessionEnded, "session_ended").await;
    let written = tenure.write(|| tenure.store().end_session(&session.fence, end.clone())).await;
    match written {
        Ok(_) => {}
        Err(Unwritten::Superseded) => {
            if let Some(serving) = serving {
                tenure.core.sandboxes.let_go(&serving.sandbox);
            }
            return false;
        }
        Err(Unwritten::Refused(error)) => {
            tracing::error!(session = %session.id, %error, "the end of a session was refused");
        }
    }
    match serving {
        Some(serving) => tenure.core.sandboxes.release(&serving.sandbox, WorkspaceFate::Remove),
        None => {
            if let Some(workspace) = lineage.workspace
                && let Err(error) = tenure.core.sandboxes.remove_workspace(&workspace.name).await
            {
                tracing::warn!(session = %session.id, %error, "a workspace could not be removed yet");
            }
        }
    }
    true
}
