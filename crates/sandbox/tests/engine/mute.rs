//! An engine that does everything, and says of a container what a test wants to hear or nothing.

use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;
use futures_util::stream::BoxStream;
use sandbox::{
    Container, ContainerEvent, ContainerState, DockerDriver, Driver, EngineError, EngineInfo, Image,
    LinkKind, ObservedContainer, ObservedWorkspace, RelayStream, SandboxSpec, Workspace, WorkspaceName,
};

/// What is said of every container.
pub(crate) enum Says {
    Nothing,
    Running,
}

pub(crate) struct Mute(pub(crate) Arc<DockerDriver>, pub(crate) Says);

#[async_trait]
impl Driver for Mute {
    async fn inspect(&self, _: &str) -> Result<ContainerState, EngineError> {
        match self.1 {
            Says::Nothing => std::future::pending().await,
            Says::Running => Ok(ContainerState::Running),
        }
    }

    async fn engine_info(&self) -> Result<EngineInfo, EngineError> {
        self.0.engine_info().await
    }

    async fn resolve_image(&self, image: &str) -> Result<Image, EngineError> {
        self.0.resolve_image(image).await
    }

    async fn prepare(&self, image: &str) -> Result<(), EngineError> {
        self.0.prepare(image).await
    }

    fn link_kind(&self, runtime: &str) -> LinkKind {
        self.0.link_kind(runtime)
    }

    async fn relay(&self, container_id: &str) -> Result<RelayStream, EngineError> {
        self.0.relay(container_id).await
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Container, EngineError> {
        self.0.create(spec).await
    }

    async fn remove(&self, sandbox_id: SandboxId) -> Result<(), EngineError> {
        self.0.remove(sandbox_id).await
    }

    async fn list(&self) -> Result<Vec<ObservedContainer>, EngineError> {
        self.0.list().await
    }

    async fn create_workspace(
        &self,
        workspace: &Workspace,
        size_mb: u32,
        image: &str,
    ) -> Result<(), EngineError> {
        self.0.create_workspace(workspace, size_mb, image).await
    }

    async fn remove_workspace(&self, name: &WorkspaceName) -> Result<(), EngineError> {
        self.0.remove_workspace(name).await
    }

    async fn prune(&self) -> Result<u64, EngineError> {
        self.0.prune().await
    }

    async fn list_workspaces(&self) -> Result<Vec<ObservedWorkspace>, EngineError> {
        self.0.list_workspaces().await
    }

    fn events(&self) -> BoxStream<'static, Result<ContainerEvent, EngineError>> {
        self.0.events()
    }
}
