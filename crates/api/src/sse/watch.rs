//! The stream of a watched directory. Its events have no ids, as nothing of it is kept: whoever comes back lists the directory anew.

use axum::response::Response;
use domain::file::{Change, FileChange};
use domain::policy::{Question, evaluate};
use domain::{Scope, SessionId, TenantContext};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::encode;
use super::outlet::{Closed, Outlet, outlet};
use super::pulse::{Beat, Pulse};
use super::streams::StreamPermit;
use crate::problem::Problem;
use crate::service::access::{self, Credential, Standing};
use crate::service::files::Verb;
use crate::service::watch::{Told, Watch};
use crate::service::{policies, sessions, vigil};
use crate::state::ApiState;

/// Answers with a watch that has begun.
pub(crate) fn watch(
    state: &ApiState,
    context: TenantContext,
    credential: Credential,
    permit: StreamPermit,
    watch: Watch,
) -> Response {
    let (outlet, body) = outlet(&state.config.streams, permit);
    let pulse = Pulse::new(&state.config.streams);
    let state = state.clone();
    let session_id = watch.session_id();
    let judge = Judge { state: state.clone(), context, credential, session_id };
    tokio::spawn(Follower { state, outlet, pulse }.run(watch, judge));
    super::bare(body)
}

struct Follower {
    state: ApiState,
    outlet: Outlet,
    pulse: Pulse,
}

/// Whether somebody may still watch.
struct Judge {
    state: ApiState,
    context: TenantContext,
    credential: Credential,
    session_id: SessionId,
}

impl Judge {
    /// Beside all that is sent, so that a directory in which something always happens does not outlive its reader's credential.
    async fn until_over(&self) {
        loop {
            sleep(self.state.config.streams.recheck).await;
            if Box::pin(self.is_over()).await {
                return;
            }
        }
    }

    /// Whether the stream would be refused if it were opened now: by the credential, its scopes or a policy.
    async fn is_over(&self) -> bool {
        match access::standing(&self.state, &self.credential, &[Scope::FilesRead]).await {
            Standing::Over => true,
            Standing::Unknown => false,
            Standing::Good(context) => {
                let policy: Result<_, Problem> =
                    sessions::policy(&self.state, &self.context, self.session_id).await;
                let question = Question { tool: Verb::Watch.tool(), toolkit: "files" };
                policy.is_ok_and(|policy| {
                    !evaluate(&policies::layers(&self.state, &context, policy.as_deref()), question).allowed
                })
            }
        }
    }
}

/// Why a stream that could go on is ended.
enum Leave {
    Closed(Closed),
    /// Its last words.
    Over(&'static str, Value),
}

impl From<Closed> for Leave {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

impl Follower {
    async fn run(mut self, watch: Watch, judge: Judge) {
        tokio::select! {
            biased;
            () = judge.until_over() => {
                let message = "The credential may not watch this any more.";
                let data = json!({"reason": "access_revoked", "message": message});
                self.outlet.cut(Some(encode::frame(None, "end", &data)));
                vigil::let_go(&judge.credential, self.outlet.closed()).await;
            }
            () = self.serve(watch) => {}
        }
    }

    /// Until the reader has taken all of it.
    async fn serve(&mut self, watch: Watch) {
        let last = match self.follow(watch).await {
            Leave::Closed(Closed::Gone) => return,
            Leave::Closed(Closed::Stalled) => {
                self.state.metrics.slow_consumers.inc();
                (
                    "slow_consumer",
                    json!({"message": "the reader made no progress; watch again and list the directory"}),
                )
            }
            Leave::Over(kind, data) => (kind, data),
        };
        self.outlet.send_last(encode::frame(None, last.0, &last.1));
        self.outlet.finish().await;
    }

    async fn follow(&mut self, mut watch: Watch) -> Leave {
        let begun = json!({"path": watch.file().absolute(), "recursive": watch.is_recursive()});
        let retry = encode::retry(rand::random_range(1_000..=5_000));
        for frame in [retry, encode::frame(None, "watching", &begun)] {
            if let Err(closed) = self.outlet.send(frame).await {
                return closed.into();
            }
        }
        loop {
            let directory = watch.file().clone();
            let told = {
                let next = watch.next();
                tokio::pin!(next);
                loop {
                    tokio::select! {
                        biased;
                        () = self.outlet.closed() => return Closed::Gone.into(),
                        () = self.state.shutdown.cancelled() => return self.spread_out().await,
                        beat = self.pulse.next(self.outlet.last_sent()) => {
                            if let Err(closed) = self.keep_time(beat).await {
                                return closed.into();
                            }
                        }
                        told = &mut next => break told,
                    }
                }
            };
            let frames = match told {
                Told::Changes(changes) => changes,
                Told::Interrupted => vec![FileChange::overflow()],
                Told::Ended { reason, message } => {
                    return Leave::Over("end", json!({"reason": reason, "message": message}));
                }
            };
            for change in frames {
                let (kind, data) = spoken(&directory, change);
                if let Err(closed) = self.outlet.send(encode::frame(None, kind, &data)).await {
                    return closed.into();
                }
                self.state.metrics.events.inc();
            }
        }
    }

    async fn keep_time(&mut self, beat: Beat) -> Result<(), Closed> {
        match beat {
            Beat::Heartbeat => self.outlet.send(encode::heartbeat()).await,
            Beat::Bookmark | Beat::Queue => Ok(()),
        }
    }

    /// Readers come back one after the other, not all at once.
    async fn spread_out(&self) -> Leave {
        let pause = (self.state.config.drain / 2).mul_f64(rand::random_range(0.0..1.0));
        tokio::select! {
            () = self.outlet.closed() => Closed::Gone.into(),
            () = sleep(pause) => Leave::Over("reconnect", json!({})),
        }
    }
}

fn spoken(directory: &domain::file::FilePath, change: FileChange) -> (&'static str, Value) {
    let kind = match change.change {
        Change::Created => "created",
        Change::Modified => "modified",
        Change::Deleted => "deleted",
        Change::Moved => "moved",
        Change::Overflow => {
            let message = "Changes were lost; list the directory anew.";
            return ("overflow", json!({"path": directory.absolute(), "message": message}));
        }
    };
    let mut data = json!({
        "path": directory.join(&change.path).absolute(),
        "kind": change.kind,
        "size_bytes": change.size_bytes,
    });
    if let Some(from) = change.from {
        data["from"] = directory.join(&from).absolute().into();
    }
    (kind, data)
}
