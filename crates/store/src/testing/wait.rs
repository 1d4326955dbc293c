//! Waiting for what has no event of its own (an answer, a counter, another session of the database): asks again until it is so.

use std::time::Duration;

use tokio::time::{sleep, timeout};

const PAUSE: Duration = Duration::from_millis(20);

/// Asks until there is something, and returns it.
///
/// # Panics
/// When there is nothing within `limit`: `what` says what was waited for.
pub async fn until_some<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            sleep(PAUSE).await;
        }
    };
    match timeout(limit, asking).await {
        Ok(found) => found,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}

/// Asks until the answer is yes.
///
/// # Panics
/// As [`until_some`].
pub async fn until(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> bool) {
    until_some(what, limit, async || ask().await.then_some(())).await;
}
