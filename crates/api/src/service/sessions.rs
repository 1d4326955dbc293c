//! Sessions: what may be asked of a new one, and how they change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::policy::{EffectiveLimits, Layered, Policy, demanded_runtime, effective_limits, layer_name};
use domain::{
    Code, Resources, Session, SessionId, SessionStatus, SizeClass, TenantContext, TenantId, limits,
};
use store::{Accepted, CreatedSession, Idempotency, Listed, NewSession, Page, SessionFilter, SessionPatch};

use super::{policies, refusal};
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::sessions::{CreateSession, PatchSession};

/// Whether an answer was given before, to the same idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    /// It is new.
    First,
    /// It is the answer to the first request with the key, as things are now.
    Again,
}

/// Creates a session.
pub(crate) async fn create(
    state: &ApiState,
    context: &TenantContext,
    (request, mut checks): (CreateSession, Checks),
    idempotency: Option<Idempotency>,
) -> Result<(Session, Replay), Problem> {
    let (new, limits) = plan(state, context, request, "", &mut checks);
    if let Err(problem) = checks.finish() {
        return again(state, context, idempotency.as_ref(), problem).await;
    }
    match state.store.create_session(context, new, &limits, idempotency).await? {
        CreatedSession::Created(session) => {
            state.policies.put(&session);
            state.ports.dispatch.session_changed(session.id);
            Ok((session, Replay::First))
        }
        CreatedSession::Duplicate(session) => Ok((session, Replay::Again)),
        CreatedSession::Mismatch { fields } => Err(refusal::idempotency_mismatch(fields)),
        CreatedSession::NoRoom(why) => Err(refusal::no_room(why)),
        CreatedSession::QuotaExceeded { limit, in_use } => Err(refusal::session_quota(limit, in_use)),
    }
}

/// What may not be made now may have been before: then that session is the answer, whatever policy says since.
async fn again(
    state: &ApiState,
    context: &TenantContext,
    idempotency: Option<&Idempotency>,
    problem: Problem,
) -> Result<(Session, Replay), Problem> {
    let Some(key) = idempotency else { return Err(problem) };
    match state.store.accepted(context, key).await? {
        Some(Accepted::Same(id)) => Ok((get(state, context, SessionId::from_uuid(id)).await?, Replay::Again)),
        Some(Accepted::Other(fields)) => Err(refusal::idempotency_mismatch(fields)),
        None => Err(problem),
    }
}

/// What a new session is to be, within policy. Pointers start at `at`.
pub(crate) fn plan(
    state: &ApiState,
    context: &TenantContext,
    request: CreateSession,
    at: &str,
    checks: &mut Checks,
) -> (NewSession, EffectiveLimits) {
    let layers = policies::layers(state, context, request.policy.as_ref());
    let limits = effective_limits(&layers);
    let runtime = runtime(state, &layers, request.runtime.as_deref(), at, checks);
    let image = request.image.unwrap_or_else(|| state.config.default_image.clone());
    if !image_is_allowed(&image, &state.config.default_image, &state.config.images) {
        checks.add(
            format!("{at}/image"),
            FieldCode::Invalid,
            "is not an image that this installation offers",
        );
    }
    let (size, resources) = match (request.size, request.resources) {
        (Some(_), Some(_)) => {
            checks.add(format!("{at}/size"), FieldCode::Invalid, "give either `size` or `resources`");
            (None, SizeClass::Small.resources())
        }
        (None, Some(resources)) => (SizeClass::of(resources), resources),
        (size, None) => {
            let size = size.unwrap_or(SizeClass::Small);
            (Some(size), size.resources())
        }
    };
    let place = if request.resources.is_some() { format!("{at}/resources") } else { format!("{at}/size") };
    check_resources(checks, &place, request.resources.is_some(), resources, &limits);
    checks.range(&format!("{at}/idle_timeout_s"), request.idle_timeout_s, 1..=limits.idle_timeout_s);
    checks.range(&format!("{at}/lifetime_s"), request.lifetime_s, 1..=limits.lifetime_s);
    let new = NewSession {
        image,
        size,
        resources,
        runtime,
        env: request.env,
        metadata: request.metadata,
        policy: request.policy,
        idle_timeout_s: request
            .idle_timeout_s
            .unwrap_or(limits::IDLE_TIMEOUT_S_DEFAULT.min(limits.idle_timeout_s)),
        lifetime_s: request.lifetime_s.unwrap_or(limits::LIFETIME_S_DEFAULT.min(limits.lifetime_s)),
        assign: state.ports.dispatch.worker_for_new_session(),
    };
    (new, limits)
}

/// The runtime that policy demands, else the one that was asked for, else the default.
fn runtime(
    state: &ApiState,
    layers: &[Layered<'_>],
    asked: Option<&str>,
    at: &str,
    checks: &mut Checks,
) -> String {
    let config = &state.config;
    let place = format!("{at}/runtime");
    let runtime = match (demanded_runtime(layers), asked) {
        (Some((layer, demanded)), Some(asked)) if asked != demanded => {
            let message = format!("the {}'s policy demands `{demanded}`", layer_name(layer));
            checks.add(place, FieldCode::Invalid, message);
            return demanded.to_owned();
        }
        (Some((_, demanded)), _) => demanded,
        (None, Some(asked)) => asked,
        (None, None) => &config.runtime,
    };
    if runtime != config.runtime && !config.runtimes.iter().any(|offered| offered == runtime) {
        checks.add(
            place,
            FieldCode::Invalid,
            format!("`{runtime}` is not a runtime that this installation offers"),
        );
    }
    runtime.to_owned()
}

fn image_is_allowed(image: &str, default: &str, allowed: &[String]) -> bool {
    // What an engine would take for a reference; above all, nothing that could be read as an option.
    let plain = image.starts_with(|c: char| c.is_ascii_alphanumeric())
        && image.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c));
    let named = |pattern: &String| match pattern.strip_suffix('*') {
        Some(prefix) => image.starts_with(prefix),
        None => image == pattern,
    };
    image == default || (plain && allowed.iter().any(named))
}

fn check_resources(
    checks: &mut Checks,
    at: &str,
    one_by_one: bool,
    resources: Resources,
    limits: &EffectiveLimits,
) {
    let place = |name: &str| if one_by_one { format!("{at}/{name}") } else { at.to_owned() };
    checks.range(&place("cpus"), Some(resources.cpus), 0.1..=limits.cpus.min(64.0));
    checks.range(&place("memory_mb"), Some(resources.memory_mb), 64..=limits.memory_mb);
    checks.range(&place("disk_mb"), Some(resources.disk_mb), 64..=limits.disk_mb);
    checks.range(&place("pids"), Some(resources.pids), 16..=limits.pids);
}

/// One session.
pub(crate) async fn get(
    state: &ApiState,
    context: &TenantContext,
    id: SessionId,
) -> Result<Session, Problem> {
    let session = state.store.get_session(context, id).await?;
    state.policies.put(&session);
    Ok(session)
}

/// Sessions, newest first.
pub(crate) async fn list(
    state: &ApiState,
    context: &TenantContext,
    filter: &SessionFilter,
    page: Page,
) -> Result<Listed<Session>, Problem> {
    Ok(state.store.list_sessions(context, filter, page).await?)
}

/// Changes labels, timeouts and policy of a session that lives.
pub(crate) async fn update(
    state: &ApiState,
    context: &TenantContext,
    id: SessionId,
    (patch, mut checks): (PatchSession, Checks),
) -> Result<Session, Problem> {
    let session = living(state, context, id).await?;
    let limits = effective_limits(&policies::layers(state, context, session.policy.as_ref()));
    checks.range("/idle_timeout_s", patch.idle_timeout_s, 1..=limits.idle_timeout_s);
    checks.range(
        "/lifetime_s",
        patch.lifetime_s,
        session.lifetime_s..=limits.lifetime_s.max(session.lifetime_s),
    );
    if let (Some(old), Some(new)) = (&session.policy, &patch.policy)
        && !checks.within("/policy")
        && let Err(problem) = policies::require_narrower(old, new)
    {
        checks.absorb(problem);
    }
    checks.finish()?;
    let patch = SessionPatch {
        metadata: patch.metadata,
        idle_timeout_s: patch.idle_timeout_s,
        lifetime_s: patch.lifetime_s,
        policy: patch.policy,
    };
    let session = match state.store.update_session(context, id, &patch).await {
        Err(store::StoreError::Conflict { .. }) => return Err(ended(state, context, id).await),
        other => other?,
    };
    state.policies.put(&session);
    state.ports.dispatch.session_changed(id);
    Ok(session)
}

/// Asks for a session's end.
pub(crate) async fn end(
    state: &ApiState,
    context: &TenantContext,
    id: SessionId,
) -> Result<Session, Problem> {
    let session = state.store.request_session_end(context, id).await?;
    state.ports.dispatch.session_changed(id);
    Ok(session)
}

/// Asks for a fresh sandbox and workspace.
pub(crate) async fn reset(
    state: &ApiState,
    context: &TenantContext,
    id: SessionId,
) -> Result<Session, Problem> {
    let session = match state.store.request_session_reset(context, id).await {
        Err(store::StoreError::Conflict { .. }) => return Err(ended(state, context, id).await),
        other => other?,
    };
    state.ports.dispatch.session_changed(id);
    Ok(session)
}

async fn living(state: &ApiState, context: &TenantContext, id: SessionId) -> Result<Session, Problem> {
    let session = state.store.get_session(context, id).await?;
    match (&session.ended, session.status) {
        (Some(end), SessionStatus::Ended) => Err(refusal::session_ended(end)),
        _ => Ok(session),
    }
}

/// Why a session takes no changes any more.
async fn ended(state: &ApiState, context: &TenantContext, id: SessionId) -> Problem {
    match living(state, context, id).await {
        Err(problem) => problem,
        Ok(_) => Problem::new(Code::Conflict, "The session is about to end."),
    }
}

/// A session's own policy, as of the last two seconds. Whether the session still lives is for admission to say.
pub(crate) async fn policy(
    state: &ApiState,
    context: &TenantContext,
    id: SessionId,
) -> Result<Option<Arc<Policy>>, Problem> {
    if let Some(known) = state.policies.get(context.tenant_id(), id) {
        return Ok(known);
    }
    let session = state.store.get_session(context, id).await?;
    Ok(state.policies.put(&session))
}

/// Policies of sessions, so that a submit need not read the session first. As short-lived as what is known of keys.
#[derive(Default)]
pub(crate) struct PolicyCache {
    entries: Mutex<HashMap<SessionId, Cached>>,
}

struct Cached {
    tenant_id: TenantId,
    policy: Option<Arc<Policy>>,
    until: Instant,
}

const CACHED_FOR: Duration = Duration::from_secs(2);
const CACHED_SESSIONS: usize = 10_000;

impl PolicyCache {
    fn get(&self, tenant_id: TenantId, id: SessionId) -> Option<Option<Arc<Policy>>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = entries.get(&id)?;
        (cached.tenant_id == tenant_id && Instant::now() < cached.until).then(|| cached.policy.clone())
    }

    fn put(&self, session: &Session) -> Option<Arc<Policy>> {
        let policy = session.policy.clone().map(Arc::new);
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CACHED_SESSIONS {
            entries.retain(|_, cached| now < cached.until);
        }
        if entries.len() < CACHED_SESSIONS {
            let until = now + CACHED_FOR;
            let cached = Cached { tenant_id: session.tenant_id, policy: policy.clone(), until };
            entries.insert(session.id, cached);
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_the_default_or_allowed_by_name_or_prefix() {
        let allowed = ["python:3".to_owned(), "ghcr.io/acme/*".to_owned()];
        for (image, yes) in [
            ("default", true),
            ("python:3", true),
            ("python:3.1", false),
            ("ghcr.io/acme/tools@sha256:00", true),
            ("ghcr.io/acme/ --privileged", false),
            ("--privileged", false),
            ("", false),
        ] {
            assert_eq!(image_is_allowed(image, "default", &allowed), yes, "{image}");
        }
        assert!(!image_is_allowed("-v/:/host", "default", &["*".to_owned()]));
    }
}
