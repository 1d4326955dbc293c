//! Waiting for what has no event of its own: asks again until it is so, with a bound that only a hang reaches.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Client;
use crate::client::PATIENCE;

const PAUSE: Duration = Duration::from_millis(50);

/// Asks until the answer is yes.
///
/// # Errors
/// When asking fails or the answer stays no.
pub async fn until<F: Future<Output = Result<bool>>>(what: &str, ask: impl Fn() -> F) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !ask().await? {
        ensure!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Waits until a session is as wanted; the session.
///
/// # Errors
/// When it cannot be read or does not become so.
pub async fn session(client: &Client, session_id: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let path = format!("/v1/sessions/{session_id}");
    let last = Mutex::new(Value::Null);
    let became = until("the session becomes so", || async {
        let session = client.get(&path).await?.expect(200)?;
        let is_so = wanted(&session);
        *last.lock().unwrap_or_else(PoisonError::into_inner) = session;
        Ok(is_so)
    });
    let became = became.await;
    let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
    became.with_context(|| format!("{last:#}"))?;
    Ok(last)
}
