//! Whether sandboxes live: hints from the engine and the link, and a look at the container before anything is said.
//!
//! # Design notes
//!
//! An event or a lost connection is a hint, never a verdict: engines lose events, a worker that was stopped for
//! a minute has lost its connections, and an engine that is down says nothing. Only what the engine answers
//! about the container counts, or an agent that stays away although its container runs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::driver::{ContainerEventKind, ContainerState, Driver};
use crate::link::{Closed, LinkState};
use crate::sandbox::{Inner, Signs};
use crate::{Gone, GoneReason};

/// How often a container is looked at whose agent is connected.
const LOOK_CONNECTED: Duration = Duration::from_secs(30);
/// The same while its agent is away.
const LOOK_DISCONNECTED: Duration = Duration::from_secs(1);
/// The first look after a connection ended, so that the engine has noticed too.
const LOOK_SOON: Duration = Duration::from_millis(100);
/// Time that an agent may stay away while its container runs. It redials after 3 s of silence.
const AWAY_LIMIT: Duration = Duration::from_secs(10);
/// Time for the engine to tell who ended a container.
const SECOND_LOOK: Duration = Duration::from_millis(300);
/// Pauses between attempts to listen to the engine.
const LISTEN_PAUSE: Duration = Duration::from_millis(500);
const LISTEN_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Watches one sandbox until it is gone or given up.
pub(super) async fn watch(core: Arc<Core>, inner: Weak<Inner>) {
    let Some(strong) = inner.upgrade() else { return };
    let watcher = Watcher {
        container_id: strong.facts.container_id.clone(),
        driver: Arc::clone(&core.driver),
        signs: Arc::clone(&strong.signs),
        given_up: strong.given_up.clone(),
        link: strong.link.subscribe(),
    };
    let sandbox_id = strong.facts.sandbox_id;
    drop(strong);
    let signs = Arc::clone(&watcher.signs);
    let Some(gone) = watcher.run().await else { return };
    tracing::warn!(%sandbox_id, reason = gone.reason.as_str(), evidence = ?gone.evidence, "a sandbox is gone");
    core.metrics.gone.with_label_values(&[gone.reason.as_str()]).inc();
    signs.gone.send_replace(Some(gone));
    if let Some(inner) = inner.upgrade() {
        inner.link.close();
    }
    core.pool.wake();
}

/// What a look at the container showed.
enum Look {
    Gone(Gone),
    Lives,
    /// The engine did not answer.
    Unknown,
}

struct Watcher {
    container_id: String,
    driver: Arc<dyn Driver>,
    signs: Arc<Signs>,
    given_up: CancellationToken,
    link: watch::Receiver<LinkState>,
}

impl Watcher {
    async fn run(mut self) -> Option<Gone> {
        let mut away_since: Option<Instant> = None;
        let mut look_at = Instant::now() + LOOK_CONNECTED;
        loop {
            tokio::select! {
                () = self.given_up.cancelled() => return None,
                () = self.signs.nudge.notified() => {}
                () = sleep_until(look_at) => {}
                changed = self.link.changed() => {
                    changed.ok()?;
                    match &*self.link.borrow_and_update() {
                        LinkState::Connected(_) => {
                            away_since = None;
                            look_at = Instant::now() + LOOK_CONNECTED;
                        }
                        LinkState::Waiting => {
                            away_since.get_or_insert_with(Instant::now);
                            look_at = Instant::now() + LOOK_SOON;
                        }
                        LinkState::Closed(Closed::ByUs | Closed::Fenced) => return None,
                        LinkState::Closed(Closed::JournalLost) => {
                            return Some(Gone::because(GoneReason::AgentGone).with("why", "the agent restarted"));
                        }
                        LinkState::Closed(Closed::Version) => {
                            return Some(Gone::because(GoneReason::AgentGone).with("why", "no common protocol version"));
                        }
                    }
                    continue;
                }
            }
            let away = away_since.map(|since| since.elapsed());
            match self.look(away).await {
                Look::Gone(gone) => return Some(gone),
                Look::Lives => {}
                // Without the engine there are no relays: the agent has from then on.
                Look::Unknown => away_since = away_since.map(|_| Instant::now()),
            }
            look_at = Instant::now() + if away.is_some() { LOOK_DISCONNECTED } else { LOOK_CONNECTED };
        }
    }

    async fn look(&self, away: Option<Duration>) -> Look {
        let mut state = self.driver.inspect(&self.container_id).await;
        if matches!(state, Ok(ContainerState::Exited { .. })) && !self.signs.killed.load(Ordering::Acquire) {
            sleep(SECOND_LOOK).await;
            state = self.driver.inspect(&self.container_id).await;
        }
        match state {
            Ok(ContainerState::Gone) => {
                Look::Gone(Gone::because(GoneReason::ContainerGone).with("container", "removed"))
            }
            Ok(ContainerState::Exited { exit_code, oom_killed, .. }) => {
                Look::Gone(exited(self.signs.killed.load(Ordering::Acquire), exit_code, oom_killed))
            }
            Ok(ContainerState::Running | ContainerState::Created) => {
                let Some(away) = away.filter(|away| *away >= AWAY_LIMIT) else { return Look::Lives };
                Look::Gone(
                    Gone::because(GoneReason::AgentGone)
                        .with("container", "running")
                        .with("away_ms", away.as_millis() as u64),
                )
            }
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "a container could not be looked at"
                );
                Look::Unknown
            }
        }
    }
}

/// That a container has ended by itself or was ended. `killed`: somebody asked the engine for it.
pub(super) fn exited(killed: bool, exit_code: i64, oom_killed: bool) -> Gone {
    Gone::because(reason(killed, exit_code, oom_killed))
        .with("container", "exited")
        .with("exit_code", exit_code)
        .with("oom_killed", oom_killed)
}

/// Why a container ended.
fn reason(killed: bool, exit_code: i64, oom_killed: bool) -> GoneReason {
    /// 128 and SIGKILL.
    const KILLED: i64 = 137;
    if killed {
        GoneReason::ContainerGone
    } else if oom_killed && exit_code == KILLED {
        GoneReason::Oom
    } else {
        GoneReason::AgentGone
    }
}

/// Listens to the engine for as long as the worker lives.
pub(super) async fn listen(core: Arc<Core>) {
    let mut pause = LISTEN_PAUSE;
    loop {
        let mut events = core.driver.events();
        loop {
            let event = tokio::select! {
                () = core.stop.cancelled() => return,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    pause = LISTEN_PAUSE;
                    hint(&core, event.sandbox_id, event.kind);
                }
                Some(Err(error)) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "the engine's events ended");
                    break;
                }
                None => break,
            }
        }
        // Something may have been missed.
        for inner in core.held() {
            inner.signs.nudge.notify_one();
        }
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(LISTEN_PAUSE_MAX);
    }
}

fn hint(core: &Core, sandbox_id: domain::SandboxId, kind: ContainerEventKind) {
    let Some(inner) = core.held_one(sandbox_id) else { return };
    match kind {
        ContainerEventKind::Killed => inner.signs.killed.store(true, Ordering::Release),
        ContainerEventKind::Died | ContainerEventKind::Removed => inner.signs.nudge.notify_one(),
        ContainerEventKind::Oom => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_blamed_on_who_caused_it() {
        assert_eq!(reason(true, 137, false), GoneReason::ContainerGone);
        assert_eq!(reason(false, 137, true), GoneReason::Oom);
        // The engine says so too when only a tool was killed, long before.
        assert_eq!(reason(false, 1, true), GoneReason::AgentGone);
        assert_eq!(reason(false, 137, false), GoneReason::AgentGone);
    }
}
