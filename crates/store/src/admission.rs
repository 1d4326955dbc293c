//! Admission: the only way in for a call. Row, first event, audit row and idempotency key are one commit.
//!
//! # Design notes
//!
//! * Every condition is a join of the statement that inserts, so there is no gap between looking and doing: the
//!   session's row is locked (FOR SHARE, which its end waits for), the idempotency key is inserted before the call and
//!   feeds it. Of twenty submits with one key exactly one makes a call; the others find it when they are run again.
//! * The limit of queued calls is counted under an advisory lock of the tenant, taken by the statement before (a statement does not see
//!   what was committed while it waited). A call that starts at once is not queued and takes no lock; when its
//!   reservation turns out to be void it is run again as one that queues.
//! * Admissions are idempotent by call id, so one whose COMMIT lost its answer is simply run again.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use domain::policy::EffectiveLimits;
use domain::trace::TraceContext;
use domain::{
    Call, CallEnded, CallError, CallId, CallStatus, CallUsage, Effect, QueuePlace, SessionEnd,
    SessionEndReason, SessionId, TenantContext, WorkerId,
};
use serde_json::Value;

use crate::admit_batch::{AdmitOp, Verdict};
use crate::bus::Hint;
use crate::calls::call_by_id;
use crate::creation::{NewSession, NoRoom, OneShot, insert_session, lock_creation, place};
use crate::db::Conn;
use crate::idempotency::{Seen, compare, digest, seen};
use crate::json::{sanitised, storable, storable_text};
use crate::writer::admit_alone;
use crate::{Idempotency, Result, Store, StoreError};

/// A call to be admitted.
#[derive(Debug, Clone)]
pub struct Admission {
    /// For whom.
    pub context: TenantContext,
    /// In which session.
    pub session: AdmitSession,
    /// What.
    pub call: NewCall,
    /// What policy said.
    pub decision: CallDecision,
    /// A worker of this process holds a slot for it: insert it as `starting`, if the session is still that worker's.
    pub reservation: Option<WorkerId>,
    /// The tenant's limits (sessions and queued calls are looked at here).
    pub limits: EffectiveLimits,
    /// The caller's key.
    pub idempotency: Option<Idempotency>,
}

/// In which session a call is to run.
#[derive(Debug, Clone)]
pub enum AdmitSession {
    /// One that exists.
    Existing(SessionId),
    /// One made for this call alone, in the same commit.
    OneShot(Box<NewSession>),
}

/// What the caller of a tool says.
#[derive(Debug, Clone)]
pub struct NewCall {
    /// The tool's own name.
    pub tool: String,
    /// The name that the caller used, when it was an alias.
    pub requested_tool: Option<String>,
    /// Version of the tool.
    pub version: String,
    /// What running it twice would do.
    pub effect: Effect,
    /// Validated arguments.
    pub arguments: Value,
    /// Why the model wants it.
    pub description: Option<String>,
    /// Time from start to forced end.
    pub timeout_ms: u64,
    /// Budget of text for the model.
    pub output_budget_bytes: u64,
    /// It starts only after this call has ended.
    pub after_call_id: Option<CallId>,
    /// The call that makes it.
    pub parent_call_id: Option<CallId>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// Where in a distributed trace it belongs.
    pub trace: Option<TraceContext>,
}

/// What policy said about a call.
#[derive(Debug, Clone)]
pub enum CallDecision {
    /// It may run.
    Allowed,
    /// It may not: it is inserted as `denied`, with its one event and an audit row.
    Denied {
        /// Why, for the model.
        error: CallError,
        /// How it ended; the reason is [`domain::EndReason::Denied`].
        ended: CallEnded,
    },
}

/// What became of an admission. The first three are committed.
#[derive(Debug, Clone)]
pub enum Admitted {
    /// `starting` under the reservation: the reserving worker must run it.
    Started(Call),
    /// `queued`, with its place (also in its first event).
    Queued(Call, QueuePlace),
    /// `denied`.
    Denied(Call),
    /// The idempotency key had created this one, with the same request; as it is now.
    Duplicate(Call),
    /// The idempotency key belongs to a request with other values in these fields.
    Mismatch {
        /// Names of the fields.
        fields: Vec<String>,
    },
    /// No such session, or another tenant's.
    SessionNotFound,
    /// The session has ended or is asked to.
    SessionEnded(SessionEnd),
    /// `after_call_id` names no call of the tenant.
    AfterNotFound,
    /// The tenant has as many queued calls as it may.
    QueueFull {
        /// How many it may have.
        limit: u32,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// No host has room for its session (one-shot calls).
    NoRoom(NoRoom),
    /// The tenant has as many sessions as it may (one-shot calls).
    SessionQuotaExceeded {
        /// How many it may have.
        limit: u32,
        /// How many it has.
        in_use: u32,
    },
}

const OPERATION: &str = "admit call";

/// How long a tenant whose queue is full is told to wait: a queue of ten thousand empties slowly.
const QUEUE_RETRY_MS: u64 = 1_000;

impl Store {
    /// Admits a call: row, first event (`call.queued`, or the end of a denied one), audit row and idempotency key in
    /// one commit that it shares with other writes of the moment. When nothing but the database's answer was lost, the
    /// truth is read back.
    ///
    /// Run it in a task of its own together with handing a [`Admitted::Started`] call to its worker: a future that is
    /// dropped here does not take the call back, and the worker would find it only in its next sweep.
    pub async fn admit(&self, admission: Admission) -> Result<Admitted> {
        let id: CallId = self.clock().new_id();
        match &admission.session {
            AdmitSession::Existing(session) => {
                let session = *session;
                self.admit_to(id, session, admission).await
            }
            AdmitSession::OneShot(new) => {
                let new = new.clone();
                // Boxed, as it is far larger than the way that most calls take.
                Box::pin(self.admit_one_shot(id, &new, admission)).await
            }
        }
    }

    async fn admit_to(&self, id: CallId, session: SessionId, admission: Admission) -> Result<Admitted> {
        let op = prepare(id, session, &admission)?;
        let verdict = self.writer().admit(op).await?;
        let context = admission.context.clone();
        self.admitted(&context, id, session, admission, verdict).await
    }

    /// A call with a session of its own: both in one commit, beside the coalescing writer because it is bound by the
    /// sandbox that has to be made.
    async fn admit_one_shot(
        &self,
        id: CallId,
        new: &NewSession,
        mut admission: Admission,
    ) -> Result<Admitted> {
        let context = admission.context.clone();
        let session_id: SessionId = self.clock().new_id();
        let mut conn = self.db().system_transaction(OPERATION).await?;
        lock_creation(&mut conn, context.tenant_id()).await?;
        match seen(&mut conn, context.tenant_id(), admission.idempotency.as_ref()).await? {
            Seen::New => {}
            Seen::Same(target) => {
                conn.end().await?;
                let call = self.get_call(&context, CallId::from_uuid(target)).await?;
                return Ok(Admitted::Duplicate(call));
            }
            Seen::Other(fields) => {
                conn.end().await?;
                return Ok(Admitted::Mismatch { fields });
            }
        }
        let limit = admission.limits.sessions;
        let host = match place(&mut conn, &context, new).await? {
            Ok(host) => host,
            Err(no_room) => {
                conn.end().await?;
                return Ok(Admitted::NoRoom(no_room));
            }
        };
        let place = (host, OneShot::Yes);
        let made = insert_session(&mut conn, &context, session_id, new, limit, None, place).await?;
        if let Err(in_use) = made {
            conn.end().await?;
            return Ok(Admitted::SessionQuotaExceeded { limit, in_use });
        }
        admission.reservation = None;
        let op = prepare(id, session_id, &admission)?;
        let verdict = admit_alone(&mut conn, &op).await?;
        self.db().metrics.admitted(&verdict);
        match &verdict {
            Verdict::Queued { .. } => {
                conn.end().await?;
                self.bus().hint(Hint::SessionChanged(session_id));
            }
            Verdict::Denied { .. } => {
                // Nothing will ever run in it.
                close_unused(&mut conn, session_id).await?;
                conn.end().await?;
            }
            // The session was made for this call alone.
            _ => conn.undo().await?,
        }
        self.admitted(&context, id, session_id, admission, verdict).await
    }

    /// Puts the caller's own words and the database's verdict together.
    async fn admitted(
        &self,
        context: &TenantContext,
        id: CallId,
        session: SessionId,
        admission: Admission,
        verdict: Verdict,
    ) -> Result<Admitted> {
        let reservation = admission.reservation;
        Ok(match verdict {
            Verdict::Started { at } => {
                self.activity().session(session);
                let mut call = assemble(id, session, admission, at);
                (call.status, call.attempt, call.worker_id) = (CallStatus::Starting, 1, reservation);
                Admitted::Started(call)
            }
            Verdict::Queued { at, position } => {
                self.activity().session(session);
                self.bus().hint(Hint::Queued(session));
                let mut call = assemble(id, session, admission, at);
                call.last_seq = 1;
                Admitted::Queued(call, QueuePlace { position, estimated_start_at: None })
            }
            Verdict::Denied { at } => {
                let mut call = assemble(id, session, admission, at);
                (call.status, call.ended_at, call.last_seq) = (CallStatus::Denied, Some(at), 1);
                Admitted::Denied(call)
            }
            Verdict::Known { target, request } => {
                // An admission without a key can meet nothing but itself.
                let now = admission.idempotency.as_ref().map_or(&request, |key| &key.request);
                match compare(target, &request, now) {
                    Seen::Same(target) if target == id.uuid() => self.written_before(context, id).await?,
                    Seen::Same(target) => {
                        Admitted::Duplicate(self.get_call(context, CallId::from_uuid(target)).await?)
                    }
                    Seen::Other(fields) => Admitted::Mismatch { fields },
                    Seen::New => Admitted::SessionNotFound,
                }
            }
            Verdict::Written => self.written_before(context, id).await?,
            Verdict::Void | Verdict::Again => {
                return Err(StoreError::Unavailable { operation: OPERATION, source: None });
            }
            Verdict::SessionNotFound => Admitted::SessionNotFound,
            Verdict::SessionEnded(end) => {
                Admitted::SessionEnded(end.unwrap_or_else(|| SessionEnd::because(SessionEndReason::Deleted)))
            }
            Verdict::AfterNotFound => Admitted::AfterNotFound,
            Verdict::QueueFull => {
                Admitted::QueueFull { limit: admission.limits.queued_calls, retry_after_ms: QUEUE_RETRY_MS }
            }
        })
    }

    /// This very admission had been committed before its answer was lost.
    async fn written_before(&self, context: &TenantContext, id: CallId) -> Result<Admitted> {
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let call = call_by_id(&mut conn, context.tenant_id(), id).await?;
        conn.end().await?;
        self.activity().session(call.session_id);
        Ok(match call.status {
            CallStatus::Starting => Admitted::Started(call),
            CallStatus::Denied => Admitted::Denied(call),
            CallStatus::Queued => {
                self.bus().hint(Hint::Queued(call.session_id));
                let place = self.queue_place(context, id).await?;
                let place = place.unwrap_or(QueuePlace { position: 1, estimated_start_at: None });
                Admitted::Queued(call, place)
            }
            CallStatus::WaitingApproval
            | CallStatus::Running
            | CallStatus::WaitingInput
            | CallStatus::Succeeded
            | CallStatus::Failed
            | CallStatus::TimedOut
            | CallStatus::Cancelled
            | CallStatus::Lost => Admitted::Duplicate(call),
        })
    }
}

/// Turns an admission into what the statement takes, refusing what cannot be stored.
fn prepare(id: CallId, session: SessionId, admission: &Admission) -> Result<AdmitOp> {
    let call = &admission.call;
    for (field, text) in [
        ("tool", Some(&call.tool)),
        ("tool", call.requested_tool.as_ref()),
        ("version", Some(&call.version)),
        ("description", call.description.as_ref()),
        ("idempotency key", admission.idempotency.as_ref().map(|key| &key.key)),
    ] {
        if let Some(text) = text {
            storable_text(OPERATION, field, text)?;
        }
    }
    let (error, ended) = match &admission.decision {
        CallDecision::Allowed => (None, None),
        CallDecision::Denied { error, ended } => {
            (Some(sanitised(OPERATION, error)?), Some(sanitised(OPERATION, ended)?))
        }
    };
    Ok(AdmitOp {
        id: id.uuid(),
        target: id.to_string(),
        tenant_id: admission.context.tenant_id().uuid(),
        session_id: session.uuid(),
        parent_call_id: call.parent_call_id.map(CallId::uuid),
        after_call_id: call.after_call_id.map(CallId::uuid),
        tool: call.tool.clone(),
        requested_tool: call.requested_tool.clone(),
        version: call.version.clone(),
        effect: call.effect.as_str(),
        arguments: storable(OPERATION, "arguments", &call.arguments)?,
        arguments_sha256: digest(&call.arguments),
        description: call.description.clone(),
        metadata: storable(OPERATION, "metadata", &call.metadata)?,
        timeout_ms: crate::db::signed(call.timeout_ms),
        output_budget_bytes: crate::db::signed(call.output_budget_bytes),
        principal: sanitised(OPERATION, admission.context.principal())?,
        error,
        ended,
        reserved_by: admission.reservation.map(WorkerId::uuid),
        queue_limit: i64::from(admission.limits.queued_calls),
        key: admission
            .idempotency
            .as_ref()
            .map(|key| {
                Ok::<_, StoreError>((
                    key.operation,
                    key.key.clone(),
                    storable(OPERATION, "idempotency key", &key.request)?,
                ))
            })
            .transpose()?,
        traceparent: call.trace.map(|trace| trace.to_string()),
        again: false,
    })
}

/// The call as its row says, without reading it back.
fn assemble(id: CallId, session_id: SessionId, admission: Admission, at: DateTime<Utc>) -> Call {
    let (error, ended) = match admission.decision {
        CallDecision::Allowed => (None, None),
        CallDecision::Denied { error, ended } => (Some(error), Some(ended)),
    };
    let call = admission.call;
    Call {
        id,
        tenant_id: admission.context.tenant_id(),
        session_id,
        parent_call_id: call.parent_call_id,
        tool: call.tool,
        requested_tool: call.requested_tool,
        version: call.version,
        effect: call.effect,
        status: CallStatus::Queued,
        arguments: call.arguments,
        description: call.description,
        timeout_ms: call.timeout_ms,
        output_budget_bytes: call.output_budget_bytes,
        after_call_id: call.after_call_id,
        attempt: 0,
        worker_id: None,
        last_seq: 0,
        cancel_requested: false,
        output_owner: id.uuid(),
        metadata: call.metadata,
        created_at: at,
        started_at: None,
        in_line: false,
        turn_at: None,
        ended_at: None,
        result: None,
        error,
        ended,
        usage: CallUsage::default(),
        trace: call.trace,
    }
}

async fn close_unused(conn: &mut Conn, session: SessionId) -> Result<()> {
    let end = SessionEnd::because(SessionEndReason::Deleted);
    conn.execute(
        sqlx::query(
            "UPDATE sessions SET status = 'ended', ended_at = clock_timestamp(), end_reason = $2, end_message = $3,
                 end_evidence = '{}' WHERE id = $1",
        )
        .bind(session.uuid())
        .bind(end.reason.as_str())
        .bind(end.message),
    )
    .await?;
    Ok(())
}
