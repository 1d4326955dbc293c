//! What a run that was killed left: its sessions become ours when its lease is over, its spare sandboxes go.

use std::time::Duration;

use domain::limits::LEASE_TTL_MS;
use sandbox::Sandboxes;
use tokio::time::{Instant, sleep};

/// Takeover waits for one lease, then looks every second.
const TAKEN_OVER: Duration = Duration::from_millis(LEASE_TTL_MS + 2_500);
const PAUSE: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(60);

/// Removes what nobody wants any more, until there is nothing such and takeover has had its time.
pub(super) async fn clear(sandboxes: Sandboxes) {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let taken_over = began.elapsed() >= TAKEN_OVER;
        match sandboxes.reconcile().await {
            Ok(actions) if actions.is_empty() && taken_over => return,
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "what an earlier run left cannot be cleared away yet"),
        }
        sleep(PAUSE).await;
    }
}
