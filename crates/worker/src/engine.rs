//! Whether sandboxes can be made on this host: asked of its engine again and again, and said to whoever places sessions.
//!
//! # Design notes
//!
//! It is written when it changes and by a task of its own, not with the lease: an engine that hangs must not hold up what keeps the worker
//! alive, and sessions that run need no engine.

use std::sync::Arc;
use std::time::Duration;

use sandbox::SandboxError;
use store::EngineState;

use crate::tenure::Tenure;

/// Pause between two looks. The engine of a host that is refused is asked again just as soon.
const LOOK: Duration = Duration::from_secs(2);

/// What the engine was found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    state: EngineState,
    runtimes: Option<Vec<String>>,
}

/// Looks at the engine and says how it is until the tenure ends.
pub(crate) async fn announce(tenure: Arc<Tenure>) {
    let mut said = None;
    loop {
        tokio::select! {
            () = tenure.ended.cancelled() => return,
            () = look_and_say(&tenure, &mut said) => {}
        }
        tokio::select! {
            () = tenure.ended.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

async fn look_and_say(tenure: &Tenure, said: &mut Option<Seen>) {
    let ready = tenure.core.sandboxes.ready().await;
    let seen = seen(&ready);
    if said.as_ref() == Some(&seen) {
        return;
    }
    match (&ready, seen.state) {
        (Err(error), EngineState::Down) => {
            tracing::warn!(error = error as &dyn std::error::Error, "no sandboxes can be made on this host");
        }
        _ => tracing::info!("sandboxes can be made on this host"),
    }
    let runtimes = seen.runtimes.as_deref();
    match tenure.store().set_worker_engine(tenure.worker_id(), seen.state, runtimes).await {
        Ok(()) => *said = Some(seen),
        Err(error) => tracing::debug!(%error, "how the engine is could not be said yet"),
    }
}

fn seen(ready: &Result<Vec<String>, SandboxError>) -> Seen {
    match ready {
        Ok(runtimes) => Seen { state: EngineState::Works, runtimes: Some(runtimes.clone()) },
        Err(SandboxError::EngineUnavailable(_) | SandboxError::HostUnsafe { .. }) => {
            Seen { state: EngineState::Down, runtimes: None }
        }
        // It answers, if only that it will not do this.
        Err(_) => Seen { state: EngineState::Works, runtimes: None },
    }
}
