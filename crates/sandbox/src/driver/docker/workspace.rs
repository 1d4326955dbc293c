//! Workspaces of the docker driver: a file with a file system where possible, else a volume of the engine.

use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{ListContainersOptions, ListVolumesOptions, RemoveVolumeOptions};
use std::collections::HashMap;

use super::agent_volume::append;
use super::engine::{ACT, ASK, Engine, filters, found};
use super::helper::{self, Helper};
use super::labels::{self, Kind};
use super::loopback::{Attached, Loopback, MOUNT_OPTIONS};
use super::profile;
use crate::{EngineError, Identity, ObservedWorkspace, Workspace, WorkspaceKind, WorkspaceName};

/// How this host keeps workspaces.
#[derive(Debug)]
pub(super) enum Workspaces {
    Loopback(Loopback),
    Volume,
}

/// A workspace made ready for a container's start.
pub(super) struct Mounted {
    pub(super) volume: String,
    device: Option<Attached>,
}

impl Workspaces {
    pub(super) fn kind(&self) -> WorkspaceKind {
        match self {
            Self::Loopback(_) => WorkspaceKind::Loopback,
            Self::Volume => WorkspaceKind::Volume,
        }
    }

    pub(super) async fn create(
        &self,
        engine: &Engine,
        identity: &Identity,
        workspace: &Workspace,
        size_mb: u32,
        image: &str,
    ) -> Result<(), EngineError> {
        match self {
            Self::Loopback(loopback) => loopback.create(workspace, size_mb).await,
            Self::Volume => create_volume(engine, identity, workspace, image).await,
        }
    }

    /// Makes a volume that the container can mount.
    pub(super) async fn mount(
        &self,
        engine: &Engine,
        identity: &Identity,
        name: &WorkspaceName,
    ) -> Result<Mounted, EngineError> {
        let volume = identity.workspace_volume(name);
        let Self::Loopback(loopback) = self else { return Ok(Mounted { volume, device: None }) };
        remove_volume(engine, &volume).await?;
        let device = loopback.attach(name).await?;
        let mut labels = identity.labels(Kind::Mount);
        labels.insert(labels::WORKSPACE.to_owned(), name.to_string());
        let link = device.link.to_string_lossy().into_owned();
        let options = [("type", "ext4"), ("device", link.as_str()), ("o", MOUNT_OPTIONS)];
        let request = VolumeCreateRequest {
            name: Some(volume.clone()),
            driver: Some("local".to_owned()),
            driver_opts: Some(options.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            labels: Some(labels),
            ..VolumeCreateRequest::default()
        };
        let created =
            engine.call("create a workspace's mount", ACT, |docker| docker.create_volume(request)).await;
        let mounted = Mounted { volume, device: Some(device) };
        match created {
            Ok(_) => Ok(mounted),
            Err(error) => {
                self.settle(&mounted).await;
                Err(error)
            }
        }
    }

    /// The container has started, or will not: the loop device goes away with its last user.
    pub(super) async fn settle(&self, mounted: &Mounted) {
        if let (Self::Loopback(loopback), Some(device)) = (self, &mounted.device)
            && let Err(error) = loopback.detach(device).await
        {
            tracing::warn!(%error, ?device, "a loop device stays attached until its workspace is removed");
        }
    }

    /// The container is gone: forget what it mounted.
    pub(super) async fn unmount(
        &self,
        engine: &Engine,
        identity: &Identity,
        name: &WorkspaceName,
    ) -> Result<(), EngineError> {
        match self {
            Self::Loopback(_) => remove_volume(engine, &identity.workspace_volume(name)).await,
            Self::Volume => Ok(()),
        }
    }

    pub(super) async fn remove(
        &self,
        engine: &Engine,
        identity: &Identity,
        name: &WorkspaceName,
    ) -> Result<(), EngineError> {
        remove_volume(engine, &identity.workspace_volume(name)).await?;
        match self {
            Self::Loopback(loopback) => loopback.remove(name).await,
            Self::Volume => Ok(()),
        }
    }

    /// Both kinds are looked for, as the mode may have changed since.
    pub(super) async fn list(
        &self,
        engine: &Engine,
        identity: &Identity,
    ) -> Result<Vec<ObservedWorkspace>, EngineError> {
        let mut workspaces = Vec::new();
        if let Self::Loopback(loopback) = self {
            let names = loopback.list().await?;
            workspaces.extend(
                names.into_iter().map(|name| ObservedWorkspace { name, kind: WorkspaceKind::Loopback }),
            );
        }
        for kind in [Kind::Workspace, Kind::Mount] {
            for name in volumes(engine, identity, kind).await? {
                if workspaces.iter().all(|known| known.name != name) {
                    workspaces.push(ObservedWorkspace { name, kind: WorkspaceKind::Volume });
                }
            }
        }
        Ok(workspaces)
    }
}

async fn volumes(
    engine: &Engine,
    identity: &Identity,
    kind: Kind,
) -> Result<Vec<WorkspaceName>, EngineError> {
    let options = ListVolumesOptions { filters: Some(filters(identity.selector(kind))) };
    let listed = engine.call("list volumes", ASK, |docker| docker.list_volumes(Some(options))).await?;
    let names = listed.volumes.unwrap_or_default().into_iter();
    Ok(names.filter_map(|volume| volume.labels.get(labels::WORKSPACE)?.parse().ok()).collect())
}

/// A volume whose root belongs to the workspace's uid. Its size is not held.
async fn create_volume(
    engine: &Engine,
    identity: &Identity,
    workspace: &Workspace,
    image: &str,
) -> Result<(), EngineError> {
    let volume = identity.workspace_volume(&workspace.name);
    let mut labels = identity.labels(Kind::Workspace);
    labels.insert(labels::WORKSPACE.to_owned(), workspace.name.to_string());
    let request = VolumeCreateRequest {
        name: Some(volume.clone()),
        labels: Some(labels),
        ..VolumeCreateRequest::default()
    };
    engine.call("create a workspace", ACT, |docker| docker.create_volume(request)).await?;
    let mount = profile::volume(volume, protocol::WORKSPACE_DIR, false);
    let helper = Helper::create(engine, identity, image, mount).await?;
    let root = protocol::WORKSPACE_DIR.trim_start_matches('/');
    let mut archive = tar::Builder::new(Vec::new());
    let packed = append(&mut archive, root, tar::EntryType::Directory, 0o755, workspace.tool_uid, &[])
        .and_then(|()| archive.into_inner())
        .map_err(EngineError::host("pack a workspace"));
    let owned = match packed {
        Ok(packed) => helper.upload(packed).await,
        Err(error) => Err(error),
    };
    owned.and(helper.remove().await)
}

async fn remove_volume(engine: &Engine, volume: &str) -> Result<(), EngineError> {
    found(
        engine
            .call("remove volume", ACT, |docker| docker.remove_volume(volume, None::<RemoveVolumeOptions>))
            .await,
    )
    .map(drop)
}

/// Removes containers of other sandboxes that still hold a workspace: two must never write it at once.
pub(super) async fn evict(
    engine: &Engine,
    identity: &Identity,
    name: &WorkspaceName,
) -> Result<(), EngineError> {
    let mut selector = identity.selector(Kind::Sandbox);
    selector.push(format!("{}={name}", labels::WORKSPACE));
    let options = ListContainersOptions {
        all: true,
        filters: Some(HashMap::from([("label".to_owned(), selector)])),
        ..ListContainersOptions::default()
    };
    let holders = engine.call("list containers", ASK, |docker| docker.list_containers(Some(options))).await?;
    for id in holders.into_iter().filter_map(|holder| holder.id) {
        helper::remove(engine, &id).await?;
    }
    Ok(())
}
