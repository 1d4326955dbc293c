//! An engine that is away, hung or slow: what runs goes on, new sessions are told, and nobody's files go for it. And a sandbox that dies again
//! and again: its session ends, and says why.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use chrono::{DateTime, Utc};
use domain::SessionEndReason;
use serde_json::{Value, json};
use tests::proxy::Mode;
use tests::{Client, Follower, Host, Proxy, engine, wait};

/// Waits until the worker has said so of its engine.
pub(crate) async fn engine_is(operator: &Client, state: &str) -> Result<()> {
    wait::until(&format!("the engine {state}"), || async {
        let hosts = operator.get("/v1/admin/hosts").await?.expect(200)?;
        Ok(hosts["data"][0]["engine"] == state)
    })
    .await
}

/// New sessions are refused, those of a single call too.
pub(crate) async fn refuses(client: &Client) -> Result<()> {
    let one_shot = json!({"tool": "bash", "arguments": {"command": "true"}});
    for (path, body) in [("/v1/sessions", json!({})), ("/v1/calls", one_shot)] {
        let refused = client.post(path, &body).await?;
        ensure!(!refused.header("retry-after").is_empty(), "{refused:?}");
        refused.problem(503, "engine_unavailable")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_goes_away_or_hangs_stops_nothing_but_new_sessions() {
    // Outlives the installation, which clears up through it.
    let proxy = Proxy::start();
    Host::test_prepared(async |host| {
        host.set("sandbox.engine", &proxy.address());
        host.set("sandbox.pool", "[]");
        host.serve(&["--with-worker"])?;
        let (client, operator) = (host.tenant("acme")?.client, host.operator()?);
        let session = client.session(json!({})).await?;
        let command = "echo begun; until [ -e go ]; do sleep 0.1; done; echo done";
        let running = client.submit(&session, "bash", json!({"command": command})).await?;
        Follower::new(&client, &running).until(|event| event.event == "call.output").await?;
        for mode in [Mode::Down, Mode::Hang] {
            proxy.mode(mode);
            engine_is(&operator, "down").await?;
            refuses(&client).await?;
            ensure!(client.stdout(&session, "echo alive").await? == "alive\n");
            ensure!(client.call(&running).await?["ended_at"].is_null());
            proxy.mode(Mode::Forward);
            engine_is(&operator, "works").await?;
            let fresh = client.session(json!({})).await?;
            ensure!(client.stdout(&fresh, "echo fresh").await? == "fresh\n");
        }
        client.run(&session, "write_file", json!({"path": "go", "content": ""})).await?;
        let call = client.ended(&running).await?;
        ensure!(call["status"] == "succeeded" && call["attempt"] == 1, "{call:#}");
        ensure!(call["result"]["structured"]["stdout"] == "begun\ndone\n", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_lost_while_the_engine_hangs_is_made_again_with_its_files() {
    let proxy = Proxy::start();
    Host::test_prepared(async |host| {
        host.set("sandbox.engine", &proxy.address());
        host.set("sandbox.pool", "[]");
        host.serve(&["--with-worker"])?;
        let (client, operator) = (host.tenant("acme")?.client, host.operator()?);
        let session = client.session(json!({})).await?;
        client.stdout(&session, "echo kept > mine").await?;
        engine::docker(&["rm", "-f", "-v", &host.only_container()?])?;
        proxy.mode(Mode::Hang);
        engine_is(&operator, "down").await?;
        ensure!(client.get(&format!("/v1/sessions/{session}")).await?.expect(200)?["status"] == "running");
        proxy.mode(Mode::Forward);
        // A command that is sent into what is gone is lost; the one after that is not.
        wait::until("it serves again", || async {
            let call = client.bash(&session, "cat mine").await?;
            ensure!(
                call["status"] == "lost" || call["result"]["structured"]["stdout"] == "kept\n",
                "{call:#}"
            );
            Ok(call["status"] == "succeeded")
        })
        .await?;
        Ok(())
    })
    .await;
}

/// An agent that does not come up for as long as the workspace has a file `late`, as on a host that has no time for it.
fn late_agent(host: &Host) -> Result<PathBuf> {
    let settings = host.environment();
    let (_, real) =
        settings.iter().rfind(|(name, _)| name == "TOOLHOST_SANDBOX__AGENT_PATH").context("an agent")?;
    let real = std::fs::read(real)?;
    let script = format!(
        "#!/bin/bash\nif [ -e /workspace/late ]; then exec /bin/sleep 600; fi\n\
         /usr/bin/tail -c {} \"$0\" > /tmp/agent\n/bin/chmod 755 /tmp/agent\nexec /tmp/agent\n",
        real.len()
    );
    let path = host.folder().join("late-agent");
    std::fs::write(&path, [script.as_bytes(), &real[..]].concat())?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_come_late_cost_a_session_nothing() {
    Host::test_prepared(async |host| {
        let agent = late_agent(host)?;
        host.set("sandbox.agent_path", &agent.display().to_string());
        host.set("sandbox.agent_connect_ms", "4000");
        host.set("sandbox.pool", "[]");
        host.serve(&["--with-worker"])?;
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let uid = client.stdout(&session, "echo kept > mine; touch late; id -u").await?;
        let first = host.only_container()?;
        engine::docker(&["rm", "-f", "-v", &first])?;
        let seen = RefCell::new(BTreeSet::from([first]));
        wait::until("three replacements are tried", || async {
            seen.borrow_mut().extend(engine::containers(&host.installation)?);
            Ok(seen.borrow().len() > 3)
        })
        .await?;
        let now = client.get(&format!("/v1/sessions/{session}")).await?.expect(200)?;
        ensure!(now["status"] == "running", "{now:#}");
        wait::until("the host has time again", || async {
            let containers = engine::containers(&host.installation)?;
            // As whoever owns the file, in whichever of the containers is there.
            let remove = |id: &String| {
                engine::docker(&["exec", "--user", uid.trim(), id, "/bin/rm", "/workspace/late"]).is_ok()
            };
            Ok(containers.iter().any(remove))
        })
        .await?;
        ensure!(client.stdout(&session, "cat mine").await? == "kept\n");
        Ok(())
    })
    .await;
}

/// Ends each sandbox of a session right after it has served, until the session is given up; its end.
async fn hunted(
    client: &Client,
    session: &str,
    serve: &str,
    kill: impl AsyncFn() -> Result<()>,
) -> Result<Value> {
    // Five in a row that go within ten seconds; a machine without time for that gets some more. A call may be lost with the one before.
    for _ in 0..60 {
        let body = json!({"tool": "bash", "arguments": {"command": serve}, "wait_ms": 60_000});
        let reply = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?;
        if reply.status == 409 {
            let problem = reply.problem(409, "session_ended")?;
            let session = client.get(&format!("/v1/sessions/{session}")).await?.expect(200)?;
            ensure!(problem["session_end"] == session["ended"], "{problem:#} {session:#}");
            return Ok(session["ended"].clone());
        }
        if reply.json()["status"] == "succeeded" {
            kill().await?;
        }
    }
    bail!("the session was never given up")
}

/// Kills the process of a container that the host knows as its first; one that has ended by itself has none.
fn shoot(container: &str) -> Result<()> {
    let pid: i32 = engine::docker(&["inspect", "--format", "{{.State.Pid}}", container])?.parse()?;
    if pid == 0 {
        return Ok(());
    }
    ensure!(pid > 1, "{pid}");
    Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?)
}

/// Waits until the engine has been told that a container's memory ran out: how it ended is decided by that when it ends.
async fn ran_out_of_memory(container: &str, since: DateTime<Utc>) -> Result<()> {
    let since = format!("--since={}", since.timestamp());
    let of = format!("container={container}");
    wait::until("the engine knows that the memory ran out", || async {
        let until = format!("--until={}", Utc::now().timestamp());
        let told = engine::docker(&["events", &since, &until, "--filter", &of, "--filter", "event=oom"])?;
        Ok(!told.is_empty())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_sandboxes_die_one_after_another_ends_and_says_of_what() {
    Host::test(&[("sandbox.pool", "[]")], async |host| {
        let client = host.tenant("acme")?.client;
        let resources = json!({"resources": {"cpus": 1.0, "memory_mb": 96, "disk_mb": 64, "pids": 64}});
        // What a tool takes too much is taken from the tool; the engine says of the container that its memory ran out.
        let hungry = "python3 -c 'x = bytearray(1 << 30)'; true";
        for (reason, serve) in [
            (SessionEndReason::ContainerGone, "true"),
            (SessionEndReason::AgentGone, "true"),
            (SessionEndReason::Oom, hungry),
        ] {
            let session = client.session(resources.clone()).await?;
            let since = Utc::now();
            let end = hunted(&client, &session, serve, async || {
                let container = host.only_container()?;
                if reason == SessionEndReason::ContainerGone {
                    return engine::docker(&["rm", "-f", "-v", &container]).map(drop);
                }
                if reason == SessionEndReason::Oom {
                    ran_out_of_memory(&container, since).await?;
                }
                shoot(&container)
            })
            .await?;
            ensure!(end["reason"] == reason.as_str(), "{end:#}");
            ensure!(end["message"] == reason.message(), "{end:#}");
            let evidence = &end["evidence"];
            match reason {
                SessionEndReason::ContainerGone => ensure!(!evidence["container"].is_null(), "{end:#}"),
                _ => ensure!(
                    evidence["exit_code"] == 137
                        && evidence["oom_killed"] == (reason == SessionEndReason::Oom),
                    "{end:#}"
                ),
            }
            wait::until("nothing of it is left", || async {
                Ok(engine::containers(&host.installation)?.is_empty())
            })
            .await?;
        }
        Ok(())
    })
    .await;
}
