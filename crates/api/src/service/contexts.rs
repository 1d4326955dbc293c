//! Contexts: made and asked of here; the session's worker does what is asked.

use std::time::Duration;

use domain::{Code, CodeContext, ContextId, SessionId, TenantContext};
use store::{ContextWish, CreatedContext, Idempotency, NewContext, StoreError};
use tokio::time::{Instant, sleep};

use super::refusal;
use super::sessions::Replay;
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::contexts::CreateContext;

/// How long a request waits for a worker to do what it asks; after that it is still done.
const DONE_LIMIT: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(25);

/// Makes a context. Its interpreter starts with its first call.
pub(crate) async fn create(
    state: &ApiState,
    tenant: &TenantContext,
    session_id: SessionId,
    (request, mut checks): (CreateContext, Checks),
    idempotency: Option<Idempotency>,
) -> Result<(CodeContext, Replay), Problem> {
    let cwd = tools::sandbox_directory(request.cwd.as_deref().unwrap_or("."));
    if let Err(message) = &cwd {
        checks.add("/cwd", FieldCode::Invalid, message.as_str());
    }
    checks.finish()?;
    let session = state.store.get_session(tenant, session_id).await?;
    let new = NewContext {
        id: state.store.clock().new_id(),
        name: request.name,
        language: request.language.into(),
        cwd: cwd.unwrap_or_default(),
        env: request.env,
        metadata: request.metadata,
    };
    if session.status == domain::SessionStatus::Ended {
        return Err(Problem::new(Code::SessionEnded, "The session has ended."));
    }
    match state.store.create_context(tenant, session_id, new, idempotency).await? {
        CreatedContext::New(context) => Ok((context, Replay::First)),
        CreatedContext::Again(context) => Ok((context, Replay::Again)),
        CreatedContext::Mismatch(fields) => Err(refusal::idempotency_mismatch(fields)),
    }
}

/// All contexts of a session, newest first.
pub(crate) async fn list(
    state: &ApiState,
    tenant: &TenantContext,
    session_id: SessionId,
) -> Result<Vec<CodeContext>, Problem> {
    state.store.get_session(tenant, session_id).await?;
    Ok(state.store.list_contexts(tenant, session_id).await?)
}

/// One context.
pub(crate) async fn get(
    state: &ApiState,
    tenant: &TenantContext,
    session_id: SessionId,
    id: ContextId,
) -> Result<CodeContext, Problem> {
    Ok(state.store.get_context(tenant, session_id, id).await?)
}

/// Asks for a change, and waits until it is made or takes too long. `None` when the context is gone, as was wished.
pub(crate) async fn change(
    state: &ApiState,
    tenant: &TenantContext,
    session_id: SessionId,
    id: ContextId,
    wish: ContextWish,
) -> Result<Option<CodeContext>, Problem> {
    let session = state.store.get_session(tenant, session_id).await?;
    state.store.wish_for_context(tenant, session_id, id, wish).await?;
    state.ports.dispatch.session_changed(session_id);
    if wish == ContextWish::Delete {
        return Ok(None);
    }
    let until = Instant::now() + DONE_LIMIT;
    loop {
        let context = match state.store.get_context(tenant, session_id, id).await {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let is_done =
            context.interrupts.0 == context.interrupts.1 && context.restarts.0 == context.restarts.1;
        if is_done || session.status == domain::SessionStatus::Ended || Instant::now() >= until {
            return Ok(Some(context));
        }
        sleep(LOOK).await;
    }
}
