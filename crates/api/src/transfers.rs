//! How many uploads and downloads are open: a cap per tenant and per session, so that neither holds the places of others. Each process counts its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use domain::limits::{TRANSFERS_PER_SESSION, TRANSFERS_PER_TENANT};
use domain::{Code, SessionId, TenantId};

use crate::problem::Problem;

/// Transfers of this process.
#[derive(Clone, Default)]
pub(crate) struct Transfers {
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    of_tenant: HashMap<TenantId, u32>,
    of_session: HashMap<SessionId, u32>,
}

/// The right to one transfer; given back when dropped.
pub(crate) struct TransferPermit {
    transfers: Transfers,
    tenant_id: TenantId,
    session_id: Option<SessionId>,
}

impl Transfers {
    /// One more transfer of a tenant, of one of its sessions or of none.
    pub(crate) fn open(
        &self,
        tenant_id: TenantId,
        session_id: Option<SessionId>,
    ) -> Result<TransferPermit, Problem> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_session = session_id.and_then(|id| open.of_session.get(&id).copied()).unwrap_or_default();
        if of_session >= TRANSFERS_PER_SESSION {
            let detail =
                format!("The session has {of_session} open uploads and downloads, as many as it may.");
            return Err(Problem::new(Code::SandboxLimit, detail).retry_after_ms(1_000));
        }
        let of_tenant = open.of_tenant.get(&tenant_id).copied().unwrap_or_default();
        if of_tenant >= TRANSFERS_PER_TENANT {
            let detail = format!("The tenant has {of_tenant} open uploads and downloads, as many as it may.");
            let problem = Problem::new(Code::QuotaExceeded, detail).retry_after_ms(1_000);
            return Err(problem.with("quota", "transfers"));
        }
        if let Some(session_id) = session_id {
            *open.of_session.entry(session_id).or_default() += 1;
        }
        *open.of_tenant.entry(tenant_id).or_default() += 1;
        Ok(TransferPermit { transfers: self.clone(), tenant_id, session_id })
    }
}

impl Drop for TransferPermit {
    fn drop(&mut self) {
        let mut open = self.transfers.open.lock().unwrap_or_else(PoisonError::into_inner);
        give_back(&mut open.of_tenant, self.tenant_id);
        if let Some(session_id) = self.session_id {
            give_back(&mut open.of_session, session_id);
        }
    }
}

fn give_back<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn caps_hold_per_session_and_per_tenant_and_are_given_back() {
        let transfers = Transfers::default();
        let tenant = |number| TenantId::from_uuid(Uuid::from_u128(number));
        let session = |number: u32| Some(SessionId::from_uuid(Uuid::from_u128(number.into())));
        let mut held: Vec<_> = (0..TRANSFERS_PER_TENANT)
            .map(|number| transfers.open(tenant(1), session(number / TRANSFERS_PER_SESSION)))
            .collect::<Result<_, _>>()
            .expect("room");
        let code =
            |tenant_id, session_id| transfers.open(tenant_id, session_id).err().map(|problem| problem.code);
        assert_eq!(code(tenant(1), session(0)), Some(Code::SandboxLimit));
        assert_eq!(code(tenant(1), session(1_000)), Some(Code::QuotaExceeded));
        assert_eq!(code(tenant(1), None), Some(Code::QuotaExceeded));
        assert_eq!(code(tenant(2), session(1_000)), None);
        assert_eq!(code(tenant(2), None), None);
        held.pop();
        assert_eq!(code(tenant(1), session(1_000)), None);
        held.clear();
        let open = transfers.open.lock().expect("no panic");
        assert!(open.of_tenant.is_empty() && open.of_session.is_empty());
    }
}
