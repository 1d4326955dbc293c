//! The closed registry of error codes: what a problem (RFC 9457) or a failed call may name.
//!
//! Adding a code here is adding a promise: it is documented at `/problems/{code}`, has one HTTP status, and
//! says whether trying the same again can help.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = ($name:literal, $status:literal, $retryable:literal, $title:literal);)*) => {
        /// A machine-readable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)*
        }

        impl Code {
            /// Every code, in the order of the registry.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The HTTP status of a problem with this code.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status),* }
            }

            /// Whether the same request may succeed later.
            #[must_use]
            pub const fn retryable(self) -> bool {
                match self { $(Self::$variant => $retryable),* }
            }

            /// What it means, in a sentence or two.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim()),* }
            }

            /// A short, fixed summary.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title),* }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or not text that can be stored (NUL, lone surrogates).
    MalformedJson = ("malformed_json", 400, false, "The body is not acceptable JSON");
    /// A header or query parameter is malformed.
    InvalidRequest = ("invalid_request", 400, false, "The request is malformed");
    /// A cursor that this service did not give, or gave for another list.
    InvalidCursor = ("invalid_cursor", 400, false, "The cursor is not one of this list");
    /// No credentials, or none that are valid now.
    Unauthenticated = ("unauthenticated", 401, false, "Valid credentials are needed");
    /// The credentials lack the scope that the operation declares.
    InsufficientScope = ("insufficient_scope", 403, false, "The credentials lack a scope");
    /// The tenant is suspended.
    TenantSuspended = ("tenant_suspended", 403, false, "The tenant is suspended");
    /// Nothing there, or not the caller's.
    NotFound = ("not_found", 404, false, "There is no such thing");
    /// The path exists, the method does not.
    MethodNotAllowed = ("method_not_allowed", 405, false, "The method is not allowed here");
    /// None of the offered representations is accepted.
    NotAcceptable = ("not_acceptable", 406, false, "No acceptable representation");
    /// The session has ended.
    SessionEnded = ("session_ended", 409, false, "The session has ended");
    /// The object is not in a state that allows this.
    Conflict = ("conflict", 409, false, "The state does not allow this");
    /// The first request with this idempotency key is still being admitted.
    IdempotencyInProgress = ("idempotency_in_progress", 409, true, "The first request with this key is still under way");
    /// The events after the cursor have been pruned.
    EventsPruned = ("events_pruned", 410, false, "The events have been pruned");
    /// What is there is not what `If-Match` or `If-None-Match` says.
    PreconditionFailed = ("precondition_failed", 412, false, "What is there is not what the request expects");
    /// The body is larger than allowed.
    BodyTooLarge = ("body_too_large", 413, false, "The body is too large");
    /// The content type is not understood.
    UnsupportedMediaType = ("unsupported_media_type", 415, false, "The content type is not supported");
    /// A byte range outside the output.
    RangeNotSatisfiable = ("range_not_satisfiable", 416, false, "The range cannot be satisfied");
    /// The body's fields, or a tool's arguments, are wrong; `errors` lists them.
    InvalidArguments = ("invalid_arguments", 422, false, "Some arguments are not valid");
    /// There is no such tool, or not for this tenant.
    UnknownTool = ("unknown_tool", 422, false, "There is no such tool");
    /// A value is above what policy allows.
    LimitExceeded = ("limit_exceeded", 422, false, "A value is above its limit");
    /// The idempotency key was used for another request.
    IdempotencyMismatch = ("idempotency_mismatch", 422, false, "The idempotency key belongs to another request");
    /// Too many requests.
    RateLimited = ("rate_limited", 429, true, "Too many requests");
    /// A quota of the tenant is used up.
    QuotaExceeded = ("quota_exceeded", 429, true, "A quota is used up");
    /// Too many of the tenant's calls wait.
    QueueFull = ("queue_full", 429, true, "The tenant's queue is full");
    /// A bug.
    Internal = ("internal", 500, true, "Something went wrong on our side");
    /// The installation has no room.
    Capacity = ("capacity", 503, true, "The installation has no room at the moment");
    /// The container engine does not answer.
    EngineUnavailable = ("engine_unavailable", 503, true, "The container engine does not answer");
    /// The worker that has the session cannot be reached, or the session is just changing its worker.
    WorkerUnavailable = ("worker_unavailable", 503, true, "The worker of the session cannot be reached");
    /// The database does not answer.
    DatabaseUnavailable = ("database_unavailable", 503, true, "The database does not answer");
    /// The object store that keeps artifacts does not answer.
    StorageUnavailable = ("storage_unavailable", 503, true, "The object store does not answer");
    /// The keys of the issuer of a token could not be read yet.
    IssuerUnavailable = ("issuer_unavailable", 503, true, "The issuer of the token does not answer");
    /// The process is shutting down.
    ShuttingDown = ("shutting_down", 503, true, "This process is shutting down");
    /// The request took too long to arrive or to be answered.
    RequestTimeout = ("request_timeout", 408, true, "The request took too long");

    /// Policy does not allow the call.
    PolicyDenied = ("policy_denied", 403, false, "Policy does not allow this");
    /// The call's time ran out.
    Timeout = ("timeout", 408, true, "The call's time ran out");
    /// The call was cancelled.
    Cancelled = ("cancelled", 409, false, "The call was cancelled");
    /// Nobody can know whether the call had effects.
    CallLost = ("call_lost", 500, false, "The call's outcome is unknown");
    /// A file, directory, shell or program does not exist.
    PathNotFound = ("path_not_found", 404, false, "There is nothing at that path");
    /// A path leaves the workspace and `/tmp`.
    PathOutsideWorkspace = ("path_outside_workspace", 403, false, "The path is outside the workspace");
    /// A path is malformed.
    InvalidPath = ("invalid_path", 422, false, "The path is malformed");
    /// The tool's user may not.
    PermissionDenied = ("permission_denied", 403, false, "The sandbox's user may not do this");
    /// A directory where a file is meant.
    IsDirectory = ("is_directory", 422, false, "This is a directory");
    /// A file where a directory is meant.
    NotDirectory = ("not_directory", 422, false, "This is not a directory");
    /// A pipe, socket or device where a file is meant.
    NotRegularFile = ("not_regular_file", 422, false, "This is not a regular file");
    /// Bytes that are not text where text is meant.
    BinaryFile = ("binary_file", 422, false, "This file is not text");
    /// Something is there already.
    AlreadyExists = ("already_exists", 409, false, "Something is there already");
    /// The file's content is not what the caller expected.
    StaleRead = ("stale_read", 409, false, "The file has changed since it was read");
    /// The file is there and was not read in this session.
    NotRead = ("not_read", 409, false, "The file has not been read in this session");
    /// The text to replace is not in the file.
    NoMatch = ("no_match", 422, false, "The text to replace is not in the file");
    /// The text to replace is in the file more than once.
    MultipleMatches = ("multiple_matches", 422, false, "The text to replace is in the file more than once");
    /// No earlier version of the file is kept.
    NothingToUndo = ("nothing_to_undo", 409, false, "There is nothing to undo");
    /// A directory that has entries, where an empty one is meant.
    NotEmpty = ("not_empty", 409, false, "The directory is not empty");
    /// An archive that is damaged, cut short, or could be read in two ways.
    InvalidArchive = ("invalid_archive", 422, false, "The archive is not taken");
    /// A form that is damaged, cut short, or could be read in two ways.
    InvalidForm = ("invalid_form", 422, false, "The form is not taken");
    /// A document that is damaged, cut short, or not what it says it is.
    InvalidDocument = ("invalid_document", 422, false, "The document cannot be read");
    /// A document that needs a password.
    EncryptedDocument = ("encrypted_document", 422, false, "The document is encrypted");
    /// A document of a kind that cannot be read.
    UnsupportedDocument = ("unsupported_document", 422, false, "Documents of this kind cannot be read");
    /// The sandbox's image lacks a program or library that the tool needs.
    ImageLacks = ("image_lacks", 422, false, "The sandbox's image lacks what this needs");
    /// The file is larger than the tool handles.
    FileTooLarge = ("file_too_large", 413, false, "The file is too large for this tool");
    /// The workspace's disk is full.
    NoSpace = ("no_space", 507, false, "The workspace is full");
    /// The session's sandbox was started by an earlier version of Toolhost, whose agent cannot do this.
    SandboxOutdated = ("sandbox_outdated", 409, false, "The sandbox is of an earlier version");
    /// No such artifact in this session.
    ArtifactNotFound = ("artifact_not_found", 404, false, "There is no such artifact");
    /// No such shell in this session.
    ShellNotFound = ("shell_not_found", 404, false, "There is no such shell");
    /// No such call in this session.
    CallNotFound = ("call_not_found", 404, false, "There is no such call");
    /// The shell has ended.
    ShellEnded = ("shell_ended", 409, false, "The shell has ended");
    /// No such context in this session.
    ContextNotFound = ("context_not_found", 404, false, "There is no such context");
    /// The context's interpreters speak another language than the tool.
    ContextLanguage = ("context_language", 422, false, "The context is of another language");
    /// The interpreter that ran the code ended under it, and with it the context's state.
    InterpreterDied = ("interpreter_died", 500, true, "The interpreter ended while it ran the code");
    /// What is asked for is not in the sandbox, and the session has no network to get it.
    NetworkRequired = ("network_required", 409, false, "This needs a network, which the session has not");
    /// A package or dependency does not exist, does not fit the others, or does not build.
    PackageFailed = ("package_failed", 422, false, "A package could not be installed");
    /// The command could not be started.
    StartFailed = ("start_failed", 422, false, "The command could not be started");
    /// Too many shells, processes or operations in the sandbox.
    SandboxLimit = ("sandbox_limit", 429, true, "A limit of the sandbox is reached");
    /// The sandbox went away or was reset under the call.
    SandboxLost = ("sandbox_lost", 500, true, "The sandbox went away");
    /// Something went wrong in the platform; nothing is uncertain.
    PlatformError = ("platform_error", 500, true, "The platform could not run the call");
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_serialise_as_they_read() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).expect("serialises"), code.as_str());
            assert!((400..=599).contains(&code.status()));
        }
    }
}
