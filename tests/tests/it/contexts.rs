//! What holds of contexts in both languages.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::client::structured;
use tests::{Client, Follower, Host};

/// A language: its tool, code that makes `x` 7, and code that says `before`, waits for a file `go`, says `after` and raises `x`.
struct Spoken {
    tool: &'static str,
    sets: &'static str,
    waits: &'static str,
}

const LANGUAGES: [Spoken; 2] = [
    Spoken {
        tool: "python_execute",
        sets: "x = 7",
        waits: "import os, time\nprint('before', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('after')\nx += 1\nx",
    },
    Spoken {
        tool: "node_execute",
        sets: "let x = 7; const fs = require('fs')",
        waits: "console.log('before')\nwhile (!fs.existsSync('go')) await new Promise((done) => setTimeout(done, 20))\nconsole.log('after')\nx += 1",
    },
];

impl Spoken {
    /// A call that waits in a context of its own, which has run something before; and the id of that.
    async fn waiting(&self, client: &Client, session: &str) -> Result<(String, String)> {
        let arguments = |code| json!({"code": code, "context": self.tool});
        let call = client.run(session, self.tool, arguments(self.sets)).await?;
        ensure!(call["status"] == "succeeded", "{call:#}");
        let context = structured(&call, "context")["id"].as_str().context("a context")?.to_owned();
        let body = json!({"tool": self.tool, "arguments": arguments(self.waits)});
        let call = client.submit_with(session, body).await?;
        Follower::new(client, &call).until(|event| event.event == "call.output").await?;
        Ok((call, context))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_outlives_the_worker_that_began_it() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let mut calls = Vec::new();
        for language in &LANGUAGES {
            calls.push(language.waiting(&client, &session).await?.0);
        }
        host.processes[0].kill();
        host.serve(&["--with-worker"])?;
        let client = client.at(&host.base);
        client.run(&session, "write_file", json!({"path": "go", "content": ""})).await?;
        for (language, call) in LANGUAGES.iter().zip(calls) {
            let call = client.ended(&call).await?;
            ensure!(call["status"] == "succeeded" && call["attempt"] == 2, "{call:#}");
            ensure!(
                structured(&call, "stdout") == "before\nafter\n" && structured(&call, "result") == "8",
                "{call:#}"
            );
            let call =
                client.run(&session, language.tool, json!({"code": "x", "context": language.tool})).await?;
            ensure!(
                structured(&call, "result") == "8" && structured(&call, "context")["executions"] == 3,
                "{call:#}"
            );
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_whose_context_is_deleted_under_it_says_so() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        for language in &LANGUAGES {
            let (call, context) = language.waiting(&client, &session).await?;
            client.delete(&format!("/v1/sessions/{session}/contexts/{context}")).await?;
            let call = client.ended(&call).await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == "interpreter_died", "{call:#}");
            ensure!(call["error"]["details"]["reason"] == "deleted", "{call:#}");
            ensure!(
                call["error"]["message"].as_str().is_some_and(|said| said.contains("was deleted")),
                "{call:#}"
            );
        }
        Ok(())
    })
    .await;
}
