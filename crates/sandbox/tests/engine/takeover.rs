//! A worker dies, another takes its sandboxes over.

use std::time::Instant;

use protocol::{ErrorCode, ExecRequest, ListRequest, OperationState};
use sandbox::{Adoption, ExecEvent, GoneReason, LinkError, Origin, Sandbox, SandboxError, WorkspaceFate};

use crate::support::{PATIENCE, Rig, bash, docker, key, run_request, shell, small, until, volume_mode};

/// The epoch that is noted on the host for whoever would remove the sandbox.
fn noted_epoch(rig: &Rig, sandbox: &Sandbox) -> Option<u64> {
    let folder = rig.config.runtime_dir.join(&rig.identity.installation).join(sandbox.id().to_string());
    let card: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("card.json")).ok()?).ok()?;
    card["epoch"].as_u64()
}

fn adoption(sandbox: &Sandbox, epoch: u64) -> Adoption {
    let facts = sandbox.facts().clone();
    Adoption {
        sandbox_id: facts.sandbox_id,
        container_id: facts.container_id,
        workspace: facts.workspace,
        epoch,
        image: facts.image,
        resources: facts.resources,
        runtime: facts.runtime,
    }
}

#[tokio::test]
async fn a_command_runs_on_and_its_output_has_no_gap() {
    let rig = Rig::new();
    let (first, second) = (rig.worker(), rig.worker());
    let sandbox = first.acquire(small()).await.unwrap();
    // It writes on while nobody is there, and cannot come to its end before somebody is there again.
    let count = "mkfifo go; for i in $(seq 1 30); do echo line $i; sleep 0.1; done; read -r line < go
        for i in $(seq 31 60); do echo line $i; done";
    let mut stream = sandbox.agent().exec(shell("count", count)).await.unwrap();
    let (mut output, mut durable) = (Vec::new(), 0);
    while output.len() < 50 {
        if let Some(ExecEvent::Output(piece)) = stream.next().await.unwrap() {
            output.extend_from_slice(&piece.bytes);
            durable = piece.offset + piece.bytes.len() as u64;
            stream.ack(durable);
        }
    }
    first.let_go(&sandbox);
    assert!(matches!(stream.next().await, Ok(Some(_)) | Err(LinkError::Disconnected)));

    let since = Instant::now();
    let adopted = second.adopt(adoption(&sandbox, 2)).await.unwrap();
    eprintln!("figure: takeover {} ms", since.elapsed().as_millis());
    assert_eq!((adopted.origin(), adopted.boot_id()), (Origin::Adopted, sandbox.boot_id()));
    let attach = ExecRequest { key: key("count"), resume_from: durable, spec: None };
    let mut stream = adopted.agent().exec(attach).await.unwrap();
    let exit = loop {
        match stream.next().await.unwrap().expect("it exits") {
            ExecEvent::Attached(attached) => {
                assert!(!attached.started && attached.state == OperationState::Running);
                assert_eq!(attached.offset, durable);
                bash(&adopted, "echo > go").await;
            }
            ExecEvent::Output(piece) => {
                assert_eq!(piece.offset, durable);
                durable += piece.bytes.len() as u64;
                output.extend_from_slice(&piece.bytes);
                stream.ack(durable);
            }
            ExecEvent::Exited(exit) => break exit,
        }
    };
    let expected: String = (1..=60).map(|line| format!("line {line}\n")).collect();
    assert_eq!(String::from_utf8(output).unwrap(), expected);
    assert_eq!(exit.exit_code, Some(0));

    // The first worker comes back from the dead: its epoch is lower than one that was served.
    second.let_go(&adopted);
    let zombie = first.adopt(adoption(&sandbox, 1)).await;
    assert!(matches!(zombie, Err(SandboxError::Fenced)), "{zombie:?}");
    let third = second.adopt(adoption(&sandbox, 3)).await.unwrap();
    assert_eq!(bash(&third, "echo mine").await.stdout, "mine\n");
    second.release(&third, WorkspaceFate::Remove);
    rig.finish(&[&first, &second]).await;
}

#[tokio::test]
async fn a_sandbox_of_the_version_before_goes_on_under_a_worker_of_this_one() {
    let before = Rig::with(|config| config.agent_protocol = Some(1));
    let (old, new) = (before.worker(), before.worker());
    let sandbox = old.acquire(small()).await.unwrap();
    assert_eq!(bash(&sandbox, "echo kept > kept; cat kept").await.stdout, "kept\n");
    let mut stream =
        sandbox.agent().exec(shell("on", "mkfifo go; echo up; read -r line < go; echo $line")).await.unwrap();
    let durable = loop {
        if let Some(ExecEvent::Output(piece)) = stream.next().await.unwrap() {
            break piece.offset + piece.bytes.len() as u64;
        }
    };
    old.let_go(&sandbox);

    let adopted = new.adopt(adoption(&sandbox, 2)).await.unwrap();
    let listed = ListRequest {
        root: protocol::WORKSPACE_DIR.to_owned(),
        path: String::new(),
        max_depth: 1,
        include_hidden: false,
        respect_ignore: false,
        limit: 10,
    };
    let listed = adopted.agent().list(listed).await.unwrap();
    assert!(listed.entries.iter().any(|entry| entry.path == "kept"), "{listed:?}");
    let refused = adopted.agent().make_directory(protocol::WORKSPACE_DIR, "made").await;
    let unsupported =
        |error: &LinkError| matches!(error, LinkError::Agent(error) if error.code == ErrorCode::Unsupported);
    assert!(refused.as_ref().is_err_and(unsupported), "{refused:?}");
    let attach = ExecRequest { key: key("on"), resume_from: durable, spec: None };
    let (ended, _) = tokio::join!(run_request(adopted.agent(), attach), bash(&adopted, "echo on > go"));
    assert_eq!(ended.unwrap().stdout, "on\n");
    new.release(&adopted, WorkspaceFate::Remove);
    before.finish(&[&old, &new]).await;
}

#[tokio::test]
async fn a_zombie_removes_nothing_that_another_worker_has() {
    let rig = Rig::new();
    let (zombie, heir) = (rig.worker(), rig.worker());
    let sandbox = zombie.acquire(small()).await.unwrap();
    let before = shell("before", "echo before");
    assert_eq!(run_request(sandbox.agent(), before.clone()).await.unwrap().stdout, "before\n");

    // The heir takes over while the zombie still has its connection; the agent comes once the zombie lets go.
    let (adopted, ()) = tokio::join!(heir.adopt(adoption(&sandbox, 2)), async {
        let raised = || noted_epoch(&rig, &sandbox) == Some(2);
        until("the heir's epoch is noted", PATIENCE, raised).await;
        let destroyed = zombie.destroy(sandbox.id(), Some(&sandbox.workspace().name)).await;
        assert!(matches!(destroyed, Err(SandboxError::Fenced)), "{destroyed:?}");
    });
    let adopted = adopted.unwrap();
    zombie.release(&sandbox, WorkspaceFate::Remove);
    let again = zombie.adopt(adoption(&sandbox, 1)).await;
    assert!(matches!(again, Err(SandboxError::Fenced)), "{again:?}");

    // The operation that ran before answers from the journal.
    let journal = ExecRequest { spec: None, resume_from: "before\n".len() as u64, ..before };
    assert_eq!(run_request(adopted.agent(), journal).await.unwrap().stdout, "");
    assert_eq!(bash(&adopted, "echo mine").await.stdout, "mine\n");
    heir.release(&adopted, WorkspaceFate::Remove);
    rig.finish(&[&zombie, &heir]).await;
}

#[tokio::test]
async fn a_newer_stream_of_an_operation_takes_over_from_an_older() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    // What is told only the newer one is written once both are known.
    bash(&sandbox, "mkfifo go").await;
    let mut older = sandbox.agent().exec(shell("one", "read -r line < go; echo done")).await.unwrap();
    assert!(matches!(older.next().await, Ok(Some(ExecEvent::Attached(_)))));
    let attach = ExecRequest { key: key("one"), resume_from: 0, spec: None };
    let mut newer = sandbox.agent().exec(attach).await.unwrap();
    assert!(matches!(newer.next().await, Ok(Some(ExecEvent::Attached(_)))));
    let ended = tokio::time::timeout(PATIENCE, older.next()).await.expect("the older one ends");
    assert!(matches!(ended, Err(LinkError::Disconnected)), "{ended:?}");
    bash(&sandbox, "echo > go").await;
    assert!(matches!(newer.next().await, Ok(Some(ExecEvent::Output(output))) if output.bytes == "done\n"));
    assert!(matches!(newer.next().await, Ok(Some(ExecEvent::Exited(_)))));
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn an_agent_that_started_anew_is_not_taken_over() {
    let rig = Rig::with(volume_mode);
    let (first, second) = (rig.worker(), rig.worker());
    let sandbox = first.acquire(small()).await.unwrap();
    first.let_go(&sandbox);
    docker(&["restart", "-t", "0", sandbox.container_id()]).unwrap();
    match second.adopt(adoption(&sandbox, 2)).await {
        Err(SandboxError::Gone(gone)) => assert_eq!(gone.reason, GoneReason::AgentGone),
        other => panic!("{other:?}"),
    }
    second.destroy(sandbox.id(), Some(&sandbox.workspace().name)).await.unwrap();
    let gone = second.adopt(adoption(&sandbox, 2)).await;
    assert!(
        matches!(&gone, Err(SandboxError::Gone(gone)) if gone.reason == GoneReason::ContainerGone),
        "{gone:?}"
    );
    rig.finish(&[&first, &second]).await;
}

#[tokio::test]
async fn what_a_dead_worker_left_unclaimed_is_reaped() {
    let rig = Rig::new();
    let (first, second) = (rig.worker(), rig.worker());
    let unclaimed = first.acquire(small()).await.unwrap();
    let in_session = first.acquire(small()).await.unwrap();
    let running = run_request(in_session.agent(), shell("x", "echo x")).await.unwrap();
    assert_eq!(running.stdout, "x\n");
    first.let_go(&unclaimed);
    first.let_go(&in_session);
    rig.ledger.rows.lock().unwrap().get_mut(&unclaimed.id()).unwrap().abandoned = true;
    second.reconcile().await.unwrap();
    assert!(docker(&["inspect", unclaimed.container_id()]).is_err());
    assert_eq!(second.reconcile().await.unwrap(), []);
    let adopted = second.adopt(adoption(&in_session, 2)).await.unwrap();

    // A container whose row was lost.
    let orphan = first.acquire(small()).await.unwrap();
    first.let_go(&orphan);
    rig.ledger.rows.lock().unwrap().remove(&orphan.id());
    let since = Instant::now();
    while docker(&["inspect", orphan.container_id()]).is_ok() {
        assert!(since.elapsed() < PATIENCE, "an orphan is not removed");
        second.reconcile().await.unwrap();
    }
    // Its workspace is a leftover only once the container is gone.
    second.reconcile().await.unwrap();
    assert_eq!(bash(&adopted, "echo still here").await.stdout, "still here\n");
    second.release(&adopted, WorkspaceFate::Remove);
    rig.finish(&[&first, &second]).await;
}
