//! What a call used: measured in its sandbox, told with the call, and summed up in the tenant's usage.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::sse::output_of;
use tests::{Host, wait};

/// What each call holds at once, all of it touched.
const HELD: u64 = 96 << 20;
/// CPU time that each call takes, by its own clock, in milliseconds.
const SPUN_MS: u64 = 500;
/// Beyond this it is counted in another unit.
const MUCH_MS: u64 = 60_000;
const MUCH_BYTES: u64 = 1 << 30;

fn number(of: &Value, field: &str) -> Result<u64> {
    of[field].as_u64().with_context(|| format!("no {field} in {of:#}"))
}

/// The figures of one name in a list of groups.
fn figures<'a>(usage: &'a Value, key: &str) -> Result<&'a Value> {
    let groups = usage["data"].as_array().context("groups")?;
    let group = groups.iter().find(|group| group["key"] == key);
    Ok(&group.with_context(|| format!("no {key} in {usage:#}"))?["figures"])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_used_is_told_with_it_and_summed_up() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let code = format!(
            "import time\nsince = time.process_time()\nheld = b'x' * {HELD}\n\
             while time.process_time() - since < {SPUN_MS} / 1000: pass\nprint(len(held))"
        );
        let script = format!("python3 - <<'END'\n{code}\nEND");
        let mut calls = Vec::new();
        for (tool, arguments) in [
            ("python_execute", json!({"code": code})),
            ("python_execute", json!({"code": code, "context": "main"})),
            ("bash", json!({"command": script})),
        ] {
            let call = client.run(&session, tool, arguments).await?;
            ensure!(call["status"] == "succeeded" && call["result"]["is_error"] == false, "{call:#}");
            calls.push(call);
        }
        let expected = format!("{HELD}\n");
        let (mut python_ms, mut bash_ms) = (0, 0);
        for call in &calls {
            let usage = &call["usage"];
            let (cpu_ms, held) = (number(usage, "cpu_ms")?, number(usage, "max_rss_bytes")?);
            // What the interpreter's start took is not always part of it; a tenth is for clocks that differ.
            ensure!((SPUN_MS * 9 / 10..MUCH_MS).contains(&cpu_ms), "{call:#}");
            ensure!((HELD..MUCH_BYTES).contains(&held), "{call:#}");
            ensure!(number(usage, "duration_ms")? >= SPUN_MS * 9 / 10, "one thread is no faster: {call:#}");
            ensure!(usage["bytes_out"] == expected.len(), "{call:#}");
            ensure!(number(usage, "bytes_in")? > 0 && usage["queue_ms"].is_u64(), "{call:#}");
            match call["tool"].as_str() {
                Some("bash") => bash_ms += cpu_ms,
                _ => python_ms += cpu_ms,
            }
            let events = client.follow(call["id"].as_str().context("an id")?).await?;
            ensure!(output_of(&events, "stdout") == expected);
            let last = events.last().context("an end")?;
            ensure!(last.data["usage"] == *usage, "the event and the call agree: {last:?}");
        }

        wait::until("the calls are metered", async || {
            Ok(client.get("/v1/usage").await?.expect(200)?["total"]["calls"] == calls.len())
        })
        .await?;
        let cpu =
            |figures: &Value| figures["cpu_seconds"].as_f64().map(|seconds| (seconds * 1_000.0).round());
        for path in ["/v1/usage".to_owned(), format!("/v1/sessions/{session}/usage")] {
            let usage = client.get(&path).await?.expect(200)?;
            for (tool, cpu_ms, times) in [("python_execute", python_ms, 2), ("bash", bash_ms, 1)] {
                let of_tool = figures(&usage, tool)?;
                ensure!(cpu(of_tool) == Some(cpu_ms as f64), "{path}, {tool} took {cpu_ms}: {usage:#}");
                ensure!(of_tool["bytes_out"] == expected.len() * times, "{path}: {usage:#}");
            }
            ensure!(cpu(&usage["total"]) == Some((python_ms + bash_ms) as f64), "{path}: {usage:#}");
        }
        for (group, key) in
            [("session", session.as_str()), ("day", &calls[0]["ended_at"].as_str().context("a time")?[..10])]
        {
            let usage = client.get(&format!("/v1/usage?group={group}")).await?.expect(200)?;
            ensure!(cpu(figures(&usage, key)?).is_some_and(|cpu| cpu >= SPUN_MS as f64 * 0.9), "{usage:#}");
        }
        Ok(())
    })
    .await;
}
