//! Making one sandbox: row, folder, workspace, container, agent. What was made is undone when a step fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Resources, SizeClass};
use futures_util::FutureExt;
use tokio::time::timeout;

use super::core::Core;
use super::folders::{Card, Folder};
use super::{remove, watch};
use crate::driver::{Container, ContainerState, Image, LinkKind, LinkPlace, SandboxSpec};
use crate::ledger::{Reserve, Reserved};
use crate::sandbox::{Facts, Sandbox};
use crate::{EngineError, Gone, GoneReason, Link, LinkError, SandboxError, Terms, Workspace, WorkspaceName};

/// How often a container whose agent has not connected is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What to make.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) image: String,
    pub(super) resources: Resources,
    pub(super) runtime: String,
    pub(super) workspace: Option<Workspace>,
}

/// Makes a sandbox. To be run to its end: dropped half-way it leaves the reaper work.
pub(super) async fn launch(core: &Arc<Core>, plan: Plan) -> Result<Sandbox, SandboxError> {
    let since = Instant::now();
    let result = reserve_and_make(core, plan).await;
    match &result {
        Ok(_) => core.metrics.creation_seconds.observe(since.elapsed().as_secs_f64()),
        Err(error) => core.metrics.error(kind(error)),
    }
    result
}

fn kind(error: &SandboxError) -> &'static str {
    match error {
        SandboxError::ImageUnavailable { .. } | SandboxError::CannotStart { .. } => "image",
        SandboxError::ContainerEnded(_)
        | SandboxError::AgentUnreachable { .. }
        | SandboxError::Gone(_)
        | SandboxError::Fenced => "agent",
        SandboxError::Ledger(_) | SandboxError::WorkspaceOwner { .. } => "ledger",
        SandboxError::EngineUnavailable(_)
        | SandboxError::RuntimeUnavailable { .. }
        | SandboxError::HostUnsafe { .. }
        | SandboxError::Engine(_)
        | SandboxError::Busy
        | SandboxError::ShuttingDown => "engine",
    }
}

async fn reserve_and_make(core: &Arc<Core>, plan: Plan) -> Result<Sandbox, SandboxError> {
    core.admit(&plan.runtime).await?;
    // Asked before the row is made: a missing image leaves nothing to undo.
    let image = core.driver.resolve_image(&plan.image).await?;
    let reserve = Reserve {
        image: plan.image.clone(),
        size: SizeClass::of(plan.resources),
        resources: plan.resources,
        runtime: plan.runtime.clone(),
        workspace: plan.workspace.clone(),
    };
    let reserved = core.ledger.reserve(&reserve).await?;
    let made = make(core, &plan, &image, reserved).await;
    if made.is_err() {
        let fresh = plan.workspace.is_none().then(|| WorkspaceName::of(reserved.sandbox_id));
        remove::in_background(core, reserved.sandbox_id, reserved.epoch, fresh);
    }
    made
}

async fn make(
    core: &Arc<Core>,
    plan: &Plan,
    image: &Image,
    reserved: Reserved,
) -> Result<Sandbox, SandboxError> {
    let Reserved { sandbox_id, tool_uid, epoch } = reserved;
    let folder =
        core.folders.create(sandbox_id, tool_uid).map_err(EngineError::host("make a sandbox's folder"))?;
    let terms = Terms {
        epoch,
        tool_uid,
        env: image.env.clone(),
        warm_shells: core.config.warm_shells,
        boot_id: None,
    };
    // A socket is there before the agent looks for it; a relay needs a container to be started in.
    let (place, socket) = match core.driver.link_kind(&plan.runtime) {
        LinkKind::Socket => (LinkPlace::Folder(folder.link()), Some(bind(core, &folder, terms.clone())?)),
        LinkKind::Relay => (LinkPlace::Inside, None),
    };
    let workspace = ready_workspace(core, plan, image, reserved).await?;
    let spec = SandboxSpec {
        sandbox_id,
        image: plan.image.clone(),
        resolved: image.clone(),
        runtime: plan.runtime.clone(),
        resources: plan.resources,
        tool_uid,
        workspace: workspace.name.clone(),
        link: place,
        passwd: folder.passwd(),
        group: folder.group(),
    };
    let container = core.driver.create(&spec).await?;
    let link = socket.unwrap_or_else(|| over_relay(core, &container.id, terms));
    connected(core, &link, &container).await?;
    let card = Card { epoch, boot_id: link.boot_id(), image_id: image.id.clone(), env: image.env.clone() };
    folder.write_card(&card).map_err(EngineError::host("note the agent's boot"))?;
    core.ledger.started(sandbox_id, &container.id, &workspace.name).await?;
    let facts = Facts {
        sandbox_id,
        container_id: container.id,
        workspace,
        epoch,
        image: plan.image.clone(),
        image_id: image.id.clone(),
        size: SizeClass::of(plan.resources),
        resources: plan.resources,
        runtime: plan.runtime.clone(),
    };
    Ok(core.hold(facts, link))
}

/// The link to the agent of a running container that has none of its own making.
pub(super) fn link(
    core: &Core,
    folder: &Folder,
    runtime: &str,
    container_id: &str,
    terms: Terms,
) -> Result<Link, EngineError> {
    match core.driver.link_kind(runtime) {
        LinkKind::Socket => bind(core, folder, terms),
        LinkKind::Relay => Ok(over_relay(core, container_id, terms)),
    }
}

fn over_relay(core: &Core, container_id: &str, terms: Terms) -> Link {
    let (driver, container_id) = (Arc::clone(&core.driver), container_id.to_owned());
    let dial = Box::new(move || {
        let (driver, container_id) = (Arc::clone(&driver), container_id.clone());
        async move { driver.relay(&container_id).await }.boxed()
    });
    Link::over_relay(dial, terms, core.metrics.clone())
}

fn bind(core: &Core, folder: &Folder, terms: Terms) -> Result<Link, EngineError> {
    Link::bind(&folder.link(), terms, core.metrics.clone()).map_err(EngineError::host("listen for an agent"))
}

async fn ready_workspace(
    core: &Core,
    plan: &Plan,
    image: &Image,
    reserved: Reserved,
) -> Result<Workspace, SandboxError> {
    match &plan.workspace {
        Some(workspace) if workspace.tool_uid == reserved.tool_uid => Ok(workspace.clone()),
        Some(workspace) => Err(SandboxError::WorkspaceOwner {
            workspace_uid: workspace.tool_uid,
            reserved_uid: reserved.tool_uid,
        }),
        None => {
            let name = WorkspaceName::of(reserved.sandbox_id);
            let workspace = Workspace { name, tool_uid: reserved.tool_uid };
            core.driver.create_workspace(&workspace, plan.resources.disk_mb, &image.id).await?;
            Ok(workspace)
        }
    }
}

/// Waits for the agent's first connection, and gives up early when its container has ended.
async fn connected(core: &Core, link: &Link, container: &Container) -> Result<(), SandboxError> {
    let limit = Duration::from_millis(core.config.agent_connect_ms);
    let since = Instant::now();
    loop {
        match link.connected(LOOK_INTERVAL.min(limit)).await {
            Ok(()) => return Ok(()),
            Err(LinkError::Disconnected) => {}
            Err(error) => return Err(silent(since, &error.to_string())),
        }
        let looked = timeout(limit, core.driver.inspect(&container.id)).await;
        let state = looked.unwrap_or(Err(EngineError::TimedOut { operation: "inspect", limit }));
        let is_over = since.elapsed() >= limit;
        // The engine may have taken so long to answer that the agent has dialled meanwhile.
        if is_over && link.connected(Duration::ZERO).await.is_ok() {
            return Ok(());
        }
        match state {
            Ok(ContainerState::Gone) => {
                let gone = Gone::because(GoneReason::ContainerGone).with("container", "removed");
                return Err(SandboxError::ContainerEnded(waited(gone, since)));
            }
            Ok(ContainerState::Exited { exit_code, oom_killed, error }) => {
                if let Some(error) = error {
                    tracing::warn!(error, "a container did not run");
                }
                let gone = watch::exited(false, exit_code, oom_killed);
                return Err(SandboxError::ContainerEnded(waited(gone, since)));
            }
            Ok(ContainerState::Running | ContainerState::Created) if is_over => {
                return Err(silent(since, "its container runs, but it does not dial"));
            }
            // Who cannot be asked is not to blame either.
            Err(error) if is_over => return Err(error.into()),
            Ok(ContainerState::Running | ContainerState::Created) | Err(_) => {}
        }
    }
}

fn silent(since: Instant, why: &str) -> SandboxError {
    let gone = Gone::because(GoneReason::AgentGone).with("why", why);
    SandboxError::AgentUnreachable { evidence: waited(gone, since).evidence }
}

fn waited(gone: Gone, since: Instant) -> Gone {
    gone.with("waited_ms", since.elapsed().as_millis() as u64)
}
