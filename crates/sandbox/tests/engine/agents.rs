//! Volumes of agents: one for each build, kept while anything uses it.

use std::io::Write;
use std::sync::Arc;

use sandbox::{Config, DockerDriver, Driver, Metrics, Sandboxes, WorkspaceFate};

use crate::support::{Rig, bash, docker, small};

fn agent_volumes(rig: &Rig) -> Vec<String> {
    let label = format!("label=io.toolhost.installation={}", rig.identity.installation);
    let listed = docker(&["volume", "ls", "-q", "--filter", &label]).unwrap();
    listed.lines().filter(|volume| volume.contains("-agent-")).map(str::to_owned).collect()
}

/// A worker of another build on the same host: its agent is this one and a few bytes that no one reads.
fn worker_of_another_build(rig: &Rig) -> (Sandboxes, Arc<DockerDriver>) {
    let agent_path = rig.config.state_dir.with_file_name("other-agent");
    std::fs::copy(&rig.config.agent_path, &agent_path).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&agent_path).unwrap();
    file.write_all(b"of another build").unwrap();
    drop(file);
    let config = Config { agent_path, ..rig.config.clone() };
    let driver = Arc::new(DockerDriver::new(rig.identity.clone(), &config).unwrap());
    let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
    let worker = Sandboxes::new(&rig.identity, driver.clone(), rig.ledger.clone(), config, metrics);
    worker.start();
    (worker, driver)
}

#[tokio::test]
async fn the_agents_of_other_builds_go_when_nothing_uses_them() {
    let (rig, neighbour) = (Rig::new(), Rig::new());
    let beside = neighbour.worker();
    let passing = beside.acquire(small()).await.unwrap();
    beside.release(&passing, WorkspaceFate::Remove);
    let neighbours = agent_volumes(&neighbour);
    assert_eq!(neighbours.len(), 1);

    let (old, _) = worker_of_another_build(&rig);
    let sandbox = old.acquire(small()).await.unwrap();
    let others = agent_volumes(&rig);
    assert_eq!(others.len(), 1);
    let new = rig.worker();
    let newer = new.acquire(small()).await.unwrap();
    new.reconcile().await.unwrap();
    assert_eq!(agent_volumes(&rig).len(), 2, "a sandbox uses it");
    assert_eq!(bash(&sandbox, "echo on").await.stdout, "on\n");

    // Answered once the engine has let go of its volumes too, which it does after it has forgotten the container.
    old.destroy(sandbox.id(), Some(&sandbox.workspace().name)).await.unwrap();
    new.release(&newer, WorkspaceFate::Remove);
    new.reconcile().await.unwrap();
    let left = agent_volumes(&rig);
    assert!(left.len() == 1 && left != others, "its own stays, though nothing uses it: {left:?}");
    assert_eq!(agent_volumes(&neighbour), neighbours, "another installation's");

    // The worker of the other build is still there and makes its own again, which this one then leaves alone.
    let again = old.acquire(small()).await.unwrap();
    assert_eq!(bash(&again, "echo again").await.stdout, "again\n");
    assert!(agent_volumes(&rig).contains(&others[0]), "with its labels, or nobody would remove it");
    assert_eq!(rig.driver.prune().await.unwrap(), 0);
    old.release(&again, WorkspaceFate::Remove);
    neighbour.finish(&[&beside]).await;
    rig.finish(&[&old, &new]).await;
}
