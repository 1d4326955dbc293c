//! The harness of the integration tests: a whole installation as a user would run it, and clients for it.

pub mod client;
pub mod collector;
pub mod engine;
pub mod host;
pub mod process;
pub mod proxy;
pub mod sse;
pub mod wait;
pub mod websocket;

pub use client::{Client, Reply};
pub use host::{Host, Tenant};
pub use process::Process;
pub use proxy::Proxy;
pub use sse::{Follower, SseEvent};
