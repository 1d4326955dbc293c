//! The database's clock, as far as this process knows it, and the ids that take their time from it.
//!
//! # Design notes
//!
//! Times and ids must not depend on this machine's wall clock, which may be an hour off or jump. The offset between
//! the database's clock and this process's *monotonic* clock is measured at connect and again with every lease
//! renewal and every few seconds; in between only the monotonic clock moves.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
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
}

impl Clock {
    pub(crate) fn new(at: Instant, database: DateTime<Utc>) -> Self {
        Self { anchor: Arc::new(RwLock::new((at, database))) }
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

    /// A fresh id that carries the database's time.
    #[must_use]
    pub fn new_id<T: NewId>(&self) -> T {
        T::wrap(domain::id::uuid_at(self.now(), rand::random()))
    }
}

/// The smallest uuid of a time: a bound for ids made at or after it.
pub(crate) fn uuid_floor(at: DateTime<Utc>) -> Uuid {
    let millis = u128::from(at.timestamp_millis().max(0).unsigned_abs());
    Uuid::from_u128(millis << 80)
}

/// How far ids may lie from the truth: clocks of processes differ by their measurement, rows commit late.
pub(crate) const SLACK: Duration = Duration::from_secs(10);
