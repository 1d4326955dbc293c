//! The distributed trace that a request belongs to, for whatever is done for it.

use domain::trace::TraceContext;

tokio::task_local! {
    static REQUEST: Option<TraceContext>;
}

/// Does something for a request of this trace.
pub(crate) async fn within<F: Future>(trace: Option<TraceContext>, work: F) -> F::Output {
    REQUEST.scope(trace, work).await
}

/// The trace of the request that is handled.
pub(crate) fn current() -> Option<TraceContext> {
    REQUEST.try_with(|trace| *trace).ok().flatten()
}
