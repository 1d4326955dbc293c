//! The worker: claims calls, owns sessions, runs tools, relays their output, sweeps what is over.
//!
//! This room knows no HTTP and no SQL: rows go through `store`, containers through `sandbox`, and tools see only
//! the ports that are implemented here.

mod relay;
mod config;
mod ledger;
mod lease;
mod metrics;
mod schedule;

pub use config::{OnShutdown, WorkerConfig};
pub use metrics::Metrics;
