//! Named shells: what lasts from command to command, and what cannot spoil it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host};

/// Runs a command in a named shell; its structured result.
async fn named(client: &Client, session: &str, name: &str, command: &str) -> Result<Value> {
    let call = client.run(session, "bash", json!({"shell": name, "command": command})).await?;
    ensure!(call["status"] == "succeeded", "{call:#}");
    Ok(call["result"]["structured"].clone())
}

/// What a command in the shell `main` writes, which must be kept.
async fn stdout(client: &Client, session: &str, command: &str) -> Result<String> {
    let said = named(client, session, "main", command).await?;
    ensure!(said["shell_replaced"] == false, "{command}: {said:#}");
    Ok(said["stdout"].as_str().context("stdout")?.to_owned())
}

/// What a call has written to stdout so far.
async fn written(client: &Client, call: &str) -> Result<Vec<u8>> {
    Ok(client.get(&format!("/v1/calls/{call}/output?stream=stdout")).await?.bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_shell_remembers_and_cannot_be_spoiled() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({"env": {"FROM_SESSION": "s"}})).await?;
        let stdout = async |command: &str| stdout(client, &session, command).await;
        let setting = "cd /tmp; export A='x y'; B=(1 '2 3'); f() { echo \"f $1 $A\"; }; set -- p 'q r'; umask 027; unset LANG";
        let first = named(client, &session, "main", setting).await?;
        ensure!(first["shell"] == json!({"name": "main", "cwd": "/tmp", "is_new": true, "lost": null}), "{first:#}");
        let seen = stdout("pwd; f 1; echo ${B[1]} $2 [$LANG] $FROM_SESSION; umask").await?;
        ensure!(seen == "/tmp\nf 1 x y\n2 3 q r [] s\n0027\n", "{seen}");
        ensure!(stdout("bash -c 'echo [$A]'").await? == "[x y]\n");
        // Another name knows nothing of it, and neither does a command without one.
        let other = named(client, &session, "other", "echo [$A]; pwd").await?;
        ensure!(other["stdout"] == "[]\n/workspace\n", "{other:#}");
        ensure!(client.bash(&session, "echo [$A]").await?["result"]["structured"]["stdout"] == "[]\n");
        // What ends or breaks a command leaves the shell.
        for (command, exit_code) in [
            ("C=1; exit 3", 3),
            ("D=$C; cat <<END\nopen", 0),
            ("echo 'open", 2),
            ("echo )", 2),
            ("set -e; E=5; false; E=6", 1),
            ("set +e; (exit 9)", 9),
            ("trap 'echo in the way' DEBUG ERR", 0),
        ] {
            let said = named(client, &session, "main", command).await?;
            ensure!(said["exit_code"] == exit_code && said["shell_replaced"] == false, "{command}: {said:#}");
        }
        ensure!(stdout("echo $C$D$E $-").await?.starts_with("115 hBc"));
        // Errors name the command's own lines, and tracing shows nothing of how a shell is made.
        let wrong = named(client, &session, "main", "true\nnosuch\nset -x").await?;
        ensure!(wrong["stderr"].as_str().is_some_and(|text| text.starts_with("bash: line 2: nosuch")), "{wrong:#}");
        let traced = named(client, &session, "main", "echo hi").await?;
        ensure!(traced["stderr"].as_str().is_some_and(|text| text.starts_with("+++ echo hi\n")), "{traced:#}");
        stdout("set +x").await?;
        // A directory that is gone is told of, once; one that is given is gone to.
        stdout("mkdir -p /tmp/gone; cd /tmp/gone; rmdir /tmp/gone").await?;
        let told = named(client, &session, "main", "pwd").await?;
        ensure!(told["stdout"] == "/workspace\n" && told["stderr"].to_string().contains("no such directory"), "{told:#}");
        ensure!(named(client, &session, "main", "pwd").await?["stderr"] == "");
        let there = json!({"shell": "main", "command": "pwd; echo $A", "cwd": "/tmp"});
        let call = client.run(&session, "bash", there).await?;
        ensure!(call["result"]["structured"]["stdout"] == "/tmp\nx y\n", "{call:#}");
        let nowhere = json!({"shell": "main", "command": "pwd", "cwd": "/tmp/nowhere"});
        let call = client.run(&session, "bash", nowhere).await?;
        ensure!(call["error"]["code"] == "start_failed", "{call:#}");
        ensure!(stdout("pwd; ls -A /tmp").await? == "/tmp\n", "nothing is left behind");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_command_is_ended_and_its_named_shell_goes_on() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let stdout = async |command: &str| stdout(client, &session, command).await;
        stdout("A=1").await?;
        // A timeout, and a cancel: either the shell is kept as the command had made it, or the answer says that it is not.
        let stuck = json!({"tool": "bash", "arguments": {"shell": "main", "command": "B=2; sleep 4300"}, "timeout_ms": SHORT_MS});
        let call = client.ended(&client.submit_with(&session, stuck).await?).await?;
        ensure!(call["status"] == "timed_out", "{call:#}");
        let kept = call["result"]["structured"]["shell_replaced"] == false;
        ensure!(stdout("echo [$A$B]").await? == if kept { "[12]\n" } else { "[1]\n" }, "{call:#}");
        let arguments = json!({"shell": "main", "command": "C=3; echo up; while :; do :; done"});
        let running = client.submit(&session, "bash", arguments).await?;
        tests::wait::until("it is stuck", async || Ok(written(client, &running).await?.starts_with(b"up"))).await?;
        let shown = client.get(&format!("/v1/sessions/{session}/named_shells/main")).await?.expect(200)?;
        ensure!(shown["call_id"] == running.as_str() && shown["cwd"] == "/workspace", "{shown:#}");
        // What comes after waits, and begins once the stuck one was ended.
        let waits = client.submit(&session, "bash", json!({"shell": "main", "command": "echo [$A$C]"})).await?;
        client.post(&format!("/v1/calls/{running}/cancel"), &json!({})).await?;
        let ended = client.ended(&running).await?;
        ensure!(ended["status"] == "cancelled", "{ended:#}");
        let kept = ended["result"]["structured"]["shell_replaced"] == false;
        let after = client.ended(&waits).await?;
        ensure!(after["result"]["structured"]["stdout"] == if kept { "[13]\n" } else { "[1]\n" }, "{after:#}");
        // What cannot say how it left the shell has it as it was before.
        for command in ["A=8; kill -9 $$", "A=8; exec true", "A=8; trap 'echo bye' EXIT; exit", "A=8; head -c 300000 /dev/zero | tr '\\0' x > /tmp/x; X=$(cat /tmp/x)"] {
            let call = client.run(&session, "bash", json!({"shell": "main", "command": command})).await?;
            let said = &call["result"]["structured"];
            ensure!(said["shell_replaced"] == true, "{command}: {said:#}");
            ensure!(said["shell"]["lost"].as_str().is_some_and(|lost| lost.contains("before this command")), "{said:#}");
            ensure!(call["result"]["output"].as_str().is_some_and(|text| text.contains("shell_replaced")), "{call:#}");
        }
        ensure!(stdout("echo $A").await? == "1\n");
        // One after the other, in their order, whatever they take.
        let mut calls = Vec::new();
        for n in 0..6 {
            let command = format!("sleep 0.{}; N=\"${{N}}{n}\"", 6 - n);
            calls.push(client.submit(&session, "bash", json!({"shell": "line", "command": command})).await?);
        }
        for call in calls {
            client.ended(&call).await?;
        }
        ensure!(named(client, &session, "line", "echo $N").await?["stdout"] == "012345\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn named_shells_are_listed_deleted_and_limited() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let shells = format!("/v1/sessions/{session}/named_shells");
        named(client, &session, "b", "cd /tmp; A=1").await?;
        named(client, &session, "a", "true").await?;
        let list = client.get(&shells).await?.expect(200)?;
        let shown: Vec<_> = list["data"].as_array().context("a list")?.iter().map(|shell| (&shell["name"], &shell["cwd"])).collect();
        ensure!(shown == [(&json!("a"), &json!("/workspace")), (&json!("b"), &json!("/tmp"))], "{list:#}");
        ensure!(!list.to_string().contains("declare"), "what a shell holds is not shown");
        // A deleted one begins anew, and a command that runs in it brings nothing back.
        let arguments = json!({"shell": "b", "command": "A=2; echo up; until [[ -e /workspace/go ]]; do sleep 0.05; done"});
        let running = client.submit(&session, "bash", arguments).await?;
        tests::wait::until("it runs", async || Ok(written(client, &running).await? == b"up\n")).await?;
        let deleted = client.delete(&format!("{shells}/b")).await?.expect(200)?;
        ensure!(deleted == json!({"object": "named_shell", "name": "b", "deleted": true}), "{deleted}");
        client.delete(&format!("{shells}/b")).await?.problem(404, "not_found")?;
        client.get(&format!("{shells}/b")).await?.problem(404, "not_found")?;
        client.get(&format!("{shells}/a%2Fb")).await?.problem(404, "not_found")?;
        client.bash(&session, "touch go").await?;
        let ended = client.ended(&running).await?;
        ensure!(ended["result"]["structured"]["exit_code"] == 0, "{ended:#}");
        ensure!(ended["result"]["structured"]["shell"]["lost"].to_string().contains("deleted"), "{ended:#}");
        let fresh = named(client, &session, "b", "echo [$A]").await?;
        ensure!(fresh["stdout"] == "[]\n" && fresh["shell"]["is_new"] == true, "{fresh:#}");
        let call = client.run(&session, "bash", json!({"shell": "a", "restart": true, "command": "pwd"})).await?;
        ensure!(call["result"]["structured"]["shell"]["is_new"] == true, "{call:#}");
        for n in 2..16 {
            named(client, &session, &format!("n{n}"), "true").await?;
        }
        let call = client.run(&session, "bash", json!({"shell": "one.too-many_", "command": "true"})).await?;
        ensure!(call["status"] == "failed" && call["error"]["code"] == "limit_exceeded", "{call:#}");
        ensure!(call["error"]["hint"].as_str().is_some_and(|hint| hint.contains("a, b, n10")), "{call:#}");
        // All that is wrong at once.
        let wrong = json!({"tool": "bash", "arguments": {"shell": "a/b", "command": "x", "background": true, "pty": {}, "env": {"A": "1"}}});
        let refused = client.post(&format!("/v1/sessions/{session}/calls"), &wrong).await?;
        let problem = refused.problem(422, "invalid_arguments")?;
        let pointers: Vec<_> = problem["errors"].as_array().context("errors")?.iter().map(|error| error["pointer"].as_str()).collect();
        ensure!(pointers.len() == 3, "{problem:#}");
        // Another tenant sees none of it.
        let stranger = host.tenant("other")?.client;
        stranger.get(&shells).await?.problem(404, "not_found")?;
        stranger.delete(&format!("{shells}/a")).await?.problem(404, "not_found")?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_shell_outlives_its_worker_and_its_sandbox() {
    Host::test_prepared(async |host| {
        host.serve(&[])?;
        host.set("worker.end_sessions_at_exit", "false");
        host.worker()?;
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        named(client, &session, "main", "cd /tmp; KEPT=1").await?;
        let go = json!({"shell": "main", "command": "RAN=2; echo up; until [[ -e go ]]; do sleep 0.05; done; echo done"});
        let call = client.submit(&session, "bash", go).await?;
        tests::wait::until("it runs", async || Ok(written(client, &call).await? == b"up\n")).await?;
        let next = client.submit(&session, "bash", json!({"shell": "main", "command": "echo $KEPT$RAN; pwd"})).await?;
        host.processes.last_mut().context("a worker")?.signal(nix::sys::signal::Signal::SIGKILL);
        host.set("worker.end_sessions_at_exit", "true");
        host.worker()?;
        client.bash(&session, "touch /tmp/go /tmp/of-the-first").await?;
        let ended = client.ended(&call).await?;
        ensure!(ended["status"] == "succeeded" && ended["result"]["structured"]["shell_replaced"] == false, "{ended:#}");
        // It was in line before the worker died, and is after it.
        let after = client.ended(&next).await?;
        ensure!(after["result"]["structured"]["stdout"] == "12\n/tmp\n", "{after:#}");
        for container in tests::engine::containers(&host.installation)? {
            // Those that waited for a session of the dead worker may be on their way out already.
            let _ = tests::engine::docker(&["kill", &container]);
        }
        tests::wait::until("the sandbox is another one", async || {
            let call = client.bash(&session, "[[ ! -e /tmp/of-the-first ]]").await?;
            Ok(call["status"] == "succeeded" && call["result"]["exit_code"] == 0)
        })
        .await?;
        let after = named(client, &session, "main", "echo $KEPT$RAN; pwd").await?;
        ensure!(after["stdout"] == "12\n/tmp\n", "{after:#}");
        client.post(&format!("/v1/sessions/{session}/reset"), &json!({})).await?;
        let fresh = named(client, &session, "main", "echo [$KEPT]").await?;
        ensure!(fresh["stdout"] == "[]\n" && fresh["shell"]["is_new"] == true, "{fresh:#}");
        Ok(())
    })
    .await;
}

/// A first command that waits for a file, and what comes after it in the same named shell or context.
async fn line(
    client: &Client,
    session: &str,
    kind: &str,
    gate: &str,
) -> Result<(String, impl Fn(&str, u64) -> Value)> {
    let of = {
        let kind = kind.to_owned();
        move |code: &str, timeout_ms: u64| match kind.as_str() {
            "bash" => {
                json!({"tool": "bash", "timeout_ms": timeout_ms, "arguments": {"shell": "main", "command": code}})
            }
            _ => {
                json!({"tool": "python_execute", "timeout_ms": timeout_ms, "arguments": {"context": "main", "code": code}})
            }
        }
    };
    let first = match kind {
        "bash" => format!("N=0; echo up; until [[ -e {gate} ]]; do sleep 0.05; done"),
        _ => format!(
            "import os, time\nN = '0'\nprint('up', flush=True)\nwhile not os.path.exists('/workspace/{gate}'): time.sleep(0.05)"
        ),
    };
    let first = client.submit_with(session, of(&first, 300_000)).await?;
    tests::wait::until("it runs", async || Ok(written(client, &first).await? == b"up\n")).await?;
    Ok((first, of))
}

/// A time that is over while a call stands in line, and more than its own work takes.
const SHORT_MS: u64 = 10_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_line_has_an_end_beyond_which_calls_are_refused() {
    const IN_LINE: usize = domain::limits::IN_LINE_PER_SESSION;
    Host::test(&[("policy.limits.session_running_calls", "2")], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let (first, of) = line(client, &session, "bash", "gate").await?;
        let mut calls = Vec::new();
        for _ in 0..=IN_LINE {
            calls.push(client.submit_with(&session, of("N=$((N + 1))", 300_000)).await?);
        }
        let refused = client.ended(&calls[IN_LINE]).await?;
        ensure!(refused["status"] == "failed" && refused["error"]["code"] == "queue_full", "{refused:#}");
        ensure!(client.call(&first).await?["status"] == "running");
        // There is a slot for the call that the first one needs to go on.
        client.bash(&session, "touch gate").await?;
        for call in &calls[..IN_LINE] {
            let ended = client.ended(call).await?;
            ensure!(ended["status"] == "succeeded", "{ended:#}");
        }
        let last = client.ended(&client.submit_with(&session, of("echo $N", 300_000)).await?).await?;
        ensure!(last["result"]["structured"]["stdout"] == format!("{IN_LINE}\n"), "{last:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_line_take_no_slot_and_can_be_ended() {
    Host::test(&[("policy.limits.session_running_calls", "2")], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        for (kind, add, show) in [("bash", "N=\"${N}%\"", "echo $N"), ("python", "N += '%'", "print(N)")] {
            let (first, of) = line(client, &session, kind, kind).await?;
            let mut calls = Vec::new();
            for n in 1..=5 {
                let timeout_ms = if n == 4 { SHORT_MS } else { 300_000 };
                calls.push(
                    client.submit_with(&session, of(&add.replace('%', &n.to_string()), timeout_ms)).await?,
                );
            }
            // They wait, and what waits ends when it is told to.
            tests::wait::until("all are in line", async || {
                let call = client.call(&calls[4]).await?;
                Ok(call["status"] == "running")
            })
            .await?;
            client.post(&format!("/v1/calls/{}/cancel", calls[1]), &json!({})).await?;
            ensure!(client.ended(&calls[1]).await?["status"] == "cancelled");
            ensure!(client.call(&first).await?["status"] == "running", "what they wait for goes on");
            // It needs another call to go on, for which there is a slot. Who waits longer than its timeout meanwhile has all of it still.
            client.bash(&session, &format!("sleep {}; touch {kind}", SHORT_MS / 1_000)).await?;
            let mut started = String::new();
            for call in [&first, &calls[0], &calls[2], &calls[3], &calls[4]] {
                let ended = client.ended(call).await?;
                ensure!(ended["status"] == "succeeded", "{ended:#}");
                // Each starts with its turn, whose time is its own alone.
                let starts = ended["started_at"].as_str().context("started")?.to_owned();
                ensure!(starts > started, "{ended:#}");
                started = starts;
            }
            let waited = client.call(&calls[4]).await?;
            let usage = |name: &str| waited["usage"][name].as_u64().unwrap_or_default();
            ensure!(usage("queue_ms") >= SHORT_MS && usage("duration_ms") < usage("queue_ms"), "{waited:#}");
            let last = client.ended(&client.submit_with(&session, of(show, 300_000)).await?).await?;
            ensure!(last["result"]["structured"]["stdout"] == "01345\n", "{last:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_line_can_be_ended_after_its_worker_died() {
    Host::test_prepared(async |host| {
        host.serve(&[])?;
        host.set("worker.end_sessions_at_exit", "false");
        host.worker()?;
        let client = &host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let mut lines = Vec::new();
        for (kind, set, show) in [("bash", "N=1", "echo $N"), ("python", "N = 1", "print(N)")] {
            let (first, of) = line(client, &session, kind, kind).await?;
            let mut calls = vec![first];
            for (code, timeout_ms) in [(set, 300_000), (show, SHORT_MS)] {
                calls.push(client.submit_with(&session, of(code, timeout_ms)).await?);
            }
            for call in &calls {
                tests::wait::until("it is in line", async || {
                    Ok(client.call(call).await?["status"] == "running")
                })
                .await?;
            }
            lines.push(calls);
        }
        host.processes.last_mut().context("a worker")?.signal(nix::sys::signal::Signal::SIGKILL);
        host.set("worker.end_sessions_at_exit", "true");
        host.worker()?;
        for calls in &lines {
            client.post(&format!("/v1/calls/{}/cancel", calls[1]), &json!({})).await?;
            let cancelled = client.ended(&calls[1]).await?;
            let attempt = cancelled["attempt"].as_u64();
            ensure!(cancelled["status"] == "cancelled" && attempt >= Some(2), "{cancelled:#}");
            ensure!(client.call(&calls[0]).await?["status"] == "running", "what they wait for goes on");
        }
        // Who has stood in line for longer than its time, under two workers, has all of it.
        client.bash(&session, &format!("sleep {}; touch bash python", SHORT_MS / 1_000)).await?;
        for calls in &lines {
            ensure!(client.ended(&calls[0]).await?["status"] == "succeeded");
            let last = client.ended(&calls[2]).await?;
            ensure!(
                last["result"]["structured"]["stdout"] == "0\n",
                "what was cancelled has not run: {last:#}"
            );
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_the_background_begins_as_a_named_shell_and_is_found_by_its_name() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // As a model does that was trained on OpenManus' tools.
        let call = client.run(&session, "execute_command", json!({"command": "mkdir -p src; cd src; export MODE=dev", "session_name": "web", "blocking": true})).await?;
        ensure!(call["result"]["structured"]["shell"]["cwd"] == "/workspace/src", "{call:#}");
        for round in ["first", "second"] {
            let command = format!("cd /; echo {round} $MODE $OLDPWD; read line; echo got $line; MODE=gone");
            let call = client.run(&session, "execute_command", json!({"command": command, "session_name": "web"})).await?;
            let shell = call["result"]["structured"]["shell_id"].as_str().context("a shell")?.to_owned();
            client.run(&session, "bash_input", json!({"session_name": "web", "text": "ping"})).await?;
            client.run(&session, "wait", json!({"until": {"shell_id": shell}})).await?;
            let read = client.run(&session, "check_command_output", json!({"session_name": "web"})).await?;
            let expected = format!("{round} dev /workspace/src\ngot ping\n");
            ensure!(read["result"]["structured"]["chunks"][0]["text"] == expected.as_str(), "the newest of the name: {read:#}");
            let object = client.get(&format!("/v1/sessions/{session}/shells/{shell}")).await?.expect(200)?;
            ensure!(object["name"] == "web" && object["exit_code"] == 0, "{object:#}");
        }
        // It has left nothing in the shell, which goes on as it was.
        ensure!(named(client, &session, "web", "echo $MODE; pwd").await?["stdout"] == "dev\n/workspace/src\n");
        let ended = client.run(&session, "terminate_command", json!({"session_name": "web"})).await?;
        ensure!(ended["result"]["structured"]["was_running"] == false, "{ended:#}");
        let nothing = client.run(&session, "check_command_output", json!({"session_name": "elsewhere"})).await?;
        ensure!(nothing["error"]["code"] == "shell_not_found", "{nothing:#}");
        Ok(())
    })
    .await;
}
