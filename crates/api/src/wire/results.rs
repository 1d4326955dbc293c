//! How a call ends on the wire: the twins of what `domain` keeps as JSON.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// What ended a call.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum EndReason {
    /// The tool ran to its end.
    Exited,
    /// A signal ended the command.
    Signal,
    /// The out-of-memory killer ended the command.
    Oom,
    /// The call's time ran out.
    Timeout,
    /// Somebody cancelled it.
    Cancelled,
    /// Policy or a human said no.
    Denied,
    /// A quota was used up.
    Quota,
    /// Its session ended.
    SessionEnded,
    /// Its sandbox was reset under it.
    SessionReset,
    /// The tool could not do it.
    ToolError,
    /// The platform could not do it.
    PlatformError,
    /// Nobody can know what happened.
    Lost,
}

/// A piece of a result.
#[derive(Debug, Clone, ToSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Text.
    Text {
        /// Its media type, such as `text/html`, when it is more than plain text.
        #[schema(nullable = false)]
        mime_type: Option<String>,
        /// The text.
        text: String,
        /// The artifact that keeps it (SVG), or what was too large to be shown in its place.
        #[schema(nullable = false)]
        artifact_id: Option<String>,
    },
    /// Data: a table (`application/vnd.toolhost.table+json`), a chart (`application/vnd.toolhost.chart+json`), or what an
    /// object says of itself (`application/json`).
    Json {
        /// Its media type.
        mime_type: String,
        /// The data.
        #[schema(value_type = Value)]
        json: Value,
    },
    /// A picture.
    Image {
        /// Its media type.
        mime_type: String,
        /// Its bytes in base64, when small.
        #[schema(nullable = false)]
        data: Option<String>,
        /// The artifact that keeps it.
        #[schema(nullable = false)]
        artifact_id: Option<String>,
    },
}

/// That `output` does not show everything.
#[derive(Debug, Clone, ToSchema)]
pub struct Truncation {
    /// Bytes that the tool produced.
    pub total_bytes: u64,
    /// Bytes that the text shows.
    pub shown_bytes: u64,
    /// Bytes that were dropped from the middle of the stored log; 0 when all of it can be read by range.
    pub dropped_bytes: u64,
    /// The artifact that keeps the whole.
    pub artifact_id: Option<String>,
}

/// What a tool returned.
#[derive(Debug, Clone, ToSchema)]
pub struct CallResult {
    /// The tool ran, and what it ran says that it went wrong (a non-zero exit code, say).
    pub is_error: bool,
    /// Text shaped for a model.
    pub output: String,
    /// The tool's typed output; its schema is the tool's `output_schema`.
    #[schema(value_type = Value)]
    pub structured: Value,
    /// Pieces beyond the text.
    pub content: Vec<ContentBlock>,
    /// Exit code of the command, if one ran to its end.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended the command, such as `SIGKILL`.
    pub signal: Option<String>,
    /// A remark of the platform for the model (processes left behind, output dropped).
    pub system: Option<String>,
    /// Set when `output` does not show everything.
    pub truncated: Option<Truncation>,
    /// The result came from a cache.
    pub cached: bool,
}

/// The systems whose names for tools are understood, and ours.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum SourceSystem {
    /// Our own.
    Toolhost,
    /// Open CoWork: the typed output, or `error`.
    OpenCowork,
    /// MyCoder: the typed output in camel case, or `error`.
    Mycoder,
    /// OpenManus: `output, error, base64_image, system`.
    OpenManus,
    /// Cowork Forge: `status` (`success`, `error`, `security_error`), `message`, `data`.
    CoworkForge,
}

/// An answer in the form of a source system.
#[derive(Debug, Clone, ToSchema)]
pub struct DialectAnswer {
    /// Whose form it is.
    pub system: SourceSystem,
    /// What its tool would have returned.
    #[schema(value_type = Value)]
    pub result: Value,
}

/// Why a call could not be done. The codes are those of problems.
#[derive(Debug, Clone, ToSchema)]
pub struct CallError {
    /// Which kind; `/problems/{code}` tells more.
    #[schema(examples("policy_denied"))]
    pub code: String,
    /// What happened.
    pub message: String,
    /// What to change.
    pub hint: Option<String>,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// Facts for programs.
    #[schema(value_type = Object)]
    pub details: Value,
}

/// How a call ended.
#[derive(Debug, Clone, ToSchema)]
pub struct CallEnded {
    /// What ended it.
    pub reason: EndReason,
    /// What was seen.
    #[schema(value_type = Object)]
    pub evidence: Value,
    /// What to do about it.
    pub hint: Option<String>,
}

/// What a call used.
#[derive(Debug, Clone, ToSchema)]
pub struct CallUsage {
    /// From admission to start, in milliseconds.
    pub queue_ms: u64,
    /// From start to end, in milliseconds.
    pub duration_ms: u64,
    /// CPU time in the sandbox, in milliseconds.
    pub cpu_ms: u64,
    /// Largest resident set in the sandbox, in bytes.
    pub max_rss_bytes: u64,
    /// Bytes of arguments and input.
    pub bytes_in: u64,
    /// Bytes of output, dropped ones included.
    pub bytes_out: u64,
    /// Tokens of a model provider.
    pub tokens: u64,
    /// Cost at a provider, in millionths of a US dollar.
    pub cost_microusd: u64,
}
