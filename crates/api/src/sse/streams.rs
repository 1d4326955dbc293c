//! How many streams are open: caps per tenant and in all, and how often streams may look at the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::{Code, TenantId, limits};

use crate::config::StreamConfig;
use crate::metrics::{Counted, Metrics};
use crate::problem::Problem;

/// Streams of this process.
#[derive(Clone)]
pub(crate) struct Streams {
    inner: Arc<Inner>,
}

struct Inner {
    per_tenant: u32,
    total: u32,
    open: Mutex<Open>,
    metrics: Metrics,
}

#[derive(Default)]
struct Open {
    total: u32,
    of_tenant: HashMap<TenantId, u32>,
}

/// The right to one stream; given back when dropped.
pub(crate) struct StreamPermit {
    streams: Streams,
    tenant_id: TenantId,
    _counted: Counted,
}

/// Reads of tables that all streams together make per second while nothing happens.
const IDLE_READS_PER_S: u64 = 500;

impl Streams {
    pub(crate) fn new(config: &StreamConfig, metrics: &Metrics) -> Self {
        let inner = Inner {
            per_tenant: config.per_tenant,
            total: config.total,
            open: Mutex::default(),
            metrics: metrics.clone(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// One more stream of a tenant.
    pub(crate) fn open(&self, tenant_id: TenantId) -> Result<StreamPermit, Problem> {
        let mut open = self.inner.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.total >= self.inner.total {
            let detail = "This process has as many open event streams as it takes.";
            return Err(Problem::new(Code::Capacity, detail).retry_after_ms(2_000));
        }
        let of_tenant = open.of_tenant.entry(tenant_id).or_default();
        if *of_tenant >= self.inner.per_tenant {
            let detail = format!("The tenant has {of_tenant} open event streams, as many as it may.");
            return Err(Problem::new(Code::QuotaExceeded, detail)
                .retry_after_ms(2_000)
                .with("quota", "streams"));
        }
        *of_tenant += 1;
        open.total += 1;
        let counted = Counted::up(&self.inner.metrics.streams);
        Ok(StreamPermit { streams: self.clone(), tenant_id, _counted: counted })
    }

    /// How long a stream waits for a hint before it looks at the table: a second, or longer when so many streams are open
    /// that a second would be all that the database does.
    pub(crate) fn poll_interval(&self) -> Duration {
        let total = self.inner.open.lock().unwrap_or_else(PoisonError::into_inner).total;
        let milliseconds = u64::from(total) * 1_000 / IDLE_READS_PER_S;
        Duration::from_millis(milliseconds.clamp(limits::POLL_MS, 10 * limits::POLL_MS))
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.inner.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.total -= 1;
        if let Some(of_tenant) = open.of_tenant.get_mut(&self.tenant_id) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                open.of_tenant.remove(&self.tenant_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn caps_hold_per_tenant_and_in_all_and_are_given_back() {
        let metrics = Metrics::register(&prometheus::Registry::new()).expect("registers");
        let config = StreamConfig { per_tenant: 2, total: 3, ..StreamConfig::default() };
        let streams = Streams::new(&config, &metrics);
        let tenant = |number| TenantId::from_uuid(Uuid::from_u128(number));
        let first = streams.open(tenant(1)).ok();
        let _second = streams.open(tenant(1)).ok();
        assert_eq!(streams.open(tenant(1)).err().map(|problem| problem.code), Some(Code::QuotaExceeded));
        let _third = streams.open(tenant(2)).ok();
        assert_eq!(streams.open(tenant(2)).err().map(|problem| problem.code), Some(Code::Capacity));
        drop(first);
        assert!(streams.open(tenant(1)).is_ok());
        assert_eq!(metrics.streams.get(), 2);
    }
}
