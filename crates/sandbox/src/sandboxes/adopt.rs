//! Taking a sandbox over from a worker that is gone.

use std::sync::Arc;
use std::time::Duration;

use domain::SizeClass;

use super::core::Core;
use super::folders::Card;
use super::{Adoption, launch};
use crate::driver::ContainerState;
use crate::sandbox::{Facts, Origin, Sandbox};
use crate::{EngineError, Gone, GoneReason, LinkError, SandboxError, Terms};

/// Time for an agent to dial a worker that takes it over: the silence limit and room for a busy host.
const ADOPT_LIMIT: Duration = Duration::from_secs(8);

pub(super) async fn adopt(core: &Arc<Core>, adoption: Adoption) -> Result<Sandbox, SandboxError> {
    if let Some(gone) = ended(&core.driver.inspect(&adoption.container_id).await?) {
        return Err(SandboxError::Gone(gone));
    }
    let folder = core.folders.of(adoption.sandbox_id);
    if !folder.link().is_dir() {
        return Err(agent_gone("its socket's folder is gone"));
    }
    let card = match folder.card() {
        Some(card) => card,
        None => {
            let image = core.driver.resolve_image(&adoption.image).await?;
            Card { boot_id: None, image_id: image.id, env: image.env }
        }
    };
    let terms = Terms {
        epoch: adoption.epoch,
        tool_uid: adoption.workspace.tool_uid,
        env: card.env.clone(),
        warm_shells: core.config.warm_shells,
        boot_id: card.boot_id.clone(),
    };
    let link = launch::bind(core, &folder, terms)?;
    if let Err(error) = link.connected(ADOPT_LIMIT).await {
        return Err(refused(core, &adoption, error).await);
    }
    let card = Card { boot_id: link.boot_id(), ..card };
    folder.write_card(&card).map_err(EngineError::host("note the agent's boot"))?;
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

/// Why the agent did not come.
async fn refused(core: &Core, adoption: &Adoption, error: LinkError) -> SandboxError {
    match error {
        LinkError::Fenced => SandboxError::Fenced,
        LinkError::JournalLost => agent_gone("the agent restarted"),
        _ => match core.driver.inspect(&adoption.container_id).await {
            Ok(state) => ended(&state).map_or_else(|| agent_gone("it does not dial"), SandboxError::Gone),
            Err(error) => error.into(),
        },
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
        ContainerState::Exited { exit_code, oom_killed, .. } => Some(
            Gone::because(if *oom_killed { GoneReason::Oom } else { GoneReason::AgentGone })
                .with("container", "exited")
                .with("exit_code", *exit_code)
                .with("oom_killed", *oom_killed),
        ),
    }
}
