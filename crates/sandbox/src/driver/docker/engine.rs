//! The connection to the engine: made when first needed, every call with a time limit, every error typed.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::EngineError;

/// For questions.
pub(super) const ASK: Duration = Duration::from_secs(10);
/// For creating, starting and removing. An engine under load takes its time; a hung one must not hold a request.
pub(super) const ACT: Duration = Duration::from_secs(25);

/// The engine behind an address.
#[derive(Debug)]
pub(super) struct Engine {
    address: Option<String>,
    docker: OnceCell<Docker>,
}

impl Engine {
    /// `None` takes `DOCKER_HOST`, else the usual socket.
    pub(super) fn new(address: Option<String>) -> Self {
        Self { address, docker: OnceCell::new() }
    }

    /// Whether the engine runs on this host.
    pub(super) fn is_local(&self) -> bool {
        let address = self.address.clone().or_else(|| std::env::var("DOCKER_HOST").ok());
        address.is_none_or(|address| address.starts_with("unix://"))
    }

    /// The client, its API version negotiated. Asked anew as long as nothing has answered.
    pub(super) async fn docker(&self) -> Result<&Docker, EngineError> {
        self.docker.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Docker, EngineError> {
        let docker = match &self.address {
            Some(address) => Docker::connect_with_host(address),
            None => Docker::connect_with_defaults(),
        };
        let docker = docker.map_err(|error| map("connect", error))?;
        let negotiated = timeout(ASK, docker.negotiate_version()).await;
        match negotiated {
            Ok(docker) => docker.map_err(|error| map("connect", error)),
            Err(_) => Err(EngineError::TimedOut { operation: "connect", limit: ASK }),
        }
    }

    /// Runs one call against the engine within a time limit, in which a first connection is included: several
    /// callers wait for one connection in turn.
    pub(super) async fn call<'a, T, F>(
        &'a self,
        operation: &'static str,
        limit: Duration,
        call: impl FnOnce(&'a Docker) -> F,
    ) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connected = async { call(self.docker().await?).await.map_err(|error| map(operation, error)) };
        timeout(limit, connected).await.unwrap_or(Err(EngineError::TimedOut { operation, limit }))
    }
}

/// What an error of the client means here.
pub(super) fn map(operation: &'static str, error: Error) -> EngineError {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            EngineError::Refused { operation, status: status_code, message }
        }
        Error::RequestTimeoutError => EngineError::TimedOut { operation, limit: ACT },
        Error::IOError { .. }
        | Error::HyperResponseError { .. }
        | Error::HyperLegacyError { .. }
        | Error::SocketNotFoundError(_) => EngineError::Unavailable { operation, reason: error.to_string() },
        other => EngineError::Refused { operation, status: 0, message: other.to_string() },
    }
}

/// `None` where the engine says that there is no such thing.
pub(super) fn found<T>(result: Result<T, EngineError>) -> Result<Option<T>, EngineError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(EngineError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The engine's filter syntax for labels that must all be there.
pub(super) fn filters(labels: impl IntoIterator<Item = String>) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), labels.into_iter().collect())])
}
