//! The way of bytes from any API process to the worker that has a session: a function call in the same process, else an
//! HTTP/2 stream to that process's internal listener.
//!
//! # Design notes
//!
//! * The listener is for processes of this installation only. It asks for a shared key (compared in constant time), and for a certificate of the
//!   installation's own CA where one is configured; without one it speaks plain HTTP/2 and belongs on a private network. It is off unless
//!   `internal.listen` is set.
//! * HTTP/2 gives flow control to each stream. The window of a connection is as large as those of all its streams together,
//!   so that a stream whose reader has stopped holds up no other.
//! * Bodies carry items with an end of their own: a connection that breaks is never taken for an end.

mod body;
mod client;
mod frames;
mod listener;

use std::sync::Arc;
use std::time::Duration;

use api::{Duplex, Exchange};
use domain::Code;
use domain::exchange::{ExchangeError, Opening};
use futures_util::future::BoxFuture;
use store::WorkerPlace;
use worker::WorkerHandle;

pub use client::Client;
pub use listener::{Opens, serve};

use crate::config::Secret;

const PATH: &str = "/exchange";
/// Bytes of one stream that its reader has not taken yet.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// How often a connection is tried, and how long it may stay silent then.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

fn bearer(key: &Secret) -> String {
    format!("Bearer {}", key.expose())
}

/// Exchanges with whichever worker has the session.
#[derive(Debug, Default)]
pub struct Exchanges {
    /// The worker of this process.
    pub local: Option<WorkerHandle>,
    /// The way to others.
    pub remote: Option<Client>,
}

impl Exchange for Exchanges {
    fn open<'a>(
        &'a self,
        worker: &'a WorkerPlace,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Duplex, ExchangeError>> {
        Box::pin(async move {
            if let Some(local) = &self.local
                && local.worker_id() == Some(worker.worker_id)
            {
                return open_here(local, opening).await;
            }
            match (&self.remote, &worker.internal_address) {
                (Some(remote), Some(address)) => remote.open(address, &opening).await,
                (None, _) | (_, None) => {
                    let message = "The session's worker runs in another process, and there is no internal listener between the two (hint for operators: internal.listen and internal.key).";
                    Err(ExchangeError::new(Code::WorkerUnavailable, message))
                }
            }
        })
    }
}

/// The listener's side: only what is in this process, so that nothing is handed round in circles.
#[derive(Debug)]
pub struct Here(pub Arc<WorkerHandle>);

impl Opens for Here {
    fn open(&self, opening: Opening) -> BoxFuture<'_, Result<Duplex, ExchangeError>> {
        Box::pin(open_here(&self.0, opening))
    }
}

async fn open_here(worker: &WorkerHandle, opening: Opening) -> Result<Duplex, ExchangeError> {
    worker.exchange(opening).await.map(|worker::Duplex { to, from }| Duplex { to, from })
}
