//! Numbers of the HTTP face. Labels are matched routes, methods and status classes: never what a client chose.

use domain::Code;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use tools::{Catalog, Filter};

/// The route of requests that match none.
pub(crate) const UNMATCHED: &str = "unmatched";

/// What became of a submitted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It started at once.
    Started,
    /// It waits.
    Queued,
    /// Policy does not allow it.
    Denied,
    /// Its idempotency key had made it before.
    Repeated,
    /// There was no room, no session, or no such key.
    Refused,
}

/// Registers this room's metrics and nothing else: for the reference of all metrics.
///
/// # Errors
/// When the registry has metrics of these names already.
pub fn describe_metrics(registry: &Registry, catalog: &Catalog) -> Result<(), prometheus::Error> {
    Metrics::register(registry).map(|metrics| metrics.show_tools(catalog))
}

/// Metrics of this room.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) requests: IntCounterVec,
    pub(crate) duration: HistogramVec,
    pub(crate) in_flight: IntGauge,
    pub(crate) connections: IntGauge,
    pub(crate) streams: IntGauge,
    pub(crate) events: IntCounter,
    pub(crate) slow_consumers: IntCounter,
    /// Refusals by code; codes are a closed registry.
    pub(crate) problems: IntCounterVec,
    /// Submitted calls by tool of the catalogue and what became of them.
    pub(crate) submitted: IntCounterVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new("toolhost_http_requests_total", "Requests answered."),
                &["route", "method", "status"],
            )?,
            duration: HistogramVec::new(
                HistogramOpts::new(
                    "toolhost_http_request_seconds",
                    "Time until the response's head is sent.",
                )
                .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 90.0]),
                &["route", "method"],
            )?,
            in_flight: IntGauge::new("toolhost_http_requests_in_flight", "Requests that are handled now.")?,
            connections: IntGauge::new("toolhost_http_connections", "Open connections.")?,
            streams: IntGauge::new("toolhost_sse_streams", "Open event streams.")?,
            events: IntCounter::new("toolhost_sse_events_total", "Numbered events handed to streams.")?,
            slow_consumers: IntCounter::new(
                "toolhost_sse_slow_consumers_total",
                "Streams closed because their reader made no progress.",
            )?,
            problems: IntCounterVec::new(
                Opts::new("toolhost_http_problems_total", "Requests refused, by code."),
                &["code"],
            )?,
            submitted: IntCounterVec::new(
                Opts::new("toolhost_calls_submitted_total", "Submitted calls whose arguments were good."),
                &["tool", "outcome"],
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.in_flight.clone()))?;
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.streams.clone()))?;
        registry.register(Box::new(metrics.events.clone()))?;
        registry.register(Box::new(metrics.slow_consumers.clone()))?;
        registry.register(Box::new(metrics.problems.clone()))?;
        registry.register(Box::new(metrics.submitted.clone()))?;
        for code in Code::ALL {
            metrics.problems.with_label_values(&[code.as_str()]);
        }
        for class in ["2xx", "3xx", "4xx", "5xx"] {
            metrics.requests.with_label_values(&[UNMATCHED, "GET", class]);
        }
        metrics.duration.with_label_values(&[UNMATCHED, "GET"]);
        Ok(metrics)
    }

    /// Shows every tool of the catalogue at zero, so that the first count of one is seen as a rise.
    pub(crate) fn show_tools(&self, catalog: &Catalog) {
        for tool in catalog.list(&Filter::default()) {
            for outcome in [
                CallOutcome::Started,
                CallOutcome::Queued,
                CallOutcome::Denied,
                CallOutcome::Repeated,
                CallOutcome::Refused,
            ] {
                self.call(tool.name, outcome, 0);
            }
        }
    }

    /// Counts submitted calls. The tool is one of the catalogue's own names.
    pub(crate) fn call(&self, tool: &str, outcome: CallOutcome, count: u64) {
        let outcome = match outcome {
            CallOutcome::Started => "started",
            CallOutcome::Queued => "queued",
            CallOutcome::Denied => "denied",
            CallOutcome::Repeated => "repeated",
            CallOutcome::Refused => "refused",
        };
        self.submitted.with_label_values(&[tool, outcome]).inc_by(count);
    }
}

/// Counts one up for as long as it lives.
#[derive(Debug)]
pub(crate) struct Counted(IntGauge);

impl Counted {
    pub(crate) fn up(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
