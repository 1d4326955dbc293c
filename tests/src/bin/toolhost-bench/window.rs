//! The time in which ends count, for figures per second.

use std::time::{Duration, Instant};

/// Part of a slice that is not counted: what the slice before has left to do is done in it.
const RAMP: Duration = Duration::from_millis(500);

/// The time in which ends count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    opens_at: Instant,
    closes_at: Instant,
}

impl Window {
    /// One that is over so long from now.
    pub(crate) fn from_now(slice: Duration) -> Self {
        let now = Instant::now();
        Self { opens_at: now + RAMP, closes_at: now + slice }
    }

    /// Whether more is to be begun.
    pub(crate) fn is_open(&self) -> bool {
        Instant::now() < self.closes_at
    }

    /// 1 when what has ended just now counts, else 0.
    pub(crate) fn counts_now(&self) -> usize {
        let now = Instant::now();
        usize::from(now >= self.opens_at && now < self.closes_at)
    }

    /// Ends per second.
    pub(crate) fn rate(&self, counts: impl IntoIterator<Item = usize>) -> f64 {
        counts.into_iter().sum::<usize>() as f64 / (self.closes_at - self.opens_at).as_secs_f64()
    }
}
