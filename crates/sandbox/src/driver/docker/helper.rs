//! Files put into a volume through the engine: a container that is created, never started, and lends its file system.

use bollard::models::{ContainerCreateBody, HostConfig, Mount};
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptions, RemoveContainerOptions, UploadToContainerOptions,
};
use bytes::Bytes;

use super::engine::{ACT, ASK, Engine, filters, found};
use super::labels::Kind;
use crate::{EngineError, Identity};

/// Age from which a helper is a leftover, in seconds: far beyond what one may take.
const LEFTOVER_S: i64 = 300;
/// How often a removal that another one is in the way of is asked again.
const BUSY_TRIES: u32 = 50;
/// The pause between.
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// A created container with one volume mounted.
pub(super) struct Helper<'a> {
    engine: &'a Engine,
    id: String,
}

impl<'a> Helper<'a> {
    pub(super) async fn create(
        engine: &'a Engine,
        identity: &Identity,
        image: &str,
        mount: Mount,
    ) -> Result<Self, EngineError> {
        let name = format!("toolhost-{}-helper-{:016x}", identity.installation, rand::random::<u64>());
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec!["/never-started".to_owned()]),
            cmd: Some(Vec::new()),
            labels: Some(identity.labels(Kind::Helper)),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                mounts: Some(vec![mount]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptions { name: Some(name), ..CreateContainerOptions::default() };
        let created =
            engine.call("create helper", ACT, |docker| docker.create_container(Some(options), body)).await;
        match created {
            Ok(created) => Ok(Self { engine, id: created.id }),
            Err(EngineError::Refused { status: 404, .. }) => {
                Err(EngineError::ImageMissing { image: image.to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    /// Unpacks an archive at `/` of the container; owners and permissions are those of the archive.
    pub(super) async fn upload(&self, archive: Vec<u8>) -> Result<(), EngineError> {
        let options =
            UploadToContainerOptions { path: "/".to_owned(), ..UploadToContainerOptions::default() };
        self.engine
            .call("upload", ACT, |docker| {
                docker.upload_to_container(&self.id, Some(options), bollard::body_full(Bytes::from(archive)))
            })
            .await
    }

    pub(super) fn engine(&self) -> &'a Engine {
        self.engine
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) async fn remove(self) -> Result<(), EngineError> {
        remove(self.engine, &self.id).await
    }
}

/// Removes a container, running or not, with its anonymous volumes. Nothing to remove is success.
pub(super) async fn remove(engine: &Engine, container: &str) -> Result<(), EngineError> {
    let mut tries = 0;
    loop {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        let removed =
            engine.call("remove", ACT, |docker| docker.remove_container(container, Some(options))).await;
        match removed {
            // Somebody else is removing it at this moment: asked again until it is gone.
            Err(EngineError::Refused { status: 409, .. }) if tries < BUSY_TRIES => {
                tries += 1;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            other => return found(other).map(drop),
        }
    }
}

/// Removes helpers that a crash left behind.
pub(super) async fn sweep(engine: &Engine, identity: &Identity) -> Result<(), EngineError> {
    let options = ListContainersOptions {
        all: true,
        filters: Some(filters(identity.selector(Kind::Helper))),
        ..ListContainersOptions::default()
    };
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() as i64);
    let helpers = engine.call("list helpers", ASK, |docker| docker.list_containers(Some(options))).await?;
    for helper in helpers {
        let old = helper.created.is_some_and(|created| now - created > LEFTOVER_S);
        if let (true, Some(id)) = (old, helper.id) {
            remove(engine, &id).await?;
        }
    }
    Ok(())
}
