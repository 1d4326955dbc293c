//! Artifacts: what is saved, and how it is found again.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{Artifact, ArtifactId, ArtifactKind};

use super::SandboxPath;
use crate::ToolError;

/// An artifact to be saved.
#[derive(Debug, Clone)]
pub struct ArtifactDraft {
    /// Its name; another artifact of that name in the session makes it the next version.
    pub name: String,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// Where its bytes come from.
    pub content: ArtifactSource,
}

/// Where the bytes of an artifact come from.
#[derive(Debug, Clone)]
pub enum ArtifactSource {
    /// These.
    Bytes(Bytes),
    /// A file of the sandbox.
    File(SandboxPath),
}

/// Which artifact of the session is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactRef {
    /// This one.
    Id(ArtifactId),
    /// A version of this name, the newest when none is said.
    Named {
        /// The name.
        name: String,
        /// The version.
        version: Option<u32>,
    },
}

/// Which artifacts of the session to list.
#[derive(Debug, Clone, Default)]
pub struct ArtifactQuery {
    /// Of this name.
    pub name: Option<String>,
    /// Of this kind.
    pub kind: Option<ArtifactKind>,
    /// Only the newest version of each name.
    pub latest_only: bool,
    /// Most artifacts.
    pub limit: u32,
}

/// The session's artifacts: files that are kept beyond the sandbox. Those of another session or tenant do not exist.
#[async_trait]
pub trait Artifacts: Send + Sync {
    /// Saves one, at most once, and tells of it in an event.
    async fn save(&self, draft: ArtifactDraft) -> Result<Artifact, ToolError>;

    /// One of the session's.
    async fn find(&self, which: &ArtifactRef) -> Result<Artifact, ToolError>;

    /// Part of its content.
    async fn read(&self, artifact: &Artifact, offset: u64, max_bytes: u64) -> Result<Bytes, ToolError>;

    /// The session's, newest first; `true` when there are more.
    async fn list(&self, query: ArtifactQuery) -> Result<(Vec<Artifact>, bool), ToolError>;
}
