//! The room as its users meet it: over HTTP, with a real Postgres and a tiny worker.

mod app;
mod audit;
mod auth;
mod bad_input;
mod calls;
mod client;
mod faults;
mod idempotency;
mod lists;
mod openapi;
mod output;
mod rates;
mod streams;
mod usage;
