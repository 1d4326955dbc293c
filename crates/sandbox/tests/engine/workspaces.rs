//! Workspaces outlive containers and hold their size.

use domain::{Resources, SizeClass};
use sandbox::{AcquireRequest, WorkspaceFate};

use crate::support::{Rig, bash, docker, run, sized, small, volume_mode};

async fn outlives_its_container(rig: Rig) {
    let worker = rig.worker();
    let first = worker.acquire(small()).await.unwrap();
    assert_eq!(bash(&first, "echo kept > f; chmod 600 f; ls -A").await.stdout, "f\n");
    rig.ledger.wanted.lock().unwrap().push(first.workspace().name.clone());
    worker.release(&first, WorkspaceFate::Keep);
    let again = AcquireRequest { workspace: Some(first.workspace().clone()), ..small() };
    let second = worker.acquire(again).await.unwrap();
    assert_ne!(second.id(), first.id());
    assert_eq!(second.tool_uid(), first.tool_uid());
    assert_eq!(bash(&second, "cat f; echo more >> f; find f -printf '%m\\n'").await.stdout, "kept\n600\n");
    assert_eq!(worker.reconcile().await.unwrap(), []);
    rig.ledger.wanted.lock().unwrap().clear();
    worker.release(&second, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_loopback_workspace_outlives_its_container() {
    outlives_its_container(Rig::new()).await;
}

#[tokio::test]
async fn a_volume_outlives_its_container() {
    outlives_its_container(Rig::with(volume_mode)).await;
}

#[tokio::test]
async fn a_full_workspace_says_so_and_is_usable_again() {
    let rig = Rig::new();
    let worker = rig.worker();
    let resources = Resources { disk_mb: 64, ..SizeClass::Small.resources() };
    let sandbox = worker.acquire(sized(resources)).await.unwrap();
    let full =
        bash(&sandbox, "dd if=/dev/zero of=big bs=1M count=60; dd if=/dev/zero of=big2 bs=1M count=60").await;
    assert!(full.stderr.contains("No space left on device"), "{full:?}");
    assert_eq!(bash(&sandbox, "rm big big2 && echo ok > f && cat f").await.stdout, "ok\n");
    let inodes = bash(
        &sandbox,
        "df -i --output=itotal . | tail -1; python3 -c '\nfor i in range(100000): open(f\"i{i}\", \"w\")'",
    )
    .await;
    assert!(inodes.stderr.contains("No space left on device"), "{inodes:?}");
    let sparse = bash(&sandbox, "rm -f i*; truncate -s 1T huge").await;
    assert_ne!(sparse.exit.exit_code, Some(0), "{sparse:?}");
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn no_loop_device_waits_for_anybody() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    let flags = run("losetup", &["--noheadings", "--output", "AUTOCLEAR,BACK-FILE"]).unwrap();
    let state = rig.config.state_dir.to_string_lossy().into_owned();
    let ours: Vec<&str> = flags.lines().filter(|line| line.contains(&state)).collect();
    assert_eq!(ours.len(), 1, "{flags}");
    assert!(
        ours.first().is_some_and(|line| line.trim().starts_with('1')),
        "released by its last user: {ours:?}"
    );
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_container_started_again_by_hand_does_not_get_whatever_its_device_is_by_then() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    docker(&["kill", sandbox.container_id()]).unwrap();
    let other = worker.acquire(small()).await.unwrap();
    let started = docker(&["start", sandbox.container_id()]);
    assert!(started.is_err(), "{started:?}");
    assert_eq!(bash(&other, "echo ok").await.stdout, "ok\n");
    worker.release(&sandbox, WorkspaceFate::Remove);
    worker.release(&other, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}
