//! The lease of this worker process: renewed every 1.5 s, trusted for half its life, lost at most once.
//!
//! # Design notes
//!
//! Whoever cannot renew stops acting long before anybody may take over: writes wait, and no operation is started.
//! Nothing is cancelled either. If the database comes back and nobody took over, everything goes on; if somebody
//! did, the renewal says so ([`store::StoreError::Stale`]) and the tenure ends without another write.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::limits::{LEASE_RENEW_MS, LEASE_TTL_MS};
use store::Store;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Pause between attempts while the database does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// How long this worker may act.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) worker_id: domain::WorkerId,
    expires_at: Mutex<Instant>,
    renewed: Notify,
}

impl Lease {
    pub(crate) fn new(lease: store::Lease) -> Self {
        Self { worker_id: lease.worker_id, expires_at: Mutex::new(lease.expires_at), renewed: Notify::new() }
    }

    /// Whether this worker may act: at least half of the lease's life is left.
    pub(crate) fn is_healthy(&self) -> bool {
        let expires_at = *self.expires_at.lock().unwrap_or_else(PoisonError::into_inner);
        Instant::now() + Duration::from_millis(LEASE_TTL_MS / 2) < expires_at
    }

    /// Waits until this worker may act.
    pub(crate) async fn healthy(&self) {
        loop {
            let renewed = self.renewed.notified();
            if self.is_healthy() {
                return;
            }
            renewed.await;
        }
    }

    fn renew(&self, lease: store::Lease) {
        *self.expires_at.lock().unwrap_or_else(PoisonError::into_inner) = lease.expires_at;
        self.renewed.notify_waiters();
    }
}

/// Renews until the tenure ends. Returns when the lease is lost to others.
pub(crate) async fn keep(lease: &Lease, store: &Store, ended: &CancellationToken) {
    let mut pause = Duration::from_millis(LEASE_RENEW_MS);
    let mut failing = false;
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        match store.renew_lease(lease.worker_id).await {
            Ok(renewed) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(worker = %lease.worker_id, "lease renewed again");
                }
                lease.renew(renewed);
                pause = Duration::from_millis(LEASE_RENEW_MS);
            }
            Err(error) if error.is_stale() => {
                tracing::warn!(worker = %lease.worker_id, "lease lost: another worker has taken over");
                return;
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(worker = %lease.worker_id, %error, "lease not renewed");
                }
                pause = RETRY;
            }
        }
    }
}
