//! What the store counts, registered in the registry that it is given.

use domain::EventBody;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use crate::admit_batch::Verdict;
use crate::{AuthRefusal, Result, StoreError};

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
    /// Connections by pool and state: `idle`, `used`.
    pub(crate) connections: IntGaugeVec,
    /// Most connections of each pool.
    pub(crate) connections_limit: IntGaugeVec,
    /// Time until a connection was there, by pool.
    pub(crate) acquire_seconds: HistogramVec,
    /// Numbered events made durable, by type.
    pub(crate) events: IntCounterVec,
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
        let connections_limit = IntGaugeVec::new(
            Opts::new("toolhost_store_connections_limit", "Most connections to Postgres"),
            &["pool"],
        )?;
        registry.register(Box::new(connections_limit.clone()))?;
        let acquire_seconds = HistogramVec::new(
            HistogramOpts::new(
                "toolhost_store_acquire_seconds",
                "Time until a connection of the pool was there",
            )
            .buckets(vec![0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 4.0]),
            &["pool"],
        )?;
        registry.register(Box::new(acquire_seconds.clone()))?;
        let metrics = Self {
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
            connections_limit,
            acquire_seconds,
            events: counters("toolhost_store_events_total", "Numbered events made durable", "type")?,
            auth_refusals: counters("toolhost_store_auth_refusals_total", "Refused credentials", "reason")?,
            audit_sealed: counter(
                "toolhost_store_audit_sealed_total",
                "Rows of the audit trail that were sealed",
            )?,
            abandoned: counter(
                "toolhost_store_abandoned_transactions_total",
                "Connections thrown away in the middle of a transaction",
            )?,
        };
        metrics.show_all();
        Ok(metrics)
    }

    /// Counts the events that an admission wrote.
    pub(crate) fn admitted(&self, verdict: &Verdict) {
        let event = match verdict {
            Verdict::Queued { .. } => "call.queued",
            Verdict::Denied { .. } => "call.ended",
            Verdict::Started { .. }
            | Verdict::Known { .. }
            | Verdict::Written
            | Verdict::SessionNotFound
            | Verdict::SessionEnded(_)
            | Verdict::AfterNotFound
            | Verdict::QueueFull
            | Verdict::Void
            | Verdict::Again => return,
        };
        self.events.with_label_values(&[event]).inc();
    }

    /// Shows every closed label at zero, so that the first count of one is seen as a rise.
    fn show_all(&self) {
        for (counters, labels) in [
            (&self.batches, &["committed", "split", "retried", "unavailable"][..]),
            (&self.writes, &["admit", "append", "finish"]),
            (&self.errors, &["unavailable", "internal", "unstorable", "storage"]),
            (&self.events, EventBody::KINDS),
        ] {
            for label in labels {
                counters.with_label_values(&[*label]);
            }
        }
        for reason in AuthRefusal::reasons() {
            self.auth_refusals.with_label_values(&[reason]);
        }
        for pool in ["app", "system"] {
            self.connections_limit.with_label_values(&[pool]);
            self.acquire_seconds.with_label_values(&[pool]);
            for state in ["idle", "used"] {
                self.connections.with_label_values(&[pool, state]);
            }
        }
    }
}
