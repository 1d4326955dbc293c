//! Shells: commands that outlive their call. One task follows each, relays its log into the store, and records its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::limits::{OUTPUT_EVENT_BYTES, OUTPUT_GATHER_MS};
use domain::{Shell, ShellId};
use protocol::{ErrorCode, ExecExit, ExecRequest, OperationKey};
use sandbox::protocol;
use sandbox::{ExecEvent, ExecStream, LinkError};
use store::{OutputOwner, ShellEnd};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::ports::resume::resume_relay;
use crate::ports::signal;
use crate::relay::{Limits, Position, Relay};
use crate::session::{OwnedSession, Serving};
use crate::tenure::{Tenure, Unwritten};

/// Pause before a lost link is tried again.
const RELINK: Duration = Duration::from_millis(100);

/// A shell that runs in a session of this worker.
#[derive(Debug)]
pub(crate) struct RunningShell {
    pub(crate) id: ShellId,
    /// The operation under which the agent knows it.
    pub(crate) key: OperationKey,
    /// Fires when its end is recorded, or left to another worker.
    pub(crate) over: CancellationToken,
    stop: CancellationToken,
    reason: Mutex<Option<&'static str>>,
    /// Its end, wished by its row, is under way.
    wish_heeded: AtomicBool,
}

impl RunningShell {
    pub(crate) fn new(id: ShellId, key: OperationKey) -> Arc<Self> {
        Arc::new(Self {
            id,
            key,
            over: CancellationToken::new(),
            stop: CancellationToken::new(),
            reason: Mutex::default(),
            wish_heeded: AtomicBool::new(false),
        })
    }

    /// It is being ended for this reason; the first one counts.
    pub(crate) fn ending_because(&self, reason: &'static str) {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    /// The wish of its row is taken up; false when it is already.
    pub(crate) fn begin_wish(&self) -> bool {
        !self.wish_heeded.swap(true, Ordering::Relaxed)
    }

    /// The wish could not be carried out: the row goes on asking.
    pub(crate) fn leave_wish(&self) {
        self.wish_heeded.store(false, Ordering::Relaxed);
    }

    /// Record its end now: its sandbox is about to go.
    pub(crate) fn stop(&self, reason: &'static str) {
        self.ending_because(reason);
        self.stop.cancel();
    }

    fn reason(&self) -> Option<&'static str> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a shell's follower begins with.
pub(crate) struct Followed {
    /// Its stream, when its call had one.
    pub(crate) stream: Option<ExecStream>,
    /// Its relay, when its call had one.
    pub(crate) relay: Option<Relay>,
}

/// Follows the shells that the rows say run in a session: those of a worker before.
pub(crate) async fn follow_running(tenure: &Arc<Tenure>, session: &Arc<OwnedSession>, serving: &Serving) {
    let rows = match tenure.write(|| tenure.store().shells_running(session.id)).await {
        Ok(rows) => rows,
        Err(Unwritten::Superseded) => return,
        Err(Unwritten::Refused(error)) => {
            tracing::error!(session = %session.id, %error, "the shells of a session could not be read");
            return;
        }
    };
    for row in rows {
        let shell = RunningShell::new(row.id, key_of(&row));
        follow(tenure, session, serving, &shell, Followed { stream: None, relay: None });
    }
}

/// The operation of a shell.
pub(crate) fn key_of(shell: &Shell) -> OperationKey {
    OperationKey { owner: shell.call_id.to_string(), operation: shell.operation }
}

/// Follows a shell until its end is recorded. False when it is followed already.
pub(crate) fn follow(
    tenure: &Arc<Tenure>,
    session: &Arc<OwnedSession>,
    serving: &Serving,
    shell: &Arc<RunningShell>,
    followed: Followed,
) -> bool {
    if !session.insert_shell(shell) {
        return false;
    }
    let follower = Follower {
        tenure: Arc::clone(tenure),
        session: Arc::clone(session),
        serving: serving.clone(),
        shell: Arc::clone(shell),
    };
    tenure.spawn(async move {
        tokio::select! {
            biased;
            () = follower.tenure.ended.cancelled() => {}
            () = follower.follow(followed) => {}
        }
        follower.session.remove_shell(follower.shell.id);
        follower.shell.over.cancel();
    });
    true
}

struct Follower {
    tenure: Arc<Tenure>,
    session: Arc<OwnedSession>,
    serving: Serving,
    shell: Arc<RunningShell>,
}

/// How the following of a stream came to an end.
enum Followup {
    Exited(ExecExit),
    /// Its sandbox is gone, or about to be.
    SandboxGone,
    /// The agent does not know it.
    Unknown,
    Superseded,
}

impl Follower {
    async fn follow(&self, followed: Followed) {
        let mut relay = followed.relay;
        let followup = self.relay_all(followed.stream, &mut relay).await;
        let (totals, end) = match &followup {
            Followup::Superseded => return,
            Followup::Exited(exit) => (Some((exit.stdout_bytes, exit.stderr_bytes)), self.end_of(exit)),
            Followup::SandboxGone | Followup::Unknown => (None, self.gone()),
        };
        if let Some(mut relay) = relay {
            let dropped = relay.finish(totals);
            self.tenure.metrics().dropped_bytes.inc_by(dropped);
            if self.append(&mut relay).await.is_err() {
                return;
            }
        }
        let store = self.tenure.store();
        let finished =
            self.tenure.write(|| store.finish_shell(&self.session.fence, self.shell.id, end.clone())).await;
        if let Err(Unwritten::Refused(error)) = &finished {
            tracing::error!(shell = %self.shell.id, %error, "the end of a shell was refused");
        }
        if finished.is_ok() && matches!(followup, Followup::Exited(_)) {
            let _ = self.serving.sandbox.agent().forget(&self.shell.key.owner).await;
        }
    }

    fn end_of(&self, exit: &ExecExit) -> ShellEnd {
        let reason = match self.shell.reason() {
            Some(reason) => Some(reason),
            None if exit.timed_out => Some("timeout"),
            None if exit.oom_killed && exit.exit_code != Some(0) => Some("oom"),
            None if exit.killed => Some("killed"),
            None => None,
        };
        ShellEnd {
            exit_code: exit.exit_code,
            signal: exit.signal.map(signal::name),
            end_reason: reason.map(str::to_owned),
            cpu_ms: exit.cpu_ms,
        }
    }

    fn gone(&self) -> ShellEnd {
        let reason = self.shell.reason().unwrap_or("sandbox_lost");
        ShellEnd { end_reason: Some(reason.to_owned()), ..ShellEnd::default() }
    }

    async fn relay_all(&self, mut stream: Option<ExecStream>, relay: &mut Option<Relay>) -> Followup {
        loop {
            let attached = match stream.take() {
                Some(stream) => Ok(stream),
                None => self.attach(relay.as_ref().map_or(0, Relay::acknowledged)).await,
            };
            let result = match attached {
                Ok(stream) => self.relay_stream(stream, relay).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(followup) => return followup,
                Err(LinkError::Agent(error)) if error.code == ErrorCode::NotFound => {
                    return Followup::Unknown;
                }
                Err(LinkError::JournalLost | LinkError::Closed) => return Followup::SandboxGone,
                Err(LinkError::Fenced) => return Followup::Superseded,
                Err(error) => {
                    tracing::debug!(shell = %self.shell.id, %error, "link lost; trying again");
                    tokio::select! {
                        () = self.over() => return Followup::SandboxGone,
                        () = tokio::time::sleep(RELINK) => {}
                    }
                }
            }
        }
    }

    async fn attach(&self, resume_from: u64) -> Result<ExecStream, LinkError> {
        let request = ExecRequest { key: self.shell.key.clone(), resume_from, spec: None };
        tokio::select! {
            () = self.over() => Err(LinkError::Closed),
            stream = self.serving.sandbox.agent().exec(request) => stream,
        }
    }

    async fn over(&self) {
        tokio::select! {
            () = self.shell.stop.cancelled() => {}
            _ = self.serving.sandbox.wait_gone() => {}
        }
    }

    async fn relay_stream(
        &self,
        mut stream: ExecStream,
        relay: &mut Option<Relay>,
    ) -> Result<Followup, LinkError> {
        let mut due: Option<Instant> = None;
        loop {
            if let (Some(at), Some(relay)) = (due, relay.as_mut())
                && (at <= Instant::now() || relay.ready_bytes() >= OUTPUT_EVENT_BYTES)
            {
                due = None;
                if self.append(relay).await.is_err() {
                    return Ok(Followup::Superseded);
                }
                stream.ack(relay.acknowledged());
            }
            let event = tokio::select! {
                biased;
                () = self.over() => return Ok(Followup::SandboxGone),
                event = stream.next() => event?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => continue,
            };
            match event {
                Some(ExecEvent::Attached(attached)) => {
                    if relay.is_none() {
                        match self.resumed(attached.offset).await {
                            Some(resumed) => *relay = Some(resumed),
                            None => return Ok(Followup::Superseded),
                        }
                    }
                }
                Some(ExecEvent::Output(output)) => {
                    let Some(relay) = relay.as_mut() else {
                        return Err(LinkError::Protocol("output before the operation was attached"));
                    };
                    let fresh = relay
                        .push(output.offset, crate::ports::stream_name(output.stream), output.bytes)
                        .map_err(|_| LinkError::Protocol("output with a hole"))?;
                    self.tenure.metrics().output_bytes.inc_by(fresh.len() as u64);
                    stream.ack(relay.acknowledged());
                    if relay.ready_bytes() > 0 && due.is_none() {
                        due = Some(Instant::now() + Duration::from_millis(OUTPUT_GATHER_MS));
                    }
                }
                Some(ExecEvent::Exited(exit)) => return Ok(Followup::Exited(exit)),
                None => return Err(LinkError::Disconnected),
            }
        }
    }

    async fn resumed(&self, sent_from: u64) -> Option<Relay> {
        let owner = OutputOwner::Shell(self.shell.id);
        let tenant_id = self.session.tenant_id;
        resume_relay(
            &self.tenure,
            tenant_id,
            owner,
            Position::default(),
            sent_from,
            Limits::of_total(self.session.output_bytes),
        )
        .await
        .ok()
    }

    async fn append(&self, relay: &mut Relay) -> Result<(), Unwritten> {
        let pieces = relay.take();
        let Some(last) = pieces.last() else { return Ok(()) };
        let next_offset = last.log_offset + last.bytes.len() as u64;
        let store = self.tenure.store();
        let written = self
            .tenure
            .write(|| {
                store.append_shell_output(&self.session.fence, self.shell.id, pieces.clone(), next_offset)
            })
            .await;
        match written {
            Ok(()) => {
                relay.made_durable(next_offset);
                Ok(())
            }
            Err(Unwritten::Refused(error)) => {
                tracing::error!(shell = %self.shell.id, %error, "output of a shell was refused");
                Err(Unwritten::Superseded)
            }
            Err(superseded) => Err(superseded),
        }
    }
}
