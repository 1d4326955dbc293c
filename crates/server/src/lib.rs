//! The binary `toolhost`: configuration, telemetry, wiring and subcommands. It decides nothing that a room decides.

mod certificates;
pub mod cli;
pub mod commands;
pub mod config;
pub mod dev;
pub mod internal;
pub mod metrics_reference;
pub mod place;
pub mod postgres;
mod process_metrics;
pub mod service;
pub mod stop;
pub mod telemetry;
pub mod wiring;
