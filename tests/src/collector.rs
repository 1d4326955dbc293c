//! Stands for a collector of traces, which is not ours: takes OTLP as the standard has it and keeps the spans.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

/// A listening collector.
#[derive(Debug)]
pub struct Collector {
    /// Where it listens.
    pub url: String,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    /// Listens on a port of its own.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let taken = Arc::clone(&spans);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let taken = Arc::clone(&taken);
                let service = service_fn(move |request| take(request, Arc::clone(&taken)));
                tokio::spawn(async move {
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { url, spans })
    }

    /// All spans that have come.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The spans of a trace, as far as they have come.
    #[must_use]
    pub fn of_trace(&self, trace: &str) -> Vec<Span> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.iter().filter(|span| hex(&span.trace_id) == trace).cloned().collect()
    }
}

async fn take(request: Request<Incoming>, taken: Arc<Mutex<Vec<Span>>>) -> Result<Response<Full<Bytes>>> {
    ensure!(request.uri().path() == "/v1/traces", "{}", request.uri());
    ensure!(request.headers()["content-type"] == "application/x-protobuf");
    let body = request.into_body().collect().await?.to_bytes();
    let export = ExportTraceServiceRequest::decode(body)?;
    let spans = export.resource_spans.into_iter().flat_map(|of_resource| of_resource.scope_spans);
    let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
    taken.extend(spans.flat_map(|of_scope| of_scope.spans));
    Ok(Response::new(Full::default()))
}

/// Bytes as the ids of traces are written.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
