//! Journals of agents against what is known here: an operation that nobody waits for is ended and forgotten.
//!
//! # Design notes
//!
//! Such operations are left by calls that were quarantined or taken for lost while their sandbox lived on. An owner
//! has to be unknown in two passes before it is forgotten, as a call may be on its way between rows and memory.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::session::OwnedSession;
use crate::tenure::Tenure;

/// Owners that were unknown in the pass before.
#[derive(Debug, Default)]
pub(crate) struct Suspects(Mutex<HashSet<String>>);

/// One pass over all sessions.
pub(crate) async fn reconcile(tenure: &Arc<Tenure>, suspects: &Suspects) {
    let mut unknown = HashSet::new();
    for session in tenure.sessions() {
        unknown.extend(forget_unknown(tenure, &session, suspects).await);
    }
    *suspects.0.lock().unwrap_or_else(PoisonError::into_inner) = unknown;
}

async fn forget_unknown(tenure: &Tenure, session: &OwnedSession, suspects: &Suspects) -> Vec<String> {
    let Some(serving) = session.serving_now() else { return Vec::new() };
    let agent = serving.sandbox.agent();
    let Ok(status) = agent.status().await else { return Vec::new() };
    let mut unknown = Vec::new();
    for operation in status.operations {
        let owner = operation.key.owner;
        let is_known = owner.parse().is_ok_and(|id| tenure.call(id).is_some())
            // Those of contexts outlive their calls, and what is left of one that has ended goes with the next.
            || owner.parse::<domain::ContextId>().is_ok()
            || session.shells().iter().any(|shell| shell.key.owner == owner);
        if is_known || unknown.contains(&owner) {
            continue;
        }
        let suspected = suspects.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&owner);
        if suspected {
            tracing::warn!(session = %session.id, owner, "the sandbox ran something that nobody waits for");
            if agent.forget(&owner).await.is_ok() {
                continue;
            }
        }
        unknown.push(owner);
    }
    unknown
}
