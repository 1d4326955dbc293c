//! A call's time. It runs from the call's turn on and stands still while the call is in line, as a queued call's does.

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
    state: watch::Sender<State>,
}

#[derive(Clone, Copy)]
enum State {
    /// It stands still: the call is in line.
    InLine,
    Runs {
        /// When it is over.
        ends: Instant,
        /// When the turn of a call that stood in line began here.
        turn: Option<Instant>,
    },
}

impl Clock {
    /// It runs. `ran` is how long a call that is taken over had its turn before.
    pub(super) fn new(timeout: Duration, ran: Option<Duration>) -> Self {
        let left = ran.map(|ran| timeout.saturating_sub(ran));
        // One that is taken over has all its time until its sandbox is there.
        let (state, _) = watch::channel(State::Runs { ends: Instant::now() + timeout, turn: None });
        Self { timeout, left, state }
    }

    /// The call's sandbox is there, for the first time under this worker.
    pub(super) fn sandbox_ready(&self) {
        if let Some(left) = self.left {
            let ends = Instant::now() + left.max(AFTER_TAKEOVER);
            self.state.send_replace(State::Runs { ends, turn: None });
        }
    }

    /// The call stands in line.
    pub(crate) fn stop(&self) {
        self.state.send_replace(State::InLine);
    }

    /// The call's turn begins, with all of its time, also when it has stood in line before.
    pub(crate) fn begin_turn(&self) {
        let now = Instant::now();
        self.state.send_replace(State::Runs { ends: now + self.timeout, turn: Some(now) });
    }

    /// How long the turn of a call that stood in line has lasted, zero while it stands there; nothing when it stood in none.
    pub(crate) fn turn(&self) -> Option<Duration> {
        match *self.state.borrow() {
            State::InLine => Some(Duration::ZERO),
            State::Runs { turn, .. } => turn.map(|turn| turn.elapsed()),
        }
    }

    /// What is left of the call's time.
    pub(crate) fn left(&self) -> Duration {
        match *self.state.borrow() {
            State::InLine => self.timeout,
            State::Runs { ends, .. } => ends.saturating_duration_since(Instant::now()),
        }
    }

    /// Waits until the time is over.
    pub(crate) async fn over(&self) {
        let mut state = self.state.subscribe();
        loop {
            let now = *state.borrow_and_update();
            let over = async {
                match now {
                    State::Runs { ends, .. } => sleep_until(ends + SLACK).await,
                    State::InLine => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as this borrows it.
                _ = state.changed() => {}
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
        assert_eq!((clock.left(), clock.turn()), (MINUTE, Some(Duration::ZERO)));
        // Twice, when an earlier call turned up after the first.
        for _ in 0..2 {
            clock.begin_turn();
            assert!(!is_over_within(&clock, MINUTE).await);
            assert!(is_over_within(&clock, SLACK).await);
            assert_eq!(clock.turn(), Some(MINUTE + SLACK));
            clock.stop();
        }
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
            clock.sandbox_ready();
            assert_eq!(clock.left(), left);
        }
    }
}
