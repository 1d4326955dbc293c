//! The port through which bytes go to and from a session: uploads, downloads, terminals. The server implements it: a function
//! call when the worker is in this process, else a stream to the worker's internal listener.

use domain::exchange::{ExchangeError, Item, Opening};
use futures_util::future::BoxFuture;
use store::WorkerPlace;
use tokio::sync::mpsc;

/// Opens operations on sessions, wherever their workers are.
pub trait Exchange: Send + Sync {
    /// Opens an operation at this worker. [`ExchangeError::has_not_begun`] says whether asking again is safe.
    fn open<'a>(
        &'a self,
        worker: &'a WorkerPlace,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Duplex, ExchangeError>>;
}

/// Both directions of an open operation, each with a bounded backlog: whoever sends waits for whoever reads.
///
/// Dropping `from` ends the operation. Dropping `to` without [`Item::End`] breaks it off.
#[derive(Debug)]
pub struct Duplex {
    /// To the worker.
    pub to: mpsc::Sender<Item>,
    /// From the worker; read it with [`Item::step`].
    pub from: mpsc::Receiver<Item>,
}

/// For processes that reach no worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoExchange;

impl Exchange for NoExchange {
    fn open<'a>(&'a self, _: &'a WorkerPlace, _: Opening) -> BoxFuture<'a, Result<Duplex, ExchangeError>> {
        Box::pin(async { Err(ExchangeError::not_here()) })
    }
}
