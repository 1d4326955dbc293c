//! The integration tests: whole installations, met from outside as users, operators and attackers meet them.

mod access;
mod architecture;
mod artifacts;
mod attacks;
mod attacks_page;
mod backup;
mod bad_input;
mod code;
mod concurrency;
mod dev;
mod docs;
mod documents;
mod drain;
mod faults;
mod files;
mod load;
mod main_job;
mod monitoring;
mod operators;
mod sandbox_attacks;
mod sessions;
mod shells;
mod submitting;
mod telemetry;
mod tls;
mod tools;
