//! The API's certificate: read at the start, on SIGHUP, and when its files have changed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use api::Tls;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config::TlsConfig;

/// How often the files are looked at: who renews them need not know how to send signals.
const LOOK: Duration = Duration::from_secs(30);

/// The certificate as configured, kept up to date until `stop`. `None` for plain HTTP.
///
/// # Errors
/// When it cannot be used.
pub(crate) fn keep(config: &TlsConfig, stop: &CancellationToken) -> Result<Option<Arc<Tls>>> {
    let (Some(certificate), Some(key)) = (config.certificate.clone(), config.key.clone()) else {
        return Ok(None);
    };
    let tls = Tls::load(&certificate, &key)
        .context("the API cannot be served over TLS (hint: see tls.certificate and tls.key)")?;
    let tls = Arc::new(tls);
    let mut asked = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let (kept, stop) = (Arc::clone(&tls), stop.clone());
    tokio::spawn(async move {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = changed_at([certificate.as_path(), key.as_path()]);
        loop {
            let changed = tokio::select! {
                () = stop.cancelled() => return,
                _ = asked.recv() => true,
                _ = look.tick() => changed_at([certificate.as_path(), key.as_path()]) != seen,
            };
            if !changed {
                continue;
            }
            seen = changed_at([certificate.as_path(), key.as_path()]);
            match kept.reload() {
                Ok(()) => tracing::info!("the certificate was read again"),
                Err(error) => tracing::error!(%error, "the certificate stays as it was"),
            }
        }
    });
    Ok(Some(tls))
}

fn changed_at(files: [&Path; 2]) -> [Option<SystemTime>; 2] {
    files.map(|file| std::fs::metadata(file).and_then(|about| about.modified()).ok())
}
