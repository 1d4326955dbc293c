//! Wheels: the built packages that the tenant keeps for its sessions.

use async_trait::async_trait;

use super::SandboxPath;
use crate::ToolError;

/// A wheel of the tenant's, as its name says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelFile {
    /// Name of its file.
    pub name: String,
    /// Bytes.
    pub size_bytes: u64,
}

/// The tenant's wheels. Those of another tenant do not exist. A sandbox only ever has copies: what it does to them is its own matter.
#[async_trait]
pub trait Wheels: Send + Sync {
    /// All of them, by name.
    async fn list(&self) -> Result<Vec<WheelFile>, ToolError>;

    /// Copies these into a folder of the sandbox, each at most once and whole. What is no wheel of the tenant's, or no more, is left out. It takes
    /// [`domain::limits::WHEELS_AT_ONCE`] numbers of operations whatever it is asked for, and copies no more than that: what a tool finds
    /// to ask for may be gone when its code is run again. Each name has the number of its place, whether there is a wheel for it or not.
    ///
    /// The wheels that came; none when all of them came for a run of the call before, which has said so already.
    async fn copy(&self, names: &[String], folder: &SandboxPath) -> Result<Vec<String>, ToolError>;
}
