//! Spans of ours as OpenTelemetry's, and the port that joins them across processes.

use std::sync::Arc;

use api::EndpointError;
use domain::trace::{PastSpan, TraceContext, Traces};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::metrics::Metrics;
use super::ship::{self, Shipment};
use crate::config::TelemetryConfig;

/// Records spans as configured, for `endpoint`.
pub(super) fn record(
    config: &TelemetryConfig,
    endpoint: &str,
    metrics: &Metrics,
) -> Result<(Arc<dyn Traces>, SdkTracer, Shipment), EndpointError> {
    let resource = Resource::builder_empty()
        .with_service_name("toolhost")
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", uuid::Uuid::now_v7().to_string()),
        ])
        .build();
    let (queue, shipment) = ship::queue(endpoint, config.otlp_ca.as_deref(), &resource, metrics.clone())?;
    let provider = SdkTracerProvider::builder()
        // A trace that somebody began is recorded as they decided.
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sampling_ratio))))
        .with_resource(resource)
        .with_span_processor(queue)
        .build();
    let tracer = provider.tracer("toolhost");
    Ok((Arc::new(Recorded { tracer: tracer.clone(), _provider: provider }), tracer, shipment))
}

struct Recorded {
    tracer: SdkTracer,
    /// Spans end nowhere once it is gone.
    _provider: SdkTracerProvider,
}

impl Traces for Recorded {
    fn adopt(&self, parent: TraceContext) {
        // A span that was not made at all (a filter) has no parent to be set.
        let _ = Span::current().set_parent(remote(parent));
    }

    fn current(&self) -> Option<TraceContext> {
        let context = Span::current().context();
        let span = context.span();
        let place = span.span_context();
        place.is_valid().then(|| TraceContext {
            trace_id: u128::from_be_bytes(place.trace_id().to_bytes()),
            span_id: u64::from_be_bytes(place.span_id().to_bytes()),
            sampled: place.is_sampled(),
        })
    }

    fn past(&self, span: PastSpan) {
        let parent = span.under.map_or_else(|| Span::current().context(), remote);
        let facts = span.facts.into_iter().map(|(name, fact)| KeyValue::new(name, fact));
        let mut past = self
            .tracer
            .span_builder(span.name)
            .with_start_time(span.started_at)
            .with_attributes(facts)
            .start_with_context(&self.tracer, &parent);
        past.end_with_timestamp(span.ended_at.into());
    }
}

fn remote(place: TraceContext) -> Context {
    let flags = if place.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    Context::new().with_remote_span_context(SpanContext::new(
        TraceId::from(place.trace_id),
        SpanId::from(place.span_id),
        flags,
        true,
        TraceState::NONE,
    ))
}
