//! Contexts of JavaScript whose Node.js does not start: what hinders it is told, and tried again by the next call.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::Host;
use tests::client::structured;

use crate::node_contexts::{is_result, node};

#[tokio::test(flavor = "multi_thread")]
async fn what_hinders_node_is_told_and_over_when_it_is_gone() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        client.bash(&session, "mkdir bin && ln -s $(command -v python3) bin/python3").await?;
        let body = json!({"name": "main", "language": "javascript", "env": {"PATH": "/workspace/bin"}});
        client.post(&format!("/v1/sessions/{session}/contexts"), &body).await?.expect(201)?;
        let good = "#!/bin/sh\\necho warned >&2\\nexec /usr/bin/node \"$@\"\\n";
        for (program, says) in [
            (None, "this image has no node"),
            (Some("no program"), "Exec format error"),
            (
                Some("#!/bin/sh\\necho bad option: --such >&2\\nexit 9\\n"),
                "(exit code 9): bad option: --such",
            ),
            (Some("#!/bin/sh\\nkill -KILL $$\\n"), "(signal 9): it said nothing"),
            (Some("#!/bin/sh\\necho deaf >&2\\nexec 4>&-\\nwhile :; do :; done\\n"), "deaf"),
        ] {
            if let Some(program) = program {
                client.bash(&session, &format!("printf '{program}' > bin/node && chmod +x bin/node")).await?;
            }
            let call = node(&client, &session, "main", "1").await?;
            ensure!(
                call["status"] == "failed" && call["error"]["code"] == "start_failed",
                "{says}: {call:#}"
            );
            let message = call["error"]["message"].as_str().context("a message")?;
            ensure!(message.contains(says), "{says}: {call:#}");
            ensure!(message.contains("this image has no node") == program.is_none(), "{says}: {call:#}");
        }
        // The context is well, and nothing was lost.
        client.bash(&session, &format!("printf '{good}' > bin/node")).await?;
        let call = node(&client, &session, "main", "let x = 1; console.error('mine'); x").await?;
        is_result(&call, "1")?;
        ensure!(
            structured(&call, "stderr") == "mine\n" && structured(&call, "context")["executions"] == 1,
            "{call:#}"
        );
        ensure!(structured(&call, "context")["lost_before"].is_null(), "{call:#}");
        is_result(&node(&client, &session, "main", "x").await?, "1")
    })
    .await;
}
