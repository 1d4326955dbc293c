//! Shells that are to end because whoever started them may not go on. The rows say so until it is done.

use std::sync::Arc;

use domain::limits::KILL_GRACE_MS;
use sandbox::LinkError;
use sandbox::protocol::KillRequest;

use crate::session::Serving;
use crate::shell::RunningShell;
use crate::tenure::Tenure;

/// Begins to end shells of this worker's sessions. One that is not here yet, or has no sandbox at the moment, is asked for again.
pub(crate) async fn heed_shells(tenure: &Arc<Tenure>) -> store::Result<()> {
    for wanted in tenure.store().shells_wanting_end(tenure.worker_id()).await? {
        let Some(session) = tenure.session(wanted.session_id) else { continue };
        let (Some(shell), Some(serving)) = (session.shell(wanted.id), session.serving_now()) else {
            continue;
        };
        if !shell.begin_wish() {
            continue;
        }
        shell.ending_because(wanted.wish.as_str());
        let ended = tenure.ended.clone();
        tenure.spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = end(&serving, &shell) => {}
            }
        });
    }
    Ok(())
}

/// Whoever follows the shell records its end.
async fn end(serving: &Serving, shell: &RunningShell) {
    let request = KillRequest { key: shell.key.clone(), signal: None, grace_ms: KILL_GRACE_MS };
    match serving.sandbox.agent().kill(request).await {
        // What the agent does not know any more has ended.
        Ok(()) | Err(LinkError::Agent(_)) => {}
        Err(error) => {
            tracing::debug!(shell = %shell.id, %error, "a shell could not be ended; asked for again");
            shell.leave_wish();
        }
    }
}
