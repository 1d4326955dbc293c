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
    /// The object store does not answer, or refuses. Try again later.
    #[error("{operation}: the object store does not answer")]
    Storage {
        /// Which operation.
        operation: &'static str,
        /// What it said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
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

/// What a failed statement means to its caller. Constraint names are translated where they can be met, before this.
pub(crate) fn translate(operation: &'static str, error: sqlx::Error) -> StoreError {
    match kind(&error) {
        Kind::Unavailable => StoreError::Unavailable { operation, source: Some(Box::new(error)) },
        Kind::Unstorable => StoreError::Unstorable { operation, field: "text" },
        Kind::Internal => StoreError::Internal { operation, source: Box::new(error) },
    }
}

enum Kind {
    Unavailable,
    Unstorable,
    Internal,
}

fn kind(error: &sqlx::Error) -> Kind {
    use sqlx::Error;
    match error {
        Error::Io(_)
        | Error::Tls(_)
        | Error::Protocol(_)
        | Error::PoolTimedOut
        | Error::PoolClosed
        | Error::WorkerCrashed
        | Error::BeginFailed => Kind::Unavailable,
        Error::Database(database) => database.code().map_or(Kind::Internal, |code| sqlstate(&code)),
        _ => Kind::Internal,
    }
}

/// Classes of SQLSTATE (appendix A of the Postgres manual) that pass by themselves.
fn sqlstate(code: &str) -> Kind {
    match code {
        // Not representable in jsonb or in text: U+0000.
        "22P05" | "22021" => Kind::Unstorable,
        // Read-only, lock not available, deadlock, serialisation, cancelled by a timeout.
        "25006" | "55P03" | "40P01" | "40001" | "57014" => Kind::Unavailable,
        _ => match code.get(..2) {
            // Connection exceptions, resources (disk, memory, connections), operator intervention, system errors.
            Some("08" | "53" | "57" | "58") => Kind::Unavailable,
            _ => Kind::Internal,
        },
    }
}

/// The name of the constraint that a statement met.
pub(crate) fn constraint(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error().and_then(|error| error.constraint())
}

/// Whether a table was somebody else's for longer than we were willing to wait.
pub(crate) fn is_locked_out(error: &StoreError) -> bool {
    let StoreError::Unavailable { source: Some(source), .. } = error else { return false };
    let source = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
    source.and_then(|error| error.code()).as_deref() == Some("55P03")
}

/// Whether the statement lost a race that Postgres resolved by ending one of the two.
pub(crate) fn is_deadlock(error: &sqlx::Error) -> bool {
    matches!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("40P01" | "40001"))
}
