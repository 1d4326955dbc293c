//! The door for admission in the same process: a slot at once, or the queue.

use std::sync::{Arc, PoisonError, RwLock};

use domain::dispatch::{Dispatch, Reservation};
use domain::{Call, CallId, SessionId, TenantId, WorkerId};
use store::Hint;

use crate::board::Slot;
use crate::call::{Start, start};
use crate::claims::heard;
use crate::tenure::Tenure;

/// Leads to the present tenure, if there is one.
#[derive(Default)]
pub(crate) struct Door {
    present: RwLock<Option<Arc<Tenure>>>,
}

impl Door {
    pub(crate) fn lead_to(&self, tenure: Option<Arc<Tenure>>) {
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = tenure;
    }

    pub(crate) fn present(&self) -> Option<Arc<Tenure>> {
        self.present.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn hint(&self, hint: Hint) {
        if let Some(tenure) = self.present() {
            heard(&tenure, hint);
        }
    }
}

impl Dispatch for Door {
    fn reserve(&self, tenant_id: TenantId, session_id: SessionId) -> Option<Reservation> {
        let tenure = self.present()?;
        if !tenure.takes_work() {
            return None;
        }
        let slot = tenure.board.reserve(tenant_id, session_id)?;
        Some(Reservation { worker_id: tenure.worker_id(), slot: Box::new(slot) })
    }

    fn start(&self, reservation: Reservation, call: Call) {
        let Some(tenure) = self.present() else { return };
        // A reservation of a tenure that is over has a row under a lease that is over: whoever takes over runs it.
        if reservation.worker_id != tenure.worker_id() {
            return;
        }
        if let Ok(slot) = reservation.slot.downcast::<Slot>() {
            start(&tenure, call, *slot, Start::Direct);
        }
    }

    fn queued(&self, session_id: SessionId) {
        self.hint(Hint::Queued(session_id));
    }

    fn cancelled(&self, call_id: CallId) {
        self.hint(Hint::CancelRequested(call_id));
    }

    fn session_changed(&self, session_id: SessionId) {
        self.hint(Hint::SessionChanged(session_id));
    }

    fn worker_for_new_session(&self) -> Option<WorkerId> {
        let tenure = self.present()?;
        let has_room = tenure.session_count() < tenure.core.config.sessions as usize;
        (has_room && tenure.takes_work()).then(|| tenure.worker_id())
    }
}
