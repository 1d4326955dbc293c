//! The owner of a session: one task that gives it a sandbox, replaces it when it goes away, and ends it.

use std::sync::Arc;
use std::time::Duration;

use domain::{SessionEnd, SessionEndReason};
use sandbox::{Gone, WorkspaceFate};
use serde_json::Value;
use store::SessionWish;
use tokio::time::Instant;

use super::end::{finish, stop_everything};
use super::start::{Adopted, Lineage, NoSandbox, adopt, obtain};
use super::{OwnedSession, Phase, Serving};
use crate::call::Cause;
use crate::tenure::{Tenure, Unwritten};

/// A sandbox that served for less than this went away at once.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Sandboxes in a row that may go away at once before the session ends.
const AT_ONCE_LIMIT: u32 = 5;
/// Time in which a sandbox is taken over when its engine answers.
const ADOPT_PATIENCE: Duration = Duration::from_secs(20);

/// How a session came to this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// It is new: nobody served it before.
    Fresh,
    /// A worker before may have served it.
    TakenOver,
}

enum Next {
    Gone(Gone),
    Condemned,
    Wish(SessionWish),
    Left,
}

/// Owns a session until it ends or this worker has to let it go.
pub(crate) async fn own(tenure: Arc<Tenure>, session: Arc<OwnedSession>, begin: Begin) {
    let end = tokio::select! {
        biased;
        () = tenure.ended.cancelled() => None,
        end = live(&tenure, &session, begin) => end,
    };
    let serving = session.serving_now();
    match end {
        None => {
            session.enter(Phase::Left);
            if let Some(serving) = serving {
                tenure.core.sandboxes.let_go(&serving.sandbox);
            }
        }
        Some((end, lineage)) => {
            let reason = end.reason;
            if finish(&tenure, &session, serving, lineage, end).await {
                tracing::info!(session = %session.id, reason = reason.as_str(), "session ended");
                tenure.metrics().session_ends.with_label_values(&[reason.as_str()]).inc();
            }
        }
    }
    tenure.remove_session(session.id);
}

/// From sandbox to sandbox. Returns why the session has to end; `None` when it is to be let go.
async fn live(
    tenure: &Arc<Tenure>,
    session: &Arc<OwnedSession>,
    begin: Begin,
) -> Option<(SessionEnd, Lineage)> {
    let mut lineage = Lineage { generation: session.row.generation, ..Lineage::default() };
    let mut present = match begin {
        Begin::Fresh => None,
        Begin::TakenOver => match adopt_or_end(tenure, session, &mut lineage).await {
            Ok(Adopted::Serving(serving)) => Some(serving),
            Ok(Adopted::None(gone)) => {
                if let Some(gone) = gone {
                    note(tenure, session, &gone);
                }
                None
            }
            Err(NoSandbox::Superseded) => return None,
            Err(NoSandbox::End(end)) => return Some((end, lineage)),
        },
    };
    let mut at_once = 0;
    loop {
        let serving = match present.take() {
            Some(serving) => serving,
            None => match obtain_or_end(tenure, session, &mut lineage).await {
                Ok(serving) => serving,
                Err(NoSandbox::Superseded) => return None,
                Err(NoSandbox::End(end)) => return Some((end, lineage)),
            },
        };
        let since = Instant::now();
        open(tenure, session, &serving).await;
        let next = serve(tenure, session, &serving).await;
        tenure.board.lock().serve(session.id, false);
        match next {
            Next::Left => return None,
            Next::Wish(SessionWish::End(end)) => return Some((end, lineage)),
            Next::Wish(SessionWish::Reset { request }) => {
                stop_everything(tenure, session, Cause::SessionReset, "sandbox_lost").await;
                lineage.reset = Some(request);
                lineage.workspace = None;
                retire(tenure, session, &serving, WorkspaceFate::Remove).await?;
            }
            Next::Condemned => {
                tracing::warn!(session = %session.id, "the sandbox does not answer; it is replaced");
                retire(tenure, session, &serving, WorkspaceFate::Keep).await?;
            }
            Next::Gone(gone) => {
                tracing::warn!(session = %session.id, reason = gone.reason.as_str(), "the sandbox is gone; it is replaced");
                note(tenure, session, &gone);
                at_once = if since.elapsed() < AT_ONCE { at_once + 1 } else { 0 };
                retire(tenure, session, &serving, WorkspaceFate::Keep).await?;
                if at_once >= AT_ONCE_LIMIT {
                    let end = SessionEnd::because(gone.reason.session_end());
                    return Some((SessionEnd { evidence: gone.evidence, ..end }, lineage));
                }
            }
        }
    }
}

fn note(tenure: &Tenure, session: &OwnedSession, gone: &Gone) {
    tenure.metrics().recoveries.inc();
    let mut evidence = gone.evidence.clone();
    evidence.insert("reason".to_owned(), Value::from(gone.reason.as_str()));
    session.note_gone(evidence);
}

/// The sandbox that a worker before had, unless the session is to end and the engine still does not say what became of it.
async fn adopt_or_end(
    tenure: &Arc<Tenure>,
    session: &OwnedSession,
    lineage: &mut Lineage,
) -> Result<Adopted, NoSandbox> {
    let end = async {
        // What can be taken over is removed with the session; what cannot is left to the reaper.
        tokio::time::sleep(ADOPT_PATIENCE).await;
        session.wished_end().await
    };
    tokio::select! {
        biased;
        adopted = adopt(tenure, session, lineage) => adopted,
        end = end => Err(NoSandbox::End(end)),
    }
}

/// A sandbox, unless the session is to end before there is one.
async fn obtain_or_end(
    tenure: &Arc<Tenure>,
    session: &OwnedSession,
    lineage: &mut Lineage,
) -> Result<Serving, NoSandbox> {
    loop {
        let wish = tokio::select! {
            biased;
            wish = session.wished() => wish,
            serving = obtain(tenure, session, lineage) => return serving,
        };
        match wish {
            SessionWish::End(end) => return Err(NoSandbox::End(end)),
            // A sandbox that is not there yet is as fresh as can be, but its workspace may not be.
            SessionWish::Reset { request } => {
                lineage.reset = Some(request);
                if let Some(workspace) = lineage.workspace.take()
                    && let Err(error) = tenure.core.sandboxes.remove_workspace(&workspace.name).await
                {
                    tracing::warn!(session = %session.id, %error, "a workspace could not be removed yet");
                }
            }
        }
    }
}

/// The session serves: calls may start, shells of a worker before are followed again.
async fn open(tenure: &Arc<Tenure>, session: &Arc<OwnedSession>, serving: &Serving) {
    crate::shell::follow_running(tenure, session, serving).await;
    session.enter(Phase::Serving(serving.clone()));
    tenure.board.lock().serve(session.id, true);
    tenure.board.bell.notify_one();
}

async fn serve(tenure: &Tenure, session: &OwnedSession, serving: &Serving) -> Next {
    tokio::select! {
        biased;
        () = tenure.ended.cancelled() => Next::Left,
        wish = session.wished() => Next::Wish(wish),
        gone = serving.sandbox.wait_gone() => Next::Gone(gone),
        () = session.is_condemned(serving.generation) => Next::Condemned,
    }
}

/// Gives a sandbox up that is to be replaced. `None` when the session is not this worker's any more.
async fn retire(
    tenure: &Arc<Tenure>,
    session: &OwnedSession,
    serving: &Serving,
    fate: WorkspaceFate,
) -> Option<()> {
    session.enter(Phase::Starting);
    let sandbox_id = serving.sandbox.id();
    match tenure.write(|| tenure.store().sandbox_removing(sandbox_id)).await {
        Ok(()) => {}
        Err(Unwritten::Superseded) => return None,
        Err(Unwritten::Refused(error)) => {
            tracing::error!(session = %session.id, %error, "a sandbox could not be marked as removing");
        }
    }
    match fate {
        WorkspaceFate::Remove => tenure.core.sandboxes.release(&serving.sandbox, fate),
        // The next one takes over workspace and uid, so this one has to be gone before.
        WorkspaceFate::Keep => {
            if let Err(error) = tenure.core.sandboxes.destroy(sandbox_id, None).await {
                tracing::warn!(sandbox = %sandbox_id, %error, "a sandbox could not be removed yet");
                tenure.core.sandboxes.release(&serving.sandbox, fate);
            }
        }
    }
    Some(())
}

impl OwnedSession {
    /// An end for the reason that the operator stopped the service.
    pub(crate) fn end_for_shutdown(&self) {
        let mut end = SessionEnd::because(SessionEndReason::Deleted).with("by", "shutdown");
        end.message =
            "The service that held the session was stopped. Create a new session; its files are gone."
                .to_owned();
        self.wish(SessionWish::End(end));
    }
}
