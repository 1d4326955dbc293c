//! From a session to a sandbox that serves it: taken over, claimed warm, or made; retried while the engine is down.

use std::sync::Arc;
use std::time::Duration;

use sandbox::{
    AcquireRequest, Adoption, Gone, Sandbox, SandboxError, Workspace, WorkspaceFate, WorkspaceName,
};
use store::{LiveSandbox, StoreError};

use super::verdict::{Past, Verdict, verdict};
use super::{OwnedSession, Serving};
use crate::tenure::{Tenure, Unwritten};

/// First and longest pause between attempts.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// How a session came to its present sandbox's number, and what it keeps of the one before.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    pub(super) generation: u32,
    pub(super) workspace: Option<Workspace>,
    /// A reset that the next sandbox carries out.
    pub(super) reset: Option<u32>,
}

impl Lineage {
    fn past(&self) -> Past {
        if self.generation > 0 { Past::Served } else { Past::New }
    }
}

/// Why there is no sandbox.
#[derive(Debug)]
pub(super) enum NoSandbox {
    /// The session has to end.
    End(domain::SessionEnd),
    /// It is not this worker's any more.
    Superseded,
}

/// Makes or claims a sandbox and writes that it serves the session.
pub(super) async fn obtain(
    tenure: &Arc<Tenure>,
    session: &OwnedSession,
    lineage: &mut Lineage,
) -> Result<Serving, NoSandbox> {
    let mut pause = RETRY.0;
    let mut failures = 0;
    loop {
        let request = AcquireRequest {
            image: session.row.image.clone(),
            resources: session.row.resources,
            runtime: session.row.runtime.clone(),
            workspace: lineage.workspace.clone(),
        };
        match tenure.core.sandboxes.acquire(request).await {
            Ok(sandbox) => {
                if let Some(serving) = claim(tenure, session, lineage, sandbox).await? {
                    return Ok(serving);
                }
            }
            Err(error) => {
                match verdict(&error, lineage.past(), failures) {
                    Verdict::End(end) => return Err(NoSandbox::End(end)),
                    Verdict::Leave => return Err(NoSandbox::Superseded),
                    Verdict::Failed => failures += 1,
                    Verdict::Wait => {}
                }
                tracing::warn!(session = %session.id, failures, %error, "no sandbox yet; trying again");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Writes that a sandbox serves the session from now on. `None` when it was refused and given up.
async fn claim(
    tenure: &Arc<Tenure>,
    session: &OwnedSession,
    lineage: &mut Lineage,
    sandbox: Sandbox,
) -> Result<Option<Serving>, NoSandbox> {
    let store = tenure.store();
    let generation = lineage.generation + 1;
    let fate = if lineage.workspace.is_some() { WorkspaceFate::Keep } else { WorkspaceFate::Remove };
    // Given up when this is dropped half-way, as well as when it is refused.
    let guard = NotKept { tenure, sandbox: Some(sandbox), fate };
    let claimed = tenure.write(|| store.claim_sandbox(guard.id(), &session.fence, generation)).await;
    match claimed {
        Ok(()) => {}
        Err(Unwritten::Superseded) => return Err(NoSandbox::Superseded),
        Err(Unwritten::Refused(error)) => {
            tracing::warn!(session = %session.id, %error, "a sandbox could not be claimed");
            return Ok(None);
        }
    }
    lineage.generation = generation;
    serve(tenure, session, lineage).await?;
    let sandbox = guard.keep();
    lineage.workspace = Some(sandbox.workspace().clone());
    Ok(Some(Serving { sandbox, generation }))
}

/// Writes that the session runs with the lineage's generation.
async fn serve(tenure: &Arc<Tenure>, session: &OwnedSession, lineage: &mut Lineage) -> Result<(), NoSandbox> {
    let store = tenure.store();
    let generation = lineage.generation;
    let reset = lineage.reset;
    let written = tenure
        .write(|| async {
            store.session_running(&session.fence, generation).await?;
            if let Some(request) = reset {
                store.session_reset_done(&session.fence, request, generation).await?;
            }
            Ok(())
        })
        .await;
    match written {
        Ok(()) => {
            lineage.reset = None;
            Ok(())
        }
        Err(Unwritten::Superseded) => Err(NoSandbox::Superseded),
        Err(Unwritten::Refused(StoreError::Conflict { .. })) => Err(NoSandbox::Superseded),
        Err(Unwritten::Refused(error)) => {
            tracing::error!(session = %session.id, %error, "a session could not be marked as running");
            Err(NoSandbox::Superseded)
        }
    }
}

struct NotKept<'a> {
    tenure: &'a Tenure,
    sandbox: Option<Sandbox>,
    fate: WorkspaceFate,
}

impl NotKept<'_> {
    fn id(&self) -> domain::SandboxId {
        self.sandbox.as_ref().expect("kept only at the end").id()
    }

    fn keep(mut self) -> Sandbox {
        self.sandbox.take().expect("kept once")
    }
}

impl Drop for NotKept<'_> {
    fn drop(&mut self) {
        if let Some(sandbox) = self.sandbox.take() {
            self.tenure.core.sandboxes.release(&sandbox, self.fate);
        }
    }
}

/// How a takeover of a session's sandbox came out.
pub(super) enum Adopted {
    /// It serves on.
    Serving(Serving),
    /// There is none to take over, or it is gone.
    None(Option<Gone>),
}

/// Takes over the sandbox of a session whose worker is gone.
pub(super) async fn adopt(
    tenure: &Arc<Tenure>,
    session: &OwnedSession,
    lineage: &mut Lineage,
) -> Result<Adopted, NoSandbox> {
    let store = tenure.store();
    let rows = tenure
        .write(|| async {
            let row = store.sandbox_of_session(session.id).await?;
            let workspace = store.workspace_of_session(session.id).await?;
            Ok((row, workspace))
        })
        .await;
    let (row, workspace) = match rows {
        Ok(rows) => rows,
        Err(Unwritten::Superseded) => return Err(NoSandbox::Superseded),
        Err(Unwritten::Refused(error)) => {
            tracing::error!(session = %session.id, %error, "the sandbox of a session could not be read");
            return Err(NoSandbox::Superseded);
        }
    };
    lineage.workspace = workspace
        .and_then(|(name, tool_uid)| Some(Workspace { name: WorkspaceName::try_from(name).ok()?, tool_uid }));
    lineage.generation = row.as_ref().map_or(session.row.generation, |row| row.generation);
    let Some((row, adoption)) =
        row.and_then(|row| Some((adoption(session, &row)?, row))).map(|(a, r)| (r, a))
    else {
        return Ok(Adopted::None(None));
    };
    lineage.workspace = Some(adoption.workspace.clone());
    let gone = match take_over(tenure, adoption).await? {
        Ok(sandbox) => {
            serve(tenure, session, lineage).await?;
            return Ok(Adopted::Serving(Serving { sandbox, generation: row.generation }));
        }
        Err(gone) => gone,
    };
    abandon(tenure, session, &row).await?;
    Ok(Adopted::None(Some(gone)))
}

fn adoption(session: &OwnedSession, row: &LiveSandbox) -> Option<Adoption> {
    let name = WorkspaceName::try_from(row.workspace.clone()?).ok()?;
    Some(Adoption {
        sandbox_id: row.sandbox_id,
        container_id: row.container_id.clone()?,
        workspace: Workspace { name, tool_uid: row.tool_uid },
        epoch: row.epoch.max(session.row.epoch),
        image: session.row.image.clone(),
        resources: session.row.resources,
        runtime: session.row.runtime.clone(),
    })
}

async fn take_over(tenure: &Arc<Tenure>, adoption: Adoption) -> Result<Result<Sandbox, Gone>, NoSandbox> {
    let mut pause = RETRY.0;
    loop {
        match tenure.core.sandboxes.adopt(adoption.clone()).await {
            Ok(sandbox) => return Ok(Ok(sandbox)),
            Err(SandboxError::Gone(gone)) => return Ok(Err(gone)),
            Err(SandboxError::Fenced | SandboxError::ShuttingDown) => return Err(NoSandbox::Superseded),
            Err(error) => {
                tracing::warn!(sandbox = %adoption.sandbox_id, %error, "not taken over yet; trying again");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// What is left of a sandbox that could not be taken over goes, but for its workspace.
async fn abandon(tenure: &Arc<Tenure>, session: &OwnedSession, row: &LiveSandbox) -> Result<(), NoSandbox> {
    let sandbox_id = row.sandbox_id;
    match tenure.write(|| tenure.store().sandbox_removing(sandbox_id)).await {
        Ok(()) => {}
        Err(Unwritten::Superseded) => return Err(NoSandbox::Superseded),
        Err(Unwritten::Refused(error)) => {
            tracing::error!(session = %session.id, %error, "a sandbox could not be marked as removing");
        }
    }
    // The next sandbox needs its workspace and uid, so this one has to be gone before.
    if let Err(error) = tenure.core.sandboxes.destroy(sandbox_id, None).await {
        tracing::warn!(sandbox = %sandbox_id, %error, "a sandbox could not be removed yet");
    }
    Ok(())
}
