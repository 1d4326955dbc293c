//! One stream from its first event to its last: catch up from the table, follow what is live, and keep time meanwhile.
//!
//! # Design notes
//!
//! The table is the truth; live batches are only a shortcut, taken when they go on exactly where the reader is. So a reader that
//! is slow, a batch that was missed and a process that hears nothing of others all end in the same place: reading the table. Its credential is
//! judged beside all that, so that no reader is slow enough to outlive it.

use axum::http::Method;
use axum::response::Response;
use bytes::Bytes;
use domain::{Code, Scope, TenantContext};
use serde_json::{Value, json};
use store::StoreError;
use tokio::time::{Instant, sleep, sleep_until};

use super::encode;
use super::outlet::{Closed, Outlet, outlet};
use super::pulse::{Beat, Pulse};
use crate::problem::Problem;
use crate::service::access::Credential;
use crate::service::vigil;
use crate::state::ApiState;

/// What a stream is made of.
pub(crate) trait Source: Send + 'static {
    /// One event.
    type Item: Send;

    /// What came after the last item that was returned, from the table.
    fn read(&mut self) -> impl Future<Output = Result<Read<Self::Item>, StoreError>> + Send;

    /// Waits for a change. Cancel-safe.
    fn changed(&mut self) -> impl Future<Output = Change<Self::Item>> + Send;

    /// The event as it is sent.
    fn encode(item: &Self::Item) -> Bytes;

    /// The number that a reader who has seen everything so far resumes from.
    fn position(&self) -> u64;

    /// A new place in a queue, when there is one to tell; `Err` when there never will be again.
    fn place(&mut self) -> impl Future<Output = Result<Option<Value>, NoQueue>> + Send;
}

/// Nothing of this stream waits in a queue (any more).
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoQueue;

/// A part of the table.
pub(crate) struct Read<T> {
    pub(crate) items: Vec<T>,
    pub(crate) rest: Rest,
}

/// What lies behind a part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// More that is there already.
    More,
    /// What is still to come.
    Later,
    /// Nothing, ever.
    Nothing,
    /// It is gone: the reader has to be told so when it connects again.
    Gone,
}

/// What a source tells of a change.
pub(crate) enum Change<T> {
    /// These are next.
    Items(Vec<T>, Rest),
    /// Something may be in the table.
    Look,
}

/// Who opens a stream.
pub(crate) struct Asked {
    pub(crate) context: TenantContext,
    pub(crate) credential: Credential,
    pub(crate) method: Method,
}

/// Opens a stream that begins with `first`, which was read from behind `resumed_from`.
pub(crate) fn open<S: Source>(
    state: &ApiState,
    asked: Asked,
    source: S,
    first: Read<S::Item>,
    resumed_from: u64,
) -> Result<Response, Problem> {
    if state.shutdown.is_cancelled() {
        return Err(Problem::new(Code::ShuttingDown, "This process is shutting down. Connect again."));
    }
    let permit = state.streams.open(asked.context.tenant_id())?;
    let (outlet, body) = outlet(&state.config.streams, permit);
    if asked.method != Method::HEAD {
        let pulse = Pulse::new(&state.config.streams);
        let credential = asked.credential;
        let follower = Follower { state: state.clone(), credential, source, outlet, pulse };
        tokio::spawn(follower.run(first));
    }
    Ok(super::response(body, resumed_from))
}

struct Follower<S> {
    state: ApiState,
    credential: Credential,
    source: S,
    outlet: Outlet,
    pulse: Pulse,
}

/// How a step of a stream ended.
enum Step {
    /// It goes on.
    On,
    /// It goes on with a look at the table.
    Look,
    /// It was closed in order.
    Over,
}

impl<S: Source> Follower<S> {
    async fn run(mut self, first: Read<S::Item>) {
        let (state, credential) = (self.state.clone(), self.credential.clone());
        tokio::select! {
            biased;
            () = vigil::until_over(&state, &credential, &[Scope::CallsRead]) => {
                self.outlet.cut(None);
                vigil::let_go(&credential, self.outlet.closed()).await;
            }
            () = self.serve(first) => {}
        }
    }

    /// Until the reader has taken all of it.
    async fn serve(&mut self, first: Read<S::Item>) {
        match self.follow(first).await {
            Ok(()) | Err(Closed::Gone) => {}
            Err(Closed::Stalled) => {
                self.state.metrics.slow_consumers.inc();
                let data = json!({"message": "the reader made no progress; resume from the last id that it has seen"});
                self.outlet.send_last(encode::frame(None, "slow_consumer", &data));
            }
        }
        self.outlet.finish().await;
    }

    async fn follow(&mut self, first: Read<S::Item>) -> Result<(), Closed> {
        self.outlet.send(encode::retry(rand::random_range(1_000..=5_000))).await?;
        self.pulse.watch_queue();
        let mut step = self.hand_over(first.items, first.rest).await?;
        loop {
            step = match step {
                Step::Over => return Ok(()),
                Step::Look => self.look().await?,
                Step::On => self.wait().await?,
            };
        }
    }

    async fn look(&mut self) -> Result<Step, Closed> {
        match self.source.read().await {
            Ok(read) => self.hand_over(read.items, read.rest).await,
            Err(StoreError::NotFound { .. }) => self.reconnect().await,
            // It comes back; until then heartbeats show that the stream lives.
            Err(_) => Ok(Step::On),
        }
    }

    async fn hand_over(&mut self, items: Vec<S::Item>, rest: Rest) -> Result<Step, Closed> {
        let any = !items.is_empty();
        for item in items {
            self.outlet.send(S::encode(&item)).await?;
            self.state.metrics.events.inc();
        }
        match rest {
            Rest::More if any => self.check().await,
            Rest::More | Rest::Later => match self.check().await? {
                Step::Over => Ok(Step::Over),
                Step::On | Step::Look => Ok(Step::On),
            },
            Rest::Nothing => {
                let end = json!({"seq": self.source.position()});
                self.outlet.send(encode::frame(None, "end", &end)).await?;
                Ok(Step::Over)
            }
            Rest::Gone => self.reconnect().await,
        }
    }

    /// Between two parts, so that a stream that always has something to send ends with its process.
    async fn check(&mut self) -> Result<Step, Closed> {
        if self.state.shutdown.is_cancelled() { self.reconnect().await } else { Ok(Step::Look) }
    }

    async fn wait(&mut self) -> Result<Step, Closed> {
        let poll_at = Instant::now() + self.state.streams.poll_interval();
        let shutdown = self.state.shutdown.clone();
        loop {
            tokio::select! {
                biased;
                () = self.outlet.closed() => return Err(Closed::Gone),
                () = shutdown.cancelled() => return self.spread_out().await,
                change = self.source.changed() => return match change {
                    Change::Items(items, rest) => self.hand_over(items, rest).await,
                    Change::Look => Ok(Step::Look),
                },
                beat = self.pulse.next(self.outlet.last_sent()) => self.keep_time(beat).await?,
                () = sleep_until(poll_at) => return Ok(Step::Look),
            }
        }
    }

    async fn keep_time(&mut self, beat: Beat) -> Result<(), Closed> {
        match beat {
            Beat::Heartbeat => self.outlet.send(encode::heartbeat()).await?,
            Beat::Bookmark => {
                let data = json!({"seq": self.source.position()});
                self.outlet.send(encode::frame(None, "bookmark", &data)).await?;
            }
            Beat::Queue => match self.source.place().await {
                Ok(Some(place)) => self.outlet.send(encode::frame(None, "queue", &place)).await?,
                Ok(None) => {}
                Err(NoQueue) => self.pulse.leave_queue(),
            },
        }
        Ok(())
    }

    /// Readers come back one after the other, not all at once.
    async fn spread_out(&mut self) -> Result<Step, Closed> {
        let within = self.state.config.drain / 2;
        let pause = within.mul_f64(rand::random_range(0.0..1.0));
        tokio::select! {
            () = self.outlet.closed() => Err(Closed::Gone),
            () = sleep(pause) => self.reconnect().await,
        }
    }

    async fn reconnect(&mut self) -> Result<Step, Closed> {
        let data = json!({"seq": self.source.position()});
        self.outlet.send(encode::frame(None, "reconnect", &data)).await?;
        Ok(Step::Over)
    }
}
