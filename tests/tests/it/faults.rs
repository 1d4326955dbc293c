//! What breaks under us: workers, the database, the engine, clients. Told from outside, by results and by ledgers
//! that the commands themselves write.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tests::sse::output_of;
use tests::{Client, Follower, Host, engine, wait};

use crate::engines::{engine_is, refuses};

const CALLS: usize = 20;

/// Sessions with one running call each, which writes its nonce once and ends when it is told to.
async fn running_calls(client: &Client) -> Result<Vec<(String, String)>> {
    let sessions = try_join_all((0..CALLS / 4).map(|_| client.session(json!({})))).await?;
    let mut calls = Vec::new();
    for n in 0..CALLS {
        let session = &sessions[n % sessions.len()];
        let command = format!(
            "echo nonce-{n} >> ledger; echo before-{n}; until [ -e go ]; do sleep 0.1; done; echo after-{n}; exit {}",
            n % 7
        );
        calls.push((session.clone(), client.submit(session, "bash", json!({"command": command})).await?));
    }
    for (_, call) in &calls {
        Follower::new(client, call).until(|event| event.event == "call.output").await?;
    }
    Ok(calls)
}

/// Lets the calls end, and checks that each tells the truth and ran once.
async fn check_running_calls(client: &Client, calls: &[(String, String)]) -> Result<()> {
    let mut ledgers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (n, (session, _)) in calls.iter().enumerate() {
        ledgers.entry(session).or_default().push(n);
    }
    // While four calls run a fifth would wait for them: files are written by a tool of its own only after the first.
    for (n, (session, call_id)) in calls.iter().enumerate() {
        if ledgers[session.as_str()][0] == n {
            let reply = client
                .post(
                    &format!("/v1/sessions/{session}/calls"),
                    &json!({"tool": "write_file", "arguments": {"path": "go", "content": ""}}),
                )
                .await?;
            ensure!(reply.status == 202, "{reply:?}");
        }
        let call = client.ended(call_id).await?;
        ensure!(call["status"] == "succeeded" && call["result"]["exit_code"] == n % 7, "{call:#}");
        ensure!(call["result"]["structured"]["stdout"] == format!("before-{n}\nafter-{n}\n"), "{call:#}");
        let events = client.stored_events(call_id).await?;
        ensure!(events.iter().filter(|event| event["type"] == "call.ended").count() == 1, "{events:#?}");
        ensure!(events.iter().enumerate().all(|(index, event)| event["seq"] == index + 1), "{events:#?}");
    }
    for (session, numbers) in ledgers {
        let ledger = client.bash(session, "cat ledger").await?;
        let text = ledger["result"]["structured"]["stdout"].as_str().context("stdout")?.to_owned();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let mut expected: Vec<_> = numbers.iter().map(|n| format!("nonce-{n}")).collect();
        expected.sort_unstable();
        ensure!(lines == expected, "ran twice or never: {lines:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_replaced_and_the_calls_tell_the_truth() {
    Host::test_prepared(async |host| {
        host.set("policy.limits.session_running_calls", "8");
        host.serve(&[])?;
        host.worker()?;
        let client = host.tenant("acme")?.client;
        let calls = running_calls(&client).await?;
        host.worker()?;
        host.processes[1].kill();
        check_running_calls(&client, &calls).await?;
        for (_, call) in &calls {
            let call = client.call(call).await?;
            ensure!(call["attempt"] == 2, "{call:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_is_taken_over_by_its_successor() {
    Host::test(&[("policy.limits.session_running_calls", "8")], async |host| {
        let client = host.tenant("acme")?.client;
        let calls = running_calls(&client).await?;
        host.processes[0].kill();
        host.serve(&["--with-worker"])?;
        check_running_calls(&client.at(&host.base), &calls).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_survive_a_restart_of_the_database() {
    // It is as long as this until the outage is told; longer than a worker's lease, the worker would have to begin anew.
    let settings = [("policy.limits.session_running_calls", "8"), ("database.timeout_ms", "4000")];
    Host::test(&settings, async |host| {
        let client = host.tenant("acme")?.client;
        let calls = running_calls(&client).await?;
        host.postgres.crash().await?;
        let reply = client.get("/v1/sessions").await?;
        reply.problem(503, "database_unavailable")?;
        host.postgres.start_again().await?;
        wait::until("it serves again", || async { Ok(client.get("/v1/sessions").await?.status == 200) })
            .await?;
        check_running_calls(&client, &calls).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_stop_leaves_calls_to_the_next() {
    Host::test(&[("worker.end_sessions_at_exit", "false"), ("worker.drain_ms", "200")], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let command = "echo nonce >> ledger; echo before; until [ -e go ]; do sleep 0.1; done; echo after";
        let call = client.submit(&session, "bash", json!({"command": command})).await?;
        Follower::new(&client, &call).until(|event| event.event == "call.output").await?;
        let stopped = host.processes[0].stop()?;
        ensure!(stopped.success(), "{stopped}");
        host.set("worker.end_sessions_at_exit", "true");
        host.serve(&["--with-worker"])?;
        let client = client.at(&host.base);
        client.run(&session, "write_file", json!({"path": "go", "content": ""})).await?;
        let ended = client.ended(&call).await?;
        ensure!(ended["result"]["structured"]["stdout"] == "before\nafter\n", "{ended:#}");
        let ledger = client.bash(&session, "cat ledger").await?;
        ensure!(ledger["result"]["structured"]["stdout"] == "nonce\n", "{ledger:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_it_starts_and_says_so() {
    Host::test_prepared(async |host| {
        host.set("sandbox.engine", "unix:///nonexistent/docker.sock");
        host.serve(&["--with-worker"])?;
        let client = host.tenant("acme")?.client;
        ensure!(client.get("/v1/me").await?.status == 200);
        ensure!(client.get("/healthz").await?.status == 200);
        wait::until("it is not ready", || async { Ok(client.get("/readyz").await?.status == 503) }).await?;
        engine_is(&host.operator()?, "down").await?;
        refuses(&client).await?;
        let trail = client.get("/v1/audit?allowed=false&action=session.create").await?.expect(200)?;
        ensure!(trail["data"][0]["reason"] == "engine_unavailable", "{trail:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_go_away_or_read_slowly_harm_nobody() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // Gone in the middle of waiting: the call goes on.
        let body = json!({"tool": "bash", "arguments": {"command": "until [ -e go ]; do sleep 0.1; done; echo done > finished"}, "wait_ms": 60_000});
        let path = format!("/v1/sessions/{session}/calls");
        let gone = tokio::spawn(client.request("POST", &path).json(&body).send());
        wait::until("the call is taken on", || async {
            let calls = client.get(&path).await?.expect(200)?;
            Ok(calls["data"].as_array().is_some_and(|calls| calls.len() == 1))
        })
        .await?;
        gone.abort();
        ensure!(gone.await.is_err_and(|error| error.is_cancelled()), "the client was to be waiting");
        // A stream that nobody reads, over a call that writes much.
        let flood = client.submit(&session, "bash", json!({"command": "seq 1 3000000"})).await?;
        let unread = client.request("GET", &format!("/v1/calls/{flood}/events")).header("accept", "text/event-stream").send().await?;
        let call = client.ended(&flood).await?;
        ensure!(call["status"] == "succeeded", "{call:#}");
        drop(unread);
        client.run(&session, "write_file", json!({"path": "go", "content": ""})).await?;
        wait::until("the abandoned call ends", || async {
            let calls = client.get(&format!("/v1/sessions/{session}/calls?limit=100")).await?.expect(200)?;
            Ok(calls["data"].as_array().is_some_and(|calls| calls.iter().all(|call: &Value| !call["ended_at"].is_null())))
        })
        .await?;
        let there = client.bash(&session, "cat finished").await?;
        ensure!(there["result"]["structured"]["stdout"] == "done\n", "{there:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_killed_process_are_cleared_away() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        client.bash(&session, "true").await?;
        host.processes[0].kill();
        ensure!(!engine::containers(&host.installation)?.is_empty());
        // The next one takes them over, and removes them when it is asked to stop: the host's own check at its end.
        host.serve(&["--with-worker"])?;
        let client = client.at(&host.base);
        let call = client.bash(&session, "echo still").await?;
        ensure!(call["result"]["structured"]["stdout"] == "still\n", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_s_second_operation_is_told_once() {
    Host::test_prepared(async |host| {
        host.serve(&[])?;
        host.worker()?;
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // The installation of the package is one operation, the code another.
        let code = "import slugify, os, time\nfor n in range(200): print('before', n, flush=True)\n\
                    open('ledger', 'a').write('x')\n\
                    while not os.path.exists('go'): time.sleep(0.05)\nprint('after')\nlen(open('ledger').read())";
        let arguments = json!({"code": code, "packages": ["python-slugify"]});
        let call = client.submit(&session, "python_execute", arguments).await?;
        Follower::new(&client, &call).until(|event| event.data.to_string().contains("before 199")).await?;
        host.worker()?;
        host.processes[1].kill();
        let freed = json!({"tool": "write_file", "arguments": {"path": "go", "content": ""}});
        client.post(&format!("/v1/sessions/{session}/calls"), &freed).await?;
        let call = client.ended(&call).await?;
        ensure!(call["status"] == "succeeded" && call["attempt"] == 2, "{call:#}");
        let expected: String = (0..200).map(|n| format!("before {n}\n")).collect::<String>() + "after\n";
        ensure!(call["result"]["structured"]["stdout"] == expected, "{call:#}");
        ensure!(call["result"]["structured"]["result"] == "1", "{call:#}");
        let output = output_of(&client.follow(call["id"].as_str().context("id")?).await?, "stdout");
        ensure!(output == expected, "{output}");
        Ok(())
    })
    .await;
}
