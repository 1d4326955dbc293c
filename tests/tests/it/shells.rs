//! Shells as objects: made, written to, signalled, ended and attached to, from an API process that is not their worker.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::client::{PATIENCE, id_of};
use tests::websocket::Terminal;
use tests::{Client, Host};

async fn shell(client: &Client, session: &str, body: Value) -> Result<String> {
    id_of(&client.post(&format!("/v1/sessions/{session}/shells"), &body).await?.expect(201)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_finds_lines_that_are_written_in_parts() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let command = "printf 'test foo ... '; until [[ -e go ]]; do sleep 0.05; done; echo warning >&2; echo FAILED; exec sleep 1000";
        let call = client.run(&session, "bash", json!({"command": command, "background": true})).await?;
        let shell = call["result"]["structured"]["shell_id"].as_str().context("a shell")?.to_owned();
        let read = async |since: &Value, more: Value| {
            let mut arguments = json!({"shell_id": shell, "since_offset": since});
            arguments.as_object_mut().context("an object")?.extend(more.as_object().context("an object")?.clone());
            Ok::<_, anyhow::Error>(client.run(&session, "bash_output", arguments).await?["result"]["structured"].clone())
        };
        let begun = read(&json!(0), json!({"wait_ms": 30_000})).await?;
        ensure!(begun["chunks"][0]["text"] == "test foo ... ", "{begun:#}");
        let first = read(&json!(0), json!({"filter": "foo.*FAILED"})).await?;
        ensure!(first["chunks"] == json!([]) && first["next_offset"] == 13, "{first:#}");
        client.bash(&session, "touch go").await?;
        let mut since = first["next_offset"].clone();
        let found = loop {
            let read = read(&since, json!({"filter": "foo.*FAILED", "wait_ms": 30_000})).await?;
            since = read["next_offset"].clone();
            ensure!(read["running"] == true, "{read:#}");
            if read["chunks"] != json!([]) {
                break read;
            }
        };
        let line = json!([{"stream": "stdout", "offset": 0, "text": "test foo ... FAILED\n"}]);
        ensure!(found["chunks"] == line && found["next_offset"] == 28, "{found:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_used_from_another_process_by_several_clients() {
    Host::test_apart(async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let body = json!({"command": "exec bash --norc -i", "pty": {"rows": 30, "cols": 100, "term": "dumb"}, "env": {"PS1": ""}});
        let id = shell(client, &session, body).await?;
        let path = format!("/v1/sessions/{session}/shells/{id}");
        let attach = format!("{path}/attach");
        let mut first = Terminal::attach(&host.base, &attach, Some(client.key())).await?;
        ensure!(first.next().await?["type"] == "attached");
        first.say(&json!({"type": "input", "text": "stty size; echo $TERM\n"})).await?;
        first.until("30 100\r\ndumb\r\n").await?;
        first.say(&json!({"type": "resize", "rows": 41, "cols": 99})).await?;
        first.type_in(b"stty size\n").await?;
        first.until("41 99").await?;
        // Ctrl-C through the line discipline ends the command and not the shell.
        first.type_in(b"sh -c \"echo rea''dy; exec sleep 1000\"\n").await?;
        first.until("ready\r\n").await?;
        first.type_in(b"\x03").await?;
        first.type_in(b"echo status $?\n").await?;
        first.until("status 130\r\n").await?;
        // A second client sees all of it, and one that was cut off only the rest. Either may have got some more with the last piece.
        let mut second = Terminal::attach(&host.base, &attach, Some(client.key())).await?;
        second.until("status 130\r\n").await?;
        let is_same = second.text.starts_with(&first.text) || first.text.starts_with(&second.text);
        ensure!(is_same, "{:?} and {:?}", second.text, first.text);
        let since = first.next_offset;
        drop(first);
        second.type_in(b"echo la''ter\n").await?;
        let mut again =
            Terminal::attach(&host.base, &format!("{attach}?since_offset={since}"), Some(client.key())).await?;
        again.until("later\r\n").await?;
        ensure!(!again.text.contains("ready"), "only what is new: {:?}", again.text);
        // What is not understood is told, and nothing else happens.
        again.say(&json!({"type": "input", "txt": "x"})).await?;
        ensure!(again.until_kind("error").await?["code"] == "invalid_arguments");
        again.say(&json!({"type": "signal", "signal": "NOPE"})).await?;
        ensure!(again.until_kind("error").await?["code"] == "invalid_arguments");
        let refused = Terminal::attach(&host.base, &attach, None).await.err().context("refused")?;
        ensure!(refused.to_string().starts_with("401"), "{refused}");
        let stranger = host.tenant("other")?.client;
        let refused = Terminal::attach(&host.base, &attach, Some(stranger.key())).await.err().context("refused")?;
        ensure!(refused.to_string().starts_with("404"), "{refused}");
        let plain = client.get(&attach).await?;
        plain.problem(400, "invalid_request")?;
        // The end reaches everybody.
        second.type_in(b"exit 5\n").await?;
        for terminal in [&mut second, &mut again] {
            ensure!(terminal.until_kind("ended").await?["exit_code"] == 5);
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_never_stops_ends_with_what_allowed_it() {
    Host::test_apart(async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let id = shell(client, &session, json!({"command": "yes", "pty": {"rows": 5, "cols": 80}})).await?;
        let attach = format!("/v1/sessions/{session}/shells/{id}/attach");
        let role = |scopes: Value, policy: Value| json!({"scopes": scopes, "policy": policy});
        let both = json!(["calls:read", "calls:write", "sessions:read"]);
        let set = async |body: Value| {
            client.send(client.request("PUT", "/v1/roles/typist").json(&body)).await?.expect(200)
        };
        // Each takes something else away while output comes as fast as it is read.
        for loses in ["key", "scope", "policy"] {
            set(role(both.clone(), json!({}))).await?;
            let key =
                client.post("/v1/keys", &json!({"name": loses, "role": "typist"})).await?.expect(201)?;
            let text = key["key"].as_str().context("a key")?;
            let mut terminal = Terminal::attach(&host.base, &attach, Some(text)).await?;
            terminal.until("y\r\ny\r\n").await?;
            match loses {
                "key" => drop(client.delete(&format!("/v1/keys/{}", id_of(&key)?)).await?.expect(200)?),
                "scope" => drop(set(role(json!(["calls:read", "sessions:read"]), json!({}))).await?),
                _ => drop(
                    set(role(both.clone(), json!({"tools": {"disabled": ["bash", "bash_input"]}}))).await?,
                ),
            }
            let closed = tokio::time::timeout(PATIENCE, async {
                loop {
                    terminal.text.clear();
                    if let Err(error) = terminal.next().await {
                        break error.to_string();
                    }
                }
            });
            let closed = closed.await.with_context(|| format!("goes on without its {loses}"))?;
            ensure!(closed.contains("credential") || closed.contains("closed"), "{loses}: {closed}");
        }
        client.delete(&format!("/v1/sessions/{session}/shells/{id}")).await?.expect(200)?;
        Ok(())
    })
    .await;
}

/// What was typed is remembered in the sandbox until it is known to have arrived; a terminal that is simply gone never says so.
#[tokio::test(flavor = "multi_thread")]
async fn terminals_that_come_and_go_leave_room_for_the_next() {
    // Together more than the agent remembers (4,096), and each fewer than it is told to forget on the way.
    const TERMINALS: usize = 18;
    const WRITES: usize = 240;
    Host::test_apart(async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let id = shell(client, &session, json!({"command": "cat"})).await?;
        let attach = format!("/v1/sessions/{session}/shells/{id}/attach");
        let mut written = 0;
        for n in 0..TERMINALS {
            let from = format!("{attach}?since_offset={written}");
            let mut terminal = Terminal::attach(&host.base, &from, Some(client.key())).await?;
            for _ in 0..WRITES {
                terminal.type_in(b"x").await?;
            }
            while terminal.text.len() < WRITES {
                let said = terminal.next().await.with_context(|| format!("terminal {n}"))?;
                ensure!(said["type"] != "error", "terminal {n}: {said:#}");
            }
            written += WRITES;
        }
        let taken =
            client.post(&format!("/v1/sessions/{session}/shells/{id}/input"), &json!({"text": "y"})).await?;
        ensure!(taken.expect(200)?["taken_bytes"] == 1);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_are_made_told_and_ended_over_http() {
    Host::test_apart(async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let shells = format!("/v1/sessions/{session}/shells");
        // The same key gives the same shell.
        let body = json!({"command": "echo once >> made; while read -r l; do echo got $l; done; echo over; sleep 1000"});
        let made = client.post_once(&shells, &body, "one").await?;
        ensure!(made.header("location").starts_with(&shells), "{made:?}");
        let id = id_of(&made.expect(201)?)?;
        let again = client.post_once(&shells, &body, "one").await?;
        ensure!(again.header("idempotent-replayed") == "true", "{again:?}");
        ensure!(id_of(&again.expect(201)?)? == id);
        let other = client.post_once(&shells, &json!({"command": "true"}), "one").await?;
        other.problem(422, "idempotency_mismatch")?;
        let wrong = client.post(&shells, &json!({"command": "true", "pty": {"rows": 0}})).await?;
        let problem = wrong.problem(422, "invalid_arguments")?;
        ensure!(problem["errors"][0]["pointer"] == "/pty/rows", "{problem:#}");

        let path = format!("{shells}/{id}");
        let taken = client.post(&format!("{path}/input"), &json!({"text": "hello\n"})).await?.expect(200)?;
        ensure!(taken["taken_bytes"] == 6, "{taken}");
        let bytes = client.post(&format!("{path}/input"), &json!({"base64": "/wo=", "close": true})).await?;
        ensure!(bytes.expect(200)?["taken_bytes"] == 2);
        tests::wait::until("the shell answers", async || {
            let log = client.get(&format!("{path}/output")).await?.expect(200)?;
            Ok(log["next_offset"] == "got hello\ngot ?\nover\n".len())
        })
        .await?;
        let range = client.request("GET", &format!("{path}/output")).header("range", "bytes=0-8");
        let range = client.send(range).await?;
        ensure!((range.status, range.bytes.as_slice()) == (206, b"got hello".as_slice()), "{range:?}");
        client.post(&format!("{path}/resize"), &json!({"rows": 5, "cols": 5})).await?.problem(409, "conflict")?;
        client.post(&format!("{path}/signal"), &json!({"signal": "nope"})).await?.problem(422, "invalid_arguments")?;
        let ended = client.delete(&path).await?.expect(200)?;
        ensure!(ended["status"] == "exited" && ended["end_reason"] == "killed", "{ended:#}");
        ensure!(client.delete(&path).await?.expect(200)? == ended, "ending twice changes nothing");
        client.post(&format!("{path}/input"), &json!({"text": "x"})).await?.problem(409, "shell_ended")?;

        // A signal by name; and nothing of the tree is left.
        let id = shell(client, &session, json!({"command": "trap 'echo caught; exit 9' USR1; echo up; sleep 1000 & wait"})).await?;
        let path = format!("{shells}/{id}");
        let up = json!({"shell_id": id, "wait_ms": 30_000});
        client.run(&session, "bash_output", up).await?;
        client.post(&format!("{path}/signal"), &json!({"signal": "SIGUSR1"})).await?.expect(200)?;
        tests::wait::until("the shell ends", async || {
            Ok(client.get(&path).await?.expect(200)?["status"] == "exited")
        })
        .await?;
        ensure!(client.get(&path).await?.expect(200)?["exit_code"] == 9);
        let made = client.bash(&session, "cat made; pgrep sleep || echo none").await?;
        ensure!(made["result"]["structured"]["stdout"] == "once\nnone\n", "{made:#}");
        Ok(())
    })
    .await;
}

/// Starts shells in these sessions, all at the same moment, and returns which came to run.
async fn at_once(client: &Client, sessions: &[&str], count: usize) -> Result<Vec<(String, String)>> {
    let command = json!({"tool": "bash", "arguments": {"command": "exec sleep 1000", "background": true}, "wait_ms": 60_000});
    let batch = json!({"calls": vec![command; count]});
    let batches = sessions.iter().map(async |session| {
        let answer =
            client.post(&format!("/v1/sessions/{session}/calls/batch"), &batch).await?.expect(200)?;
        anyhow::Ok(((*session).to_owned(), answer["data"].clone()))
    });
    let mut shells = Vec::new();
    for (session, calls) in futures_util::future::try_join_all(batches).await? {
        for call in calls.as_array().context("calls")? {
            let call = client.ended(call["call"]["id"].as_str().context("an id")?).await?;
            match call["status"].as_str() {
                Some("succeeded") => {
                    let shell = call["result"]["structured"]["shell_id"].as_str().context("a shell")?;
                    shells.push((session.clone(), shell.to_owned()));
                }
                _ => {
                    ensure!(call["error"]["code"] == "sandbox_limit", "{call:#}");
                    ensure!(
                        call["error"]["hint"].to_string().contains("policy.limits."),
                        "it says what to change: {call:#}"
                    );
                }
            }
        }
    }
    Ok(shells)
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_on_shells_hold_whatever_starts_at_the_same_moment() {
    let limits = &[
        ("policy.limits.shells", "5"),
        ("policy.limits.session_shells", "3"),
        ("policy.limits.session_running_calls", "8"),
    ];
    Host::test(limits, async |host| {
        let (client, other) = (host.tenant("acme")?.client, host.tenant("other")?.client);
        let (first, second) = (client.session(json!({})).await?, client.session(json!({})).await?);
        let running = async |session: &str| {
            let listed = client.get(&format!("/v1/sessions/{session}/shells")).await?.expect(200)?;
            let shells = listed["data"].as_array().context("a list")?;
            ensure!(
                shells.iter().all(|shell| shell["status"] == "running"),
                "one that was refused leaves nothing: {listed:#}"
            );
            anyhow::Ok(shells.len())
        };
        // Alone, a session comes to its own limit; with another, the two to their tenant's.
        let mut shells = at_once(&client, &[&first], 8).await?;
        ensure!(shells.len() == 3 && running(&first).await? == 3, "{shells:?}");
        for (session, shell) in shells.drain(..) {
            client.run(&session, "kill_bash", json!({"shell_id": shell, "grace_ms": 0})).await?;
        }
        let shells = at_once(&client, &[&first, &second], 6).await?;
        ensure!(shells.len() == 5, "{shells:?}");
        let full =
            client.run(&second, "bash", json!({"command": "exec sleep 1000", "background": true})).await?;
        ensure!(full["error"]["code"] == "sandbox_limit", "{full:#}");
        // What would have moved to the background goes on in the foreground.
        let long = json!({"command": "sleep 0.3; echo over", "background_after_ms": 1});
        let call = client.run(&second, "bash", long).await?;
        ensure!(call["result"]["structured"]["stdout"] == "over\n", "{call:#}");
        // A command that cannot be started takes no room, another tenant has its own, and the end of a session makes some.
        let theirs = other.session(json!({})).await?;
        for _ in 0..6 {
            let nowhere = json!({"command": "true", "cwd": "/tmp/nowhere", "background": true});
            let call = other.run(&theirs, "bash", nowhere).await?;
            ensure!(call["error"]["code"] == "start_failed", "{call:#}");
        }
        ensure!(at_once(&other, &[&theirs], 1).await?.len() == 1);
        client.delete(&format!("/v1/sessions/{first}")).await?;
        tests::wait::session(&client, &first, |session| session["status"] == "ended").await?;
        ensure!(at_once(&client, &[&second], 1).await?.len() == 1 || running(&second).await? == 3);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_for_which_no_terminal_is_left_says_so() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let hoard = "exec python3 -uc '
import os, time
taken = []
try:
    while True: taken.append(os.openpty())
except OSError: print(\"all\")
time.sleep(1000)'";
        let shell = shell(&client, &session, json!({"command": format!("ulimit -n 4096; {hoard}")})).await?;
        let read = json!({"shell_id": shell, "wait_ms": 60_000});
        let read = client.run(&session, "bash_output", read).await?;
        ensure!(read["result"]["structured"]["chunks"][0]["text"] == "all\n", "{read:#}");
        for background in [false, true] {
            let call = client
                .run(&session, "bash", json!({"command": "tty", "pty": {}, "background": background}))
                .await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == "sandbox_limit", "{call:#}");
            ensure!(
                call["error"]["message"].to_string().contains("kernel.pty.max"),
                "it says what to change: {call:#}"
            );
        }
        ensure!(client.bash(&session, "echo on").await?["result"]["structured"]["stdout"] == "on\n");
        client.run(&session, "kill_bash", json!({"shell_id": shell, "grace_ms": 0})).await?;
        let call = client.run(&session, "bash", json!({"command": "tty", "pty": {}})).await?;
        ensure!(call["result"]["structured"]["stdout"] == "/dev/pts/0\r\n", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_for_one_shell_arrive_in_the_order_of_their_calls() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let shells = [
            shell(&client, &session, json!({"command": "cat"})).await?,
            shell(&client, &session, json!({"command": "cat"})).await?,
        ];
        let mut calls = Vec::new();
        for n in 0..60 {
            let arguments = json!({"shell_id": shells[n % 2], "stdin": n.to_string(), "close": n >= 58});
            calls.push(client.submit(&session, "bash_input", arguments).await?);
        }
        for call in calls {
            ensure!(client.ended(&call).await?["status"] == "succeeded");
        }
        for (first, shell) in shells.iter().enumerate() {
            client.run(&session, "wait", json!({"until": {"shell_id": shell}})).await?;
            let read = client.run(&session, "bash_output", json!({"shell_id": shell})).await?;
            let expected: String = (first..60).step_by(2).map(|n| format!("{n}\n")).collect();
            ensure!(read["result"]["structured"]["chunks"][0]["text"] == expected.as_str(), "{read:#}");
        }
        // A text that nobody takes does not keep a signal from its shell.
        let stuck = shell(
            &client,
            &session,
            json!({"command": "trap 'echo heard; exit 7' INT; echo set; while :; do sleep 0.05; done"}),
        )
        .await?;
        let set = json!({"shell_id": stuck, "wait_ms": 60_000});
        let set = client.run(&session, "bash_output", set).await?;
        ensure!(set["result"]["structured"]["chunks"][0]["text"] == "set\n", "{set:#}");
        let long = json!({"shell_id": stuck, "stdin": "x".repeat(400_000)});
        let text = client.submit(&session, "bash_input", long).await?;
        let signal = client.run(&session, "bash_input", json!({"shell_id": stuck, "signal": "INT"})).await?;
        ensure!(signal["status"] == "succeeded", "{signal:#}");
        let ended =
            client.run(&session, "wait", json!({"until": {"shell_id": stuck}, "seconds": 60})).await?;
        ensure!(ended["result"]["structured"]["exit_code"] == 7, "{ended:#}");
        client.ended(&text).await?;
        Ok(())
    })
    .await;
}
