//! The cluster as `toolhost dev` meets it: first start, restart, after kill -9, beside an orphan.

use std::os::unix::fs::PermissionsExt;

use super::orphan::is_alive;
use super::*;

/// A folder that the user `postgres` may pass through, so that nothing is put below `/var/lib`.
fn place() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().expect("a folder")
}

async fn started(folder: &Path) -> Cluster {
    Cluster::start(folder, Durability::Relaxed).await.expect("starts")
}

#[tokio::test]
async fn it_starts_stops_and_keeps_its_data() {
    let place = place();
    let folder = place.path().join("postgres");
    let mut cluster = started(&folder).await;
    let pid = cluster.pid().expect("runs");
    assert!(is_alive(pid));
    cluster.stop().await.expect("stops");
    assert!(!is_alive(pid));
    let mut cluster = started(&folder).await;
    cluster.stop().await.expect("stops");
}

#[tokio::test]
async fn it_starts_after_a_crash_and_beside_an_orphan() {
    let place = place();
    let folder = place.path().join("postgres");
    let mut cluster = started(&folder).await;
    cluster.crash().await.expect("crashes");
    cluster.start_again().await.expect("starts on what the crash left");

    let orphan = cluster.pid().expect("runs");
    std::mem::forget(cluster);
    let mut cluster = started(&folder).await;
    assert_ne!(cluster.pid(), Some(orphan));
    assert!(!is_alive(orphan));
    cluster.stop().await.expect("stops");
}

#[tokio::test]
async fn a_pid_file_that_names_another_process_is_no_obstacle() {
    let place = place();
    let folder = place.path().join("postgres");
    let mut cluster = started(&folder).await;
    cluster.stop().await.expect("stops");
    let pid_file = cluster.home.join("data/postmaster.pid");
    fs::write(&pid_file, format!("{}\n", std::process::id())).expect("writes");
    cluster.start_again().await.expect("starts");
    cluster.stop().await.expect("stops");
}

#[test]
fn odd_paths_survive_the_url() {
    assert_eq!(percent_encoded(Path::new("/a b/ü")), "/a%20b/%C3%BC");
}
