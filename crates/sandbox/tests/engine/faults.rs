//! What goes wrong is said with evidence, and nothing is left behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Resources, SizeClass};
use protocol::ExecLimits;
use sandbox::{AcquireRequest, ExecEvent, GoneReason, LinkError, Sandbox, SandboxError, WorkspaceFate};

use crate::RUNTIME;
use crate::mute::{Mute, Says};
use crate::proxy::{Mode, Proxy};
use crate::support::{IMAGE, PATIENCE, Rig, bash, docker, run, run_request, shell, sized, small, until};

async fn gone(sandbox: &Sandbox) -> sandbox::Gone {
    let since = Instant::now();
    let gone = tokio::time::timeout(PATIENCE, sandbox.wait_gone()).await.expect("it is found gone");
    eprintln!("figure: found gone ({}) after {} ms", gone.reason.as_str(), since.elapsed().as_millis());
    gone
}

#[tokio::test]
async fn a_container_removed_behind_our_back_is_noticed() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    let agent = sandbox.agent().clone();
    let mut sleeping = agent.exec(shell("sleep", "echo started; sleep 60")).await.unwrap();
    while !matches!(sleeping.next().await.unwrap(), Some(ExecEvent::Output(_))) {}
    docker(&["rm", "-f", "-v", sandbox.container_id()]).unwrap();
    let gone = gone(&sandbox).await;
    assert_eq!(gone.reason, GoneReason::ContainerGone, "{gone:?}");
    let end = loop {
        match sleeping.next().await {
            Ok(Some(ExecEvent::Output(_))) => {}
            other => break other,
        }
    };
    assert!(matches!(end, Err(LinkError::Disconnected | LinkError::Closed)), "{end:?}");
    assert!(matches!(sandbox.agent().status().await, Err(LinkError::Closed)));
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_killed_agent_is_noticed() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    let pid = docker(&["inspect", "--format", "{{.State.Pid}}", sandbox.container_id()]).unwrap();
    run("kill", &["-9", &pid]).unwrap();
    let gone = gone(&sandbox).await;
    assert_eq!(gone.reason, GoneReason::AgentGone, "{gone:?}");
    assert_eq!(gone.evidence["exit_code"], 137);

    // Its files are there for the next sandbox.
    rig.ledger.wanted.lock().unwrap().push(sandbox.workspace().name.clone());
    worker.release(&sandbox, WorkspaceFate::Keep);
    let again = AcquireRequest { workspace: Some(sandbox.workspace().clone()), ..small() };
    let again = worker.acquire(again).await.unwrap();
    assert_eq!(bash(&again, "echo back").await.stdout, "back\n");
    rig.ledger.wanted.lock().unwrap().clear();
    worker.release(&again, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

/// gVisor's own kernel is one process of the host: what takes all memory or all processes of a sandbox takes it too.
async fn takes_its_sandbox_with_it(sandbox: &Sandbox, command: &str) {
    let ran = run_request(sandbox.agent(), shell("attack", command)).await;
    assert!(matches!(ran, Err(LinkError::Disconnected | LinkError::Closed)), "{ran:?}");
    gone(sandbox).await;
}

#[tokio::test]
async fn out_of_memory_kills_the_tool_and_not_the_agent() {
    let rig = Rig::new();
    let worker = rig.worker();
    let resources = Resources { memory_mb: 96, ..SizeClass::Small.resources() };
    let sandbox = worker.acquire(sized(resources)).await.unwrap();
    let all_memory = "python3 -c 'x = bytearray(1 << 30)'";
    if RUNTIME == "runsc" {
        takes_its_sandbox_with_it(&sandbox, all_memory).await;
    } else {
        let ran = bash(&sandbox, all_memory).await;
        assert!(ran.exit.oom_killed, "{ran:?}");
        assert_ne!(ran.exit.exit_code, Some(0));
        assert_eq!(bash(&sandbox, "echo alive").await.stdout, "alive\n");
        assert!(sandbox.gone().is_none());
    }
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_fork_bomb_ends_and_the_sandbox_serves_on() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    if RUNTIME == "runsc" {
        takes_its_sandbox_with_it(&sandbox, ":(){ :|:& };:; sleep 60").await;
        worker.release(&sandbox, WorkspaceFate::Remove);
        return rig.finish(&[&worker]).await;
    }
    let mut bomb = shell("bomb", ":(){ :|:& };:; sleep 30");
    if let Some(spec) = &mut bomb.spec {
        spec.timeout_ms = Some(2_000);
        spec.limits = ExecLimits { processes: Some(200), ..ExecLimits::default() };
    }
    let ran = tokio::time::timeout(PATIENCE, run_request(sandbox.agent(), bomb)).await;
    assert!(ran.expect("it ends").unwrap().exit.timed_out);
    assert_eq!(bash(&sandbox, "echo alive").await.stdout, "alive\n");
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn a_missing_image_and_a_missing_runtime_are_named() {
    let rig = Rig::new();
    let worker = rig.worker();
    for image in ["toolhost/there-is-no-such-image:1", "NOT a name"] {
        let missing = worker.acquire(AcquireRequest { image: image.to_owned(), ..small() }).await;
        assert!(matches!(missing, Err(SandboxError::ImageUnavailable { .. })), "{missing:?}");
    }
    let runtime = worker.acquire(AcquireRequest { runtime: "no-such-runtime".to_owned(), ..small() }).await;
    assert!(matches!(runtime, Err(SandboxError::RuntimeUnavailable { .. })), "{runtime:?}");
    assert_eq!(rig.ledger.live_rows(), 0);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn an_agent_that_cannot_run_is_said_to_be_so() {
    let place = tempfile::tempdir().unwrap();
    let broken = place.path().join("agent");
    std::fs::write(&broken, "this is no program").unwrap();
    let rig = Rig::with(|config| config.agent_path = broken);
    let worker = rig.worker();
    let made = tokio::time::timeout(PATIENCE, worker.acquire(small())).await.expect("it is said");
    assert!(
        matches!(made, Err(SandboxError::CannotStart { .. } | SandboxError::ContainerEnded(_))),
        "{made:?}"
    );
    rig.finish(&[&worker]).await;
}

/// An installation whose agents are this program.
fn with_agent(program: &str, agent_connect_ms: u64) -> Rig {
    let place = tempfile::tempdir().unwrap();
    let agent = place.path().join("agent");
    std::fs::write(&agent, program).unwrap();
    Rig::with(|config| {
        config.agent_path = agent;
        config.agent_connect_ms = agent_connect_ms;
    })
}

#[tokio::test]
async fn a_container_that_ends_at_once_is_reported_with_evidence_and_removed() {
    let rig = with_agent("#!/bin/false\n", 30_000);
    let worker = rig.worker();
    match worker.acquire(small()).await {
        Err(SandboxError::ContainerEnded(gone)) => {
            assert_eq!(gone.reason, GoneReason::AgentGone, "{gone:?}");
            assert_eq!(gone.evidence["exit_code"], 1);
        }
        other => panic!("{other:?}"),
    }
    rig.finish(&[&worker]).await;
}

const SILENT: &str = "#!/bin/bash\nexec /bin/sleep 600\n";

#[tokio::test]
async fn an_agent_that_never_dials_is_reported_with_evidence_and_removed() {
    let rig = with_agent(SILENT, 2_000);
    // An engine that has other things to do might not say it within these two seconds.
    let engine = Mute(rig.driver.clone(), Says::Running);
    let worker = rig.worker_on(Arc::new(engine), rig.config.clone());
    match worker.acquire(small()).await {
        Err(SandboxError::AgentUnreachable { evidence }) => {
            assert!(evidence.contains_key("why") && evidence.contains_key("waited_ms"), "{evidence:?}");
        }
        other => panic!("{other:?}"),
    }
    rig.finish(&[&worker]).await;
}

/// Nobody knows what became of the agent: the container may run, and only the engine could say.
#[tokio::test]
async fn an_agent_is_not_blamed_for_an_engine_that_does_not_answer() {
    let rig = with_agent(SILENT, 2_000);
    let engine = Mute(rig.driver.clone(), Says::Nothing);
    let worker = rig.worker_on(Arc::new(engine), rig.config.clone());
    let made = worker.acquire(small()).await;
    assert!(matches!(made, Err(SandboxError::EngineUnavailable(_))), "{made:?}");
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn an_engine_that_is_down_is_said_to_be() {
    let rig = Rig::with(|config| config.engine = Some("unix:///nonexistent/docker.sock".to_owned()));
    let worker = rig.worker();
    let made = worker.acquire(small()).await;
    assert!(matches!(made, Err(SandboxError::EngineUnavailable(_))), "{made:?}");
    assert_eq!(rig.ledger.live_rows(), 0);
    worker.shutdown().await;
}

async fn until_it_answers(sandbox: &Sandbox) {
    let since = Instant::now();
    while let Err(error) = sandbox.agent().ping(Duration::from_secs(1)).await {
        assert!(since.elapsed() < PATIENCE, "it does not answer: {error}");
    }
    assert_eq!(bash(sandbox, "echo alive").await.stdout, "alive\n");
}

/// An engine that says of itself what is asked, and has no images.
async fn says(listener: tokio::net::UnixListener, runc: Arc<std::sync::Mutex<&'static str>>) {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    loop {
        let Ok((mut stream, _)) = listener.accept().await else { return };
        let (mut lines, runc) = (BufReader::new(&mut stream).lines(), Arc::clone(&runc));
        let asked = lines.next_line().await.ok().flatten().unwrap_or_default();
        while lines.next_line().await.is_ok_and(|line| line.is_some_and(|line| !line.is_empty())) {}
        let runc = *runc.lock().unwrap();
        let (status, body) = match asked.split(' ').nth(1).unwrap_or_default() {
            path if path.ends_with("/version") && runc.is_empty() => {
                ("500 Internal Server Error", r#"{"message":"busy"}"#.to_owned())
            }
            path if path.ends_with("/version") => (
                "200 OK",
                format!(
                    r#"{{"Version":"28.0.0","ApiVersion":"1.41","MinAPIVersion":"1.24","KernelVersion":"6.12.0",
                       "Components":[{{"Name":"runc","Version":"{runc}"}}]}}"#
                ),
            ),
            path if path.ends_with("/info") => (
                "200 OK",
                r#"{"Runtimes":{"runc":{"path":"runc"}},"SecurityOptions":["name=seccomp"]}"#.to_owned(),
            ),
            _ => ("404 Not Found", r#"{"message":"No such image: none"}"#.to_owned()),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

#[tokio::test]
async fn a_host_that_was_refused_is_taken_once_its_engine_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let address = format!("unix://{}", socket.display());
    let runc = Arc::new(std::sync::Mutex::new("1.1.5"));
    let engine = tokio::spawn(says(listener, Arc::clone(&runc)));
    let rig = Rig::with(|config| {
        config.engine = Some(address);
        config.allow_known_bad = false;
    });
    let worker = rig.worker();
    for _ in 0..2 {
        let refused = worker.ready().await;
        assert!(
            matches!(&refused, Err(SandboxError::HostUnsafe { warnings }) if warnings.iter().any(|warning| warning.contains("runc 1.1.5"))),
            "{refused:?}"
        );
    }
    *runc.lock().unwrap() = "1.3.3";
    assert_eq!(worker.ready().await.unwrap(), ["runc"]);
    // Asked anew after a minute: what gives no answer is what it was, and what has become unsafe is refused.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    *runc.lock().unwrap() = "";
    assert_eq!(worker.ready().await.unwrap(), ["runc"]);
    *runc.lock().unwrap() = "1.1.5";
    assert!(matches!(worker.ready().await, Err(SandboxError::HostUnsafe { .. })));
    worker.shutdown().await;
    engine.abort();
}

#[tokio::test]
async fn an_engine_that_hangs_or_goes_away_does_not_touch_what_runs() {
    let engine = Proxy::start();
    let rig = Rig::with(|config| config.engine = Some(engine.address()));
    let worker = rig.worker();
    let running = worker.acquire(small()).await.unwrap();

    engine.mode(Mode::Hang);
    let made = tokio::time::timeout(PATIENCE, worker.acquire(small())).await.expect("it does not hang too");
    assert!(matches!(made, Err(SandboxError::EngineUnavailable(_))), "{made:?}");
    // A relay is the engine's: without one, nothing can be asked, and nothing is lost.
    let is_relayed = RUNTIME == "runsc";
    if !is_relayed {
        assert_eq!(bash(&running, "echo alive").await.stdout, "alive\n");
    }

    engine.mode(Mode::Down);
    let made = worker.acquire(small()).await;
    assert!(matches!(made, Err(SandboxError::EngineUnavailable(_))), "{made:?}");
    if is_relayed {
        // Longer than an agent may stay away whose container runs (10 s), when nobody can say whether it does: the time is what is tried.
        tokio::time::sleep(Duration::from_secs(12)).await;
        engine.mode(Mode::Forward);
        until_it_answers(&running).await;
        engine.mode(Mode::Down);
    } else {
        assert_eq!(bash(&running, "echo alive").await.stdout, "alive\n");
    }
    assert!(running.gone().is_none());
    // Given up while nothing can be removed: it is removed once the engine is back.
    worker.release(&running, WorkspaceFate::Remove);

    engine.mode(Mode::Forward);
    let another = worker.acquire(small()).await.unwrap();
    assert_eq!(bash(&another, "echo back").await.stdout, "back\n");
    until("the other is removed", PATIENCE, || rig.ledger.live_rows() == 1).await;

    // The engine's events are heard again.
    docker(&["rm", "-f", "-v", another.container_id()]).unwrap();
    assert_eq!(gone(&another).await.reason, GoneReason::ContainerGone);
    worker.release(&another, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

#[tokio::test]
async fn engine_facts_are_known() {
    let rig = Rig::new();
    let worker = rig.worker();
    let info = worker.engine_info().await.unwrap();
    eprintln!("{info:#?}");
    assert!(!info.version.is_empty() && info.runtimes.iter().any(|runtime| runtime == "runc"));
    assert!(info.cgroup_version == 1 || info.cgroup_version == 2);
    let image = sandbox::Driver::resolve_image(&*rig.driver, IMAGE).await.unwrap();
    assert!(image.env.contains_key("PATH"));
    rig.finish(&[&worker]).await;
}
