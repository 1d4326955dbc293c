//! Processes that are replaced while they are used: nothing that was accepted is lost, and everybody is told where to go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::client::PATIENCE;
use tests::{Client, Follower, Host, SseEvent, host, wait};
use tokio::sync::Notify;

const SESSIONS: usize = 4;
const CALLS: usize = 48;

/// Submits as a client does behind a balancer: to whoever answers, with a key, until somebody has taken it.
async fn submit(processes: &[Client], session: &str, n: usize) -> Result<String> {
    let command = format!("echo nonce-{n} >> ledger; echo before-{n}; sleep 0.{}; echo after-{n}", n % 10);
    let body = json!({"tool": "bash", "arguments": {"command": command}});
    let (path, key) = (format!("/v1/sessions/{session}/calls"), format!("call-{n}"));
    for attempt in n.. {
        let reply = processes[attempt % processes.len()].post_once(&path, &body, &key).await;
        match reply {
            Ok(reply) if matches!(reply.status, 200 | 202) => return tests::client::id_of(&reply.json()),
            Ok(reply) => ensure!(reply.status == 503, "{reply:?}"),
            Err(_) => {}
        }
        // As a client does that was told to come again.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    unreachable!("the range has no end")
}

async fn one(n: usize, processes: Vec<Client>, session: String, submitted: Arc<AtomicUsize>) -> Result<()> {
    let call = submit(&processes, &session, n).await?;
    submitted.fetch_add(1, Ordering::Relaxed);
    let mut follower = Follower::new(&processes[n % 2], &call).over(&processes[(n + 1) % 2]);
    let last = follower.until(|event| event.event == "call.ended").await?;
    ensure!(last.data["status"] == "succeeded", "{last:?}");
    let output = tests::sse::output_of(&follower.events, "stdout");
    ensure!(output == format!("before-{n}\nafter-{n}\n"), "{output:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_are_replaced_under_load_and_nothing_is_lost() {
    Host::test_prepared(async |host| {
        host.set("server.drain_ms", "6000");
        host.set("server.linger_ms", "8000");
        host.set("worker.end_sessions_at_exit", "false");
        host.serve(&[])?;
        let first = host.base.clone();
        let metrics = host.processes[0].wait_for(|line| host::address(line, "metrics are served"))?;
        host.worker()?;
        let client = host.tenant("acme")?.client;
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            let session = client.session(json!({})).await?;
            client.bash(&session, "touch ledger").await?;
            sessions.push(session);
        }
        // Those that will stay.
        host.set("worker.end_sessions_at_exit", "true");
        host.serve(&[])?;
        host.worker()?;
        let processes = vec![client.at(&first), client.at(&host.base)];
        // One stream is open all the while at whom is replaced, and what it tells of ends after both are gone.
        let command = "echo begun; until [ -e go ]; do sleep 0.1; done; echo over";
        let long = client.submit(&sessions[0], "bash", json!({"command": command})).await?;
        let begun = Arc::new(Notify::new());
        let has_begun = Arc::clone(&begun);
        let mut follower = Follower::new(&processes[0], &long).over(&processes[1]);
        let long = tokio::spawn(async move {
            let end = |event: &SseEvent| {
                has_begun.notify_one();
                event.event == "call.ended"
            };
            let last = follower.until(end).await?;
            ensure!(last.data["status"] == "succeeded", "{last:?}");
            ensure!(tests::sse::output_of(&follower.events, "stdout") == "begun\nover\n");
            anyhow::Ok(follower.told_to_reconnect)
        });
        tokio::time::timeout(PATIENCE, begun.notified()).await.context("the long call is heard of")?;
        let submitted = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..CALLS)
            .map(|n| {
                let session = sessions[n % SESSIONS].clone();
                tokio::spawn(one(n, processes.clone(), session, Arc::clone(&submitted)))
            })
            .collect();
        wait::until("the load is there", || async { Ok(submitted.load(Ordering::Relaxed) >= CALLS / 4) })
            .await?;
        host.processes[0].signal(Signal::SIGTERM);
        host.processes[1].signal(Signal::SIGTERM);
        // While it lingers it still answers, and says that it is no place to go to.
        let leaving = client.at(&first);
        wait::until("it says that it stops", || async {
            let readiness = leaving.get("/readyz").await?;
            Ok(readiness.status == 503 && readiness.json()["checks"]["shutdown"] == "failed")
        })
        .await?;
        // A check that is late under the load is not ok for that once.
        let of_metrics = Client::new(&metrics, "");
        wait::until("nothing but the stop keeps it from being ready", || async {
            let unready = of_metrics.get("/readyz").await?.expect(503)?;
            Ok(unready["checks"]["shutdown"] == "failed" && unready["checks"]["database"] == "ok")
        })
        .await?;
        wait::until("the other is ready", || async { Ok(processes[1].get("/readyz").await?.status == 200) })
            .await?;

        for task in tasks {
            task.await??;
        }
        for process in [0, 1] {
            let status = host.processes[process].wait()?;
            ensure!(status.success(), "{status}: {}", host.processes[process].end_of_said());
        }
        processes[1].run(&sessions[0], "write_file", json!({"path": "go", "content": ""})).await?;
        ensure!(long.await?? > 0, "the stream was not told to reconnect");
        let mut nonces: BTreeMap<String, usize> = BTreeMap::new();
        for session in &sessions {
            let ledger: Value = processes[1].bash(session, "cat ledger").await?;
            let text = ledger["result"]["structured"]["stdout"].as_str().context("stdout")?;
            for line in text.lines() {
                *nonces.entry(line.to_owned()).or_default() += 1;
            }
        }
        ensure!(nonces.len() == CALLS && nonces.values().all(|times| *times == 1), "{nonces:#?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_come_while_a_process_ends_are_not_left_behind() {
    // A race, with an installation of its own for each try: when it is dropped, no container of it may be there.
    for _ in 0..3 {
        Host::test(&[], async |host| {
            let client = host.tenant("acme")?.client;
            let small = json!({"resources": {"cpus": 0.5, "memory_mb": 128, "disk_mb": 64, "pids": 64}});
            client.session(small.clone()).await?;
            let (first, second) =
                tokio::join!(client.post("/v1/sessions", &small), client.post("/v1/sessions", &small));
            host.processes[0].signal(Signal::SIGTERM);
            ensure!(first?.status == 201 && second?.status == 201);
            // Whoever asks a second time does not want to wait.
            let status = host.processes[0].wait()?;
            ensure!(status.success(), "{status}");
            Ok(())
        })
        .await;
    }
}
