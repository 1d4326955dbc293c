//! What this room counts, registered in the registry that it is given.

use domain::{CallStatus, SessionEndReason};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use tools::{Catalog, Filter};

use crate::call::Start;
use crate::sweeps::Sweep;

/// The tool of a call whose tool this binary's catalogue does not have: a name from a row never becomes a label.
const OTHER_TOOL: &str = "other";

/// A tool as a label.
pub(crate) fn tool_label<'a>(catalog: &'a Catalog, tool: &str) -> &'a str {
    catalog.get(tool).map_or(OTHER_TOOL, |tool| tool.descriptor.name)
}

/// Counters and gauges of a worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Calls that ended here, by tool and terminal status.
    pub calls: IntCounterVec,
    /// Starts by how they came: `direct`, `claimed`, `resumed`.
    pub starts: IntCounterVec,
    /// From admission to start, in seconds.
    pub queue_seconds: Histogram,
    /// From start to end by tool, in seconds.
    pub duration_seconds: HistogramVec,
    /// Calls that run.
    pub running: IntGauge,
    /// Sessions that are owned.
    pub sessions: IntGauge,
    /// Sessions that ended here, by reason.
    pub session_ends: IntCounterVec,
    /// Sandboxes that were made anew for a session whose sandbox was gone.
    pub recoveries: IntCounter,
    /// Leases lost to others.
    pub leases_lost: IntCounter,
    /// Sessions taken over from dead workers.
    pub takeovers: IntCounter,
    /// Writes of this process that were refused because somebody else had taken over.
    pub stale_refused: IntCounter,
    /// Bytes of output relayed.
    pub output_bytes: IntCounter,
    /// Bytes of output dropped from the middle of logs.
    pub dropped_bytes: IntCounter,
    /// Tools that panicked, by tool.
    pub panics: IntCounterVec,
    /// Failed passes of maintenance, by sweep.
    pub sweep_failures: IntCounterVec,
    /// What the whole installation has, by kind, as last counted in the database.
    pub installation: IntGaugeVec,
    /// Age of the installation's oldest queued call, in seconds.
    pub oldest_queued: IntGauge,
    /// Age of the oldest row of the audit trail that is not sealed, in seconds.
    pub audit_lag: IntGauge,
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
        let counters = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let seconds =
            vec![0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];
        let queue_seconds = Histogram::with_opts(
            HistogramOpts::new("toolhost_call_queue_seconds", "From admission to start")
                .buckets(seconds.clone()),
        )?;
        registry.register(Box::new(queue_seconds.clone()))?;
        let duration_seconds = HistogramVec::new(
            HistogramOpts::new("toolhost_call_duration_seconds", "From start to end").buckets(seconds),
            &["tool"],
        )?;
        registry.register(Box::new(duration_seconds.clone()))?;
        let installation = IntGaugeVec::new(
            Opts::new("toolhost_installation", "What the installation has, counted in the database"),
            &["kind"],
        )?;
        registry.register(Box::new(installation.clone()))?;
        let metrics = Self {
            calls: counters("toolhost_calls_ended_total", "Calls that ended here", &["tool", "status"])?,
            starts: counters("toolhost_call_starts_total", "Starts of calls", &["how"])?,
            queue_seconds,
            duration_seconds,
            running: gauge("toolhost_calls_running", "Calls that run here")?,
            sessions: gauge("toolhost_sessions_owned", "Sessions that this process owns")?,
            session_ends: counters("toolhost_sessions_ended_total", "Sessions that ended here", &["reason"])?,
            recoveries: counter("toolhost_session_recoveries_total", "Sandboxes made anew for a session")?,
            leases_lost: counter("toolhost_worker_leases_lost_total", "Leases lost to others")?,
            takeovers: counter("toolhost_worker_takeovers_total", "Sessions taken over from dead workers")?,
            stale_refused: counter(
                "toolhost_worker_stale_writes_total",
                "Writes refused because superseded",
            )?,
            output_bytes: counter("toolhost_output_bytes_total", "Bytes of output relayed")?,
            dropped_bytes: counter("toolhost_output_dropped_bytes_total", "Bytes of output dropped")?,
            panics: counters("toolhost_tool_panics_total", "Tools that panicked", &["tool"])?,
            sweep_failures: counters(
                "toolhost_sweep_failures_total",
                "Failed maintenance passes",
                &["sweep"],
            )?,
            installation,
            oldest_queued: gauge(
                "toolhost_queue_oldest_seconds",
                "Age of the installation's oldest queued call",
            )?,
            audit_lag: gauge(
                "toolhost_audit_seal_lag_seconds",
                "Age of the installation's oldest audit row that is not sealed",
            )?,
        };
        metrics.show_all();
        Ok(metrics)
    }

    /// Shows every closed label at zero, so that the first count of one is seen as a rise.
    fn show_all(&self) {
        for how in Start::NAMES {
            self.starts.with_label_values(&[*how]);
        }
        for reason in SessionEndReason::ALL {
            self.session_ends.with_label_values(&[reason.as_str()]);
        }
        for sweep in Sweep::ALL {
            self.sweep_failures.with_label_values(&[sweep.name()]);
        }
        for kind in ["queued", "active", "sessions", "sandboxes", "workers"] {
            self.installation.with_label_values(&[kind]);
        }
    }

    /// Shows every tool of the catalogue at zero too.
    pub fn show_tools(&self, catalog: &Catalog) {
        for tool in catalog.list(&Filter::default()) {
            self.panics.with_label_values(&[tool.name]);
            self.duration_seconds.with_label_values(&[tool.name]);
            for status in CallStatus::ALL.iter().filter(|status| status.is_terminal()) {
                self.calls.with_label_values(&[tool.name, status.as_str()]);
            }
        }
    }
}
