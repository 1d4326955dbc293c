//! How the process is asked to stop: SIGINT or SIGTERM once to end in order, twice to end at once.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit status of a process that was forced to end.
pub const FORCED: i32 = 130;

/// A token that is cancelled by the first signal. The second one ends the process on the spot.
///
/// # Errors
/// When the signals cannot be listened for.
pub fn on_signal() -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let asked = token.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if asked.is_cancelled() {
                tracing::warn!("asked to stop a second time: ending at once");
                std::process::exit(FORCED);
            }
            asked.cancel();
        }
    });
    Ok(token)
}
