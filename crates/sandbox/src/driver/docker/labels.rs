//! Names and labels of what is ours, so that installations on one engine never touch each other's.

use std::collections::HashMap;

use domain::SandboxId;

use crate::{Identity, WorkspaceName};

const INSTALLATION: &str = "io.toolhost.installation";
const HOST: &str = "io.toolhost.host";
const KIND: &str = "io.toolhost.kind";
/// The sandbox that a container is.
pub(super) const SANDBOX: &str = "io.toolhost.sandbox";
/// The workspace that a container or volume has.
pub(super) const WORKSPACE: &str = "io.toolhost.workspace";

/// What a labelled thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A sandbox's container.
    Sandbox,
    /// A container that only lends its file system to an upload.
    Helper,
    /// The agent's volume.
    Agent,
    /// A workspace kept in a volume.
    Workspace,
    /// A volume over a loop device: nothing but the mount of a workspace kept in a file.
    Mount,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Helper => "helper",
            Self::Agent => "agent",
            Self::Workspace => "workspace",
            Self::Mount => "mount",
        }
    }
}

impl Identity {
    pub(super) fn labels(&self, kind: Kind) -> HashMap<String, String> {
        HashMap::from([
            (INSTALLATION.to_owned(), self.installation.clone()),
            (HOST.to_owned(), self.host_id.to_string()),
            (KIND.to_owned(), kind.as_str().to_owned()),
        ])
    }

    /// Filter values that select what [`Self::labels`] marks.
    pub(super) fn selector(&self, kind: Kind) -> Vec<String> {
        self.labels(kind).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    pub(super) fn container_name(&self, sandbox_id: SandboxId) -> String {
        format!("toolhost-{}-{sandbox_id}", self.installation)
    }

    pub(super) fn workspace_volume(&self, name: &WorkspaceName) -> String {
        format!("toolhost-{}-workspace-{name}", self.installation)
    }

    pub(super) fn agent_volume(&self, hash: &str) -> String {
        format!("toolhost-{}-agent-{hash}", self.installation)
    }
}
