//! Sessions: the tenant's side (create, read, change, ask for an end) and the owning worker's side (serve, end).

use std::collections::BTreeMap;

use domain::policy::{EffectiveLimits, Policy};
use domain::{Resources, Session, SessionEnd, SessionId, SessionStatus, SizeClass, TenantContext, WorkerId};

use crate::{Idempotency, Listed, Page, Result, Store};

/// A session to be created. Everything is checked by the caller but what needs the database.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The image of its sandboxes.
    pub image: String,
    /// Its size class, unless its resources are its own.
    pub size: Option<SizeClass>,
    /// What its sandboxes may use.
    pub resources: Resources,
    /// Container runtime.
    pub runtime: String,
    /// Environment of its commands.
    pub env: BTreeMap<String, String>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// The session's own narrowing of policy.
    pub policy: Option<Policy>,
    /// Seconds without a call after which it ends.
    pub idle_timeout_s: u32,
    /// Seconds of life in all.
    pub lifetime_s: u32,
    /// The worker that is to have it, when one in this process offered (`Dispatch::worker_for_new_session`).
    /// A worker whose lease is over is ignored, and the session waits to be claimed.
    pub assign: Option<WorkerId>,
}

/// What became of a session's creation.
#[derive(Debug, Clone)]
pub enum CreatedSession {
    /// It is committed, `starting`.
    Created(Session),
    /// The idempotency key had created this one, with the same request.
    Duplicate(Session),
    /// The idempotency key belongs to a request with other values in these fields.
    Mismatch {
        /// Names of the fields.
        fields: Vec<String>,
    },
    /// The tenant has as many sessions as it may.
    QuotaExceeded {
        /// How many it may have.
        limit: u32,
        /// How many it has.
        in_use: u32,
    },
}

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// In any of these states; empty for all.
    pub status: Vec<SessionStatus>,
    /// With all of these labels.
    pub metadata: BTreeMap<String, String>,
}

/// What to change of a session; `None` leaves it.
#[derive(Debug, Clone, Default)]
pub struct SessionPatch {
    /// Replaces all labels.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Replaces the idle timeout.
    pub idle_timeout_s: Option<u32>,
    /// Replaces the lifetime, counted from creation.
    pub lifetime_s: Option<u32>,
    /// Replaces the session's policy. The caller has checked that it only narrows.
    pub policy: Option<Policy>,
}

/// The right of a worker to act for a session: refused once another worker has taken it over or it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionFence {
    /// The session.
    pub session_id: SessionId,
    /// Its owner.
    pub worker_id: WorkerId,
    /// The epoch of that ownership.
    pub epoch: u64,
}

impl SessionFence {
    /// The fence of a session that has a worker.
    #[must_use]
    pub fn of(session: &Session) -> Option<Self> {
        session.worker_id.map(|worker_id| Self { session_id: session.id, worker_id, epoch: session.epoch })
    }
}

/// What a session's owner has to do about it.
#[derive(Debug, Clone)]
pub enum SessionWish {
    /// End it with this reason (asked for, idle, expired).
    End(SessionEnd),
    /// Give it a fresh sandbox and workspace, then report with [`Store::session_reset_done`] this number.
    Reset {
        /// The request's number.
        request: u32,
    },
}

impl Store {
    /// Creates a session, with its audit row and idempotency key, within the tenant's limit on open sessions.
    pub async fn create_session(
        &self,
        context: &TenantContext,
        new: NewSession,
        limits: &EffectiveLimits,
        idempotency: Option<Idempotency>,
    ) -> Result<CreatedSession> {
        todo!()
    }

    /// One session.
    pub async fn get_session(&self, context: &TenantContext, id: SessionId) -> Result<Session> {
        todo!()
    }

    /// Sessions, newest first.
    pub async fn list_sessions(
        &self,
        context: &TenantContext,
        filter: &SessionFilter,
        page: Page,
    ) -> Result<Listed<Session>> {
        todo!()
    }

    /// Changes a session. [`crate::StoreError::Conflict`] when it has ended.
    pub async fn update_session(
        &self,
        context: &TenantContext,
        id: SessionId,
        patch: &SessionPatch,
    ) -> Result<Session> {
        todo!()
    }

    /// Asks for a session's end. One that no worker has yet ends at once. No error when it has ended already.
    pub async fn request_session_end(&self, context: &TenantContext, id: SessionId) -> Result<Session> {
        todo!()
    }

    /// Asks for a fresh sandbox and workspace. [`crate::StoreError::Conflict`] when it has ended.
    pub async fn request_session_reset(&self, context: &TenantContext, id: SessionId) -> Result<Session> {
        todo!()
    }

    /// Gives sessions without a worker to this one, oldest first, and returns them (epoch risen).
    pub async fn claim_sessions(&self, worker: WorkerId, max: u32) -> Result<Vec<Session>> {
        todo!()
    }

    /// The session's sandbox of this generation serves: `running`, and its queued calls may be claimed.
    pub async fn session_running(&self, fence: &SessionFence, generation: u32) -> Result<Session> {
        todo!()
    }

    /// A reset was carried out with this generation.
    pub async fn session_reset_done(
        &self,
        fence: &SessionFence,
        request: u32,
        generation: u32,
    ) -> Result<Session> {
        todo!()
    }

    /// Ends a session. Its queued calls fail with `session_ended` in the same commit; calls that run are ended
    /// by their worker before, or taken for `lost` by it. [`crate::StoreError::Stale`] when not the owner any more;
    /// ending twice returns it as it ended first.
    pub async fn end_session(&self, fence: &SessionFence, end: SessionEnd) -> Result<Session> {
        todo!()
    }

    /// Open sessions of a worker.
    pub async fn sessions_of_worker(&self, worker: WorkerId) -> Result<Vec<Session>> {
        todo!()
    }

    /// What a worker's sessions want, by the database's clock. A session with open calls is never idle.
    pub async fn sessions_wanting_change(&self, worker: WorkerId) -> Result<Vec<(Session, SessionWish)>> {
        todo!()
    }
}
