//! Numbers of the HTTP face. Labels are matched routes, methods and status classes: never what a client chose.

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

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
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.in_flight.clone()))?;
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.streams.clone()))?;
        registry.register(Box::new(metrics.events.clone()))?;
        registry.register(Box::new(metrics.slow_consumers.clone()))?;
        Ok(metrics)
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
