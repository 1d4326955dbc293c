//! Calls, the tenant's side: admission (the only way in), reading, cancelling. The call row is the job.

use std::collections::BTreeMap;

use domain::policy::EffectiveLimits;
use domain::{
    Call, CallEnded, CallError, CallId, CallStatus, Effect, QueuePlace, SessionEnd, SessionId, TenantContext,
    WorkerId,
};
use serde_json::Value;

use crate::sessions::NewSession;
use crate::{Idempotency, Listed, Page, Result, Store};

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
    /// The tenant has as many sessions as it may (one-shot calls).
    SessionQuotaExceeded {
        /// How many it may have.
        limit: u32,
        /// How many it has.
        in_use: u32,
    },
}

/// Which calls to list.
#[derive(Debug, Clone, Default)]
pub struct CallFilter {
    /// Of this session.
    pub session_id: Option<SessionId>,
    /// In any of these states; empty for all.
    pub status: Vec<CallStatus>,
    /// Of this tool.
    pub tool: Option<String>,
    /// Admitted at or after.
    pub created_after: Option<chrono::DateTime<chrono::Utc>>,
    /// Admitted before.
    pub created_before: Option<chrono::DateTime<chrono::Utc>>,
}

impl Store {
    /// Admits a call: row, first event (`call.queued`, or the end of a denied one), audit row and idempotency key in
    /// one commit that it shares with other writes of the moment. When nothing but the database's answer was lost, the
    /// truth is read back.
    pub async fn admit(&self, admission: Admission) -> Result<Admitted> {
        todo!()
    }

    /// One call.
    pub async fn get_call(&self, context: &TenantContext, id: CallId) -> Result<Call> {
        todo!()
    }

    /// Calls, newest first.
    pub async fn list_calls(
        &self,
        context: &TenantContext,
        filter: &CallFilter,
        page: Page,
    ) -> Result<Listed<Call>> {
        todo!()
    }

    /// Asks for a call's end. A queued one ends `cancelled` in the same commit, with its last event; one that runs is
    /// marked, and its worker ends it. No error when it has ended already.
    pub async fn request_cancel(&self, context: &TenantContext, id: CallId) -> Result<Call> {
        todo!()
    }

    /// The call's place in its tenant's queue now; `None` when it does not wait.
    pub async fn queue_place(&self, context: &TenantContext, id: CallId) -> Result<Option<QueuePlace>> {
        todo!()
    }
}
