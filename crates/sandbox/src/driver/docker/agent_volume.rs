//! The volume that brings the agent into any image: read-only, for root only, named by the agent's content.

use std::path::Path;
use std::time::Duration;

use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{ContainerArchiveInfoOptions, ListVolumesOptions, RemoveVolumeOptions};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::engine::{ACT, ASK, Engine, filters, found};
use super::helper::{self, Helper};
use super::labels::Kind;
use super::profile::{self, AGENT_DIR};
use crate::{EngineError, Identity};

/// The agent that new sandboxes get.
#[derive(Debug)]
pub(super) struct AgentVolume {
    binary: Vec<u8>,
    name: String,
    ready: Mutex<bool>,
}

impl AgentVolume {
    pub(super) fn read(path: &Path, identity: &Identity) -> Result<Self, EngineError> {
        let binary = std::fs::read(path).map_err(EngineError::host("read the agent's binary"))?;
        let digest = Sha256::digest(&binary);
        let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name: identity.agent_volume(&hash), binary, ready: Mutex::new(false) })
    }

    /// The volume's name, once it is known to hold the whole agent.
    pub(super) async fn ensure(
        &self,
        engine: &Engine,
        identity: &Identity,
        image: &str,
    ) -> Result<String, EngineError> {
        let mut ready = self.ready.lock().await;
        if !*ready {
            self.fill(engine, identity, image).await?;
            *ready = true;
        }
        Ok(self.name.clone())
    }

    /// Makes sure of it again, as a sandbox did not come up.
    pub(super) async fn mend(
        &self,
        engine: &Engine,
        identity: &Identity,
        image: &str,
    ) -> Result<(), EngineError> {
        let mut ready = self.ready.lock().await;
        *ready = false;
        self.fill(engine, identity, image).await?;
        *ready = true;
        Ok(())
    }

    /// Looks into the volume and fills it if the agent is not there as it should be. A crash half-way is
    /// mended by the next worker, as the size tells.
    async fn fill(&self, engine: &Engine, identity: &Identity, image: &str) -> Result<(), EngineError> {
        helper::sweep(engine, identity).await?;
        self.create(engine, identity).await?;
        let mount = profile::volume(self.name.clone(), AGENT_DIR, false);
        let helper = Helper::create(engine, identity, image, mount).await?;
        let filled = async {
            let whole = Some(self.binary.len() as u64);
            if helper.size_of(protocol::AGENT_PATH).await? == whole {
                return Ok(());
            }
            // Another worker may be filling it at this moment.
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..300))).await;
            if helper.size_of(protocol::AGENT_PATH).await? == whole {
                return Ok(());
            }
            let archive = self.archive().map_err(EngineError::host("pack the agent"))?;
            helper.upload(archive).await
        }
        .await;
        let removed = helper.remove().await;
        filled?;
        removed
    }

    /// Makes the volume, if it is not there. One that the engine has made by itself, under a container that names it, has none of
    /// our labels and nothing in it: nobody would ever remove it.
    async fn create(&self, engine: &Engine, identity: &Identity) -> Result<(), EngineError> {
        let labels = identity.labels(Kind::Agent);
        let request = VolumeCreateRequest {
            name: Some(self.name.clone()),
            labels: Some(labels.clone()),
            ..VolumeCreateRequest::default()
        };
        let operation = "create the agent's volume";
        let made = engine.call(operation, ACT, |docker| docker.create_volume(request.clone())).await?;
        if labels.iter().all(|(name, value)| made.labels.get(name) == Some(value)) {
            return Ok(());
        }
        if remove(engine, &self.name).await? {
            engine.call(operation, ACT, |docker| docker.create_volume(request)).await?;
        }
        Ok(())
    }

    /// The agent, an empty folder to mount the link on, and a root that only root may enter.
    fn archive(&self) -> std::io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        let root = AGENT_DIR.trim_start_matches('/');
        append(&mut archive, root, tar::EntryType::Directory, 0o700, 0, &[])?;
        let link = protocol::LINK_DIR.trim_start_matches('/');
        append(&mut archive, link, tar::EntryType::Directory, 0o755, 0, &[])?;
        let agent = protocol::AGENT_PATH.trim_start_matches('/');
        append(&mut archive, agent, tar::EntryType::Regular, 0o555, 0, &self.binary)?;
        archive.into_inner()
    }

    /// Removes the volumes of other builds of the agent that no container of any state uses; how many. A worker of such a
    /// build that still runs makes its own again when it next needs it.
    pub(super) async fn prune(&self, engine: &Engine, identity: &Identity) -> Result<u64, EngineError> {
        let options = ListVolumesOptions { filters: Some(filters(identity.selector(Kind::Agent))) };
        let listed = engine.call("list volumes", ASK, |docker| docker.list_volumes(Some(options))).await?;
        let mut removed = 0;
        for volume in listed.volumes.unwrap_or_default() {
            if volume.name != self.name && remove(engine, &volume.name).await? {
                tracing::info!(volume = volume.name, "the volume of another build of the agent was removed");
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Removes a volume that no container has; the engine refuses for those in use. Whether it is gone by this.
async fn remove(engine: &Engine, name: &str) -> Result<bool, EngineError> {
    let removed = engine
        .call("remove volume", ACT, |docker| docker.remove_volume(name, None::<RemoveVolumeOptions>))
        .await;
    match found(removed) {
        Ok(removed) => Ok(removed.is_some()),
        Err(EngineError::Refused { status: 409, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Helper<'_> {
    async fn size_of(&self, path: &str) -> Result<Option<u64>, EngineError> {
        let options = ContainerArchiveInfoOptions { path: path.to_owned() };
        let info = self
            .engine()
            .call("look into a volume", ASK, |docker| {
                docker.get_container_archive_info(self.id(), Some(options))
            })
            .await;
        // Engines before 28 answer without a body; what cannot be read counts as absent and is written again.
        match found(info) {
            Ok(info) => Ok(info.and_then(|info| u64::try_from(info.size).ok())),
            Err(EngineError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Adds one entry; folders merge with what is there and take the entry's owner and permissions.
pub(super) fn append(
    archive: &mut tar::Builder<Vec<u8>>,
    path: &str,
    kind: tar::EntryType,
    mode: u32,
    uid: u32,
    content: &[u8],
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(u64::from(uid));
    header.set_gid(u64::from(uid));
    header.set_size(content.len() as u64);
    header.set_mtime(0);
    header.set_cksum();
    archive.append_data(&mut header, path, content)
}
