//! What callers ask of contexts: interrupts, restarts, deletions. The rows say what is wanted until it is done.

use std::sync::Arc;

use domain::CodeContext;
use domain::limits::KILL_GRACE_MS;
use sandbox::LinkError;
use sandbox::protocol::KillRequest;

use crate::ports::contexts::kernel_key;
use crate::session::OwnedSession;
use crate::tenure::{Tenure, Unwritten};

/// SIGINT.
const INTERRUPT: i32 = 2;

/// Starts to do what is asked of the contexts of this worker's sessions.
pub(crate) async fn heed_wishes(tenure: &Arc<Tenure>) -> store::Result<()> {
    for context in tenure.store().contexts_wanting_change(tenure.worker_id()).await? {
        let Some(session) = tenure.session(context.session_id) else { continue };
        if !session.begin_wish(context.id) {
            continue;
        }
        let (tenure, task) = (Arc::clone(tenure), Arc::clone(tenure));
        task.spawn(async move {
            tokio::select! {
                () = tenure.ended.cancelled() => {}
                done = heed(&tenure, &session, &context) => {
                    if let Err(Unwritten::Refused(error)) = done {
                        tracing::error!(context = %context.id, %error, "a wish for a context was refused");
                    }
                }
            }
            session.end_wish(context.id);
        });
    }
    Ok(())
}

async fn heed(tenure: &Tenure, session: &OwnedSession, context: &CodeContext) -> Result<(), Unwritten> {
    let store = tenure.store();
    let fence = &session.fence;
    let serving = session.serving_now().filter(|serving| context.generation == Some(serving.generation));
    let key = kernel_key(context.id, context.interpreter);
    let ends = context.deleted_at.is_some() || context.restarts.0 > context.restarts.1;
    if !ends {
        // Noted first: an interrupt that came twice would hit the next call.
        tenure
            .write(|| store.context_heeded(fence, context.id, context.interrupts.0, context.restarts.1))
            .await?;
        if let Some(serving) = serving {
            let request = KillRequest { key, signal: Some(INTERRUPT), grace_ms: 0 };
            let _ = serving.sandbox.agent().kill(request).await;
        }
        return Ok(());
    }
    if context.generation.is_some() && context.deleted_at.is_none() {
        tenure.write(|| store.context_lost(fence, context.id, context.interpreter, "restarted")).await?;
    }
    if let Some(serving) = session.serving_now() {
        let request = KillRequest { key: key.clone(), signal: None, grace_ms: KILL_GRACE_MS };
        match serving.sandbox.agent().kill(request).await {
            Ok(()) | Err(LinkError::Agent(_)) => {}
            // The row goes on asking.
            Err(_) => return Ok(()),
        }
        let _ = serving.sandbox.agent().forget(&key.owner).await;
    }
    if context.deleted_at.is_some() {
        tenure.write(|| store.context_lost(fence, context.id, context.interpreter, "deleted")).await?;
    }
    tenure.write(|| store.context_heeded(fence, context.id, context.interrupts.0, context.restarts.0)).await
}
