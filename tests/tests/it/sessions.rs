//! A session's life: created, narrowed, reset, deleted, idle, expired, and what is left of it when its sandbox dies.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::host::runtime;
use tests::{Client, Follower, Host, engine, wait};

async fn ended(client: &Client, session: &str) -> Result<Value> {
    wait::session(client, session, |session| session["status"] == "ended").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_the_size_that_was_asked_for() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let body = json!({"resources": {"cpus": 0.5, "memory_mb": 128, "disk_mb": 64, "pids": 77}, "idle_timeout_s": 60, "metadata": {"a": "b"}});
        let session = client.post("/v1/sessions", &body).await?.expect(201)?;
        ensure!(session["object"] == "session" && session["resources"]["memory_mb"] == 128, "{session:#}");
        ensure!(session["network"]["mode"] == "none" && session["idle_timeout_s"] == 60, "{session:#}");
        let id = session["id"].as_str().context("id")?;
        // Where either version of control groups has them; 100000 is the period that the CPU's quota is for.
        let limits = "cd /sys/fs/cgroup; cat memory.max memory/memory.limit_in_bytes 2>/dev/null; \
                      cat cpu.max cpu/cpu.cfs_quota_us 2>/dev/null; cat pids.max pids/pids.max 2>/dev/null; ls /sys/class/net";
        let seen = client.stdout(id, limits).await?;
        let seen: Vec<_> = seen.split_whitespace().filter(|word| *word != "100000").collect();
        match runtime().as_str() {
            // Its kernel shows control groups of its own, or none.
            "runsc" => ensure!(seen.contains(&"134217728") || seen == ["lo"], "{seen:?}"),
            _ => ensure!(seen == ["134217728", "50000", "77", "lo"], "{seen:?}"),
        }
        let patched = client.send(client.request("PATCH", &format!("/v1/sessions/{id}")).json(&json!({"metadata": {"c": "d"}, "idle_timeout_s": 90}))).await?.expect(200)?;
        ensure!(patched["metadata"] == json!({"c": "d"}) && patched["idle_timeout_s"] == 90, "{patched:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_gives_a_fresh_sandbox_and_workspace() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        client.stdout(&session, "echo old > file; echo old > /tmp/file").await?;
        let running = client.submit(&session, "bash", json!({"command": "echo begun; sleep 4246"})).await?;
        Follower::new(&client, &running).until(|event| event.event == "call.output").await?;
        let reset = client.post(&format!("/v1/sessions/{session}/reset"), &json!({})).await?;
        ensure!(matches!(reset.status, 200 | 202), "{reset:?}");
        let call = client.ended(&running).await?;
        ensure!(call["status"] != "succeeded" && call["ended"]["reason"] == "session_reset", "{call:#}");
        ensure!(
            client.stdout(&session, "ls; ls /tmp; pgrep -f 'sleep 4246'; echo fresh").await? == "fresh\n"
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_session_ends_what_runs_and_takes_no_more() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let running = client.submit(&session, "bash", json!({"command": "echo begun; sleep 4247"})).await?;
        Follower::new(&client, &running).until(|event| event.event == "call.output").await?;
        let deleted = client.delete(&format!("/v1/sessions/{session}")).await?;
        ensure!(matches!(deleted.status, 200 | 202 | 204), "{deleted:?}");
        let call = client.ended(&running).await?;
        ensure!(call["ended"]["reason"] == "session_ended", "{call:#}");
        ensure!(ended(&client, &session).await?["ended"]["reason"] == "deleted");
        let body = json!({"tool": "bash", "arguments": {"command": "echo no"}});
        let problem = client
            .post(&format!("/v1/sessions/{session}/calls"), &body)
            .await?
            .problem(409, "session_ended")?;
        ensure!(problem["detail"].as_str().is_some_and(|text| text.contains("deleted")), "{problem:#}");
        // What it did is still there to be read.
        ensure!(client.stored_events(&running).await?.len() >= 2);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_and_old_sessions_end_and_say_why() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let idle = client.session(json!({"idle_timeout_s": 1})).await?;
        let old = client.session(json!({"lifetime_s": 3})).await?;
        // Its time runs from its creation: what is asked of it runs by then, waits for the sandbox, or comes too late.
        let body = json!({"tool": "bash", "arguments": {"command": "sleep 4250"}});
        let asked = client.post(&format!("/v1/sessions/{old}/calls"), &body).await?;
        for (session, reason) in [(&idle, "idle"), (&old, "expired")] {
            let session = ended(&client, session).await?;
            ensure!(session["ended"]["reason"] == reason, "{session:#}");
            ensure!(session["ended"]["message"].as_str().is_some_and(|text| text.len() > 20), "{session:#}");
        }
        if asked.status == 409 {
            asked.problem(409, "session_ended")?;
        } else {
            let call = client.ended(&tests::client::id_of(&asked.expect(202)?)?).await?;
            ensure!(call["ended"]["reason"] == "session_ended", "{call:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_session_is_not_idle() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let call = client.submit(&session, "bash", json!({"command": "sleep 4; echo done"})).await?;
        Follower::new(&client, &call).until(|event| event.event == "call.started").await?;
        // Only now, as it is idle for as long as nothing has come to it.
        let patch = client.request("PATCH", &format!("/v1/sessions/{session}"));
        client.send(patch.json(&json!({"idle_timeout_s": 1}))).await?.expect(200)?;
        let call = client.ended(&call).await?;
        ensure!(call["status"] == "succeeded", "{call:#}");
        ensure!(call["result"]["structured"]["stdout"] == "done\n", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_removed_behind_our_back_is_made_again_with_the_files() {
    Host::test(&[("sandbox.pool", "[]")], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        client.stdout(&session, "echo kept > mine-1").await?;
        let running = client.submit(&session, "bash", json!({"command": "echo begun; sleep 4248"})).await?;
        Follower::new(&client, &running).until(|event| event.event == "call.output").await?;
        let container = host.only_container()?;
        engine::docker(&["rm", "-f", "-v", &container])?;
        let call = client.ended(&running).await?;
        ensure!(call["status"] == "lost" && call["ended"]["reason"] == "lost", "{call:#}");
        ensure!(call.to_string().contains("container_gone"), "{call:#}");
        ensure!(client.stdout(&session, "cat mine-1").await? == "kept\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_loses_its_calls_and_nothing_else() {
    Host::test(&[("sandbox.pool", "[]")], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        client.stdout(&session, "echo kept > mine-2").await?;
        let running = client.submit(&session, "bash", json!({"command": "echo begun; sleep 4249"})).await?;
        Follower::new(&client, &running).until(|event| event.event == "call.output").await?;
        let container = host.only_container()?;
        let is_root = nix::unistd::Uid::effective().is_root();
        if is_root {
            // The process itself: the engine is not asked, and so cannot be to blame.
            let pid = engine::docker(&["inspect", "--format", "{{.State.Pid}}", &container])?.parse()?;
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?;
        } else {
            engine::docker(&["kill", "--signal", "KILL", &container])?;
        }
        let call = client.ended(&running).await?;
        ensure!(call["status"] == "lost" && call["ended"]["reason"] == "lost", "{call:#}");
        let evidence = &call["ended"]["evidence"];
        ensure!(evidence["container"] == "exited" && evidence["exit_code"] == 137, "{call:#}");
        ensure!(evidence["reason"] == "agent_gone" || !is_root, "{call:#}");
        ensure!(client.stdout(&session, "cat mine-2").await? == "kept\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_eats_the_memory_dies_alone() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client
            .session(json!({"resources": {"cpus": 1.0, "memory_mb": 128, "disk_mb": 64, "pids": 64}}))
            .await?;
        let code = "x = bytearray(); print('begun', flush=True)\nwhile True: x += bytes(1 << 24)";
        let call = client.run(&session, "python_execute", json!({"code": code})).await?;
        ensure!(call["ended"]["reason"] == "oom", "{call:#}");
        ensure!(client.stdout(&session, "echo alive").await? == "alive\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_ends_the_session_and_nobody_else() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let broken = client.session(json!({"image": "toolhost/no-such-image:1"})).await?;
        // Its end may come before the call, which is then refused with the same words.
        let body = json!({"tool": "bash", "arguments": {"command": "echo never"}});
        let waiting = client.post(&format!("/v1/sessions/{broken}/calls"), &body).await?;
        let session = client.session(json!({})).await?;
        ensure!(client.stdout(&session, "echo fine").await? == "fine\n");
        ensure!(ended(&client, &broken).await?["ended"]["reason"] == "image_unavailable");
        if waiting.status == 409 {
            waiting.problem(409, "session_ended")?;
        } else {
            let call = client.ended(&tests::client::id_of(&waiting.json())?).await?;
            ensure!(call["status"] == "failed", "{call:#}");
        }
        Ok(())
    })
    .await;
}
