//! The database's clock, as far as this process knows it, and the ids that take their time from it.
//!
//! # Design notes
//!
//! Times and ids must not depend on this machine's wall clock, which may be an hour off or jump. The offset between
//! the database's clock and this process's *monotonic* clock is measured at connect and again with every lease
//! renewal and every few seconds; in between only the monotonic clock moves.
//!
//! Ids of one process rise strictly, so that what was made later is listed later: the bits behind an id's millisecond tell
//! the part of it, and an id that would not be above the one before is the next one after that. A measurement may set the
//! clock back by its error, for which ids wait; they do not for a clock that was wrong.

use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// An id that [`Clock::new_id`] can make.
pub trait NewId: Copy {
    /// Wraps a fresh uuid.
    fn wrap(id: Uuid) -> Self;
}

macro_rules! new_ids {
    ($($id:ident)*) => {$(
        impl NewId for domain::$id {
            fn wrap(id: Uuid) -> Self {
                Self::from_uuid(id)
            }
        }
    )*};
}
new_ids! { TenantId KeyId SessionId CallId ShellId ContextId ArtifactId WheelId SandboxId HostId WorkerId RequestId }

/// The database's clock.
#[derive(Debug, Clone)]
pub struct Clock {
    anchor: Arc<RwLock<(Instant, DateTime<Utc>)>>,
    /// When the newest id was made, in parts.
    newest: Arc<Mutex<u64>>,
}

/// Parts of a millisecond: as many as twelve bits tell.
const PARTS: u64 = 1 << 12;
/// Parts by which the newest id may be ahead of a clock that is waited for: a second.
const AHEAD: u64 = 1_000 * PARTS;

impl Clock {
    pub(crate) fn new(at: Instant, database: DateTime<Utc>) -> Self {
        Self { anchor: Arc::new(RwLock::new((at, database))), newest: Arc::default() }
    }

    /// Takes a measurement: the database said `database` between `asked` and `answered`.
    pub(crate) fn set(&self, asked: Instant, answered: Instant, database: DateTime<Utc>) {
        let middle = asked + answered.duration_since(asked) / 2;
        *self.anchor.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = (middle, database);
    }

    /// What the database's clock says now.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        let (instant, at) = *self.anchor.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Instant::now();
        if now >= instant { at + now.duration_since(instant) } else { at - instant.duration_since(now) }
    }

    /// A fresh id that carries the database's time, above all that this process made before.
    #[must_use]
    pub fn new_id<T: NewId>(&self) -> T {
        let made = self.next(parts(self.now()));
        let at = DateTime::<Utc>::UNIX_EPOCH + TimeDelta::milliseconds((made / PARTS) as i64);
        let mut random: [u8; 10] = rand::random();
        random[..2].copy_from_slice(&((made % PARTS) as u16).to_be_bytes());
        T::wrap(domain::id::uuid_at(at, random))
    }

    fn next(&self, now: u64) -> u64 {
        let mut newest = self.newest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *newest = if (now..=now + AHEAD).contains(&*newest) { *newest + 1 } else { now };
        *newest
    }
}

/// A time in parts of a millisecond since 1970.
fn parts(at: DateTime<Utc>) -> u64 {
    let micros = at.timestamp_micros().max(0).unsigned_abs();
    micros / 1_000 * PARTS + micros % 1_000 * PARTS / 1_000
}

/// The smallest uuid of a time: a bound for ids made at or after it.
pub(crate) fn uuid_floor(at: DateTime<Utc>) -> Uuid {
    let millis = u128::from(at.timestamp_millis().max(0).unsigned_abs());
    Uuid::from_u128(millis << 80)
}

/// How far ids may lie from the truth: clocks of processes differ by their measurement, rows commit late.
pub(crate) const SLACK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use domain::CallId;

    use super::*;

    #[test]
    fn ids_rise_strictly_unless_the_clock_was_wrong() {
        let (began, at) = (Instant::now(), Utc::now());
        let clock = Clock::new(began, at);
        let mut ids: Vec<CallId> = (0..5_000).map(|_| clock.new_id()).collect();
        clock.set(began, began, at - TimeDelta::milliseconds(20));
        ids.extend((0..5_000).map(|_| clock.new_id::<CallId>()));
        assert!(ids.is_sorted_by(|earlier, later| earlier < later));
        let carried = domain::id::time_of(ids[0].uuid()).expect("a version 7 uuid");
        assert!(carried >= at - TimeDelta::milliseconds(1) && carried <= clock.now() + TimeDelta::seconds(1));

        clock.set(began, began, at - TimeDelta::hours(1));
        assert!(clock.new_id::<CallId>() < ids[0], "what it says now is followed");
    }
}
