//! How many uploads and downloads are open: a cap per tenant and per session, so that neither holds the places of others. Each process counts its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use domain::limits::{
    SEARCHES_PER_TENANT, TRANSFERS_PER_SESSION, TRANSFERS_PER_TENANT, WHEEL_PUTS, WHEEL_PUTS_PER_TENANT,
};
use domain::{Code, SessionId, TenantId};
use futures_util::{Stream, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::problem::Problem;

/// What is read of an upload after it was refused, and for how long.
const READ_OVER_BYTES: usize = 4 * 1024 * 1024;
/// See [`READ_OVER_BYTES`].
const READ_OVER: Duration = Duration::from_secs(2);

/// A client that is still sending sees an answer only when somebody takes what it sends: some of it, for a moment.
pub(crate) async fn read_over(mut pieces: Pin<&mut (impl Stream<Item = Result<Bytes, Problem>> + ?Sized)>) {
    let mut left = READ_OVER_BYTES;
    let reading = async {
        while let Some(Ok(piece)) = pieces.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                return;
            }
        }
    };
    // Whoever sends more, or slower, sees a connection that ends.
    let _ = timeout(READ_OVER, reading).await;
}

/// How long a search waits for others of its tenant before it is refused.
const SEARCH_WAIT: Duration = Duration::from_secs(1);

/// Transfers of this process.
#[derive(Clone, Default)]
pub(crate) struct Transfers {
    open: Arc<Mutex<Open>>,
    /// A search has ended.
    searched: Arc<Notify>,
}

#[derive(Default)]
struct Open {
    of_tenant: HashMap<TenantId, u32>,
    of_session: HashMap<SessionId, u32>,
    searches_of_tenant: HashMap<TenantId, u32>,
    wheels_of_tenant: HashMap<TenantId, u32>,
    wheels: usize,
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

/// The right to one search; given back when dropped.
pub(crate) struct SearchPermit {
    transfers: Transfers,
    tenant_id: TenantId,
}

impl Transfers {
    /// One more search of a tenant's output, or reading of all its trail, once another one has ended in a moment.
    pub(crate) async fn open_search(&self, tenant_id: TenantId) -> Result<SearchPermit, Problem> {
        let deadline = Instant::now() + SEARCH_WAIT;
        loop {
            let mut searched = pin!(self.searched.notified());
            searched.as_mut().enable();
            match self.try_open_search(tenant_id) {
                Err(_) if timeout_at(deadline, searched).await.is_ok() => {}
                answer => return answer,
            }
        }
    }

    fn try_open_search(&self, tenant_id: TenantId) -> Result<SearchPermit, Problem> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.searches_of_tenant.entry(tenant_id).or_default();
        if *count >= SEARCHES_PER_TENANT {
            drop(open);
            let detail = format!(
                "The tenant searches output, or reads its whole audit trail, {SEARCHES_PER_TENANT} times already, as often as it may at a time."
            );
            return Err(Problem::new(Code::QuotaExceeded, detail)
                .retry_after_ms(1_000)
                .with("quota", "searches"));
        }
        *count += 1;
        drop(open);
        Ok(SearchPermit { transfers: self.clone(), tenant_id })
    }
}

impl Drop for SearchPermit {
    fn drop(&mut self) {
        let mut open = self.transfers.open.lock().unwrap_or_else(PoisonError::into_inner);
        give_back(&mut open.searches_of_tenant, self.tenant_id);
        drop(open);
        self.transfers.searched.notify_waiters();
    }
}

/// The right to put one wheel; given back when dropped.
pub(crate) struct WheelPermit {
    transfer: TransferPermit,
}

impl Transfers {
    /// One more wheel of a tenant, which is a transfer too.
    pub(crate) fn open_wheel(&self, tenant_id: TenantId) -> Result<WheelPermit, Problem> {
        let transfer = self.open(tenant_id, None)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.wheels_of_tenant.get(&tenant_id).is_some_and(|count| *count >= WHEEL_PUTS_PER_TENANT) {
            drop(open);
            let detail = format!(
                "The tenant puts {WHEEL_PUTS_PER_TENANT} wheels already, as many as it may at a time."
            );
            let problem = Problem::new(Code::QuotaExceeded, detail).retry_after_ms(1_000);
            return Err(problem.with("quota", "transfers"));
        }
        if open.wheels >= WHEEL_PUTS {
            drop(open);
            let detail = "This process takes as many wheels as it may at a time.";
            return Err(Problem::new(Code::Capacity, detail).retry_after_ms(2_000));
        }
        open.wheels += 1;
        *open.wheels_of_tenant.entry(tenant_id).or_default() += 1;
        drop(open);
        Ok(WheelPermit { transfer })
    }
}

impl Drop for WheelPermit {
    fn drop(&mut self) {
        let mut open = self.transfer.transfers.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.wheels -= 1;
        give_back(&mut open.wheels_of_tenant, self.transfer.tenant_id);
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
        let mut wheels = Vec::new();
        for number in 0..WHEEL_PUTS {
            let of = tenant(number as u128 / u128::from(WHEEL_PUTS_PER_TENANT));
            wheels.push(transfers.open_wheel(of).expect("room"));
            let own = transfers.open_wheel(tenant(0)).err().map(|problem| problem.code);
            let full = wheels.len() >= WHEEL_PUTS_PER_TENANT as usize;
            assert_eq!(own, full.then_some(Code::QuotaExceeded), "after {number}");
        }
        assert_eq!(
            transfers.open_wheel(tenant(1_000)).err().map(|problem| problem.code),
            Some(Code::Capacity)
        );
        wheels.clear();
        assert!(transfers.open_wheel(tenant(1_000)).is_ok());
        let open = transfers.open.lock().expect("no panic");
        assert!(open.of_tenant.is_empty() && open.of_session.is_empty());
        assert!(open.wheels_of_tenant.is_empty() && open.wheels == 0);
    }
}
