//! The port between admission and a worker in the same process.
//!
//! # Design notes
//!
//! When the process that admits a call also owns its session, a slot is free and nobody waits for one, the call
//! is inserted already `starting` under the worker's lease: claim and admission in one commit. [`Dispatch`] is
//! that door. A process without a worker uses [`NoDispatch`], and everything goes through the queue; nothing but latency differs.

use std::any::Any;
use std::fmt;

use crate::{Call, CallId, SessionId, TenantId, WorkerId};

/// A slot held for one call that is about to be inserted as `starting`. Dropping it gives the slot back.
pub struct Reservation {
    /// Whose lease the row is to carry.
    pub worker_id: WorkerId,
    /// The worker's own record of the slot; released when dropped.
    pub slot: Box<dyn Any + Send>,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("worker_id", &self.worker_id).finish_non_exhaustive()
    }
}

/// What a worker in the same process offers to admission. None of these blocks.
pub trait Dispatch: Send + Sync {
    /// Holds a slot for a call of this session, or says that it has to queue.
    fn reserve(&self, tenant_id: TenantId, session_id: SessionId) -> Option<Reservation>;

    /// The row is committed as `starting` under the reservation: run it.
    fn start(&self, reservation: Reservation, call: Call);

    /// A call of this session was committed as `queued`.
    fn queued(&self, session_id: SessionId);

    /// Somebody asked for this call to be cancelled, and the row says so.
    fn cancelled(&self, call_id: CallId);

    /// A session was created, or asked to end or to be reset, and the row says so.
    fn session_changed(&self, session_id: SessionId);

    /// The worker that a new session may be given to at once, so that it need not be claimed.
    fn worker_for_new_session(&self) -> Option<WorkerId>;
}

/// For processes without a worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDispatch;

impl Dispatch for NoDispatch {
    fn reserve(&self, _: TenantId, _: SessionId) -> Option<Reservation> {
        None
    }

    fn start(&self, _: Reservation, _: Call) {}

    fn queued(&self, _: SessionId) {}

    fn cancelled(&self, _: CallId) {}

    fn session_changed(&self, _: SessionId) {}

    fn worker_for_new_session(&self) -> Option<WorkerId> {
        None
    }
}
