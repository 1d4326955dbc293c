//! Rates: how many requests a tenant, a key or an address may make. Counted in this process, without a query.
//!
//! # Design notes
//!
//! * GCRA: of each subject only the time is kept at which its quota would be whole again. A request moves it on by one interval; what
//!   would move it further ahead than a whole window is refused. So a quota can be used at once and then comes back evenly: no
//!   minute holds more than two of them.
//! * Each process counts for itself: with several API processes behind a balancer a tenant gets up to that many times its quota. A
//!   shared count would cost a round trip for each request; what must hold exactly (sessions, running and waiting calls) is counted in the database.
//! * Memory is bounded: at [`SUBJECTS`] those whose quota is whole again are forgotten, and when most of them are not, the map is begun
//!   anew. That favours clients, and looking through all of them stays rare even for somebody who fills the map on purpose.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Length of every window.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Subjects that are remembered at once.
const SUBJECTS: usize = 50_000;

/// Quotas of subjects of one kind.
#[derive(Debug)]
pub(crate) struct Buckets<K> {
    whole_at: Mutex<HashMap<K, Instant>>,
}

impl<K> Default for Buckets<K> {
    fn default() -> Self {
        Self { whole_at: Mutex::default() }
    }
}

/// What a subject has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Requests in a window.
    pub(crate) limit: u32,
    /// Requests that could be made now.
    pub(crate) left: u32,
    /// Until it is whole again.
    pub(crate) whole_in: Duration,
    /// Until the next request is possible; zero when one is.
    pub(crate) wait: Duration,
}

impl<K: Hash + Eq> Buckets<K> {
    /// What there is, without taking of it.
    pub(crate) fn look(&self, subject: &K, limit: u32, now: Instant) -> Quota {
        let whole_at = self.locked().get(subject).copied().unwrap_or(now);
        quota(limit, whole_at.max(now), now)
    }

    /// Takes one, if there is one: then [`Quota::wait`] is zero.
    pub(crate) fn take(&self, subject: K, limit: u32, now: Instant) -> Quota {
        let mut all = self.locked();
        if all.len() >= SUBJECTS {
            all.retain(|_, whole_at| *whole_at > now);
            if all.len() > SUBJECTS / 2 {
                all.clear();
            }
        }
        let whole_at = all.get(&subject).copied().unwrap_or(now).max(now);
        let before = quota(limit, whole_at, now);
        if before.left == 0 {
            return before;
        }
        let whole_at = whole_at + interval(limit);
        all.insert(subject, whole_at);
        Quota { wait: Duration::ZERO, ..quota(limit, whole_at, now) }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<K, Instant>> {
        self.whole_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn interval(limit: u32) -> Duration {
    WINDOW / limit.max(1)
}

fn quota(limit: u32, whole_at: Instant, now: Instant) -> Quota {
    let (whole_in, interval) = (whole_at.saturating_duration_since(now), interval(limit));
    if limit == 0 {
        return Quota { limit, left: 0, whole_in: WINDOW, wait: WINDOW };
    }
    let free = WINDOW.saturating_sub(whole_in);
    // A window divided by a limit is rounded down, so that a whole one may seem to hold one more.
    let left = u32::try_from(free.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX).min(limit);
    let wait = if left > 0 { Duration::ZERO } else { (whole_in + interval).saturating_sub(WINDOW) };
    Quota { limit, left, whole_in, wait }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_window_s_quota_can_be_used_at_once_and_comes_back_evenly() {
        let (buckets, start) = (Buckets::default(), Instant::now());
        for n in (0..6).rev() {
            let quota = buckets.take("a", 6, start);
            assert_eq!((quota.left, quota.wait), (n, Duration::ZERO));
        }
        let refused = buckets.take("a", 6, start);
        assert_eq!((refused.left, refused.wait), (0, Duration::from_secs(10)));
        assert_eq!(buckets.take("b", 6, start).left, 5, "another subject has its own");
        let later = start + Duration::from_secs(10);
        assert_eq!(buckets.look(&"a", 6, later).left, 1);
        assert_eq!(buckets.take("a", 6, later).wait, Duration::ZERO);
        assert_ne!(buckets.take("a", 6, later).wait, Duration::ZERO);
        assert_eq!(buckets.look(&"a", 6, later + WINDOW).left, 6);
    }

    #[test]
    fn nothing_allowed_is_nothing_and_a_smaller_limit_holds_at_once() {
        let (buckets, start) = (Buckets::default(), Instant::now());
        assert_ne!(buckets.take("a", 0, start).wait, Duration::ZERO);
        for _ in 0..50 {
            buckets.take("b", 100, start);
        }
        assert_eq!(buckets.look(&"b", 10, start).left, 5);
    }

    #[test]
    fn a_flood_of_subjects_does_not_fill_the_memory() {
        let (buckets, start) = (Buckets::default(), Instant::now());
        for subject in 0..SUBJECTS * 2 {
            buckets.take(subject, 10, start);
        }
        assert!(buckets.locked().len() <= SUBJECTS);
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_two_quotas(limit in 1u32..200, steps in prop::collection::vec(0u64..2_000, 1..400)) {
            let (buckets, start) = (Buckets::default(), Instant::now());
            let mut at = start;
            let mut taken = Vec::new();
            for step in steps {
                at += Duration::from_millis(step);
                if buckets.take((), limit, at).wait.is_zero() {
                    taken.push(at);
                }
            }
            for (n, first) in taken.iter().enumerate() {
                let in_window = taken[n..].iter().take_while(|at| **at < *first + WINDOW).count();
                prop_assert!(in_window <= 2 * limit as usize);
            }
        }
    }
}
