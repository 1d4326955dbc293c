//! Certificates that are served: read at the start, on SIGHUP, and when their files have changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use api::{Tls, Trust};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config::{InternalConfig, TlsConfig};

/// How often the files are looked at: who renews them need not know how to send signals.
const LOOK: Duration = Duration::from_secs(30);

/// The API's certificate as configured, kept up to date until `stop`. `None` for plain HTTP.
///
/// # Errors
/// When it cannot be used.
pub(crate) fn keep(config: &TlsConfig, stop: &CancellationToken) -> Result<Option<Arc<Tls>>> {
    let (Some(certificate), Some(key)) = (&config.certificate, &config.key) else { return Ok(None) };
    let tls = Tls::load(certificate, key)
        .context("the API cannot be served over TLS (hint: see tls.certificate and tls.key)")?;
    keep_fresh(tls, [certificate.clone(), key.clone()].into(), stop).map(Some)
}

/// The internal listener's certificate as configured, kept up to date until `stop`. `None` for plain HTTP.
///
/// # Errors
/// When it cannot be used.
pub(crate) fn keep_internal(config: &InternalConfig, stop: &CancellationToken) -> Result<Option<Arc<Tls>>> {
    let Some([certificate, key, ca]) = internal_files(config) else { return Ok(None) };
    let tls = Tls::mutual(certificate, key, ca).context(INTERNAL)?;
    keep_fresh(tls, [certificate.clone(), key.clone(), ca.clone()].into(), stop).map(Some)
}

/// Whom this process trusts at other processes' internal listeners. `None` for plain HTTP.
///
/// # Errors
/// When its own certificate cannot be used.
pub(crate) fn internal_trust(config: &InternalConfig) -> Result<Option<Trust>> {
    let Some([certificate, key, ca]) = internal_files(config) else { return Ok(None) };
    Trust::mutual(certificate, key, ca).context(INTERNAL).map(Some)
}

const INTERNAL: &str = "processes cannot reach each other over TLS (hint: see internal.tls_certificate, internal.tls_key and internal.tls_ca)";

fn internal_files(config: &InternalConfig) -> Option<[&PathBuf; 3]> {
    Some([config.tls_certificate.as_ref()?, config.tls_key.as_ref()?, config.tls_ca.as_ref()?])
}

fn keep_fresh(tls: Tls, files: Vec<PathBuf>, stop: &CancellationToken) -> Result<Arc<Tls>> {
    let tls = Arc::new(tls);
    let mut asked = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let (kept, stop) = (Arc::clone(&tls), stop.clone());
    let certificate = files.first().map(|file| file.display().to_string()).unwrap_or_default();
    tokio::spawn(async move {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = changed_at(&files);
        loop {
            let changed = tokio::select! {
                () = stop.cancelled() => return,
                _ = asked.recv() => true,
                _ = look.tick() => changed_at(&files) != seen,
            };
            if !changed {
                continue;
            }
            seen = changed_at(&files);
            match kept.reload() {
                Ok(()) => tracing::info!(certificate, "the certificate was read again"),
                Err(error) => tracing::error!(certificate, %error, "the certificate stays as it was"),
            }
        }
    });
    Ok(tls)
}

fn changed_at(files: &[PathBuf]) -> Vec<Option<SystemTime>> {
    files.iter().map(|file| std::fs::metadata(file).and_then(|about| about.modified()).ok()).collect()
}
