//! The comparison, as properties: nothing wanted is touched, everything else goes, and then there is peace.

use std::collections::HashMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::ledger::LiveRow;

const GRACE: Duration = Duration::from_secs(60);

fn id(number: u8) -> SandboxId {
    SandboxId::from_uuid(Uuid::from_u128(u128::from(number)))
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

#[derive(Debug, Clone)]
struct World {
    live: Live,
    observed: Observed,
    held: HashMap<SandboxId, WorkspaceName>,
}

impl World {
    fn reconcile(&self) -> Vec<Action> {
        reconcile(&self.live, &self.observed, &self.held, now(), GRACE)
    }

    /// What the executor does, as far as it can be seen from here.
    fn carry_out(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::RemoveAbandoned { sandbox_id, workspace } => {
                    self.observed.containers.retain(|found| found.sandbox_id != *sandbox_id);
                    self.observed.folders.retain(|found| found != sandbox_id);
                    self.observed.workspaces.retain(|found| Some(found) != workspace.as_ref());
                    self.live.rows.retain(|row| row.sandbox_id != *sandbox_id);
                }
                Action::RemoveContainer { sandbox_id } => {
                    self.observed.containers.retain(|found| found.sandbox_id != *sandbox_id);
                }
                Action::RemoveWorkspace { name } => self.observed.workspaces.retain(|found| found != name),
                Action::RemoveFolder { sandbox_id } => {
                    self.observed.folders.retain(|found| found != sandbox_id);
                }
                Action::ContainerMissing { .. } => {}
            }
        }
    }

    fn is_wanted(&self, name: &WorkspaceName) -> bool {
        self.live.workspaces.contains(name)
            || self.held.values().any(|held| held == name)
            || self.live.rows.iter().any(|row| {
                (!row.abandoned || self.held.contains_key(&row.sandbox_id))
                    && (row.workspace.as_ref() == Some(name) || WorkspaceName::of(row.sandbox_id) == *name)
            })
    }
}

prop_compose! {
    fn any_row()(number in 0u8..8, started in any::<bool>(), workspace in prop::option::of(0u8..8), abandoned in any::<bool>(), age_s in 0u64..200) -> LiveRow {
        LiveRow {
            sandbox_id: id(number),
            container_id: started.then(|| format!("c{number}")),
            workspace: workspace.map(|number| WorkspaceName::of(id(number))),
            abandoned,
            age: Duration::from_secs(age_s),
        }
    }
}

prop_compose! {
    fn any_world()(
        rows in prop::collection::vec(any_row(), 0..6),
        kept in prop::collection::vec(0u8..8, 0..3),
        containers in prop::collection::btree_map(0u8..8, 0u64..200, 0..6),
        workspaces in prop::collection::btree_set(0u8..8, 0..6),
        folders in prop::collection::btree_set(0u8..8, 0..6),
        held in prop::collection::btree_map(0u8..8, 0u8..8, 0..3),
    ) -> World {
        let mut rows = rows;
        rows.sort_by_key(|row| row.sandbox_id);
        rows.dedup_by_key(|row| row.sandbox_id);
        World {
            live: Live {
                rows,
                workspaces: kept.into_iter().map(|number| WorkspaceName::of(id(number))).collect(),
                restored_at: None,
            },
            observed: Observed {
                containers: containers
                    .into_iter()
                    .map(|(number, age_s)| ObservedContainer {
                        container_id: format!("c{number}"),
                        sandbox_id: id(number),
                        running: true,
                        created_at: now() - Duration::from_secs(age_s),
                    })
                    .collect(),
                workspaces: workspaces.into_iter().map(|number| WorkspaceName::of(id(number))).collect(),
                folders: folders.into_iter().map(id).collect(),
            },
            held: held.into_iter().map(|(number, name)| (id(number), WorkspaceName::of(id(name)))).collect(),
        }
    }
}

proptest! {
    #[test]
    fn nothing_wanted_is_touched(world in any_world()) {
        for action in world.reconcile() {
            match action {
                Action::RemoveAbandoned { sandbox_id, workspace } => {
                    prop_assert!(!world.held.contains_key(&sandbox_id));
                    prop_assert!(world.live.rows.iter().any(|row| row.sandbox_id == sandbox_id && row.abandoned));
                    prop_assert!(workspace.is_none_or(|name| !world.is_wanted(&name)));
                }
                Action::RemoveContainer { sandbox_id } | Action::RemoveFolder { sandbox_id } => {
                    prop_assert!(!world.held.contains_key(&sandbox_id));
                    prop_assert!(world.live.rows.iter().all(|row| row.sandbox_id != sandbox_id));
                }
                Action::RemoveWorkspace { name } => prop_assert!(!world.is_wanted(&name)),
                Action::ContainerMissing { sandbox_id } => {
                    prop_assert!(world.observed.containers.iter().all(|found| found.sandbox_id != sandbox_id));
                }
            }
        }
    }

    #[test]
    fn every_old_orphan_goes(world in any_world()) {
        let actions = world.reconcile();
        for found in &world.observed.containers {
            let orphan = !world.held.contains_key(&found.sandbox_id)
                && world.live.rows.iter().all(|row| row.sandbox_id != found.sandbox_id)
                && found.created_at + GRACE <= now();
            prop_assert_eq!(orphan, actions.contains(&Action::RemoveContainer { sandbox_id: found.sandbox_id }));
        }
    }

    #[test]
    fn carried_out_it_finds_peace_and_no_leftovers(world in any_world()) {
        let mut world = world;
        // An abandoned row's workspace can be another's leftover: the next pass has it.
        for _ in 0..3 {
            let actions = world.reconcile();
            world.carry_out(&actions);
        }
        let rest = world.reconcile();
        let all_reports = rest.iter().all(|action| matches!(action, Action::ContainerMissing { .. }));
        prop_assert!(all_reports, "still to do: {:?}", rest);
        let young = |name: &WorkspaceName| {
            world.observed.containers.iter().any(|found| WorkspaceName::of(found.sandbox_id) == *name)
        };
        for name in &world.observed.workspaces {
            prop_assert!(world.is_wanted(name) || young(name) || world.held.keys().any(|id| WorkspaceName::of(*id) == *name), "{} stays", name);
        }
    }
}

#[test]
fn a_young_container_without_a_row_is_left_alone_with_its_folder_and_workspace() {
    let world = World {
        live: Live::default(),
        observed: Observed {
            containers: vec![ObservedContainer {
                container_id: "c".to_owned(),
                sandbox_id: id(1),
                running: true,
                created_at: now() - Duration::from_secs(1),
            }],
            workspaces: vec![WorkspaceName::of(id(1))],
            folders: vec![id(1)],
        },
        held: HashMap::new(),
    };
    assert_eq!(world.reconcile(), []);
}

/// A sandbox that was made so many seconds before now.
fn made_before_now(seconds: u64) -> SandboxId {
    let at = (now() - Duration::from_secs(seconds)).into();
    SandboxId::from_uuid(domain::id::uuid_at(at, [7; 10]))
}

#[test]
fn what_a_restored_database_forgot_is_left_alone_until_it_is_let_go() {
    let (forgotten, orphan) = (made_before_now(500), made_before_now(200));
    let container = |sandbox_id| ObservedContainer {
        container_id: "c".to_owned(),
        sandbox_id,
        running: true,
        created_at: now() - GRACE * 2,
    };
    let mut world = World {
        live: Live { restored_at: Some(now() - Duration::from_secs(300)), ..Live::default() },
        observed: Observed {
            containers: vec![container(forgotten), container(orphan)],
            workspaces: vec![WorkspaceName::of(forgotten), WorkspaceName::of(orphan)],
            folders: vec![forgotten, orphan],
        },
        held: HashMap::new(),
    };
    let about = |actions: Vec<Action>, id: SandboxId| {
        actions
            .into_iter()
            .filter(|action| match action {
                Action::RemoveContainer { sandbox_id }
                | Action::RemoveFolder { sandbox_id }
                | Action::RemoveAbandoned { sandbox_id, .. }
                | Action::ContainerMissing { sandbox_id } => *sandbox_id == id,
                Action::RemoveWorkspace { name } => *name == WorkspaceName::of(id),
            })
            .count()
    };
    assert_eq!((about(world.reconcile(), forgotten), about(world.reconcile(), orphan)), (0, 3));
    world.live.restored_at = None;
    assert_eq!(about(world.reconcile(), forgotten), 3);
}
