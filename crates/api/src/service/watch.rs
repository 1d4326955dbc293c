//! A directory of a session that is watched, wherever the session's worker is and becomes.

use domain::exchange::{ExchangeError, Item, Operation, Piece};
use domain::file::{FileChange, FilePath, WatchEnd, WatchEnded};
use domain::limits::EXCHANGE_OPEN_MS;
use domain::{Code, SessionId, TenantContext};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};

use super::exchange::LOOK_AGAIN;
use crate::exchange::Duplex;
use crate::problem::Problem;
use crate::state::ApiState;

/// See the module.
pub(crate) struct Watch {
    state: ApiState,
    context: TenantContext,
    session_id: SessionId,
    file: FilePath,
    recursive: bool,
    /// `None` while the worker has to be found anew.
    duplex: Option<Duplex>,
}

/// What a watch tells.
pub(crate) enum Told {
    Changes(Vec<FileChange>),
    /// It goes on from here, and what happened before is lost.
    Interrupted,
    /// It is over.
    Ended {
        reason: &'static str,
        message: String,
    },
}

impl Watch {
    /// Begins to watch.
    pub(crate) async fn open(
        state: &ApiState,
        context: &TenantContext,
        session_id: SessionId,
        file: FilePath,
        recursive: bool,
    ) -> Result<Self, Problem> {
        let (state, context) = (state.clone(), context.clone());
        let mut watch = Self { state, context, session_id, file, recursive, duplex: None };
        watch.duplex = Some(watch.begin().await?);
        Ok(watch)
    }

    /// The directory.
    pub(crate) fn file(&self) -> &FilePath {
        &self.file
    }

    pub(crate) fn session_id(&self) -> SessionId {
        self.session_id
    }

    pub(crate) fn is_recursive(&self) -> bool {
        self.recursive
    }

    /// Begins with whichever worker has the session. One that goes away in between is no answer: nothing has happened twice.
    async fn begin(&self) -> Result<Duplex, Problem> {
        let deadline = Instant::now() + Duration::from_millis(EXCHANGE_OPEN_MS);
        loop {
            match self.begin_with_the_worker().await {
                Err(problem) if problem.code == Code::WorkerUnavailable && Instant::now() < deadline => {
                    sleep(LOOK_AGAIN).await;
                }
                begun => return begun,
            }
        }
    }

    async fn begin_with_the_worker(&self) -> Result<Duplex, Problem> {
        let operation = Operation::WatchFiles { file: self.file.clone(), recursive: self.recursive };
        let mut duplex = self.state.open_exchange(&self.context, self.session_id, operation).await?;
        // When it is not taken there is an answer that says why.
        let _ = duplex.to.send(Item::End).await;
        let first = Item::step(duplex.from.recv().await);
        match self.state.come_to(&self.context, self.session_id, first).await? {
            Some(Piece::Message(Value::Null)) => Ok(duplex),
            _ => Err(Problem::internal("watch files", &"something in place of a beginning")),
        }
    }

    /// What happens next.
    pub(crate) async fn next(&mut self) -> Told {
        let Some(duplex) = &mut self.duplex else {
            return match self.begin().await {
                Ok(duplex) => {
                    self.duplex = Some(duplex);
                    Told::Interrupted
                }
                Err(problem) => self.ended(problem.code, problem.detail).await,
            };
        };
        match read(duplex.from.recv().await) {
            Ok(told) => told,
            // The session changes its worker, or its worker the connection to the sandbox.
            Err(error) if error.code == Code::WorkerUnavailable => {
                self.duplex = None;
                Box::pin(self.next()).await
            }
            Err(error) => self.ended(error.code, error.message).await,
        }
    }

    /// Why it is over: a sandbox that went away with its session is the session's end.
    async fn ended(&self, code: Code, message: String) -> Told {
        let place = self.state.store.session_place(&self.context, self.session_id).await;
        let is_over = code == Code::SessionEnded || place.is_ok_and(|place| place.end.is_some());
        let (reason, message) = match code {
            _ if is_over => ("session_ended", "The session has ended.".to_owned()),
            Code::PathNotFound | Code::NotDirectory => (DIRECTORY_GONE, message),
            code => (code.as_str(), message),
        };
        Told::Ended { reason, message }
    }
}

const DIRECTORY_GONE: &str = "directory_gone";

fn read(received: Option<Item>) -> Result<Told, ExchangeError> {
    match Item::step(received)? {
        Some(Piece::Message(message)) if message.is_array() => {
            Ok(Told::Changes(Piece::Message(message).into_message()?))
        }
        Some(piece) => {
            let WatchEnded { reason, message } = piece.into_message()?;
            let reason = match reason {
                WatchEnd::DirectoryGone => DIRECTORY_GONE,
                WatchEnd::LimitExceeded => Code::LimitExceeded.as_str(),
            };
            Ok(Told::Ended { reason, message: sentence(&message) })
        }
        None => Err(ExchangeError::broken_off()),
    }
}

fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}
