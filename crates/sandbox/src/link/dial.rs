//! Links over a relay: the worker opens byte streams to the agent, a new one whenever the one before has ended.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::{Shared, handshake, serve};
use crate::{EngineError, RelayStream};

/// The pause before another stream is opened, doubling while none is greeted.
const PAUSE: Duration = Duration::from_millis(protocol::REDIAL_INTERVAL_MS);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time for the agent to dial a new relay and greet: it looks for one every quarter of a second at the least.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// Opens a byte stream to one agent's relay.
pub type Dial = Box<dyn Fn() -> BoxFuture<'static, Result<RelayStream, EngineError>> + Send + Sync>;

pub(super) async fn keep(dial: Dial, shared: Arc<Shared>) {
    let mut pause = PAUSE;
    loop {
        let greeted = tokio::select! {
            () = shared.stop.cancelled() => return,
            greeted = once(&dial, &shared) => greeted,
        };
        if greeted {
            pause = PAUSE;
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// One stream, from its opening to its end. True when it was greeted.
async fn once(dial: &Dial, shared: &Shared) -> bool {
    match dial().await {
        Ok(RelayStream { reader, writer }) => {
            let greeted = handshake::greet(reader, writer, shared, GREETING_LIMIT).await;
            serve(greeted, shared).await
        }
        Err(error) => {
            shared.metrics.error("relay");
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "an agent's relay could not be started"
            );
            false
        }
    }
}
