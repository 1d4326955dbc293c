//! Problems on the wire (RFC 9457), for the document only: `Problem::members` writes them.

use utoipa::ToSchema;

/// Why a request was refused (RFC 9457). Further members may follow, such as `session_end` or `links`.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemView {
    /// A page about this kind of problem.
    #[schema(rename = "type", examples("/problems/not_found"))]
    pub kind: String,
    /// A short, fixed summary of the kind.
    pub title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What happened and what to change.
    pub detail: String,
    /// The path that was asked.
    #[schema(nullable = false)]
    pub instance: Option<String>,
    /// Which kind, for programs.
    #[schema(examples("not_found"))]
    pub code: String,
    /// The id under which the request is logged.
    #[schema(nullable = false)]
    pub request_id: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// When trying again may help, in milliseconds; also in `Retry-After`.
    #[schema(nullable = false)]
    pub retry_after_ms: Option<u64>,
    /// Each wrong value with its place.
    pub errors: Vec<FieldErrorView>,
}

/// One wrong value.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = FieldError)]
pub struct FieldErrorView {
    /// JSON pointer into the request's body, or `?name` for a query parameter.
    #[schema(examples("/arguments/command"))]
    pub pointer: String,
    /// What is wrong with it: `required`, `unknown_field`, `wrong_type`, `invalid`, `limit_exceeded`, `differs`.
    pub code: String,
    /// What to change.
    pub message: String,
}
