//! What the process says, on standard error. Never the arguments or outputs of calls: those belong to tenants.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::config::{LogConfig, LogFormat};

/// Starts logging for this process.
///
/// # Errors
/// When the filter cannot be read, or logging was started before.
pub fn start(config: &LogConfig) -> Result<()> {
    let filter = EnvFilter::try_new(&config.filter)
        .with_context(|| format!("log.filter is not understood: {}", config.filter))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.with_span_events(FmtSpan::NONE);
    let pretty = match config.format {
        LogFormat::Pretty => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let started = if pretty {
        lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).try_init()
    } else {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
    };
    started.map_err(|error| anyhow::anyhow!("logging was started before: {error}"))
}
