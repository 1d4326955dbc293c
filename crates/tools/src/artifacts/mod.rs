//! Tools for artifacts: files that are kept beyond the session's sandbox.

pub(crate) mod list_artifacts;
pub(crate) mod load_artifact;
pub(crate) mod save_artifact;

use std::collections::BTreeMap;

use domain::limits::ARTIFACT_NAME_CHARS;
use domain::{Artifact, ArtifactKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ArgumentProblem;

/// What an artifact is to those who work with it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Idea,
    Prd,
    Design,
    Plan,
    ChangeRequest,
    CheckReport,
    DeliveryReport,
    Summary,
    Output,
    Image,
    #[default]
    Other,
}

impl From<Kind> for ArtifactKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Idea => Self::Idea,
            Kind::Prd => Self::Prd,
            Kind::Design => Self::Design,
            Kind::Plan => Self::Plan,
            Kind::ChangeRequest => Self::ChangeRequest,
            Kind::CheckReport => Self::CheckReport,
            Kind::DeliveryReport => Self::DeliveryReport,
            Kind::Summary => Self::Summary,
            Kind::Output => Self::Output,
            Kind::Image => Self::Image,
            Kind::Other => Self::Other,
        }
    }
}

/// An artifact, as tools show it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Shown {
    /// Its id, such as art_…; GET /v1/artifacts/{id}/content has its bytes.
    pub(crate) artifact_id: String,
    /// Its name.
    pub(crate) name: String,
    /// Which of the versions of its name, from 1.
    pub(crate) version: u32,
    /// What it is.
    pub(crate) kind: String,
    /// Its media type.
    pub(crate) mime_type: String,
    /// Its size.
    pub(crate) size_bytes: u64,
    /// SHA-256 of its content.
    pub(crate) sha256: String,
    /// Its labels.
    pub(crate) metadata: BTreeMap<String, String>,
    /// When it was saved, RFC 3339.
    pub(crate) created_at: String,
}

impl From<&Artifact> for Shown {
    fn from(artifact: &Artifact) -> Self {
        Self {
            artifact_id: artifact.id.to_string(),
            name: artifact.name.clone(),
            version: artifact.version,
            kind: artifact.kind.as_str().to_owned(),
            mime_type: artifact.mime_type.clone(),
            size_bytes: artifact.size_bytes,
            sha256: artifact.sha256.clone(),
            metadata: artifact.metadata.clone(),
            created_at: domain::event::timestamp(artifact.created_at),
        }
    }
}

/// What is wrong with a name.
pub(crate) fn check_name(name: &str) -> Option<ArgumentProblem> {
    let message = if name.trim().is_empty() {
        "must not be empty".to_owned()
    } else if name.chars().count() > ARTIFACT_NAME_CHARS {
        format!("must have at most {ARTIFACT_NAME_CHARS} characters")
    } else if name.chars().any(char::is_control) {
        "must not contain control characters".to_owned()
    } else {
        return None;
    };
    Some(ArgumentProblem::new("/name", message))
}
