//! How many requests of each tenant are under way, so that one that lets all of its requests wait leaves room for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{Code, TenantId, limits};

use crate::problem::Problem;

/// When a refused client may try again, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// Requests of this process, by tenant.
#[derive(Clone)]
pub(crate) struct UnderWay {
    most: usize,
    of_tenant: Arc<Mutex<HashMap<TenantId, usize>>>,
}

/// One tenant's place for one request; given back when dropped.
pub(crate) struct Place {
    under_way: UnderWay,
    tenant_id: TenantId,
}

impl UnderWay {
    /// Each tenant may have a part of the requests that the process takes at all.
    pub(crate) fn new(requests: usize) -> Self {
        Self { most: (requests / limits::TENANT_SHARE_OF_REQUESTS).max(1), of_tenant: Arc::default() }
    }

    /// One more request of a tenant. It counts until its answer begins; streams, whose answers go on, have caps of their own.
    pub(crate) fn enter(&self, tenant_id: TenantId) -> Result<Place, Problem> {
        let mut of_tenant = self.locked();
        let count = of_tenant.entry(tenant_id).or_default();
        if *count >= self.most {
            let detail = format!(
                "The tenant has {count} requests under way in this process, as many as it may: wait for some to be answered, or let them \
                 wait less (`wait_ms`)."
            );
            let problem = Problem::new(Code::QuotaExceeded, detail).retry_after_ms(RETRY_AFTER_MS);
            return Err(problem.with("quota", "requests_under_way").with("limit", self.most));
        }
        *count += 1;
        Ok(Place { under_way: self.clone(), tenant_id })
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        self.of_tenant.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of_tenant = self.under_way.locked();
        if let Some(count) = of_tenant.get_mut(&self.tenant_id) {
            *count -= 1;
            if *count == 0 {
                of_tenant.remove(&self.tenant_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_tenant_has_its_part_and_gives_it_back() {
        let under_way = UnderWay::new(16);
        let tenant = |number| TenantId::from_uuid(Uuid::from_u128(number));
        let first = under_way.enter(tenant(1)).ok();
        let _second = under_way.enter(tenant(1)).ok();
        assert_eq!(under_way.enter(tenant(1)).err().map(|problem| problem.code), Some(Code::QuotaExceeded));
        assert!(under_way.enter(tenant(2)).is_ok());
        drop(first);
        assert!(under_way.enter(tenant(1)).is_ok());
        assert_eq!(under_way.locked().len(), 1);
    }
}
