//! What should be removed, from what is wanted and what was found: a pure comparison, and the hands that act on it.
//!
//! # Design notes
//!
//! *Look first, read the rows afterwards.* A row is committed before its container is made, so whatever was
//! found and has no row when the rows are read later is an orphan. The grace only covers clocks and mistakes.
//!
//! *Never what the rows may have forgotten.* After a restore, what is older than it and has no row is not an orphan: the backup may be older
//! than the sandbox. It stays until an operator says that it may go.
//!
//! *Never what this worker holds.* Rows can be read from the wrong database or a restored one; a sandbox in use is not removed on their word.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use domain::SandboxId;

use super::core::Core;
use super::remove;
use crate::driver::{ObservedContainer, WorkspaceName};
use crate::ledger::Live;
use crate::{EngineError, SandboxError};

/// What was found on the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Containers of ours.
    pub containers: Vec<ObservedContainer>,
    /// Workspaces of ours.
    pub workspaces: Vec<WorkspaceName>,
    /// Sandboxes that have a folder.
    pub folders: Vec<SandboxId>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// A row that nobody wants any more: remove everything of it, then the row. The workspace only when no one
    /// else wants it.
    RemoveAbandoned {
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its workspace, when it goes too.
        workspace: Option<WorkspaceName>,
    },
    /// A container without a row.
    RemoveContainer {
        /// The sandbox that its label names.
        sandbox_id: SandboxId,
    },
    /// A workspace that nobody wants.
    RemoveWorkspace {
        /// Its name.
        name: WorkspaceName,
    },
    /// A folder of no sandbox.
    RemoveFolder {
        /// The sandbox that it was made for.
        sandbox_id: SandboxId,
    },
    /// A row says that there is a container, and there is none.
    ContainerMissing {
        /// The sandbox.
        sandbox_id: SandboxId,
    },
}

/// Compares. `held` are the sandboxes that this worker has in its hands, with their workspaces.
#[must_use]
pub fn reconcile(
    live: &Live,
    observed: &Observed,
    held: &HashMap<SandboxId, WorkspaceName>,
    now: SystemTime,
    grace: Duration,
) -> Vec<Action> {
    let rows: HashSet<SandboxId> = live.rows.iter().map(|row| row.sandbox_id).collect();
    let running: HashSet<SandboxId> = observed.containers.iter().map(|found| found.sandbox_id).collect();
    let abandoned = |id: SandboxId| live.rows.iter().any(|row| row.sandbox_id == id && row.abandoned);
    let mut wanted: HashSet<WorkspaceName> = live.workspaces.iter().cloned().collect();
    for row in live.rows.iter().filter(|row| !row.abandoned || held.contains_key(&row.sandbox_id)) {
        wanted.insert(WorkspaceName::of(row.sandbox_id));
        wanted.extend(row.workspace.clone());
    }
    wanted.extend(held.values().cloned());

    let mut actions = BTreeSet::new();
    for row in live.rows.iter().filter(|row| !held.contains_key(&row.sandbox_id)) {
        let sandbox_id = row.sandbox_id;
        if row.abandoned {
            let workspace = row.workspace.clone().unwrap_or_else(|| WorkspaceName::of(sandbox_id));
            let workspace = (!wanted.contains(&workspace)).then_some(workspace);
            actions.insert(Action::RemoveAbandoned { sandbox_id, workspace });
        } else if row.container_id.is_some() && row.age >= grace && !running.contains(&sandbox_id) {
            actions.insert(Action::ContainerMissing { sandbox_id });
        }
    }
    for found in &observed.containers {
        let age = now.duration_since(found.created_at).unwrap_or_default();
        let known = rows.contains(&found.sandbox_id) || held.contains_key(&found.sandbox_id);
        if !known && age >= grace && !forgotten(live, found.sandbox_id) {
            actions.insert(Action::RemoveContainer { sandbox_id: found.sandbox_id });
        }
    }
    // A workspace or folder whose container is younger than the grace waits for it.
    let young = |id: SandboxId| {
        running.contains(&id) && !actions.contains(&Action::RemoveContainer { sandbox_id: id })
    };
    let mut leftovers = Vec::new();
    for name in &observed.workspaces {
        let of_abandoned = live.rows.iter().any(|row| {
            row.abandoned
                && (row.workspace.as_ref() == Some(name) || WorkspaceName::of(row.sandbox_id) == *name)
        });
        let of_young = running.iter().any(|id| young(*id) && WorkspaceName::of(*id) == *name);
        let forgotten = name.sandbox_id().is_some_and(|id| !rows.contains(&id) && forgotten(live, id));
        if !wanted.contains(name) && !of_abandoned && !of_young && !forgotten {
            leftovers.push(Action::RemoveWorkspace { name: name.clone() });
        }
    }
    for id in &observed.folders {
        if !rows.contains(id)
            && !held.contains_key(id)
            && !young(*id)
            && !abandoned(*id)
            && !forgotten(live, *id)
        {
            leftovers.push(Action::RemoveFolder { sandbox_id: *id });
        }
    }
    actions.into_iter().chain(leftovers).collect()
}

/// Whether a sandbox without a row was made before the rows were restored, as the time in its id says.
fn forgotten(live: &Live, id: SandboxId) -> bool {
    let made_at = domain::id::time_of(id.uuid()).map(SystemTime::from);
    live.restored_at.zip(made_at).is_some_and(|(restored_at, made_at)| made_at < restored_at)
}

/// Reconciles again and again for as long as the worker lives.
pub(super) async fn keep(core: Arc<Core>) {
    let interval = Duration::from_secs(core.config.reconcile_s.max(1));
    loop {
        if let Err(error) = pass(&core).await {
            core.metrics.error("reconcile");
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what runs could not be compared with what should"
            );
        }
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// One pass; what was to do.
pub(super) async fn pass(core: &Arc<Core>) -> Result<Vec<Action>, SandboxError> {
    let observed = Observed {
        containers: core.driver.list().await?,
        workspaces: core.driver.list_workspaces().await?.into_iter().map(|found| found.name).collect(),
        folders: core.folders.list().map_err(EngineError::host("list the sandboxes' folders"))?,
    };
    let live = core.ledger.live().await?;
    let held = core.held();
    let held =
        held.iter().map(|inner| (inner.facts.sandbox_id, inner.facts.workspace.name.clone())).collect();
    let grace = Duration::from_secs(core.config.orphan_grace_s);
    let left_alone = observed.containers.iter().filter(|found| {
        let known = live.rows.iter().any(|row| row.sandbox_id == found.sandbox_id);
        !known && forgotten(&live, found.sandbox_id)
    });
    let left_alone = left_alone.count();
    if left_alone > 0 {
        tracing::warn!(
            containers = left_alone,
            "containers that the restored database does not know are left alone (`toolhost admin restored --release` lets them go)"
        );
    }
    let actions = reconcile(&live, &observed, &held, SystemTime::now(), grace);
    for action in &actions {
        if core.stop.is_cancelled() {
            break;
        }
        if let Err(error) = act(core, action).await {
            core.metrics.error("reconcile");
            tracing::warn!(
                ?action,
                error = &error as &dyn std::error::Error,
                "a leftover stays for the next pass"
            );
        }
    }
    let pruned = core.driver.prune().await?;
    core.metrics.reaped.with_label_values(&["agent"]).inc_by(pruned);
    Ok(actions)
}

async fn act(core: &Arc<Core>, action: &Action) -> Result<(), SandboxError> {
    let kind = match action {
        Action::RemoveAbandoned { sandbox_id, workspace } => {
            remove::now(core, *sandbox_id, workspace.as_ref()).await?;
            "abandoned"
        }
        Action::RemoveContainer { sandbox_id } => {
            core.driver.remove(*sandbox_id).await?;
            "container"
        }
        Action::RemoveWorkspace { name } => {
            core.driver.remove_workspace(name).await?;
            "workspace"
        }
        Action::RemoveFolder { sandbox_id } => {
            core.folders.remove(*sandbox_id).map_err(EngineError::host("remove a sandbox's folder"))?;
            "folder"
        }
        Action::ContainerMissing { sandbox_id } => {
            tracing::warn!(%sandbox_id, "a sandbox's row has no container");
            return Ok(());
        }
    };
    tracing::info!(?action, "a leftover was removed");
    core.metrics.reaped.with_label_values(&[kind]).inc();
    Ok(())
}

#[cfg(test)]
mod tests;
