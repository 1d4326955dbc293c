//! The docker driver: containers of the Docker engine through its HTTP API.

use crate::{Config, EngineError, Identity};

/// Makes sandboxes with the Docker engine.
#[derive(Debug)]
pub struct DockerDriver {}

impl DockerDriver {
    /// Reads the agent and the seccomp profile, and decides how workspaces are kept. The engine is first asked
    /// when something is needed of it, so that this works while it is down.
    ///
    /// # Errors
    /// When the agent or the profile cannot be read, or loopback workspaces are demanded where there are none.
    pub fn new(_identity: Identity, _config: &Config) -> Result<Self, EngineError> {
        todo!()
    }
}
