//! The coalescing writer: admissions, events and results of concurrent calls share commits.
//!
//! # Design notes
//!
//! * Two lanes, each with a connection of its own. A free lane takes everything that waits and commits it; while it
//!   does, the next batch gathers. So nothing is delayed when it is idle, and a commit is shared by all who came meanwhile.
//! * One statement for each kind of write. A batch of one kind is that statement alone, which is its own
//!   transaction and one round trip; several kinds are wrapped in BEGIN and COMMIT.
//! * Every row has its own outcome. When a statement fails by what it was given, each operation is run again alone,
//!   so that one bad row harms nobody else.
//! * When the connection fails, whether the batch was committed is not known. Every operation is idempotent (admissions by
//!   call id, events by the number that they follow), so it is run again, and finds itself or is written now.
//!   A backend that still works on the first try is waited for by the row's own lock or unique index.
//! * Rows are locked in one order everywhere: workers, sessions, calls. So admissions, which lock sessions, come before
//!   writes, which lock calls; the end of a session locks it first and its calls after.
//! * Waiting operations are bounded: admissions over the bound are refused (503), events and results wait for room.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sqlx::{Executor, PgConnection};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::admit_batch::{AdmitOp, Verdict, admit, lock_queues};
use crate::bus::Bus;
use crate::db::{Conn, Db};
use crate::error::{is_deadlock, translate};
use crate::event_batch::{WriteOp, Written, write};
use crate::events::Appended;
use crate::reach::Reach;
use crate::{Result, StoreError};

/// Operations that wait or are under way at once.
const OPERATIONS: usize = 4_096;
/// Operations in one batch.
const BATCH_OPERATIONS: usize = 256;
/// Bytes of output in one batch.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Times that one operation is run again for a reason of its own before it is given up.
const ROUNDS: u32 = 8;
/// Pause before a lost connection is opened again.
const RECONNECT: Duration = Duration::from_millis(100);

/// Where writes are handed in.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<VecDeque<Pending>>,
    arrived: Notify,
    room: Arc<Semaphore>,
    /// How long an operation may take from being handed in, outages included.
    patience: Duration,
    db: Db,
    bus: Bus,
    activity: Activity,
}

#[derive(Debug)]
struct Pending {
    op: Op,
    since: Instant,
    rounds: u32,
    _room: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Op {
    Admit(Box<AdmitOp>, oneshot::Sender<Result<Verdict>>),
    Write(Box<WriteOp>, oneshot::Sender<Result<Appended>>),
}

/// What a batch did to one operation.
enum Outcome {
    Admitted(Verdict),
    Written(Written),
}

impl Writer {
    pub(crate) fn new(db: Db, bus: Bus, activity: Activity) -> Self {
        let patience = db.timeout();
        let shared = Shared {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            room: Arc::new(Semaphore::new(OPERATIONS)),
            patience,
            db,
            bus,
            activity,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Admits one call together with whatever else is written now.
    pub(crate) async fn admit(&self, op: AdmitOp) -> Result<Verdict> {
        const OPERATION: &str = "admit call";
        let room =
            Arc::clone(&self.shared.room).try_acquire_owned().map_err(|_| self.unavailable(OPERATION))?;
        let (reply, answer) = oneshot::channel();
        self.push(Op::Admit(Box::new(op), reply), room);
        answer.await.unwrap_or_else(|_| Err(self.unavailable(OPERATION)))
    }

    /// Writes one call's events together with whatever else is written now.
    pub(crate) async fn write(&self, op: WriteOp) -> Result<Appended> {
        const OPERATION: &str = "write events";
        let room =
            Arc::clone(&self.shared.room).acquire_owned().await.map_err(|_| self.unavailable(OPERATION))?;
        let (reply, answer) = oneshot::channel();
        self.push(Op::Write(Box::new(op), reply), room);
        answer.await.unwrap_or_else(|_| Err(self.unavailable(OPERATION)))
    }

    /// One lane: works until the token is cancelled and nothing waits.
    pub(crate) async fn lane(self, stop: CancellationToken) {
        let mut connection = None;
        loop {
            let batch = self.take();
            if !batch.is_empty() {
                self.work(&mut connection, batch).await;
            } else if stop.is_cancelled() {
                break;
            } else {
                tokio::select! {
                    () = self.shared.arrived.notified() => {}
                    () = stop.cancelled() => {}
                }
            }
        }
        if let Some(connection) = connection {
            let _ = sqlx::Connection::close(connection).await;
        }
    }

    fn push(&self, op: Op, room: OwnedSemaphorePermit) {
        self.locked().push_back(Pending { op, since: Instant::now(), rounds: 0, _room: room });
        self.shared.arrived.notify_one();
    }

    fn push_again(&self, pending: Pending) {
        self.locked().push_front(pending);
        self.shared.arrived.notify_one();
    }

    fn take(&self) -> Vec<Pending> {
        let mut waiting = self.locked();
        let (mut count, mut bytes) = (0, 0);
        for pending in waiting.iter().take(BATCH_OPERATIONS) {
            bytes += pending.op.weight();
            if count > 0 && bytes > BATCH_BYTES {
                break;
            }
            count += 1;
        }
        let batch = waiting.drain(..count).collect();
        if !waiting.is_empty() {
            // Another lane may be free for the rest.
            self.shared.arrived.notify_one();
        }
        batch
    }

    fn locked(&self) -> MutexGuard<'_, VecDeque<Pending>> {
        self.shared.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn unavailable(&self, operation: &'static str) -> StoreError {
        self.shared.db.metrics.counted(StoreError::Unavailable { operation, source: None })
    }

    /// Brings a batch to its end: committed, split into single operations, or given back to wait for the database.
    async fn work(&self, connection: &mut Option<PgConnection>, batch: Vec<Pending>) {
        let metrics = &self.shared.db.metrics;
        metrics.batch_size.observe(batch.len() as f64);
        match self.run(connection, &batch).await {
            Ok(outcomes) => {
                metrics.batches.with_label_values(&["committed"]).inc();
                batch.into_iter().zip(outcomes).for_each(|(pending, outcome)| self.deliver(pending, outcome));
            }
            Err(error) if error.is_unavailable() => {
                metrics.batches.with_label_values(&["retried"]).inc();
                self.later(batch, error).await;
            }
            Err(error) if batch.len() == 1 => {
                batch.into_iter().for_each(|pending| pending.op.refuse(metrics.counted(again(&error))));
            }
            Err(_) => {
                metrics.batches.with_label_values(&["split"]).inc();
                for pending in batch {
                    Box::pin(self.work(connection, vec![pending])).await;
                }
            }
        }
    }

    /// Runs a batch on the lane's connection. After a failure of the connection it is opened anew next time.
    async fn run(&self, connection: &mut Option<PgConnection>, batch: &[Pending]) -> Result<Vec<Outcome>> {
        const OPERATION: &str = "write batch";
        let db = &self.shared.db;
        let open = match connection {
            Some(open) => open,
            None => connection.insert(db.lane(OPERATION).await?),
        };
        let answer = tokio::time::timeout(db.timeout(), transaction(db, open, batch)).await;
        match answer {
            Ok(Ok(outcomes)) => Ok(outcomes),
            Ok(Err(error)) => {
                let healthy = error.as_database_error().is_some();
                if !healthy || open.execute("ROLLBACK").await.is_err() {
                    *connection = None;
                }
                if is_deadlock(&error) {
                    return Err(StoreError::Unavailable {
                        operation: OPERATION,
                        source: Some(Box::new(error)),
                    });
                }
                Err(translate(OPERATION, error))
            }
            Err(_) => {
                *connection = None;
                Err(StoreError::Unavailable { operation: OPERATION, source: None })
            }
        }
    }

    /// The database does not answer: operations with patience left are run again, the others are refused.
    async fn later(&self, batch: Vec<Pending>, error: StoreError) {
        let metrics = &self.shared.db.metrics;
        let (mut waiting, mut refused) = (Vec::new(), 0_u64);
        for mut pending in batch {
            pending.op.mark_again();
            if pending.since.elapsed() + RECONNECT < self.shared.patience {
                waiting.push(pending);
            } else {
                refused += 1;
                pending.op.refuse(metrics.counted(again(&error)));
            }
        }
        if refused > 0 {
            metrics.batches.with_label_values(&["unavailable"]).inc();
        }
        tokio::time::sleep(RECONNECT).await;
        waiting.into_iter().rev().for_each(|pending| self.push_again(pending));
    }

    fn deliver(&self, mut pending: Pending, outcome: Outcome) {
        pending.rounds += 1;
        let last = pending.rounds >= ROUNDS;
        let Pending { op, since, rounds, _room } = pending;
        match (op, outcome) {
            (Op::Admit(mut op, reply), Outcome::Admitted(Verdict::Void)) => {
                op.reserved_by = None;
                self.push_again(Pending { op: Op::Admit(op, reply), since, rounds, _room });
            }
            (Op::Admit(mut op, reply), Outcome::Admitted(Verdict::Again)) if !last => {
                op.again = true;
                self.push_again(Pending { op: Op::Admit(op, reply), since, rounds, _room });
            }
            (Op::Admit(_, reply), Outcome::Admitted(Verdict::Again)) => {
                let _ = reply.send(Err(self.unavailable("admit call")));
            }
            (Op::Admit(_, reply), Outcome::Admitted(verdict)) => {
                self.shared.db.metrics.writes.with_label_values(&["admit"]).inc();
                self.shared.db.metrics.admitted(&verdict);
                // Who asked may be gone; the call stays.
                let _ = reply.send(Ok(verdict));
            }
            (Op::Write(op, reply), Outcome::Written(written)) => self.deliver_written(*op, reply, written),
            (Op::Admit(..), Outcome::Written(_)) | (Op::Write(..), Outcome::Admitted(_)) => {
                unreachable!("outcomes come in the order of their operations")
            }
        }
    }

    fn deliver_written(&self, op: WriteOp, reply: oneshot::Sender<Result<Appended>>, written: Written) {
        const OPERATION: &str = "write events";
        let metrics = &self.shared.db.metrics;
        let appended = |at| Appended {
            first_seq: op.fence.after_seq + 1,
            last_seq: op.fence.after_seq + op.events.len() as u64,
            at,
        };
        let kind = if op.end.is_some() { "finish" } else { "append" };
        match written {
            Written::Now { at, session } => {
                metrics.writes.with_label_values(&[kind]).inc();
                for event in &op.events {
                    metrics.events.with_label_values(&[event.kind()]).inc();
                }
                self.shared.activity.session(session);
                self.shared.activity.output(session, op.weight());
                let _ = reply.send(Ok(appended(at)));
                self.shared.bus.committed(op.call_id(), op.stored(at));
            }
            Written::Before { at, session } => {
                metrics.writes.with_label_values(&[kind]).inc();
                self.shared.activity.session(session);
                let _ = reply.send(Ok(appended(at)));
                // Their time is that of the first commit, which only the table knows.
                self.shared.bus.call_changed(op.call_id());
            }
            Written::Lapsed => {
                let _ = reply.send(Err(StoreError::Unavailable {
                    operation: OPERATION,
                    source: Some("the worker's lease is over and has to be renewed first".into()),
                }));
            }
            Written::Stale => {
                metrics.stale_writes.inc();
                let _ = reply.send(Err(StoreError::Stale { operation: OPERATION }));
            }
        }
    }
}

impl Op {
    fn weight(&self) -> usize {
        match self {
            Self::Admit(op, _) => op.arguments.len(),
            Self::Write(op, _) => op.weight(),
        }
    }

    fn mark_again(&mut self) {
        match self {
            Self::Admit(op, _) => op.again = true,
            // Known again by the number that it follows.
            Self::Write(..) => {}
        }
    }

    fn refuse(self, error: StoreError) {
        match self {
            Self::Admit(_, reply) => drop(reply.send(Err(error))),
            Self::Write(_, reply) => drop(reply.send(Err(error))),
        }
    }
}

/// Everything of a batch in one transaction.
async fn transaction(
    db: &Db,
    connection: &mut PgConnection,
    batch: &[Pending],
) -> Result<Vec<Outcome>, sqlx::Error> {
    let (mut admits, mut writes) = (Vec::new(), Vec::new());
    for pending in batch {
        match &pending.op {
            Op::Admit(op, _) => admits.push(&**op),
            Op::Write(op, _) => writes.push(&**op),
        }
    }
    let queues = admits.iter().any(|op| op.reserved_by.is_none() && op.ended.is_none());
    let reach = db.ways().reach();
    let wrapped = queues || (!admits.is_empty() && !writes.is_empty()) || reach == Reach::Pooler;
    if wrapped {
        connection.execute(sqlx::raw_sql(db.ways().begin_system())).await?;
    }
    if queues {
        lock_queues(connection, reach, &admits).await?;
    }
    let admitted = if admits.is_empty() { Vec::new() } else { admit(connection, reach, &admits).await? };
    let written = if writes.is_empty() { Vec::new() } else { write(connection, reach, &writes).await? };
    if wrapped {
        connection.execute("COMMIT").await?;
    }
    let (mut written, mut admitted) = (written.into_iter(), admitted.into_iter());
    Ok(batch
        .iter()
        .map_while(|pending| match &pending.op {
            Op::Admit(..) => admitted.next().map(Outcome::Admitted),
            Op::Write(..) => written.next().map(Outcome::Written),
        })
        .collect())
}

/// Admits one call in the caller's transaction.
pub(crate) async fn admit_alone(conn: &mut Conn, op: &AdmitOp) -> Result<Verdict> {
    let reach = conn.reach();
    let mut verdicts = conn
        .run(|connection| {
            Box::pin(async move {
                lock_queues(connection, reach, &[op]).await?;
                admit(connection, reach, &[op]).await
            })
        })
        .await?;
    Ok(verdicts.pop().unwrap_or(Verdict::Again))
}

/// The same error for each operation of a batch; the first keeps the cause.
fn again(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { operation, source } => StoreError::Unavailable {
            operation,
            source: source.as_ref().map(|source| source.to_string().into()),
        },
        StoreError::Stale { operation } => StoreError::Stale { operation },
        StoreError::NotFound { operation } => StoreError::NotFound { operation },
        StoreError::Conflict { operation, message } => StoreError::Conflict { operation, message },
        StoreError::Unstorable { operation, field } => StoreError::Unstorable { operation, field },
        StoreError::Storage { operation, source } => {
            StoreError::Storage { operation, source: source.to_string().into() }
        }
        StoreError::Internal { operation, source } => {
            StoreError::Internal { operation, source: source.to_string().into() }
        }
    }
}
