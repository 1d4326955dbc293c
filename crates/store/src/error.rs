//! What can go wrong between a caller and Postgres, named by the operation that failed.

/// A store operation that could not be done.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database does not answer, refuses connections, restarts, or is read-only; or this process is over its
    /// own limit of waiting writes. Nothing is wrong with what was asked: try again. Whether a write that failed
    /// so was made is not known, unless it carried an idempotency key.
    #[error("{operation}: the database does not answer")]
    Unavailable {
        /// Which operation.
        operation: &'static str,
        /// What the driver said.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The holder of a fence has been superseded (a later attempt, another worker, a terminal status, a later
    /// epoch, a lost lease). Nothing was written. It must stop acting.
    #[error("{operation}: somebody else has taken over")]
    Stale {
        /// Which operation.
        operation: &'static str,
    },
    /// Nothing there, or another tenant's: the two cannot be told apart.
    #[error("{operation}: there is no such thing")]
    NotFound {
        /// Which operation.
        operation: &'static str,
    },
    /// The state does not allow it, or a name is taken.
    #[error("{operation}: {message}")]
    Conflict {
        /// Which operation.
        operation: &'static str,
        /// What stands in the way, for the caller's eyes.
        message: &'static str,
    },
    /// Text that Postgres cannot keep (U+0000). A fault of the request.
    #[error("{operation}: {field} contains U+0000, which cannot be stored")]
    Unstorable {
        /// Which operation.
        operation: &'static str,
        /// Where.
        field: &'static str,
    },
    /// A bug, here or in the caller. The text is for logs only.
    #[error("{operation}: unexpected answer of the database")]
    Internal {
        /// Which operation.
        operation: &'static str,
        /// What the driver said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What every operation returns.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

impl StoreError {
    /// Whether trying the same again later can help.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the caller has been superseded.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }
}
