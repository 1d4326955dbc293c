//! Signed stream URLs on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;

/// How long a signed URL is to live.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateStreamUrl {
    /// Seconds; 300 when left out.
    #[schema(minimum = 1, maximum = 3600)]
    pub expires_in_s: Option<u32>,
}

/// A URL for `EventSource`, which cannot send headers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct StreamUrl {
    /// Always `stream_url`.
    #[schema(pattern = "^stream_url$")]
    pub object: &'static str,
    /// The call.
    #[schema(value_type = String)]
    pub call_id: domain::CallId,
    /// Path and query, to be resolved against this service's own address.
    #[schema(examples("/v1/calls/call_06b2m8j0v5x3t9q7k1h4c8n2ra/events?token=…"))]
    pub url: String,
    /// When it stops working. Streams that are open by then go on.
    pub expires_at: Time,
}
