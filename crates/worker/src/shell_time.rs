//! What shells take of CPU time while they run: asked of their agents, noted in their rows, and added to the tenant's usage from there.

use std::sync::Arc;
use std::time::Duration;

use domain::ShellId;
use futures_util::stream::{self, StreamExt};
use tokio::time::timeout;

use crate::session::OwnedSession;
use crate::tenure::Tenure;

/// Agents that are asked at the same time.
const ASKED: usize = 8;
/// Time for an answer; who is slow is asked again soon.
const ANSWER: Duration = Duration::from_secs(2);

/// One pass over the sessions that have shells.
pub(crate) async fn note_times(tenure: &Arc<Tenure>) -> store::Result<()> {
    let sessions = tenure.sessions().into_iter().filter(|session| session.shell_count() > 0);
    let asked = stream::iter(sessions.map(|session| async move { times(&session).await }));
    let took: Vec<(ShellId, u64)> = asked.buffer_unordered(ASKED).collect::<Vec<_>>().await.concat();
    if took.is_empty() {
        return Ok(());
    }
    tenure.store().shells_took(tenure.worker_id(), &took).await
}

async fn times(session: &OwnedSession) -> Vec<(ShellId, u64)> {
    let Some(serving) = session.serving_now() else { return Vec::new() };
    let Ok(Ok(status)) = timeout(ANSWER, serving.sandbox.agent().status()).await else { return Vec::new() };
    let shells = session.shells();
    let of_shell = |shell: &Arc<crate::shell::RunningShell>| {
        let operation = status.operations.iter().find(|operation| operation.key == shell.key)?;
        Some((shell.id, operation.cpu_ms?))
    };
    shells.iter().filter_map(of_shell).collect()
}
