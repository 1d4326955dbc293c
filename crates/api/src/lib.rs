//! HTTP and SSE over one service layer.
//!
//! Faces (`http`) know HTTP and call `service`; `service` knows the catalogue, policy and the store, and no HTTP; `wire` has the
//! shapes that clients see. Nothing here knows containers or runs a tool.

mod config;
mod exchange;
mod health;
mod http;
pub mod json;
mod jwt;
mod metrics;
mod multipart;
mod openapi;
mod outgoing;
pub mod problem;
mod rates;
mod serve;
mod service;
mod signature;
mod sse;
mod state;
mod tls;
mod trace;
mod transfers;
pub mod wire;

pub use config::{ApiConfig, StreamConfig};
pub use exchange::{Duplex, Exchange, NoExchange};
pub use health::{Readiness, ReadinessCheck};
pub use http::{NoProxy, PeerAddress, TrustedProxy, metrics_router, router};
pub use jwt::{IssuerConfig, IssuerError, IssuerKey, JwksConfig, KeyMaterial, TokenAlgorithm};
pub use metrics::describe_metrics;
pub use openapi::openapi;
pub use outgoing::{AskError, Endpoint, EndpointError, Plain};
pub use serve::{serve, serve_metrics};
pub use sse::encode_event;
pub use state::{ApiError, ApiState, Ports};
pub use tls::{Tls, TlsError, Trust};
