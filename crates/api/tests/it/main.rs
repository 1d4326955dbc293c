//! The room as its users meet it: over HTTP, with a real Postgres and a tiny worker.

mod app;
mod artifacts;
mod audit;
mod auth;
mod bad_input;
mod calls;
mod client;
mod contexts;
mod faults;
mod hosts;
mod idempotency;
mod issuer;
mod lasting;
mod lists;
mod openapi;
mod output;
mod pages;
mod quotas;
mod rates;
mod roles;
mod runtimes;
mod shares;
mod streams;
mod tokens;
mod tool_results;
mod usage;
