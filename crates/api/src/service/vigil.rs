//! Whatever goes on for longer than a moment is judged again and again: by its credential, as if it began now.
//!
//! # Design notes
//!
//! * Apart from what is read and sent, so that neither a slow reader nor a client that trickles its body can put the judgement off.
//! * An answer that goes on ends with its credential in every way. A request that is not answered yet is not broken off because its
//!   credential's *time* is over: who waits for a call, or sends a file that cannot be resumed, would lose it to the end of a short token.
//!   What was revoked, suspended or has lost the scope ends. That also keeps a body that is held back from being finished by a key that was
//!   revoked meanwhile, before its time was over or after.
//! * Nothing new is sent from then on. What a slow reader has not taken yet lies in the connection, so that is cut as well, where it carries
//!   nothing else (HTTP/1). HTTP/2 shares connections between credentials: there the stream ends when its reader takes the next piece.

use std::time::Duration;

use domain::Scope;
use store::Expiry;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::access::{self, Credential};
use crate::config::RECHECK;
use crate::state::ApiState;

/// Time for the last word, before the connection is cut.
pub(crate) const LAST_WORD: Duration = Duration::from_millis(500);

// The promise of docs/security.md and docs/operations.md: what may not go on is over within five seconds, also where nobody has told of it.
const _: () = assert!(store::REMEMBER.as_millis() + RECHECK.as_millis() + LAST_WORD.as_millis() < 5_000);

/// A connection that carries one answer at a time, and can be cut with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carrier(CancellationToken);

impl Carrier {
    /// Closes it at once, whatever it still carries.
    pub(crate) fn cut(&self) {
        self.0.cancel();
    }

    /// Waits until it is to be closed.
    pub(crate) async fn is_cut(&self) {
        self.0.cancelled().await;
    }
}

/// Until what the credential opened would not be opened any more.
pub(crate) async fn until_over(state: &ApiState, credential: &Credential, needs: &[Scope]) {
    until_not(state, credential, needs, Expiry::Refuses).await;
}

/// Until a request that was let in is to be broken off.
pub(crate) async fn until_refused(state: &ApiState, credential: &Credential, needs: &[Scope]) {
    until_not(state, credential, needs, Expiry::IsLetPass).await;
}

async fn until_not(state: &ApiState, credential: &Credential, needs: &[Scope], expiry: Expiry) {
    loop {
        sleep(state.config.streams.recheck).await;
        // Boxed, as it is large and waits most of the time.
        if !Box::pin(access::may_go_on(state, credential, needs, expiry)).await {
            return;
        }
    }
}

/// Lets a reader go that has been told: in a moment, or by cutting the connection.
pub(crate) async fn let_go(credential: &Credential, gone: impl Future<Output = ()>) {
    if timeout(LAST_WORD, gone).await.is_err()
        && let Some(carrier) = credential.carrier()
    {
        carrier.cut();
    }
}
