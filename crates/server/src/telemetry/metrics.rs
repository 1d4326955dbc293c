//! What telemetry counts of itself: what it could not say.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tracing_appender::non_blocking::ErrorCounter;

/// Why a span did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// Too many waited.
    QueueFull,
    /// The collector did not take it.
    NotTaken,
}

#[derive(Debug, Clone)]
pub(super) struct Metrics {
    spans_exported: IntCounter,
    spans_dropped: IntCounterVec,
    lines: Lines,
}

impl Metrics {
    pub(super) fn new(errors: ErrorCounter) -> prometheus::Result<Self> {
        let lines_dropped = IntCounter::new(
            "toolhost_log_lines_dropped_total",
            "Lines that standard error did not take in time",
        )?;
        let metrics = Self {
            spans_exported: IntCounter::new(
                "toolhost_trace_spans_exported_total",
                "Spans that the collector took",
            )?,
            spans_dropped: IntCounterVec::new(
                Opts::new("toolhost_trace_spans_dropped_total", "Spans that did not reach the collector"),
                &["reason"],
            )?,
            lines: Lines { dropped: lines_dropped, errors },
        };
        metrics.dropped(Dropped::QueueFull, 0);
        metrics.dropped(Dropped::NotTaken, 0);
        Ok(metrics)
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.spans_exported.clone()))?;
        registry.register(Box::new(self.spans_dropped.clone()))?;
        registry.register(Box::new(self.lines.clone()))
    }

    pub(super) fn exported(&self, spans: usize) {
        self.spans_exported.inc_by(spans as u64);
    }

    pub(super) fn dropped(&self, why: Dropped, spans: usize) {
        let reason = match why {
            Dropped::QueueFull => "queue_full",
            Dropped::NotTaken => "not_taken",
        };
        self.spans_dropped.with_label_values(&[reason]).inc_by(spans as u64);
    }
}

/// Registers these metrics and nothing else: for the reference of all metrics.
///
/// # Errors
/// When the registry has metrics of these names already.
pub(crate) fn describe_metrics(registry: &Registry) -> prometheus::Result<()> {
    let (writer, _guard) = tracing_appender::non_blocking(std::io::sink());
    Metrics::new(writer.error_counter())?.register(registry)
}

/// The appender's own count as a metric.
#[derive(Clone)]
struct Lines {
    dropped: IntCounter,
    errors: ErrorCounter,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("dropped", &self.dropped).finish_non_exhaustive()
    }
}

impl Collector for Lines {
    fn desc(&self) -> Vec<&Desc> {
        self.dropped.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = self.errors.dropped_lines() as u64;
        self.dropped.inc_by(now.saturating_sub(self.dropped.get()));
        self.dropped.collect()
    }
}
