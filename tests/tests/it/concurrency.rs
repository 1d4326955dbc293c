//! Calls of one session at the same time: so many as policy allows, each with its own end, in order where order is asked for.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Follower, Host, wait};

/// A call that says that it has begun, and ends when the gate is opened.
async fn gated(client: &Client, session: &str, name: &str) -> Result<String> {
    let command = format!("echo begun; until [ -e gate ]; do sleep 0.05; done; echo {name}");
    client.submit(session, "bash", json!({"command": command})).await
}

async fn begun(client: &Client, call: &str) -> Result<()> {
    Follower::new(client, call).until(|event| event.event == "call.output").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_run_at_once_as_policy_allows_and_each_has_its_own_end() {
    Host::test(&[("policy.limits.session_running_calls", "3")], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let mut calls = Vec::new();
        for name in ["a", "b", "c", "d", "e"] {
            calls.push(gated(&client, &session, name).await?);
        }
        for call in &calls[..3] {
            begun(&client, call).await?;
        }
        // Three have begun and stay; two wait, whatever the time.
        let waiting =
            client.get(&format!("/v1/sessions/{session}/calls?status=queued")).await?.expect(200)?;
        let ids: Vec<&str> = waiting["data"]
            .as_array()
            .context("a list")?
            .iter()
            .filter_map(|call| call["id"].as_str())
            .collect();
        ensure!(ids == [calls[4].as_str(), calls[3].as_str()], "newest first: {ids:?}");
        // The end of one is the end of no other, and makes room for the next.
        client.post(&format!("/v1/calls/{}/cancel", calls[1]), &json!({})).await?;
        let cancelled = client.ended(&calls[1]).await?;
        ensure!(
            cancelled["status"] == "cancelled" && cancelled["result"]["structured"]["stdout"] == "begun\n",
            "{cancelled:#}"
        );
        begun(&client, &calls[3]).await?;
        for call in [&calls[0], &calls[2], &calls[3]] {
            ensure!(client.call(call).await?["status"] == "running");
        }
        // Opening the gate is a call too, and needs a slot.
        client.post(&format!("/v1/calls/{}/cancel", calls[0]), &json!({})).await?;
        begun(&client, &calls[4]).await?;
        client.post(&format!("/v1/calls/{}/cancel", calls[4]), &json!({})).await?;
        client.ended(&calls[4]).await?;
        client.stdout(&session, "touch gate").await?;
        for (call, said) in [(&calls[2], "begun\nc\n"), (&calls[3], "begun\nd\n")] {
            let call = client.ended(call).await?;
            ensure!(
                call["status"] == "succeeded" && call["result"]["structured"]["stdout"] == said,
                "{call:#}"
            );
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_side_by_side_do_not_mix_and_time_out_alone() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // Each writes its own kilobytes while the others do.
        let calls = (0..8).map(|n| json!({"tool": "bash", "wait_ms": 60_000, "arguments": {"command": format!("for i in $(seq 500); do echo {n}-$i; done; exit {n}")}}));
        let batch = client.post(&format!("/v1/sessions/{session}/calls/batch"), &json!({"calls": calls.collect::<Vec<Value>>()})).await?.expect(200)?;
        for n in 0..8 {
            let call = &batch["data"][n]["call"];
            let expected: String = (1..=500).map(|i| format!("{n}-{i}\n")).collect();
            ensure!(call["result"]["structured"]["stdout"] == expected && call["result"]["exit_code"] == n, "{call:#}");
        }
        // It says that it has begun when its program is there for others to find.
        let begins = "sleep 4281 & until pgrep -f 'sleep 428[1]' >/dev/null; do :; done; echo begun; wait";
        let slow = client.submit(&session, "bash", json!({"command": begins})).await?;
        begun(&client, &slow).await?;
        let timed = json!({"tool": "bash", "arguments": {"command": "trap '' TERM; sleep 4282"}, "timeout_ms": 500});
        let timed = client.submit_with(&session, timed).await?;
        ensure!(client.ended(&timed).await?["status"] == "timed_out");
        let left = client.stdout(&session, "pgrep -f 'sleep 428[1]' >/dev/null && echo first; pgrep -f 'sleep 428[2]' >/dev/null && echo second; true").await?;
        ensure!(left == "first\n", "the neighbour's processes live, its own are gone: {left}");
        client.post(&format!("/v1/calls/{slow}/cancel"), &json!({})).await?;
        ensure!(client.ended(&slow).await?["status"] == "cancelled");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_calls_goes_on_whatever_the_end_of_one() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let first = gated(&client, &session, "first").await?;
        begun(&client, &first).await?;
        let second =
            json!({"tool": "bash", "arguments": {"command": "echo second >> order"}, "after": first});
        let second = client.submit_with(&session, second).await?;
        let third = json!({"tool": "bash", "arguments": {"command": "echo third >> order"}, "after": second});
        let third = client.submit_with(&session, third).await?;
        ensure!(client.call(&third).await?["status"] == "queued");
        // Others do not wait for the chain.
        ensure!(client.stdout(&session, "ls order 2>/dev/null; echo free").await? == "free\n");
        client.post(&format!("/v1/calls/{first}/cancel"), &json!({})).await?;
        client.ended(&third).await?;
        ensure!(client.stdout(&session, "cat order").await? == "second\nthird\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_works_through_its_own_blocks() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let path = format!("/v1/sessions/{session}/tool_results");
        let use_tool = |id: &str, name: &str, input: Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
        // Two that need each other to run at the same time, and one that does not exist.
        let blocks = json!({"format": "anthropic", "tool_calls": [
            use_tool("toolu_1", "bash", json!({"command": "mkfifo pipe 2>/dev/null; echo ping > pipe"})),
            use_tool("toolu_2", "Bash", json!({"command": "mkfifo pipe 2>/dev/null; cat pipe; seq 1 20000"})),
            use_tool("toolu_3", "teleport", json!({})),
        ]});
        let answer = client.post(&path, &blocks).await?.expect(200)?;
        ensure!(answer["pending"] == 0 && answer["results"][2]["is_error"] == true, "{answer:#}");
        ensure!(answer["results"][0]["is_error"] == false, "{answer:#}");
        // The result was shortened and says how the model reads on; it does.
        let text = answer["results"][1]["content"][0]["text"].as_str().context("text")?;
        let theirs: Value = serde_json::from_str(text)?;
        ensure!(theirs["truncated"] == true && text.contains("read_output"), "{text}");
        let call = answer["calls"][1]["call_id"].as_str().context("an id")?;
        let blocks = json!({"format": "openai", "tool_calls": [{"id": "call_4", "type": "function", "function": {
            "name": "read_output", "arguments": json!({"call_id": call, "pattern": "^1234[56]$"}).to_string()}}]});
        let answer = client.post(&path, &blocks).await?.expect(200)?;
        ensure!(answer["results"][0]["content"] == "12346:12345\n12347:12346", "{answer:#}");
        // What another session wrote is not there.
        let other = client.session(json!({})).await?;
        let refused = client.run(&other, "read_output", json!({"call_id": call})).await?;
        ensure!(refused["error"]["code"] == "call_not_found", "{refused:#}");
        // When the session is gone, its output is still found.
        client.delete(&format!("/v1/sessions/{session}")).await?;
        wait::session(&client, &session, |session| session["status"] == "ended").await?;
        let found = client.get(&format!("/v1/calls/{call}/output?grep=^20000$")).await?.expect(200)?;
        ensure!(found["lines"][0]["line"] == 20_001 && found["ended"] == true, "{found:#}");
        Ok(())
    })
    .await;
}
