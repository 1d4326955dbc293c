//! The binary `toolhost`: configuration, telemetry, wiring and subcommands. It decides nothing that a room decides.

pub mod cli;
pub mod commands;
pub mod config;
pub mod dev;
pub mod internal;
pub mod place;
pub mod postgres;
pub mod service;
pub mod stop;
pub mod telemetry;
pub mod wiring;
