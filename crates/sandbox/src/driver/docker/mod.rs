//! The docker driver: containers of the Docker engine through its HTTP API.

mod agent_volume;
mod engine;
mod events;
mod helper;
mod info;
mod labels;
mod loopback;
mod profile;
mod relay;
mod workspace;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bollard::models::{ContainerStateStatusEnum, ContainerSummaryStateEnum};
use bollard::query_parameters::{CreateContainerOptions, ListContainersOptions};
use domain::SandboxId;
use futures_util::stream::BoxStream;

use self::agent_volume::AgentVolume;
use self::engine::{ACT, ASK, Engine, filters, found};
use self::labels::Kind;
use self::loopback::Loopback;
use self::profile::Kernel;
use self::workspace::{Mounted, Workspaces};
use super::{
    Container, ContainerEvent, ContainerState, Driver, EngineInfo, Identity, Image, LinkKind,
    ObservedContainer, ObservedWorkspace, RelayStream, SandboxSpec, Workspace, WorkspaceName,
};
use crate::{Config, EngineError, WorkspaceMode};

/// The built-in seccomp profile.
const SECCOMP: &str = include_str!("../../../../../deploy/sandbox/seccomp.json");

/// Makes sandboxes with the Docker engine.
#[derive(Debug)]
pub struct DockerDriver {
    engine: Arc<Engine>,
    identity: Identity,
    agent: AgentVolume,
    workspaces: Workspaces,
    seccomp: String,
    gvisor_runtimes: Vec<String>,
    agent_protocol: Option<u32>,
}

impl DockerDriver {
    /// Reads the agent and the seccomp profile, and decides how workspaces are kept. The engine is first asked
    /// when something is needed of it, so that this works while it is down.
    ///
    /// # Errors
    /// When the agent or the profile cannot be read, or loopback workspaces are demanded where there are none.
    pub fn new(identity: Identity, config: &Config) -> Result<Self, EngineError> {
        check(&identity)?;
        let engine = Engine::new(config.engine.clone());
        let loopback = match config.workspaces {
            WorkspaceMode::Volume => false,
            WorkspaceMode::Auto => engine.is_local() && Loopback::is_possible(),
            WorkspaceMode::Loopback if engine.is_local() && Loopback::is_possible() => true,
            WorkspaceMode::Loopback => {
                return Err(EngineError::host("keep workspaces in loopback files")(std::io::Error::other(
                    "this needs root, loop devices, losetup and e2fsprogs, and an engine on this host",
                )));
            }
        };
        let workspaces = if loopback {
            let folder = config.state_dir.join("workspaces").join(&identity.installation);
            Workspaces::Loopback(Loopback::new(folder))
        } else {
            Workspaces::Volume
        };
        Ok(Self {
            engine: Arc::new(engine),
            agent: AgentVolume::read(&config.agent_path, &identity)?,
            workspaces,
            seccomp: seccomp(config)?,
            gvisor_runtimes: config.gvisor_runtimes.clone(),
            agent_protocol: agent_protocol(config)?,
            identity,
        })
    }

    fn kernel(&self, runtime: &str) -> Kernel {
        if self.gvisor_runtimes.iter().any(|gvisor| gvisor == runtime) {
            Kernel::Gvisor
        } else {
            Kernel::Host
        }
    }

    /// Creates and starts a container; a second time when it was the agent that was missing and not the image's fault: a worker of
    /// another build may have removed the agent's volume while no sandbox used it.
    async fn create_container(
        &self,
        spec: &SandboxSpec,
        mounted: &Mounted,
    ) -> Result<Container, EngineError> {
        match self.try_container(spec, mounted).await {
            Err(error @ EngineError::CannotStart { .. }) => {
                helper::remove(&self.engine, &self.identity.container_name(spec.sandbox_id)).await?;
                // Whether it was this look that mended it does not matter: another sandbox that starts now may have been quicker.
                self.agent.mend(&self.engine, &self.identity, &spec.resolved.id).await?;
                tracing::info!(%error, "trying once more, with the agent in its place");
                self.try_container(spec, mounted).await
            }
            other => other,
        }
    }

    async fn try_container(&self, spec: &SandboxSpec, mounted: &Mounted) -> Result<Container, EngineError> {
        let agent = self.agent.ensure(&self.engine, &self.identity, &spec.resolved.id).await?;
        let volumes = profile::Volumes { agent, workspace: mounted.volume.clone() };
        let kernel = self.kernel(&spec.runtime);
        let body = profile::body(&self.identity, spec, volumes, kernel, &self.seccomp, self.agent_protocol);
        let name = self.identity.container_name(spec.sandbox_id);
        let options = CreateContainerOptions { name: Some(name), ..CreateContainerOptions::default() };
        let created =
            self.engine.call("create", ACT, |docker| docker.create_container(Some(options), body)).await;
        let container = match created {
            Ok(created) => Container { id: created.id },
            Err(EngineError::Refused { status: 404, .. }) => {
                return Err(EngineError::ImageMissing { image: spec.image.clone() });
            }
            Err(error) => return Err(error),
        };
        match self.engine.call("start", ACT, |docker| docker.start_container(&container.id, None)).await {
            Ok(()) => Ok(container),
            Err(EngineError::Refused { message, .. })
                if message.contains("OCI runtime") && !blames_the_host(&message) =>
            {
                tracing::warn!(image = spec.image, message, "the runtime could not start the agent");
                let reason = "the container runtime could not start the agent in it".to_owned();
                Err(EngineError::CannotStart { image: spec.image.clone(), reason })
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a container did not start because its host is out of something, or slow: any image would fare the same.
fn blames_the_host(message: &str) -> bool {
    /// What runtimes and kernels say then, in lower case.
    const SIGNS: [&str; 12] = [
        "cgroup",
        "fork/exec",
        "cannot allocate memory",
        "no space left on device",
        "resource temporarily unavailable",
        "too many open files",
        "device or resource busy",
        "input/output error",
        "context deadline exceeded",
        "timed out",
        "timeout",
        "signal: killed",
    ];
    let message = message.to_ascii_lowercase();
    SIGNS.iter().any(|sign| message.contains(sign))
}

/// The installation's name becomes part of names, labels and paths.
fn check(identity: &Identity) -> Result<(), EngineError> {
    let name = &identity.installation;
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > 48 || !name.bytes().all(safe) {
        let error =
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "1 to 48 letters, digits, `-` and `_`");
        return Err(EngineError::host("take the installation's name")(error));
    }
    Ok(())
}

fn agent_protocol(config: &Config) -> Result<Option<u32>, EngineError> {
    let speakable = protocol::OLDEST_VERSION..=protocol::VERSION;
    match config.agent_protocol {
        Some(version) if !speakable.contains(&version) => {
            let reason = format!("this version speaks {} to {}", speakable.start(), speakable.end());
            Err(EngineError::host("hold agents to a version of the protocol")(std::io::Error::other(reason)))
        }
        held => Ok(held),
    }
}

fn seccomp(config: &Config) -> Result<String, EngineError> {
    const OPERATION: &str = "read the seccomp profile";
    let text = match &config.seccomp {
        Some(path) => std::fs::read_to_string(path).map_err(EngineError::host(OPERATION))?,
        None => SECCOMP.to_owned(),
    };
    let profile: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| EngineError::host(OPERATION)(error.into()))?;
    Ok(profile.to_string())
}

#[async_trait]
impl Driver for DockerDriver {
    async fn engine_info(&self) -> Result<EngineInfo, EngineError> {
        let version = self.engine.call("version", ASK, |docker| docker.version()).await?;
        let info = self.engine.call("info", ASK, |docker| docker.info()).await?;
        Ok(info::describe(version, info, self.workspaces.kind()))
    }

    async fn resolve_image(&self, image: &str) -> Result<Image, EngineError> {
        let inspected = self.engine.call("inspect image", ASK, |docker| docker.inspect_image(image)).await;
        let missing = || EngineError::ImageMissing { image: image.to_owned() };
        // A name that the engine cannot even parse is not there either.
        let inspected = match inspected {
            Err(EngineError::Refused { status: 400 | 404, .. }) => return Err(missing()),
            other => other?,
        };
        let env = inspected.config.and_then(|config| config.env).unwrap_or_default();
        let pairs = env.iter().filter_map(|pair| pair.split_once('='));
        Ok(Image {
            id: inspected.id.ok_or_else(missing)?,
            env: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        })
    }

    async fn prepare(&self, image: &str) -> Result<(), EngineError> {
        let image = self.resolve_image(image).await?;
        self.agent.ensure(&self.engine, &self.identity, &image.id).await.map(drop)
    }

    fn link_kind(&self, runtime: &str) -> LinkKind {
        // A folder of this host means nothing to an engine elsewhere.
        match self.kernel(runtime) {
            Kernel::Host if self.engine.is_local() => LinkKind::Socket,
            Kernel::Host | Kernel::Gvisor => LinkKind::Relay,
        }
    }

    async fn relay(&self, container_id: &str) -> Result<RelayStream, EngineError> {
        relay::open(&self.engine, container_id).await
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Container, EngineError> {
        if spec.workspace != WorkspaceName::of(spec.sandbox_id) {
            workspace::evict(&self.engine, &self.identity, &spec.workspace).await?;
        }
        let mounted = self.workspaces.mount(&self.engine, &self.identity, &spec.workspace).await?;
        let created = self.create_container(spec, &mounted).await;
        self.workspaces.settle(&mounted).await;
        if created.is_err()
            && let Err(error) = self.remove(spec.sandbox_id).await
        {
            tracing::warn!(%error, "a container that did not start stays for the reaper");
        }
        created
    }

    async fn inspect(&self, container_id: &str) -> Result<ContainerState, EngineError> {
        let inspected =
            self.engine.call("inspect", ASK, |docker| docker.inspect_container(container_id, None)).await;
        let Some(container) = found(inspected)? else { return Ok(ContainerState::Gone) };
        let Some(state) = container.state else { return Ok(ContainerState::Gone) };
        Ok(match state.status {
            Some(ContainerStateStatusEnum::CREATED) => ContainerState::Created,
            Some(ContainerStateStatusEnum::REMOVING) => ContainerState::Gone,
            _ if state.running == Some(true) => ContainerState::Running,
            _ => ContainerState::Exited {
                exit_code: state.exit_code.unwrap_or(-1),
                oom_killed: state.oom_killed.unwrap_or(false),
                error: state.error.filter(|error| !error.is_empty()),
            },
        })
    }

    async fn remove(&self, sandbox_id: SandboxId) -> Result<(), EngineError> {
        let name = self.identity.container_name(sandbox_id);
        let inspected =
            self.engine.call("inspect", ASK, |docker| docker.inspect_container(&name, None)).await;
        let workspace = match found(inspected)? {
            Some(container) => {
                let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
                labels.get(labels::WORKSPACE).and_then(|name| name.parse().ok())
            }
            None => None,
        };
        helper::remove(&self.engine, &name).await?;
        let workspace = workspace.unwrap_or_else(|| WorkspaceName::of(sandbox_id));
        match self.workspaces.unmount(&self.engine, &self.identity, &workspace).await {
            // Another container is over this workspace already, with a mount of its own making.
            Err(EngineError::Refused { status: 409, .. }) => Ok(()),
            other => other,
        }
    }

    async fn list(&self) -> Result<Vec<ObservedContainer>, EngineError> {
        let options = ListContainersOptions {
            all: true,
            filters: Some(filters(self.identity.selector(Kind::Sandbox))),
            ..ListContainersOptions::default()
        };
        let listed =
            self.engine.call("list containers", ASK, |docker| docker.list_containers(Some(options))).await?;
        Ok(listed
            .into_iter()
            .filter_map(|container| {
                let created = u64::try_from(container.created?).ok()?;
                Some(ObservedContainer {
                    container_id: container.id?,
                    sandbox_id: container.labels?.get(labels::SANDBOX)?.parse().ok()?,
                    running: container.state == Some(ContainerSummaryStateEnum::RUNNING),
                    created_at: SystemTime::UNIX_EPOCH + Duration::from_secs(created),
                })
            })
            .collect())
    }

    async fn create_workspace(
        &self,
        workspace: &Workspace,
        size_mb: u32,
        image: &str,
    ) -> Result<(), EngineError> {
        self.workspaces.create(&self.engine, &self.identity, workspace, size_mb, image).await
    }

    async fn remove_workspace(&self, name: &WorkspaceName) -> Result<(), EngineError> {
        self.workspaces.remove(&self.engine, &self.identity, name).await
    }

    async fn prune(&self) -> Result<u64, EngineError> {
        self.agent.prune(&self.engine, &self.identity).await
    }

    async fn list_workspaces(&self) -> Result<Vec<ObservedWorkspace>, EngineError> {
        self.workspaces.list(&self.engine, &self.identity).await
    }

    fn events(&self) -> BoxStream<'static, Result<ContainerEvent, EngineError>> {
        events::stream(Arc::clone(&self.engine), self.identity.selector(Kind::Sandbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_no_broken_image() {
        for of_the_host in [
            "OCI runtime create failed: container_linux.go:380: starting container process caused: process_linux.go:402: \
             getting the final child's pid from pipe caused: EOF: fork/exec /proc/self/exe: resource temporarily unavailable: unknown",
            "OCI runtime create failed: runc create failed: unable to start container process: unable to apply cgroup \
             configuration: mkdir /sys/fs/cgroup/memory/docker/0f: cannot allocate memory: unknown",
            "OCI runtime create failed: rootfs_linux.go:76: mounting \"tmpfs\" to rootfs at \"/tmp\" caused: no space left on \
             device: unknown",
        ] {
            assert!(blames_the_host(of_the_host), "{of_the_host}");
        }
        for of_the_image in [
            "OCI runtime create failed: container_linux.go:380: starting container process caused: exec: \
             \"/.toolhost/agent\": stat /.toolhost/agent: no such file or directory: unknown",
            "OCI runtime create failed: runc create failed: unable to start container process: exec /.toolhost/agent: \
             exec format error: unknown",
        ] {
            assert!(!blames_the_host(of_the_image), "{of_the_image}");
        }
    }
}
