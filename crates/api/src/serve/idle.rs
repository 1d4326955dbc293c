//! A connection that notices that nothing is asked on it.
//!
//! HTTP/1 has its time for the next request's head. A connection of HTTP/2 lives as long as its client answers pings, without a request
//! and without a credential, and holds one of the places for connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::Response;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::http::guarded;

/// What is under way on one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activity(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    changed: Notify,
}

impl Activity {
    /// One request more, until what is returned is dropped.
    pub(crate) fn begin(&self) -> Open {
        self.0.open.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_one();
        Open(Arc::clone(&self.0))
    }

    /// Returns when nothing has been under way for so long.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let changed = self.0.changed.notified();
            if self.0.open.load(Ordering::SeqCst) > 0 {
                changed.await;
            } else if timeout(limit, changed).await.is_err() {
                return;
            }
        }
    }
}

/// A request that is under way, from its head to the end of its answer.
#[derive(Debug)]
pub(crate) struct Open(Arc<Counts>);

impl Open {
    /// Lasts as long as this answer.
    pub(crate) fn held_by(self, response: Response) -> Response {
        response.map(|body| {
            guarded(body, move |_| {
                let _open = &self;
                None
            })
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_connection_without_requests_is_idle() {
        let activity = Activity::default();
        let (first, second) = (activity.begin(), activity.begin());
        let at = Instant::now();
        let idle = tokio::spawn({
            let activity = activity.clone();
            async move { activity.idle(Duration::from_secs(10)).await }
        });
        sleep(Duration::from_secs(60)).await;
        drop(first);
        sleep(Duration::from_secs(60)).await;
        drop(second);
        sleep(Duration::from_secs(9)).await;
        drop(activity.begin());
        idle.await.expect("joins");
        assert_eq!(at.elapsed(), Duration::from_secs(139));
    }
}
