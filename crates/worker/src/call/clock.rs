//! A call's time. It runs from the call's turn on and stands still while the call is in line, as a queued call's does.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How much later than the agent this worker calls a call's time over.
const SLACK: Duration = Duration::from_millis(250);
/// What a call has at least once its sandbox is there again after a takeover: time to hear of what it ran, whose own time the agent
/// keeps.
const AFTER_TAKEOVER: Duration = Duration::from_secs(30);

/// A call's time.
pub(crate) struct Clock {
    timeout: Duration,
    /// What was left of it when a worker took it over.
    left: Option<Duration>,
    /// When it is over; nothing while it stands still.
    ends: watch::Sender<Option<Instant>>,
    /// When the turn of a call that stood in line began here.
    turn: OnceLock<Instant>,
}

impl Clock {
    /// It runs. `ran` is how long a call that is taken over had its turn before.
    pub(super) fn new(timeout: Duration, ran: Option<Duration>) -> Self {
        let left = ran.map(|ran| timeout.saturating_sub(ran));
        // One that is taken over has all its time until its sandbox is there.
        let (ends, _) = watch::channel(Some(Instant::now() + timeout));
        Self { timeout, left, ends, turn: OnceLock::new() }
    }

    /// The call's sandbox is there.
    pub(super) fn served(&self) {
        if let Some(left) = self.left {
            self.ends.send_replace(Some(Instant::now() + left.max(AFTER_TAKEOVER)));
        }
    }

    /// The call stands in line.
    pub(crate) fn stop(&self) {
        self.ends.send_replace(None);
    }

    /// The call's turn begins, with all of its time.
    pub(crate) fn begin_turn(&self) {
        let now = *self.turn.get_or_init(Instant::now);
        self.ends.send_replace(Some(now + self.timeout));
    }

    /// How long the turn of a call that stood in line has lasted; nothing when it stood in none.
    pub(crate) fn turn(&self) -> Option<Duration> {
        self.turn.get().map(Instant::elapsed)
    }

    /// What is left of the call's time.
    pub(crate) fn left(&self) -> Duration {
        self.ends.borrow().map_or(self.timeout, |ends| ends.saturating_duration_since(Instant::now()))
    }

    /// Waits until the time is over.
    pub(crate) async fn over(&self) {
        let mut ends = self.ends.subscribe();
        loop {
            let at = *ends.borrow_and_update();
            let over = async {
                match at {
                    Some(at) => sleep_until(at + SLACK).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as this borrows it.
                _ = ends.changed() => {}
                () = over => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    async fn is_over_within(clock: &Clock, time: Duration) -> bool {
        timeout(time, clock.over()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_line_is_not_the_call_s() {
        let clock = Clock::new(MINUTE, None);
        advance(MINUTE / 2).await;
        clock.stop();
        assert!(!is_over_within(&clock, 60 * MINUTE).await);
        assert_eq!((clock.left(), clock.turn()), (MINUTE, None));
        clock.begin_turn();
        assert!(!is_over_within(&clock, MINUTE).await);
        assert!(is_over_within(&clock, SLACK).await);
        assert_eq!(clock.turn(), Some(MINUTE + SLACK));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_end_hears_of_the_turn() {
        let clock = Clock::new(MINUTE, None);
        clock.stop();
        let began = Instant::now();
        tokio::join!(clock.over(), async {
            tokio::time::sleep(2 * MINUTE).await;
            clock.begin_turn();
        });
        assert_eq!(began.elapsed(), 3 * MINUTE + SLACK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_taken_over_has_what_was_left() {
        for (ran, left) in [(60 * MINUTE, AFTER_TAKEOVER), (MINUTE / 6, MINUTE - MINUTE / 6)] {
            let clock = Clock::new(MINUTE, Some(ran));
            assert_eq!(clock.left(), MINUTE, "its sandbox is not there yet");
            clock.served();
            assert_eq!(clock.left(), left);
        }
    }
}
