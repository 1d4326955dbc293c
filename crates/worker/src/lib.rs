//! The worker: claims calls, owns sessions, runs tools, relays their output, sweeps what is over.
//!
//! This room knows no HTTP and no SQL: rows go through `store`, containers through `sandbox`, and tools see only
//! the ports that are implemented here. [`Worker::start`] is the way in.

mod board;
mod call;
mod capacity;
mod claims;
mod config;
mod contexts;
mod dispatch;
mod engine;
mod exchange;
mod journals;
mod lease;
mod ledger;
mod metrics;
mod ports;
mod relay;
mod schedule;
mod session;
mod sessions;
mod shell;
mod shell_time;
mod sweeps;
mod takeover;
mod tenure;
mod withdrawn;
mod worker;

pub use config::{Capacity, OnShutdown, WorkerConfig};
pub use exchange::Duplex;
pub use metrics::Metrics;
pub use worker::{StartError, Worker, WorkerHandle};
