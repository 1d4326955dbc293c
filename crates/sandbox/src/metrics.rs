//! What this room counts, registered in the registry that it is given.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::GoneReason;

/// Counters and gauges of sandboxes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Sandboxes that wait for a claim, by image and size.
    pub pool_size: IntGaugeVec,
    /// Sandboxes that are being made for the pool, by image and size.
    pub pool_filling: IntGaugeVec,
    /// Claims of the pool, by outcome: `hit`, `miss`.
    pub claims: IntCounterVec,
    /// Sandboxes made on the path of a request.
    pub cold_creations: IntCounter,
    /// Time from reservation to a connected agent, in seconds.
    pub creation_seconds: Histogram,
    /// Agents that are connected, by the version of the protocol that is spoken with them.
    pub agents_connected: IntGaugeVec,
    /// Sandboxes removed.
    pub removals: IntCounter,
    /// Sandboxes found gone, by reason.
    pub gone: IntCounterVec,
    /// Orphans and leftovers that the reaper removed, by kind.
    pub reaped: IntCounterVec,
    /// Failures by kind: `engine`, `image`, `agent`, `protocol`, `ledger`, `remove`, `reconcile`.
    pub errors: IntCounterVec,
}

impl Metrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let metric = IntCounter::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let counters = |name: &str, help: &str, label: &str| -> prometheus::Result<IntCounterVec> {
            let metric = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let pool_size = IntGaugeVec::new(
            Opts::new("toolhost_sandbox_pool", "Sandboxes that wait for a claim"),
            &["image", "size"],
        )?;
        registry.register(Box::new(pool_size.clone()))?;
        let pool_filling = IntGaugeVec::new(
            Opts::new("toolhost_sandbox_pool_filling", "Sandboxes that are being made for the pool"),
            &["image", "size"],
        )?;
        registry.register(Box::new(pool_filling.clone()))?;
        let creation_seconds = Histogram::with_opts(
            HistogramOpts::new("toolhost_sandbox_creation_seconds", "From reservation to a connected agent")
                .buckets(vec![0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0]),
        )?;
        registry.register(Box::new(creation_seconds.clone()))?;
        let agents_connected = IntGaugeVec::new(
            Opts::new("toolhost_sandbox_agents_connected", "Agents that are connected"),
            &["protocol"],
        )?;
        registry.register(Box::new(agents_connected.clone()))?;
        let metrics = Self {
            pool_size,
            pool_filling,
            claims: counters("toolhost_sandbox_claims_total", "Claims of the pool", "outcome")?,
            cold_creations: counter(
                "toolhost_sandbox_cold_creations_total",
                "Sandboxes made on the path of a request",
            )?,
            creation_seconds,
            agents_connected,
            removals: counter("toolhost_sandbox_removals_total", "Sandboxes removed")?,
            gone: counters("toolhost_sandbox_gone_total", "Sandboxes found gone", "reason")?,
            reaped: counters("toolhost_sandbox_reaped_total", "Leftovers that were removed", "kind")?,
            errors: counters("toolhost_sandbox_errors_total", "Failures", "kind")?,
        };
        metrics.show_all();
        Ok(metrics)
    }

    /// Shows every closed label at zero, so that the first count of one is seen as a rise.
    fn show_all(&self) {
        for version in protocol::OLDEST_VERSION..=protocol::VERSION {
            self.agents_connected.with_label_values(&[&version.to_string()]);
        }
        for (counters, labels) in [
            (&self.claims, &["hit", "miss"][..]),
            (
                &self.gone,
                &[GoneReason::ContainerGone, GoneReason::AgentGone, GoneReason::Oom].map(GoneReason::as_str),
            ),
            (&self.reaped, &["container", "workspace", "folder", "agent"]),
            (&self.errors, &["engine", "image", "agent", "protocol", "ledger", "remove", "reconcile"]),
        ] {
            for label in labels {
                counters.with_label_values(&[*label]);
            }
        }
    }

    pub(crate) fn claimed(&self, hit: bool) {
        self.claims.with_label_values(&[if hit { "hit" } else { "miss" }]).inc();
    }

    pub(crate) fn error(&self, kind: &str) {
        self.errors.with_label_values(&[kind]).inc();
    }
}
