//! What happens to a stream by time alone.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::config::StreamConfig;

/// The clocks of one stream.
pub(crate) struct Pulse {
    heartbeat: Duration,
    bookmark: Duration,
    queue: Duration,
    bookmark_at: Instant,
    queue_at: Option<Instant>,
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beat {
    /// Nothing was sent for a while: a comment.
    Heartbeat,
    /// The current number.
    Bookmark,
    /// Where is the call in the queue?
    Queue,
}

impl Pulse {
    pub(crate) fn new(config: &StreamConfig) -> Self {
        let now = Instant::now();
        Self {
            heartbeat: config.heartbeat,
            bookmark: config.bookmark,
            queue: config.queue,
            bookmark_at: now + config.bookmark,
            queue_at: None,
        }
    }

    /// Asks for the place in the queue from now on.
    pub(crate) fn watch_queue(&mut self) {
        self.queue_at.get_or_insert(Instant::now() + self.queue);
    }

    /// No more.
    pub(crate) fn leave_queue(&mut self) {
        self.queue_at = None;
    }

    /// Waits for what is due next. Cancel-safe.
    pub(crate) async fn next(&mut self, last_sent: Instant) -> Beat {
        let heartbeat_at = last_sent + self.heartbeat;
        let (mut at, mut beat) = (self.bookmark_at, Beat::Bookmark);
        let others = [(Some(heartbeat_at), Beat::Heartbeat), (self.queue_at, Beat::Queue)];
        for (other_at, other) in others {
            if let Some(other_at) = other_at.filter(|other_at| *other_at < at) {
                (at, beat) = (other_at, other);
            }
        }
        sleep_until(at).await;
        let now = Instant::now();
        match beat {
            Beat::Heartbeat => {}
            Beat::Bookmark => self.bookmark_at = now + self.bookmark,
            Beat::Queue => self.queue_at = Some(now + self.queue),
        }
        beat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_quiet_minute() {
        let (mut pulse, start) = (Pulse::new(&StreamConfig::default()), Instant::now());
        let (mut last_sent, mut beats) = (start, Vec::new());
        while start.elapsed() < Duration::from_secs(60) {
            beats.push((pulse.next(last_sent).await, start.elapsed().as_secs()));
            last_sent = Instant::now();
        }
        let bookmarks: Vec<_> = beats.iter().filter(|(beat, _)| *beat == Beat::Bookmark).collect();
        assert_eq!(bookmarks.iter().map(|(_, at)| *at).collect::<Vec<_>>(), [30, 60]);
        assert!(beats.iter().filter(|(beat, _)| *beat == Beat::Heartbeat).count() >= 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_asked_for_only_while_watched() {
        let (mut pulse, start) = (Pulse::new(&StreamConfig::default()), Instant::now());
        pulse.watch_queue();
        assert_eq!((pulse.next(start).await, start.elapsed().as_secs()), (Beat::Queue, 1));
        pulse.leave_queue();
        assert_eq!(pulse.next(start).await, Beat::Heartbeat);
    }
}
