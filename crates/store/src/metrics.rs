//! What the store counts, registered in the registry that it is given.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::{Result, StoreError};

/// Counters of this process.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    /// Batches of the coalescing writer, by outcome: `committed`, `split`, `retried`, `unavailable`.
    pub(crate) batches: IntCounterVec,
    /// Operations in one batch.
    pub(crate) batch_size: Histogram,
    /// Durable writes by kind: `admit`, `append`, `finish`.
    pub(crate) writes: IntCounterVec,
    /// Writes refused because their author was superseded.
    pub(crate) stale_writes: IntCounter,
    /// Calls claimed from the queue.
    pub(crate) claims: IntCounter,
    /// NOTIFY statements sent, and hints in them.
    pub(crate) notifies: IntCounter,
    pub(crate) hints: IntCounter,
    /// Failed operations by kind: `unavailable`, `internal`, `unstorable`.
    pub(crate) errors: IntCounterVec,
    /// Connections by pool and state.
    pub(crate) connections: IntGaugeVec,
    /// Refused credentials by reason.
    pub(crate) auth_refusals: IntCounterVec,
    /// Rows of the audit trail that this process sealed.
    pub(crate) audit_sealed: IntCounter,
    /// Connections thrown away because their transaction was not brought to its end.
    pub(crate) abandoned: IntCounter,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self> {
        Self::make(registry)
            .map_err(|error| StoreError::Internal { operation: "register metrics", source: Box::new(error) })
    }

    fn make(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counters = |name: &str, help: &str, label: &str| -> prometheus::Result<IntCounterVec> {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let batch_size = Histogram::with_opts(
            HistogramOpts::new("toolhost_store_batch_operations", "Operations that share one commit")
                .buckets(vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]),
        )?;
        registry.register(Box::new(batch_size.clone()))?;
        let connections = IntGaugeVec::new(
            Opts::new("toolhost_store_connections", "Connections to Postgres"),
            &["pool", "state"],
        )?;
        registry.register(Box::new(connections.clone()))?;
        Ok(Self {
            batches: counters("toolhost_store_batches_total", "Batches of the coalescing writer", "outcome")?,
            batch_size,
            writes: counters(
                "toolhost_store_writes_total",
                "Durable writes of the coalescing writer",
                "kind",
            )?,
            stale_writes: counter(
                "toolhost_store_stale_writes_total",
                "Writes refused because their author was superseded",
            )?,
            claims: counter("toolhost_store_claims_total", "Calls claimed from the queue")?,
            notifies: counter("toolhost_store_notifies_total", "NOTIFY statements sent")?,
            hints: counter("toolhost_store_hints_total", "Hints sent in NOTIFY statements")?,
            errors: counters("toolhost_store_errors_total", "Failed operations", "kind")?,
            connections,
            auth_refusals: counters("toolhost_store_auth_refusals_total", "Refused credentials", "reason")?,
            audit_sealed: counter(
                "toolhost_store_audit_sealed_total",
                "Rows of the audit trail that were sealed",
            )?,
            abandoned: counter(
                "toolhost_store_abandoned_transactions_total",
                "Connections thrown away in the middle of a transaction",
            )?,
        })
    }
}
