//! Making, claiming and removing sandboxes.

use std::time::Instant;

use bytes::Bytes;
use domain::SizeClass;
use protocol::{
    ErrorCode, ExecRequest, KillRequest, ListRequest, OUTPUT_WINDOW_BYTES, ReadRequest, WriteMode,
    WriteRequest,
};
use sandbox::{LinkError, Origin, SandboxError, WorkspaceFate};

use crate::RUNTIME;
use crate::support::{
    PATIENCE, Rig, bash, docker, key, run_request, shell, small, until, volume_mode, warm_small,
};

#[tokio::test]
async fn a_sandbox_is_made_runs_commands_and_leaves_nothing_behind() {
    let rig = Rig::new();
    let worker = rig.worker();
    let since = Instant::now();
    let sandbox = worker.acquire(small()).await.unwrap();
    eprintln!("figure: first cold creation {} ms", since.elapsed().as_millis());
    assert_eq!(sandbox.origin(), Origin::Cold);
    let ran = bash(&sandbox, "echo out; echo err >&2; exit 3").await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(ran.exit.exit_code, Some(3));

    let mut times = Vec::new();
    for _ in 0..3 {
        let since = Instant::now();
        let other = worker.acquire(small()).await.unwrap();
        times.push(since.elapsed().as_millis());
        let since = Instant::now();
        worker.destroy(other.id(), Some(&other.workspace().name)).await.unwrap();
        eprintln!("figure: removal {} ms", since.elapsed().as_millis());
    }
    eprintln!("figure: cold creations {times:?} ms");

    worker.release(&sandbox, WorkspaceFate::Remove);
    worker.release(&sandbox, WorkspaceFate::Remove);
    assert!(matches!(sandbox.agent().status().await, Err(LinkError::Closed)));
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_warm_sandbox_is_claimed_and_replaced() {
    let rig = Rig::with(|config| config.pool = warm_small(2));
    let worker = rig.worker();
    until("the pool is full", PATIENCE, || rig.ledger.live_rows() == 2).await;
    until("both are started", PATIENCE, || {
        rig.ledger.rows.lock().unwrap().values().all(|row| row.container_id.is_some())
    })
    .await;
    let warm: Vec<_> =
        rig.ledger.rows.lock().unwrap().values().filter_map(|row| row.container_id.clone()).collect();
    let since = Instant::now();
    let sandbox = worker.acquire(small()).await.unwrap();
    eprintln!("figure: warm claim {} us", since.elapsed().as_micros());
    assert_eq!(sandbox.origin(), Origin::Warm);
    assert!(warm.iter().any(|id| id == sandbox.container_id()), "it was there before it was asked for");
    assert_eq!(bash(&sandbox, "pwd; whoami").await.stdout, "/workspace\ntool\n");
    until("the pool is full again", PATIENCE, || rig.ledger.live_rows() == 3).await;

    // Another size is not served by the pool.
    let other = sandbox::AcquireRequest { resources: SizeClass::Medium.resources(), ..small() };
    let medium = worker.acquire(other).await.unwrap();
    assert_eq!(medium.origin(), Origin::Cold);
    worker.release(&medium, WorkspaceFate::Remove);
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_dead_warm_sandbox_is_never_handed_out() {
    let rig = Rig::with(|config| config.pool = warm_small(1));
    let worker = rig.worker();
    until("the pool is full", PATIENCE, || {
        rig.ledger.rows.lock().unwrap().values().any(|row| row.container_id.is_some())
    })
    .await;
    let warm = rig.ledger.rows.lock().unwrap().values().find_map(|row| row.container_id.clone()).unwrap();
    docker(&["kill", &warm]).unwrap();
    let sandbox = worker.acquire(small()).await.unwrap();
    assert_ne!(sandbox.container_id(), warm);
    assert_eq!(bash(&sandbox, "echo ok").await.stdout, "ok\n");
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_behind() {
    let rig = Rig::new();
    let worker = rig.worker();
    tokio::select! {
        biased;
        () = until("it is being made", PATIENCE, || rig.ledger.live_rows() == 1) => {}
        made = worker.acquire(small()) => panic!("it was made before the caller went away: {made:?}"),
    }
    until("everything is undone", PATIENCE, || rig.ledger.live_rows() == 0).await;
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn two_installations_do_not_see_each_other_s() {
    let (mine, theirs) = (Rig::new(), Rig::with(volume_mode));
    let (my_worker, their_worker) = (mine.worker(), theirs.worker());
    let sandbox = my_worker.acquire(small()).await.unwrap();
    assert_eq!(their_worker.reconcile().await.unwrap(), []);
    let empty = theirs.worker();
    assert_eq!(empty.reconcile().await.unwrap(), []);
    assert_eq!(sandbox::Driver::list(&*theirs.driver).await.unwrap(), []);
    assert_eq!(sandbox::Driver::list(&*mine.driver).await.unwrap().len(), 1);
    assert_eq!(bash(&sandbox, "echo alive").await.stdout, "alive\n");
    my_worker.release(&sandbox, WorkspaceFate::Remove);
    mine.finish(&[&my_worker]).await;
    theirs.finish(&[&their_worker, &empty]).await;
}

#[tokio::test]
async fn the_verbs_work() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    let agent = sandbox.agent();
    let root = protocol::WORKSPACE_DIR;
    let content = Bytes::from(vec![b'x'; 3_000_000]);
    let write = WriteRequest {
        key: key("write"),
        root: root.to_owned(),
        path: "a/b.bin".to_owned(),
        mode: WriteMode::CreateNew,
        size_bytes: 0,
        permissions: None,
        expected_sha256: None,
        expected_version: None,
        open_ended: false,
    };
    let written = agent.write(write.clone(), content.clone()).await.unwrap();
    assert!(written.created && written.size_bytes == 3_000_000);
    let again = agent.write(WriteRequest { key: key("other"), ..write }, content.clone()).await;
    assert!(matches!(&again, Err(LinkError::Agent(error)) if error.code == ErrorCode::Exists), "{again:?}");
    let read =
        ReadRequest { root: root.to_owned(), path: "a/b.bin".to_owned(), offset: 0, max_bytes: 4_000_000 };
    let read = agent.read(read).await.unwrap();
    assert_eq!(read.bytes, content);
    assert_eq!(read.file.sha256.as_deref(), Some(written.sha256.as_str()));
    let list = ListRequest {
        root: root.to_owned(),
        path: String::new(),
        max_depth: 3,
        include_hidden: true,
        respect_ignore: false,
        limit: 100,
    };
    let listed = agent.list(list).await.unwrap();
    let paths: Vec<&str> = listed.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["a", "a/b.bin"]);
    assert_eq!(agent.stat(root, "a/b.bin").await.unwrap().size_bytes, 3_000_000);

    let mut sleeping = agent.exec(shell("sleep", "echo started; sleep 60")).await.unwrap();
    while !matches!(sleeping.next().await.unwrap(), Some(sandbox::ExecEvent::Output(_))) {}
    drop(sleeping);
    assert_eq!(agent.status().await.unwrap().operations.len(), 1);
    agent.kill(KillRequest { key: key("sleep"), signal: None, grace_ms: 200 }).await.unwrap();
    let attach = ExecRequest { key: key("sleep"), resume_from: 0, spec: None };
    let killed = run_request(agent, attach.clone()).await.unwrap();
    assert!(killed.exit.killed && killed.stdout == "started\n", "{killed:?}");
    agent.forget("sleep").await.unwrap();
    let forgotten = run_request(agent, attach).await;
    assert!(matches!(forgotten, Err(LinkError::Agent(error)) if error.code == ErrorCode::NotFound));
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_slow_reader_of_one_stream_does_not_hold_up_another() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    // Never read: its window fills, its command blocks.
    let flood = sandbox.agent().exec(shell("flood", "yes")).await.unwrap();
    let since = Instant::now();
    while sandbox.agent().status().await.unwrap().operations.iter().all(|o| o.log_bytes < OUTPUT_WINDOW_BYTES)
    {
        assert!(since.elapsed() < PATIENCE, "the flood does not fill its window");
    }
    // What the flood held up would be held up for ever.
    for _ in 0..5 {
        assert_eq!(bash(&sandbox, "echo quick").await.stdout, "quick\n");
    }
    let big = bash(&sandbox, "head -c 20000000 /dev/zero").await;
    assert_eq!(big.stdout.len(), 20_000_000);
    drop(flood);
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn many_are_made_and_removed_at_once() {
    let rig = Rig::with(|config| config.pool = warm_small(2));
    let worker = rig.worker();
    // All of them have their turn within the time that a request waits for it. On gVisor each takes several times as long.
    let count = if RUNTIME == "runsc" { 8 } else { 16 };
    let since = Instant::now();
    let making = (0..count).map(|number| {
        let worker = worker.clone();
        tokio::spawn(async move {
            let sandbox = worker.acquire(small()).await.unwrap();
            let ran = bash(&sandbox, &format!("echo {number} > n; cat n")).await;
            assert_eq!(ran.stdout, format!("{number}\n"));
            sandbox
        })
    });
    let mut uids = Vec::new();
    for made in making.collect::<Vec<_>>() {
        let sandbox = made.await.unwrap();
        uids.push(sandbox.tool_uid());
        worker.release(&sandbox, WorkspaceFate::Remove);
    }
    eprintln!("figure: {count} sandboxes at once in {} ms", since.elapsed().as_millis());
    uids.sort_unstable();
    uids.dedup();
    assert_eq!(uids.len(), count, "every sandbox has a uid of its own");
    // A shutdown gives removals a limited time, which so many of them may need for themselves.
    until("what was released is removed", PATIENCE, || rig.ledger.live_rows() <= 2).await;
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn after_shutdown_there_are_no_sandboxes_to_be_had() {
    let rig = Rig::with(|config| config.pool = warm_small(1));
    let worker = rig.worker();
    worker.shutdown().await;
    assert!(matches!(worker.acquire(small()).await, Err(SandboxError::ShuttingDown)));
    rig.finish(&[&worker]).await;
}
