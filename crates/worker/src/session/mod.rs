//! A session that this worker owns: what others may ask of it, and where its sandbox is.

mod end;
mod own;
mod start;
mod verdict;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::limits::{EXCHANGES_PER_SESSION, IN_LINE_PER_SESSION, RESTING_PER_SESSION};
use domain::policy::EffectiveLimits;
use domain::{ContextId, Session, SessionEnd, SessionId, ShellId, ShellName, TenantId};
use sandbox::Sandbox;
use serde_json::{Map, Value};
use store::{SessionFence, SessionWish};
use tokio::sync::{Notify, Semaphore, watch};

use crate::shell::RunningShell;

pub(crate) use own::{Begin, own};

/// A sandbox that serves a session.
#[derive(Debug, Clone)]
pub(crate) struct Serving {
    pub(crate) sandbox: Sandbox,
    /// Which of the session's sandboxes it is.
    pub(crate) generation: u32,
}

/// Where a session is.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    /// Its sandbox is being made, or made anew.
    Starting,
    /// It serves.
    Serving(Serving),
    /// It is over.
    Ended,
    /// This worker has let it go.
    Left,
}

/// Why a session will not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotServing {
    /// It is over.
    Ended,
    /// It is not this worker's any more.
    Left,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct OwnedSession {
    pub(crate) id: SessionId,
    pub(crate) tenant_id: TenantId,
    pub(crate) fence: SessionFence,
    /// The row as it was when it came to this worker.
    pub(crate) row: Session,
    /// Bytes of output that are kept of each call and shell.
    pub(crate) output_bytes: u64,
    phase: watch::Sender<Phase>,
    wish: Mutex<Option<SessionWish>>,
    /// Latest reset that was taken up.
    reset: AtomicU32,
    /// There is a wish.
    wished: Notify,
    /// Sandbox that this worker holds to be gone, by generation.
    condemned: watch::Sender<u32>,
    last_gone: Mutex<Map<String, Value>>,
    shells: Mutex<HashMap<ShellId, Arc<RunningShell>>>,
    /// Room for exchanges with API processes.
    pub(crate) exchanges: Arc<Semaphore>,
    /// Room for calls that only wait.
    pub(crate) resting: Arc<Semaphore>,
    /// Room for calls that wait for their turn in a named shell or a context, or to write to a shell.
    pub(crate) in_line: Arc<Semaphore>,
    contexts: Mutex<Contexts>,
    /// Held by the call that runs in a named shell.
    named: Mutex<HashMap<ShellName, Arc<tokio::sync::Mutex<()>>>>,
}

/// What goes on in the session's contexts.
#[derive(Debug, Default)]
struct Contexts {
    /// Held by the call that runs in a context.
    turns: HashMap<ContextId, Arc<tokio::sync::Mutex<()>>>,
    /// Contexts for which a wish is being carried out.
    wishes: HashSet<ContextId>,
}

impl OwnedSession {
    /// `None` for a row without an owner.
    pub(crate) fn new(row: Session, limits: &EffectiveLimits) -> Option<Arc<Self>> {
        let fence = SessionFence::of(&row)?;
        Some(Arc::new(Self {
            id: row.id,
            tenant_id: row.tenant_id,
            fence,
            output_bytes: limits.output_bytes,
            phase: watch::Sender::new(Phase::Starting),
            wish: Mutex::default(),
            reset: AtomicU32::new(row.reset_done),
            wished: Notify::new(),
            condemned: watch::Sender::new(0),
            last_gone: Mutex::default(),
            shells: Mutex::default(),
            exchanges: Arc::new(Semaphore::new(EXCHANGES_PER_SESSION)),
            resting: Arc::new(Semaphore::new(RESTING_PER_SESSION)),
            in_line: Arc::new(Semaphore::new(IN_LINE_PER_SESSION)),
            contexts: Mutex::default(),
            named: Mutex::default(),
            row,
        }))
    }

    /// Its sandbox, waited for.
    pub(crate) async fn serving(&self) -> Result<Serving, NotServing> {
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                Phase::Serving(serving) => return Ok(serving.clone()),
                Phase::Ended => return Err(NotServing::Ended),
                Phase::Left => return Err(NotServing::Left),
                Phase::Starting => {}
            }
            if phase.changed().await.is_err() {
                return Err(NotServing::Left);
            }
        }
    }

    /// Its sandbox, if it has one at this moment.
    pub(crate) fn serving_now(&self) -> Option<Serving> {
        match &*self.phase.borrow() {
            Phase::Serving(serving) => Some(serving.clone()),
            Phase::Starting | Phase::Ended | Phase::Left => None,
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// What its owner is to do about it. An end is not replaced by anything.
    pub(crate) fn wish(&self, wish: SessionWish) {
        let mut current = self.wish.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*current, Some(SessionWish::End(_))) {
            *current = Some(wish);
        }
        drop(current);
        self.wished.notify_one();
    }

    async fn wished(&self) -> SessionWish {
        loop {
            let wish = self.wish.lock().unwrap_or_else(PoisonError::into_inner).take();
            match wish {
                // The row wishes for a reset until it is done, and says so again and again.
                Some(SessionWish::Reset { request })
                    if self.reset.fetch_max(request, Ordering::Relaxed) >= request => {}
                Some(wish) => return wish,
                None => {}
            }
            self.wished.notified().await;
        }
    }

    /// That it is to end. Other wishes are left where they are.
    async fn wished_end(&self) -> SessionEnd {
        loop {
            if let Some(SessionWish::End(end)) = &*self.wish.lock().unwrap_or_else(PoisonError::into_inner) {
                return end.clone();
            }
            self.wished.notified().await;
        }
    }

    /// The sandbox does not do what it is told: it is to be replaced.
    pub(crate) fn condemn(&self, serving: &Serving) {
        self.condemned.send_if_modified(|condemned| {
            let more = serving.generation > *condemned;
            *condemned = (*condemned).max(serving.generation);
            more
        });
    }

    async fn is_condemned(&self, generation: u32) {
        let mut condemned = self.condemned.subscribe();
        if condemned.wait_for(|condemned| *condemned >= generation).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What was seen of the last sandbox that went away.
    pub(crate) fn last_gone(&self) -> Map<String, Value> {
        self.last_gone.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_gone(&self, evidence: Map<String, Value>) {
        *self.last_gone.lock().unwrap_or_else(PoisonError::into_inner) = evidence;
    }

    fn shells_map(&self) -> MutexGuard<'_, HashMap<ShellId, Arc<RunningShell>>> {
        self.shells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held by the one call that may run in a context.
    pub(crate) fn context_lock(&self, id: ContextId) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.contexts().turns.entry(id).or_default())
    }

    /// Held by the one call that may run in a named shell. Names whose lock nobody holds are let go.
    pub(crate) fn named_lock(&self, name: &ShellName) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(name.clone()).or_default())
    }

    /// A wish for a context is taken up; false when one is already.
    pub(crate) fn begin_wish(&self, id: ContextId) -> bool {
        self.contexts().wishes.insert(id)
    }

    pub(crate) fn end_wish(&self, id: ContextId) {
        self.contexts().wishes.remove(&id);
    }

    pub(crate) fn shell(&self, id: ShellId) -> Option<Arc<RunningShell>> {
        self.shells_map().get(&id).cloned()
    }

    pub(crate) fn shells(&self) -> Vec<Arc<RunningShell>> {
        self.shells_map().values().cloned().collect()
    }

    /// Adds a shell; false when it is here already.
    pub(crate) fn insert_shell(&self, shell: &Arc<RunningShell>) -> bool {
        let mut shells = self.shells_map();
        let new = !shells.contains_key(&shell.id);
        if new {
            shells.insert(shell.id, Arc::clone(shell));
        }
        new
    }

    pub(crate) fn shell_count(&self) -> u32 {
        u32::try_from(self.shells_map().len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn remove_shell(&self, id: ShellId) {
        self.shells_map().remove(&id);
    }
}
