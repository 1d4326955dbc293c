//! Many at once: two tenants, 20 sessions, 1,000 mixed calls, half of them followed over streams that are cut at random.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tests::{Client, Follower, Host};

const SESSIONS: usize = 20;
const CALLS: usize = 1_000;
const AT_ONCE: usize = 48;
const TERMINAL: &[&str] = &["succeeded", "failed", "timed_out", "cancelled", "denied", "lost"];

/// The n-th call of the mixture, and the status that it must end with.
fn mixture(n: usize) -> (Value, &'static str) {
    let bash = |command: String| json!({"tool": "bash", "arguments": {"command": command}});
    match n % 10 {
        0..=2 => (bash(format!("echo call-{n} | tee -a ledger")), "succeeded"),
        3 => (bash(format!("for i in $(seq 1 40); do echo line $i of {n}; done; exit 4")), "succeeded"),
        4 => (bash("head -c 200000 /dev/urandom | base64".to_owned()), "succeeded"),
        5 => (
            json!({"tool": "python_execute", "arguments": {"code": format!("import sys\nprint('call-{n}')\nprint('e', file=sys.stderr)")}}),
            "succeeded",
        ),
        6 => (
            json!({"tool": "write_file", "arguments": {"path": format!("files/{n}"), "content": format!("{n}\n")}}),
            "succeeded",
        ),
        7 => (json!({"tool": "read_file", "arguments": {"path": format!("missing-{n}")}}), "failed"),
        8 => (
            json!({"tool": "bash", "arguments": {"command": "echo begun; sleep 4260"}, "timeout_ms": 300}),
            "timed_out",
        ),
        _ => (json!({"tool": "list_files", "arguments": {"recursive": true}}), "succeeded"),
    }
}

async fn one(n: usize, client: Client, session: String) -> Result<String> {
    let (body, expected) = mixture(n);
    let call_id = client.submit_with(&session, body).await?;
    let followed = n.is_multiple_of(2);
    let events = if followed {
        Follower::new(&client, &call_id).with_cuts(6).to_end().await?
    } else {
        client.follow(&call_id).await?
    };
    let stored = client.stored_events(&call_id).await?;
    let streamed: Vec<Value> = events.into_iter().map(|event| event.data).collect();
    ensure!(streamed == stored, "call {n} ({call_id}): {streamed:#?} is not {stored:#?}");
    if n % 10 < 5 {
        let noise: Vec<_> = stored.iter().filter(|event| event["stream"] == "stderr").collect();
        ensure!(noise.is_empty(), "call {n} wrote nothing to stderr: {noise:#?}");
    }
    let last = stored.last().context("has events")?;
    ensure!(last["type"] == "call.ended" && last["status"] == expected, "call {n}: {last:#}");
    Ok(call_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_calls_of_two_tenants_each_tell_the_truth() {
    Host::test(&[("policy.limits.running_calls", "24")], async |host| {
        let tenants = [host.tenant("first")?.client, host.tenant("second")?.client];
        let mut sessions = Vec::new();
        for n in 0..SESSIONS {
            let client = tenants[n % 2].clone();
            let session = client.session(json!({})).await?;
            sessions.push((client, session));
        }
        let sessions = Arc::new(sessions);
        let calls: Vec<Result<String>> = futures_util::stream::iter(0..CALLS)
            .map(|n| {
                let (client, session) = sessions[n % SESSIONS].clone();
                async move { tokio::spawn(one(n, client, session)).await? }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let ids: BTreeSet<String> = calls.into_iter().collect::<Result<_>>()?;
        ensure!(ids.len() == CALLS);

        let mut listed = 0;
        for client in &tenants {
            let mut cursor = String::new();
            loop {
                let page = client.get(&format!("/v1/calls?limit=100{cursor}")).await?.expect(200)?;
                for call in page["data"].as_array().context("data")? {
                    ensure!(
                        call["status"].as_str().is_some_and(|status| TERMINAL.contains(&status)),
                        "{call:#}"
                    );
                    ensure!(call["id"].as_str().is_some_and(|id| ids.contains(id)), "{call:#}");
                    listed += 1;
                }
                let Some(next) = page["next_cursor"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
        }
        ensure!(listed == CALLS, "{listed}");
        // Every effect happened once.
        let mut lines = 0;
        for (client, session) in sessions.iter() {
            let ledger = client.bash(session, "touch ledger; sort ledger | uniq -d; wc -l < ledger").await?;
            let text = ledger["result"]["structured"]["stdout"].as_str().context("stdout")?;
            lines += text.trim().parse::<usize>().with_context(|| format!("something ran twice: {text}"))?;
        }
        let expected = (0..CALLS).filter(|n| n % 10 <= 2).count();
        ensure!(lines == expected, "{lines} of {expected}");
        Ok(())
    })
    .await;
}
