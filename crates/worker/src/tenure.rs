//! What one lease covers: the sessions, calls and slots that this worker has under it, and the right to write for them.
//!
//! # Design notes
//!
//! A process that loses its lease does not patch up its state: the tenure ends (nothing of it writes any more) and
//! another begins under a new worker id. So no task has to ask whether it is still the same worker.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::trace::Traces;
use domain::{CallId, HostId, SessionId, WorkerId};
use sandbox::Sandboxes;
use store::{Store, StoreError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::board::Board;
use crate::call::RunningCall;
use crate::lease::Lease;
use crate::session::OwnedSession;
use crate::{Metrics, WorkerConfig};

/// Pause between attempts of a write while the database does not answer.
const WRITE_RETRY: Duration = Duration::from_millis(200);
/// Calls that ended here lately and must not be mistaken for calls that never started.
const ENDED_LATELY: usize = 16_384;

/// What outlives a tenure.
pub(crate) struct Core {
    pub(crate) config: WorkerConfig,
    pub(crate) store: Store,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) catalog: Arc<tools::Catalog>,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Arc<dyn Traces>,
    pub(crate) host_id: HostId,
}

/// See the module.
pub(crate) struct Tenure {
    pub(crate) core: Arc<Core>,
    pub(crate) lease: Lease,
    /// It is over: the lease is lost, or everything was handed over. Nothing is written after.
    pub(crate) ended: CancellationToken,
    /// Nothing new is claimed or started directly.
    pub(crate) draining: CancellationToken,
    pub(crate) board: Arc<Board>,
    /// Sessions have to be looked at.
    pub(crate) sessions_bell: Notify,
    new_sessions: AtomicBool,
    polls_now: AtomicBool,
    /// A session or a call is here no more.
    fewer: Notify,
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: tokio::runtime::Handle,
    sessions: Mutex<HashMap<SessionId, Arc<OwnedSession>>>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    running: HashMap<CallId, Arc<RunningCall>>,
    ended_lately: VecDeque<CallId>,
}

/// Why a write was not made and will not be.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// The tenure is over or somebody else has taken over: stop without a trace.
    Superseded,
    /// The store refused it.
    Refused(StoreError),
}

impl Tenure {
    pub(crate) fn new(core: Arc<Core>, lease: store::Lease) -> Arc<Self> {
        let board = Board::new(core.config.slots);
        Arc::new(Self {
            lease: Lease::new(lease),
            ended: CancellationToken::new(),
            draining: CancellationToken::new(),
            board,
            sessions_bell: Notify::new(),
            new_sessions: AtomicBool::new(true),
            polls_now: AtomicBool::new(false),
            fewer: Notify::new(),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            sessions: Mutex::default(),
            calls: Mutex::default(),
            core,
        })
    }

    pub(crate) fn worker_id(&self) -> WorkerId {
        self.lease.worker_id
    }

    pub(crate) fn store(&self) -> &Store {
        &self.core.store
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }

    /// Whether anything new may be started.
    pub(crate) fn takes_work(&self) -> bool {
        !self.ended.is_cancelled() && !self.draining.is_cancelled() && self.lease.is_healthy()
    }

    /// Starts a task that belongs to this tenure.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    fn sessions_map(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OwnedSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn calls_map(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Arc<OwnedSession>> {
        self.sessions_map().get(&id).cloned()
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<OwnedSession>> {
        self.sessions_map().values().cloned().collect()
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions_map().len()
    }

    /// Adds a session, unless it is here already.
    pub(crate) fn insert_session(&self, session: &Arc<OwnedSession>) -> bool {
        let mut sessions = self.sessions_map();
        let new = !sessions.contains_key(&session.id);
        if new {
            sessions.insert(session.id, Arc::clone(session));
            self.metrics().sessions.set(sessions.len() as i64);
        }
        new
    }

    pub(crate) fn remove_session(&self, id: SessionId) {
        let mut sessions = self.sessions_map();
        sessions.remove(&id);
        self.metrics().sessions.set(sessions.len() as i64);
        drop(sessions);
        self.board.lock().close(id);
        self.fewer.notify_waiters();
    }

    /// A session was created or changed.
    pub(crate) fn look_at_session(&self, id: SessionId) {
        if self.session(id).is_none() {
            self.new_sessions.store(true, Ordering::Relaxed);
        }
        self.sessions_bell.notify_one();
    }

    /// Any session may have been created or changed.
    pub(crate) fn look_at_sessions(&self) {
        self.new_sessions.store(true, Ordering::Relaxed);
        self.sessions_bell.notify_one();
    }

    /// Whether sessions that are not here yet have to be looked for.
    pub(crate) fn take_new_sessions(&self) -> bool {
        self.new_sessions.swap(false, Ordering::Relaxed)
    }

    /// Calls may have queued unheard.
    pub(crate) fn poll_now(&self) {
        self.polls_now.store(true, Ordering::Relaxed);
        self.board.bell.notify_one();
    }

    /// Whether the queue has to be looked at although nothing was heard.
    pub(crate) fn take_poll_now(&self) -> bool {
        self.polls_now.swap(false, Ordering::Relaxed)
    }

    /// Waits until no call runs.
    pub(crate) async fn no_calls(&self) {
        loop {
            let fewer = self.fewer.notified();
            if self.calls_map().running.is_empty() {
                return;
            }
            fewer.await;
        }
    }

    /// Waits until no session is left.
    pub(crate) async fn no_sessions(&self) {
        loop {
            let fewer = self.fewer.notified();
            if self.session_count() == 0 {
                return;
            }
            fewer.await;
        }
    }

    pub(crate) fn call(&self, id: CallId) -> Option<Arc<RunningCall>> {
        self.calls_map().running.get(&id).cloned()
    }

    pub(crate) fn calls_of(&self, session_id: SessionId) -> Vec<Arc<RunningCall>> {
        self.calls_map().running.values().filter(|call| call.session_id == session_id).cloned().collect()
    }

    pub(crate) fn knows_call(&self, id: CallId) -> bool {
        let calls = self.calls_map();
        calls.running.contains_key(&id) || calls.ended_lately.contains(&id)
    }

    /// Adds a call, unless it runs here already.
    pub(crate) fn insert_call(&self, call: &Arc<RunningCall>) -> bool {
        let mut calls = self.calls_map();
        if calls.running.contains_key(&call.id) {
            return false;
        }
        calls.running.insert(call.id, Arc::clone(call));
        self.metrics().running.set(calls.running.len() as i64);
        true
    }

    /// The call is over, or another worker's.
    pub(crate) fn remove_call(&self, id: CallId) {
        let mut calls = self.calls_map();
        calls.running.remove(&id);
        calls.ended_lately.push_back(id);
        if calls.ended_lately.len() > ENDED_LATELY {
            calls.ended_lately.pop_front();
        }
        self.metrics().running.set(calls.running.len() as i64);
        drop(calls);
        self.fewer.notify_waiters();
    }

    /// Makes a write, again and again while the database does not answer, and only while this worker may act.
    pub(crate) async fn write<T, F>(&self, mut write: impl FnMut() -> F) -> Result<T, Unwritten>
    where
        F: Future<Output = store::Result<T>>,
    {
        loop {
            if !self.lease.is_healthy() {
                tokio::select! {
                    () = self.ended.cancelled() => return Err(Unwritten::Superseded),
                    () = self.lease.healthy() => {}
                }
            }
            if self.ended.is_cancelled() {
                return Err(Unwritten::Superseded);
            }
            match write().await {
                Ok(written) => return Ok(written),
                Err(error) if error.is_unavailable() => {
                    tokio::select! {
                        () = self.ended.cancelled() => return Err(Unwritten::Superseded),
                        () = tokio::time::sleep(WRITE_RETRY) => {}
                    }
                }
                Err(error) if error.is_stale() => {
                    self.metrics().stale_refused.inc();
                    return Err(Unwritten::Superseded);
                }
                Err(error) => return Err(Unwritten::Refused(error)),
            }
        }
    }
}
