//! Operations that API processes ask for on sessions of this worker, with bytes and messages in both directions.
//!
//! # Design notes
//!
//! Who asks has checked the tenant; it is checked here again, against the session that this worker owns. An operation ends
//! with its code, with the sandbox, with the tenure, or when the one who asked lets go of what it receives, whichever comes first: nothing goes on for
//! nobody. While it is open the session is in use, unless somebody only watches.

mod agent;
mod archive;
mod files;
mod incoming;
mod shell;
mod tar;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use domain::Code;
use domain::exchange::{self, ExchangeError, Item, Opening, Operation};
use domain::limits::{EXCHANGE_BACKLOG, EXCHANGE_OPEN_MS, LIST_DEPTH, LIST_ENTRIES};
use sandbox::protocol::ListRequest;
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use crate::session::{NotServing, OwnedSession, Serving};
use crate::tenure::Tenure;

/// Longest that a caller may take nothing of what waits for it: megabytes of other sessions' room hang on it.
const STANDSTILL: Duration = Duration::from_secs(120);
/// How often a session is marked as in use while an exchange is open.
const IN_USE: Duration = Duration::from_secs(5);

/// The caller's ends of an exchange. Dropping `from` ends the operation; dropping `to` without [`Item::End`] breaks it off.
#[derive(Debug)]
pub struct Duplex {
    /// What the caller sends.
    pub to: mpsc::Sender<Item>,
    /// What the worker sends; its last item is [`Item::End`] or [`Item::Failed`].
    pub from: mpsc::Receiver<Item>,
}

/// An operation's own ends, with what it works on.
pub(crate) struct Exchange {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) session: Arc<OwnedSession>,
    pub(crate) serving: Serving,
    /// What the caller sends; see [`Item::step`].
    pub(crate) input: mpsc::Receiver<Item>,
    /// What the caller gets. The end is sent when the operation's code returns.
    pub(crate) output: mpsc::Sender<Item>,
}

impl Exchange {
    /// Sends one item to the caller, as soon as it takes it.
    ///
    /// # Errors
    /// When nobody listens any more, or has taken nothing for [`STANDSTILL`].
    pub(crate) async fn send(&self, item: Item) -> Result<(), ExchangeError> {
        match timeout(STANDSTILL, self.output.send(item)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ExchangeError::broken_off()),
        }
    }

    /// For operations without input: waits for the caller's end.
    ///
    /// # Errors
    /// When the caller broke off, or sent something.
    pub(crate) async fn no_input(&mut self) -> Result<(), ExchangeError> {
        match Item::step(self.input.recv().await)? {
            None => Ok(()),
            Some(_) => Err(ExchangeError::new(Code::Internal, "This operation takes no input.")),
        }
    }

    async fn run(mut self, operation: Operation) -> Result<(), ExchangeError> {
        match operation {
            Operation::Serving => {
                self.no_input().await?;
                let serving = exchange::Serving {
                    generation: self.serving.generation,
                    running_shells: self.session.shell_count(),
                    is_draining: self.tenure.draining.is_cancelled(),
                };
                self.send(Item::message(&serving)).await
            }
            Operation::Shell { shell_id } => self.shell(shell_id).await,
            Operation::StatFile { file } => self.stat_file(&file).await,
            Operation::ReadFile { file, from, to, version } => self.read_file(&file, from, to, version).await,
            Operation::WriteFile { file, length, replace, permissions } => {
                self.write_file(&file, length, replace, permissions).await
            }
            Operation::RemoveFile { file, recursive } => self.remove_file(&file, recursive).await,
            Operation::ListFiles { file, max_depth, include_hidden, limit } => {
                let request = ListRequest {
                    root: file.root,
                    path: file.path,
                    max_depth: max_depth.min(LIST_DEPTH),
                    include_hidden,
                    respect_ignore: false,
                    limit: limit.min(LIST_ENTRIES),
                };
                self.list_files(request).await
            }
            Operation::PackFiles { file } => self.pack_files(&file).await,
            Operation::UnpackFiles { file } => self.unpack_files(&file).await,
            Operation::MoveFile { file, to, replace } => self.move_file(&file, &to, replace).await,
            Operation::WatchFiles { file, recursive } => self.watch_files(&file, recursive).await,
            Operation::MakeDirectory { file } => self.make_directory(&file).await,
        }
    }
}

/// Opens an operation. It runs on its own from then on.
pub(crate) async fn open(tenure: &Arc<Tenure>, opening: Opening) -> Result<Duplex, ExchangeError> {
    let session = tenure.session(opening.session_id).ok_or_else(ExchangeError::not_here)?;
    if session.tenant_id != opening.tenant_id {
        tracing::warn!(session = %session.id, "an exchange was asked for in the name of another tenant");
        return Err(ExchangeError::new(Code::NotFound, "There is nothing with this id, or it is not yours."));
    }
    let serving = serving(&session).await?;
    let room = Arc::clone(&session.exchanges).try_acquire_owned().map_err(|_| {
        ExchangeError::new(Code::SandboxLimit, "Too many transfers and terminals are open in this session.")
    })?;
    let (to, input) = mpsc::channel(EXCHANGE_BACKLOG);
    let (output, from) = mpsc::channel(EXCHANGE_BACKLOG);
    let sandbox = serving.sandbox.clone();
    let exchange = Exchange {
        tenure: Arc::clone(tenure),
        session: Arc::clone(&session),
        serving,
        input,
        output: output.clone(),
    };
    let ended = tenure.ended.clone();
    let store = tenure.store().clone();
    let opening_keeps_in_use = opening.operation.keeps_in_use();
    tenure.spawn(async move {
        let in_use = async {
            let mut tick = interval(IN_USE);
            loop {
                tick.tick().await;
                store.session_in_use(session.id);
            }
        };
        let outcome = tokio::select! {
            biased;
            () = output.closed() => return,
            outcome = exchange.run(opening.operation) => outcome,
            () = ended.cancelled() => Err(ExchangeError::broken_off()),
            gone = sandbox.wait_gone() => {
                let message = "The sandbox went away.";
                Err(ExchangeError::new(Code::SandboxLost, message).with("reason", gone.reason.as_str()))
            }
            () = in_use, if opening_keeps_in_use => return,
        };
        // An error means that nobody listens.
        let _ = timeout(STANDSTILL, output.send(outcome.map_or_else(Item::Failed, |()| Item::End))).await;
        drop(room);
    });
    Ok(Duplex { to, from })
}

async fn serving(session: &OwnedSession) -> Result<Serving, ExchangeError> {
    match timeout(Duration::from_millis(EXCHANGE_OPEN_MS), session.serving()).await {
        Ok(Ok(serving)) => Ok(serving),
        Ok(Err(NotServing::Ended)) => Err(ExchangeError::new(Code::SessionEnded, "The session has ended.")),
        Ok(Err(NotServing::Left)) => Err(ExchangeError::not_here()),
        Err(_) => {
            let message = "The session's sandbox is still starting.";
            Err(ExchangeError::new(Code::WorkerUnavailable, message))
        }
    }
}

/// Tells where this worker's internal listener is, once for each tenure.
pub(crate) async fn publish_address(tenure: Arc<Tenure>) {
    let address = tenure.core.config.internal_address.as_deref();
    let worker_id = tenure.worker_id();
    if let Err(crate::tenure::Unwritten::Refused(error)) =
        tenure.write(|| tenure.store().publish_worker_address(worker_id, address)).await
    {
        tracing::error!(%error, "the address of the internal listener could not be published");
    }
}
