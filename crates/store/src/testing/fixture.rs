//! Tenants, sessions and calls as tests want them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use domain::policy::EffectiveLimits;
use domain::{
    CallId, Effect, HostId, OperatorContext, Principal, Scope, Session, SessionId, SizeClass, TenantContext,
    WorkerId,
};
use serde_json::json;

use crate::{
    Admission, AdmitSession, CallDecision, CreatedSession, NewCall, NewSession, NewShell, NewTenant,
    SessionFence, ShellLimits, ShellLog, Store,
};

/// An operator.
#[must_use]
pub fn operator() -> OperatorContext {
    OperatorContext::verified(Principal::command_line())
}

/// A new tenant of this name, and the right to act for it with every scope.
pub async fn tenant(store: &Store, name: &str) -> Result<TenantContext> {
    let new = NewTenant { name: name.to_owned(), ..NewTenant::default() };
    let tenant = store.create_tenant(&operator(), new).await?;
    let principal = Principal { key_id: None, name: name.to_owned(), address: None, issuer: None };
    Ok(TenantContext::verified(tenant.id, principal, Scope::tenant_default(), vec![tenant.policy]))
}

/// A new worker on a host, whose lease outlives every test, as nobody renews it. A renewal makes it a usual one.
pub async fn worker_on(store: &Store, host: HostId) -> Result<WorkerId> {
    let worker = store.register_worker(host).await?.worker_id;
    let mut conn = store.db().system("lengthen a lease").await?;
    let lengthen =
        "UPDATE workers SET lease_expires_at = clock_timestamp() + interval '1 hour' WHERE id = $1";
    conn.execute(sqlx::query(lengthen).bind(worker.uuid())).await?;
    conn.end().await?;
    Ok(worker)
}

/// A small session with an hour to live.
#[must_use]
pub fn new_session(assign: Option<WorkerId>) -> NewSession {
    NewSession {
        image: "toolhost/sandbox:test".to_owned(),
        size: Some(SizeClass::Small),
        resources: SizeClass::Small.resources(),
        runtime: "runc".to_owned(),
        env: BTreeMap::new(),
        metadata: BTreeMap::new(),
        policy: None,
        idle_timeout_s: 900,
        lifetime_s: 3_600,
        assign,
    }
}

/// A session that this worker serves already.
pub async fn running_session(store: &Store, context: &TenantContext, worker: WorkerId) -> Result<Session> {
    let limits = EffectiveLimits { sessions: 10_000, ..EffectiveLimits::default() };
    let session = match store.create_session(context, new_session(Some(worker)), &limits, None).await? {
        CreatedSession::Created(session) => session,
        other => bail!("no session was created: {other:?}"),
    };
    let fence = SessionFence::of(&session).context("the worker's lease is over")?;
    Ok(store.session_running(&fence, 1).await?)
}

/// A shell of a call, with a log of its own and with room.
#[must_use]
pub fn new_shell(store: &Store, call_id: CallId) -> NewShell {
    NewShell {
        id: store.clock().new_id(),
        call_id,
        operation: 0,
        name: None,
        command: "sleep 1".to_owned(),
        description: None,
        terminal: false,
        log: ShellLog::Own,
        limits: ShellLimits { session: 16, tenant: 256 },
    }
}

/// A call of `bash` in a session, allowed and without a reservation.
#[must_use]
pub fn admission(context: &TenantContext, session: SessionId) -> Admission {
    Admission {
        context: context.clone(),
        session: AdmitSession::Existing(session),
        call: NewCall {
            tool: "bash".to_owned(),
            requested_tool: None,
            version: "1".to_owned(),
            effect: Effect::Effectful,
            arguments: json!({"command": "echo hi"}),
            description: None,
            timeout_ms: 120_000,
            output_budget_bytes: 30_000,
            after_call_id: None,
            parent_call_id: None,
            metadata: BTreeMap::new(),
            trace: None,
        },
        decision: CallDecision::Allowed,
        reservation: None,
        limits: EffectiveLimits::default(),
        idempotency: None,
    }
}
