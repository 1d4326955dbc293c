//! Taking a sandbox over from a worker that is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::SizeClass;

use super::core::Core;
use super::folders::{Card, Folder};
use super::{Adoption, launch, watch};
use crate::driver::ContainerState;
use crate::sandbox::{Facts, Origin, Sandbox};
use crate::{EngineError, Gone, GoneReason, Link, LinkError, SandboxError, Terms};

/// Time for an agent to dial a worker that takes it over: the silence limit, the time in which a worker without
/// a lease lets go, and room for a busy host.
const ADOPT_LIMIT: Duration = Duration::from_secs(15);
/// How often the container is looked at meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn adopt(core: &Arc<Core>, adoption: Adoption) -> Result<Sandbox, SandboxError> {
    if let Some(gone) = ended(&core.driver.inspect(&adoption.container_id).await?) {
        return Err(SandboxError::Gone(gone));
    }
    let folder = core.folders.of(adoption.sandbox_id);
    if !folder.link().is_dir() {
        return Err(agent_gone("its socket's folder is gone"));
    }
    let card = match folder.card() {
        Some(card) if card.epoch > adoption.epoch => return Err(SandboxError::Fenced),
        Some(card) => Card { epoch: adoption.epoch, ..card },
        None => {
            let image = core.driver.resolve_image(&adoption.image).await?;
            Card { epoch: adoption.epoch, boot_id: None, image_id: image.id, env: image.env }
        }
    };
    // Raised first: from here on, whoever had the sandbox before cannot remove it.
    write(&folder, &card)?;
    let terms = Terms {
        epoch: adoption.epoch,
        tool_uid: adoption.workspace.tool_uid,
        env: card.env.clone(),
        warm_shells: core.config.warm_shells,
        boot_id: card.boot_id.clone(),
    };
    let link = launch::link(core, &folder, &adoption.runtime, &adoption.container_id, terms)?;
    dialled(core, &adoption, &link).await?;
    let card = Card { boot_id: link.boot_id(), ..card };
    write(&folder, &card)?;
    let facts = Facts {
        sandbox_id: adoption.sandbox_id,
        container_id: adoption.container_id,
        workspace: adoption.workspace,
        epoch: adoption.epoch,
        image: adoption.image,
        image_id: card.image_id,
        size: SizeClass::of(adoption.resources),
        resources: adoption.resources,
        runtime: adoption.runtime,
    };
    let sandbox = core.hold(facts, link);
    let _ = sandbox.inner.origin.set(Origin::Adopted);
    Ok(sandbox)
}

fn write(folder: &Folder, card: &Card) -> Result<(), EngineError> {
    folder.write_card(card).map_err(EngineError::host("note who has a sandbox"))
}

/// Waits for the agent, for as long as its container runs.
async fn dialled(core: &Core, adoption: &Adoption, link: &Link) -> Result<(), SandboxError> {
    let since = Instant::now();
    loop {
        match link.connected(LOOK_INTERVAL).await {
            Ok(()) => return Ok(()),
            Err(LinkError::Fenced) => return Err(SandboxError::Fenced),
            Err(LinkError::JournalLost) => return Err(agent_gone("the agent restarted")),
            Err(LinkError::Protocol(why)) => return Err(agent_gone(why)),
            Err(_) => {}
        }
        match core.driver.inspect(&adoption.container_id).await {
            Ok(state) => {
                if let Some(gone) = ended(&state) {
                    return Err(SandboxError::Gone(gone));
                }
            }
            Err(error) if since.elapsed() >= ADOPT_LIMIT => return Err(error.into()),
            Err(_) => {}
        }
        // The engine may have taken so long to answer that the agent has dialled meanwhile.
        if since.elapsed() >= ADOPT_LIMIT
            && matches!(link.connected(Duration::ZERO).await, Err(LinkError::Disconnected))
        {
            return Err(agent_gone("it does not dial"));
        }
    }
}

fn agent_gone(why: &str) -> SandboxError {
    SandboxError::Gone(Gone::because(GoneReason::AgentGone).with("why", why))
}

/// That a container has ended, if it has.
fn ended(state: &ContainerState) -> Option<Gone> {
    match state {
        ContainerState::Running | ContainerState::Created => None,
        ContainerState::Gone => Some(Gone::because(GoneReason::ContainerGone).with("container", "removed")),
        ContainerState::Exited { exit_code, oom_killed, .. } => {
            Some(watch::exited(false, *exit_code, *oom_killed))
        }
    }
}
