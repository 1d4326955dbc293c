//! Handles of one session (contexts, named shells) keep an order of their own, and none waits for another's.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::sse::output_of;
use tests::{Client, Follower, Host};

/// Begins a call that holds its handle until the file is there; its id.
async fn hold(
    client: &Client,
    session: &str,
    tool: &str,
    mut arguments: Value,
    file: &str,
) -> Result<String> {
    let (field, code) = match tool {
        "bash" => ("command", format!("echo held; until [ -e {file} ]; do sleep 0.05; done; echo let go")),
        _ => (
            "code",
            format!(
                "import os, time\nprint('held', flush=True)\nwhile not os.path.exists('{file}'): time.sleep(0.05)\nprint('let go')"
            ),
        ),
    };
    arguments[field] = code.into();
    let call = client.submit(session, tool, arguments).await?;
    Follower::new(client, &call).until(|event| event.event == "call.output").await?;
    Ok(call)
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_of_one_session_do_not_wait_for_each_other() {
    Host::test(&[("policy.limits.session_running_calls", "8")], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        let done = async |tool: &str, arguments: Value| -> Result<Value> {
            let call = client.run(session, tool, arguments).await?;
            ensure!(call["status"] == "succeeded" && call["result"]["is_error"] == false, "{call:#}");
            Ok(call["result"]["structured"].clone())
        };
        // A context and a named shell are held, and behind each of them a call waits in line.
        let context =
            hold(client, session, "python_execute", json!({"context": "held"}), "go-context").await?;
        let shell = hold(client, session, "bash", json!({"shell": "held"}), "go-shell").await?;
        let behind_context = json!({"code": "open('order', 'a').write('context ')", "context": "held"});
        let behind_context = client.submit(session, "python_execute", behind_context).await?;
        let behind_shell = json!({"command": "echo -n 'shell ' >> order", "shell": "held"});
        let behind_shell = client.submit(session, "bash", behind_shell).await?;

        // Meanwhile each of the others comes to its end, and keeps what it was told.
        for round in 0..2 {
            for name in ["one", "two"] {
                let code = format!("seen = globals().get('seen', []) + ['{name}']\nseen");
                let found = done("python_execute", json!({"code": code, "context": name})).await?;
                let expected = vec![format!("'{name}'"); round + 1].join(", ");
                ensure!(found["result"] == format!("[{expected}]"), "{found:#}");
                let command = format!("seen=\"$seen {name}\"; echo $seen");
                let found = done("bash", json!({"command": command, "shell": name})).await?;
                ensure!(found["stdout"] == vec![name; round + 1].join(" ") + "\n", "{found:#}");
            }
            ensure!(done("python_execute", json!({"code": "6 * 7"})).await?["result"] == "42");
            ensure!(done("bash", json!({"command": "echo free"})).await?["stdout"] == "free\n");
        }
        for call in [&context, &shell, &behind_context, &behind_shell] {
            let call = client.call(call).await?;
            ensure!(call["ended_at"].is_null(), "it was to be held: {call:#}");
        }
        ensure!(done("bash", json!({"command": "cat order 2>/dev/null; true"})).await?["stdout"] == "");

        // The shell is let go first, though the context was held before it.
        for (file, held, behind, order) in [
            ("go-shell", &shell, &behind_shell, "shell "),
            ("go-context", &context, &behind_context, "shell context "),
        ] {
            done("write_file", json!({"path": file, "content": ""})).await?;
            let events = client.follow(held).await?;
            ensure!(output_of(&events, "stdout") == "held\nlet go\n", "{events:#?}");
            ensure!(client.ended(behind).await?["status"] == "succeeded");
            let found = done("bash", json!({"command": "cat order"})).await?;
            ensure!(found["stdout"].as_str().context("stdout")? == order, "{found:#}");
        }
        Ok(())
    })
    .await;
}
