//! Spans on their way to the collector: OTLP over HTTP, as protobuf, in batches, and never in anybody's way.

use std::path::Path;
use std::time::Duration;

use api::{Endpoint, EndpointError, Plain};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::metrics::{Dropped, Metrics};

/// Spans that wait for the collector: some seconds of a busy process, and a few megabytes.
const QUEUE: usize = 4_096;
/// Spans in one request.
const BATCH: usize = 512;
/// How long spans are gathered into one request.
const GATHER: Duration = Duration::from_millis(500);
/// How long the collector may take for one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for the last one of a process that ends.
const LAST: Duration = Duration::from_secs(2);

/// The end where spans come in.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    metrics: Metrics,
}

/// The end where they go out.
pub(super) struct Shipment {
    spans: mpsc::Receiver<SpanData>,
    resource: ResourceAttributesWithSchema,
    collector: Endpoint,
    metrics: Metrics,
    failing: bool,
}

pub(super) fn queue(
    endpoint: &str,
    ca: Option<&Path>,
    resource: &Resource,
    metrics: Metrics,
) -> Result<(Queue, Shipment), EndpointError> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let endpoint = endpoint.trim_end_matches('/');
    let url = match endpoint.strip_suffix("/v1/traces") {
        Some(_) => endpoint.to_owned(),
        None => format!("{endpoint}/v1/traces"),
    };
    let collector = Endpoint::parse(&url, Plain::Anywhere, ca)?;
    let resource = resource.into();
    let shipment =
        Shipment { spans: receiver, resource, collector, metrics: metrics.clone(), failing: false };
    Ok((Queue { spans: sender, metrics }, shipment))
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.metrics.dropped(Dropped::QueueFull, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Shipment {
    /// Sends until `ended`, then what is left.
    pub(super) async fn run(mut self, ended: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let open = tokio::select! {
                open = gather(&mut self.spans, &mut batch) => open,
                () = ended.cancelled() => false,
            };
            if !open {
                break;
            }
            tokio::select! {
                () = self.send(&mut batch, PATIENCE) => {}
                // The collector hangs: what was under way is given up with the process.
                () = ended.cancelled() => {}
            }
        }
        self.spans.close();
        while let Ok(span) = self.spans.try_recv() {
            batch.push(span);
        }
        if !batch.is_empty() {
            self.send(&mut batch, LAST).await;
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanData>, patience: Duration) {
        let spans = std::mem::take(batch);
        let count = spans.len();
        let request = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(spans, &self.resource),
        };
        let sent = self.collector.post("application/x-protobuf", request.encode_to_vec());
        let outcome = match timeout(patience, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        };
        match outcome {
            Ok(()) => {
                self.metrics.exported(count);
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(reason) => {
                self.metrics.dropped(Dropped::NotTaken, count);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(reason, "the collector takes no spans; they are dropped");
                }
            }
        }
    }
}

/// Gathers a batch. False when no more will come.
async fn gather(spans: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) -> bool {
    if spans.recv_many(batch, BATCH).await == 0 {
        return false;
    }
    let until = Instant::now() + GATHER;
    while batch.len() < BATCH {
        match timeout_at(until, spans.recv_many(batch, BATCH - batch.len())).await {
            Ok(0) => return false,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    true
}
