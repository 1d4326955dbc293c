//! What the process says: lines on standard error, and traces to a collector. Never the arguments or outputs of calls: those
//! belong to tenants.
//!
//! # Design notes
//!
//! Neither may ever hold the service up. Lines go through a bounded queue to a thread of their own, which alone waits for standard
//! error; spans go through a bounded queue to a task of their own, which alone waits for the collector. What a full queue does not take
//! is dropped and counted. A panic is told as a line too (the default hook would write to standard error by itself), and by its
//! place only: the message of a panic over a text contains the text.

mod metrics;
mod ship;
mod traces;

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use domain::trace::{NoTraces, Traces};
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::config::{LogConfig, LogFormat, TelemetryConfig};

use self::metrics::Metrics;
pub(crate) use self::metrics::describe_metrics;
use self::ship::Shipment;

/// Lines that wait for standard error. A few megabytes.
const LINES: usize = 8_192;

/// What the process says. Dropping it writes the lines that wait, for a second at most.
pub struct Telemetry {
    traces: Arc<dyn Traces>,
    shipment: Mutex<Option<Shipment>>,
    metrics: Metrics,
    _lines: WorkerGuard,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// Starts it for this process.
///
/// # Errors
/// When the filter cannot be read, or logging was started before.
pub fn start(log: &LogConfig, config: &TelemetryConfig) -> Result<Telemetry> {
    let filter = EnvFilter::try_new(&log.filter)
        .with_context(|| format!("log.filter is not understood: {}", log.filter))?;
    let (writer, guard) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).finish(std::io::stderr());
    let metrics = Metrics::new(writer.error_counter())?;
    let pretty = match log.format {
        LogFormat::Pretty => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let lines = fmt::layer().with_writer(writer);
    let lines = if pretty {
        lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).boxed()
    } else {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    };
    let recorded = config.otlp_endpoint.as_deref().map(|endpoint| traces::record(config, endpoint, &metrics));
    let recorded = recorded.transpose().map_err(|error| {
        anyhow::anyhow!("telemetry.otlp_endpoint is a URL {error} (hint: see telemetry.otlp_ca)")
    })?;
    let (traces, shipment, spans) = match recorded {
        Some((traces, tracer, shipment)) => {
            // No context of OpenTelemetry's own: entering a span must not fix its parent.
            let spans = tracing_opentelemetry::layer().with_tracer(tracer).with_context_activation(false);
            let spans = spans.with_location(false).with_threads(false).with_filter(ours());
            (traces, Some(shipment), Some(spans))
        }
        None => (Arc::new(NoTraces) as Arc<dyn Traces>, None, None),
    };
    tracing_subscriber::registry()
        .with(spans)
        .with(lines.with_filter(filter))
        .try_init()
        .map_err(|error| anyhow::anyhow!("logging was started before: {error}"))?;
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a panic");
    }));
    Ok(Telemetry { traces, shipment: Mutex::new(shipment), metrics, _lines: guard })
}

/// Spans of our rooms: those of libraries name what libraries do.
fn ours() -> Targets {
    let rooms = ["api", "worker", "store", "sandbox", "tools", "server"];
    rooms.into_iter().fold(Targets::new(), |targets, room| targets.with_target(room, tracing::Level::INFO))
}

impl Telemetry {
    /// Whoever records traces.
    #[must_use]
    pub fn traces(&self) -> Arc<dyn Traces> {
        Arc::clone(&self.traces)
    }

    /// Registers what is counted here.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        self.metrics.register(registry)
    }

    /// Sends spans from now on, on this runtime, until `ended` is cancelled; what waits then gets a moment. To be called once.
    pub fn ship(&self, ended: CancellationToken) -> Option<tokio::task::JoinHandle<()>> {
        let shipment = self.shipment.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(tokio::spawn(shipment.run(ended)))
    }
}
