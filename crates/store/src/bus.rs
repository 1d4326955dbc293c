//! What changed: batches in this process right after their commit, and hints from other processes.
//!
//! # Design notes
//!
//! * NOTIFY is a hint and nothing more. It goes out coalesced, on a connection of its own and never inside the
//!   transaction that it tells of (there it serialises commits). Whoever waits must also look at the table every
//!   [`domain::limits::POLL_MS`]; nothing may depend on a hint for being right.
//! * Nothing here waits for a reader. A subscriber that falls behind loses its batches and gets one *look at the
//!   table* instead; so does everybody after the listening connection was lost.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use domain::{CallId, Event, EventBody, SessionId, ShellId};
use tokio::sync::{Notify, broadcast};

/// Batches that wait for one subscriber before it is sent to the table.
const CALL_BACKLOG: usize = 64;
/// Hints that wait for a worker before it is told to look at everything.
const QUEUE_BACKLOG: usize = 4_096;
/// Hints that wait for the notifier before they become one *look at everything*.
const OUTBOX: usize = 4_096;

/// What a call's watcher is told.
#[derive(Debug, Clone)]
pub enum CallChange {
    /// Events that this process has just made durable, in order. A watcher that has seen everything before the
    /// first of them may send them as they are; any other reads the table.
    Events(Arc<[Event]>),
    /// Something may have changed: read the table.
    Wake,
}

/// What a worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A call of this session waits.
    Queued(SessionId),
    /// Somebody asked for this call's end.
    CancelRequested(CallId),
    /// The session was created, changed, ended, or asked to end or to be reset.
    SessionChanged(SessionId),
    /// Hints were lost: look at everything.
    Everything,
}

/// What other processes are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outgoing {
    Call(CallId),
    Shell(ShellId),
    Hint(Hint),
}

/// Where to subscribe. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bus {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    calls: Watchers<CallId>,
    shells: Watchers<ShellId>,
    queue: broadcast::Sender<Hint>,
    outbox: Mutex<Outbox>,
    filled: Notify,
    /// Whether any other process listens; without one nothing is sent.
    peers: AtomicBool,
}

#[derive(Debug, Default)]
struct Outbox {
    hints: HashSet<Outgoing>,
    everything: bool,
}

impl Bus {
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                calls: Watchers::default(),
                shells: Watchers::default(),
                queue: broadcast::Sender::new(QUEUE_BACKLOG),
                outbox: Mutex::default(),
                filled: Notify::new(),
                peers: AtomicBool::new(true),
            }),
        }
    }

    /// Changes of one call from now on. Subscribe first, then read the table, then wait.
    #[must_use]
    pub fn subscribe_call(&self, call: CallId) -> CallWatch {
        CallWatch { slot: self.shared.calls.add(call), id: call, shared: Arc::clone(&self.shared) }
    }

    /// Growth and end of one shell from now on.
    #[must_use]
    pub fn subscribe_shell(&self, shell: ShellId) -> ShellWatch {
        ShellWatch { slot: self.shared.shells.add(shell), id: shell, shared: Arc::clone(&self.shared) }
    }

    /// Everything that workers need to look at, of this process and others.
    #[must_use]
    pub fn subscribe_queue(&self) -> QueueWatch {
        QueueWatch { receiver: self.shared.queue.subscribe() }
    }

    /// Events that are committed now.
    pub(crate) fn committed(&self, call: CallId, events: Arc<[Event]>) {
        self.shared.calls.each(call, |slot| slot.push(Arc::clone(&events)));
        self.send(Outgoing::Call(call));
    }

    /// A call changed in a way that its watchers have to read.
    pub(crate) fn call_changed(&self, call: CallId) {
        self.shared.calls.each(call, Slot::wake);
        self.send(Outgoing::Call(call));
    }

    pub(crate) fn shell_changed(&self, shell: ShellId) {
        self.shared.shells.each(shell, Slot::wake);
        self.send(Outgoing::Shell(shell));
    }

    pub(crate) fn hint(&self, hint: Hint) {
        // Nobody may be listening, which is no error.
        let _ = self.shared.queue.send(hint);
        self.send(Outgoing::Hint(hint));
    }

    /// A hint of another process.
    pub(crate) fn received(&self, hint: Outgoing) {
        match hint {
            Outgoing::Call(call) => self.shared.calls.each(call, Slot::wake),
            Outgoing::Shell(shell) => self.shared.shells.each(shell, Slot::wake),
            Outgoing::Hint(Hint::Everything) => self.wake_everybody(),
            Outgoing::Hint(hint) => {
                let _ = self.shared.queue.send(hint);
            }
        }
    }

    /// Hints may have been lost.
    pub(crate) fn wake_everybody(&self) {
        self.shared.calls.all(Slot::wake);
        self.shared.shells.all(Slot::wake);
        let _ = self.shared.queue.send(Hint::Everything);
    }

    pub(crate) fn set_peers(&self, any: bool) {
        self.shared.peers.store(any, Ordering::Relaxed);
    }

    /// Waits for hints to send and takes them all.
    pub(crate) async fn outgoing(&self) -> Vec<Outgoing> {
        loop {
            let taken = std::mem::take(&mut *locked(&self.shared.outbox));
            if taken.everything {
                return vec![Outgoing::Hint(Hint::Everything)];
            }
            if !taken.hints.is_empty() {
                return taken.hints.into_iter().collect();
            }
            self.shared.filled.notified().await;
        }
    }

    fn send(&self, hint: Outgoing) {
        if !self.shared.peers.load(Ordering::Relaxed) {
            return;
        }
        let mut outbox = locked(&self.shared.outbox);
        if outbox.hints.len() >= OUTBOX {
            outbox.everything = true;
            outbox.hints.clear();
        }
        if !outbox.everything {
            outbox.hints.insert(hint);
        }
        drop(outbox);
        self.shared.filled.notify_one();
    }
}

/// Who waits for what.
#[derive(Debug)]
struct Watchers<K> {
    slots: Mutex<HashMap<K, Vec<Weak<Slot>>>>,
}

impl<K> Default for Watchers<K> {
    fn default() -> Self {
        Self { slots: Mutex::default() }
    }
}

impl<K: Eq + Hash + Copy> Watchers<K> {
    fn add(&self, key: K) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        locked(&self.slots).entry(key).or_default().push(Arc::downgrade(&slot));
        slot
    }

    fn remove(&self, key: K, slot: &Arc<Slot>) {
        let mut slots = locked(&self.slots);
        if let Some(waiting) = slots.get_mut(&key) {
            waiting
                .retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(slot)));
            if waiting.is_empty() {
                slots.remove(&key);
            }
        }
    }

    fn each(&self, key: K, tell: impl Fn(&Slot)) {
        if let Some(waiting) = locked(&self.slots).get(&key) {
            waiting.iter().filter_map(Weak::upgrade).for_each(|slot| tell(&slot));
        }
    }

    fn all(&self, tell: impl Fn(&Slot)) {
        locked(&self.slots).values().flatten().filter_map(Weak::upgrade).for_each(|slot| tell(&slot));
    }
}

/// One subscriber's letterbox.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct SlotState {
    batches: VecDeque<Arc<[Event]>>,
    bytes: usize,
    wake: bool,
}

impl Slot {
    fn push(&self, events: Arc<[Event]>) {
        let bytes = weight(&events);
        let mut state = locked(&self.state);
        if state.batches.len() >= CALL_BACKLOG || state.bytes + bytes > domain::limits::SSE_BUFFER_BYTES {
            *state = SlotState { wake: true, ..SlotState::default() };
        } else {
            state.bytes += bytes;
            state.batches.push_back(events);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn wake(&self) {
        locked(&self.state).wake = true;
        self.changed.notify_one();
    }

    async fn next(&self) -> CallChange {
        loop {
            {
                let mut state = locked(&self.state);
                if std::mem::take(&mut state.wake) {
                    return CallChange::Wake;
                }
                if let Some(events) = state.batches.pop_front() {
                    state.bytes -= weight(&events);
                    return CallChange::Events(events);
                }
            }
            self.changed.notified().await;
        }
    }
}

/// Bytes of output in a batch; other events are small.
fn weight(events: &[Event]) -> usize {
    events
        .iter()
        .map(|event| match &event.body {
            EventBody::Output(piece) => piece.bytes.len(),
            EventBody::Queued { .. }
            | EventBody::Started { .. }
            | EventBody::Progress { .. }
            | EventBody::ShellStarted { .. }
            | EventBody::ArtifactCreated { .. }
            | EventBody::Ended { .. } => 0,
        })
        .sum()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A subscription to one call.
#[derive(Debug)]
pub struct CallWatch {
    slot: Arc<Slot>,
    id: CallId,
    shared: Arc<Shared>,
}

impl CallWatch {
    /// Waits for the next change. Cancel-safe. Wrap it in a timeout of [`domain::limits::POLL_MS`] and read the table then.
    pub async fn changed(&mut self) -> CallChange {
        self.slot.next().await
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        self.shared.calls.remove(self.id, &self.slot);
    }
}

/// A subscription to one shell.
#[derive(Debug)]
pub struct ShellWatch {
    slot: Arc<Slot>,
    id: ShellId,
    shared: Arc<Shared>,
}

impl ShellWatch {
    /// Waits until the shell's log may have grown or the shell may have ended. Cancel-safe.
    pub async fn changed(&mut self) {
        self.slot.next().await;
    }
}

impl Drop for ShellWatch {
    fn drop(&mut self) {
        self.shared.shells.remove(self.id, &self.slot);
    }
}

/// A subscription to what workers need to look at.
#[derive(Debug)]
pub struct QueueWatch {
    receiver: broadcast::Receiver<Hint>,
}

impl QueueWatch {
    /// Waits for the next hint. Cancel-safe. After the store is gone it waits for ever.
    pub async fn next(&mut self) -> Hint {
        match self.receiver.recv().await {
            Ok(hint) => hint,
            Err(broadcast::error::RecvError::Lagged(_)) => Hint::Everything,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use uuid::Uuid;

    fn batch(call_id: CallId, seq: u64) -> Arc<[Event]> {
        Arc::new([Event { call_id, seq, at: DateTime::UNIX_EPOCH, body: EventBody::Started { attempt: 1 } }])
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_sent_to_the_table_and_nobody_waits() {
        let (bus, call) = (Bus::new(), CallId::from_uuid(Uuid::from_u128(1)));
        let mut watch = bus.subscribe_call(call);
        for seq in 0..=CALL_BACKLOG as u64 {
            bus.committed(call, batch(call, seq));
        }
        assert!(matches!(watch.changed().await, CallChange::Wake));
        bus.committed(call, batch(call, 99));
        assert!(matches!(watch.changed().await, CallChange::Events(events) if events[0].seq == 99));
    }

    #[tokio::test]
    async fn watches_leave_nothing_behind() {
        let (bus, call) = (Bus::new(), CallId::from_uuid(Uuid::from_u128(1)));
        let (first, second) = (bus.subscribe_call(call), bus.subscribe_call(call));
        drop(first);
        assert_eq!(locked(&bus.shared.calls.slots)[&call].len(), 1);
        drop(second);
        assert!(locked(&bus.shared.calls.slots).is_empty());
    }

    #[tokio::test]
    async fn a_flood_of_hints_becomes_one() {
        let bus = Bus::new();
        for n in 0..=OUTBOX as u128 {
            bus.call_changed(CallId::from_uuid(Uuid::from_u128(n)));
        }
        assert_eq!(bus.outgoing().await, [Outgoing::Hint(Hint::Everything)]);
    }
}
