//! A byte stream to an agent that can share no socket with the host: a relay run in its container by the engine.

use std::io;

use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bytes::Bytes;
use futures_util::{StreamExt, future};
use tokio_util::io::StreamReader;

use super::engine::{ACT, Engine};
use crate::{EngineError, RelayStream};

/// Largest piece that the engine's client takes at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Starts a relay in a running container.
pub(super) async fn open(engine: &Engine, container_id: &str) -> Result<RelayStream, EngineError> {
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        // The sandbox's own settings hold: its capabilities and nothing beyond.
        privileged: Some(false),
        user: Some("0:0".to_owned()),
        cmd: Some(vec![protocol::AGENT_PATH.to_owned(), "relay".to_owned()]),
        ..ExecConfig::default()
    };
    let created = engine.call("make a relay", ACT, |docker| docker.create_exec(container_id, config)).await?;
    let options = StartExecOptions { output_capacity: Some(PIECE_BYTES), ..StartExecOptions::default() };
    let started =
        engine.call("start a relay", ACT, |docker| docker.start_exec(&created.id, Some(options))).await?;
    match started {
        StartExecResults::Attached { output, input } => {
            let output = output.filter_map(|piece| future::ready(said(piece)));
            Ok(RelayStream { reader: Box::pin(StreamReader::new(output)), writer: input })
        }
        StartExecResults::Detached => Err(EngineError::Refused {
            operation: "start a relay",
            status: 0,
            message: "the engine did not attach".to_owned(),
        }),
    }
}

/// What the relay carries; why it ends goes to the log.
fn said(piece: Result<LogOutput, bollard::errors::Error>) -> Option<io::Result<Bytes>> {
    match piece {
        Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => Some(Ok(message)),
        Ok(LogOutput::StdErr { message }) => {
            tracing::debug!(message = %String::from_utf8_lossy(&message), "a relay complains");
            None
        }
        Ok(LogOutput::StdIn { .. }) => None,
        Err(error) => Some(Err(io::Error::other(error))),
    }
}
