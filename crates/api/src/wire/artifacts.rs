//! Artifacts on the wire.

use std::collections::BTreeMap;

use domain::Artifact;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;

/// What an artifact is to those who work with it.
#[derive(Debug, Clone, Copy, ToSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// A first idea.
    Idea,
    /// A product requirements document.
    Prd,
    /// A design.
    Design,
    /// A plan.
    Plan,
    /// A request to change something.
    ChangeRequest,
    /// What a check found.
    CheckReport,
    /// What was delivered.
    DeliveryReport,
    /// A summary.
    Summary,
    /// Output of a call that was too long for its result.
    Output,
    /// A picture that a call made.
    Image,
    /// Anything else.
    Other,
}

/// A file that is kept beyond its sandbox. Its content never changes.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Artifact)]
pub struct ArtifactView {
    /// Its id.
    #[schema(value_type = String, examples("art_06b2m8j0v5x3t9q7k1h4c8n2ra"))]
    pub id: domain::ArtifactId,
    /// Always `artifact`.
    #[schema(pattern = "^artifact$")]
    pub object: &'static str,
    /// The session that it comes from, which may be long over.
    #[schema(value_type = String)]
    pub session_id: domain::SessionId,
    /// The call that made it.
    #[schema(value_type = String)]
    pub call_id: domain::CallId,
    /// Its name, the same for all its versions.
    #[schema(examples("report.md"))]
    pub name: String,
    /// 1, 2, 3 … for each name of a session.
    #[schema(minimum = 1)]
    pub version: u32,
    /// What it is.
    #[schema(value_type = ArtifactKind)]
    pub kind: domain::ArtifactKind,
    /// Its media type, as its maker says.
    #[schema(examples("text/markdown; charset=utf-8"))]
    pub mime_type: String,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of its content, in hexadecimal.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub sha256: String,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// When it was saved.
    pub created_at: Time,
}

impl From<Artifact> for ArtifactView {
    fn from(artifact: Artifact) -> Self {
        Self {
            id: artifact.id,
            object: "artifact",
            session_id: artifact.session_id,
            call_id: artifact.call_id,
            name: artifact.name,
            version: artifact.version,
            kind: artifact.kind,
            mime_type: artifact.mime_type,
            size_bytes: artifact.size_bytes,
            sha256: artifact.sha256,
            metadata: artifact.metadata,
            created_at: artifact.created_at.into(),
        }
    }
}

/// What an event tells of an artifact.
#[derive(Debug, Clone, ToSchema)]
pub struct ArtifactFacts {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Which of the versions of its name.
    pub version: u32,
    /// What it is.
    pub kind: ArtifactKind,
    /// Its media type.
    pub mime_type: String,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
}

/// How long a download link is to live.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateArtifactLink {
    /// Seconds; 3,600 when left out.
    #[schema(minimum = 1, maximum = 604800)]
    pub expires_in_s: Option<u32>,
}

/// A URL that downloads an artifact without a header.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ArtifactLink {
    /// Always `artifact_link`.
    #[schema(pattern = "^artifact_link$")]
    pub object: &'static str,
    /// The artifact.
    #[schema(value_type = String)]
    pub artifact_id: domain::ArtifactId,
    /// Path and query, to be resolved against this service's own address.
    #[schema(examples("/v1/artifacts/art_06b2m8j0v5x3t9q7k1h4c8n2ra/content?token=…"))]
    pub url: String,
    /// When it stops working, unless the artifact is deleted or the key that made it is revoked before.
    pub expires_at: Time,
}
