//! Artifacts through the public API, on real sandboxes: made by tools, by long output, and there when the session is gone.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::{Host, wait};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_keeps_outlives_its_session() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        let run = async |tool: &str, arguments| client.run(session, tool, arguments).await;
        // A file of the sandbox, larger than one read of the agent, and a next version of the same name.
        client
            .bash(session, "head -c 15000000 /dev/urandom > big.bin; sha256sum < big.bin | cut -c-64 > sum")
            .await?;
        let sum = client.bash(session, "cat sum").await?["result"]["structured"]["stdout"].clone();
        let saved = run("save_artifact", json!({"path": "big.bin"})).await?;
        let kept = &saved["result"]["structured"];
        ensure!(
            kept["size_bytes"] == 15_000_000
                && format!("{}\n", kept["sha256"].as_str().context("a hash")?)
                    == sum.as_str().context("a hash")?,
            "{saved:#}"
        );
        let events = client
            .get(&format!("/v1/calls/{}/events", saved["id"].as_str().context("an id")?))
            .await?
            .expect(200)?;
        let created = events["data"]
            .as_array()
            .context("events")?
            .iter()
            .find(|event| event["type"] == "artifact.created");
        ensure!(created.is_some_and(|event| event["artifact"]["id"] == kept["artifact_id"]), "{events:#}");
        for (version, text) in [(1, "# One"), (2, "# Two")] {
            let saved =
                run("save_artifact", json!({"name": "report.md", "content": text, "kind": "summary"}))
                    .await?;
            ensure!(saved["result"]["structured"]["version"] == version, "{saved:#}");
        }
        let loaded = run("load_artifact", json!({"name": "report.md", "path": "back.md"})).await?;
        ensure!(loaded["status"] == "succeeded", "{loaded:#}");
        ensure!(client.bash(session, "cat back.md").await?["result"]["structured"]["stdout"] == "# Two");
        let missing = run("save_artifact", json!({"path": "nowhere"})).await?;
        ensure!(missing["error"]["code"] == "path_not_found", "{missing:#}");
        for path in ["pipe", "/workspace", "/tmp/../etc/passwd"] {
            client.bash(session, "mkfifo pipe 2>/dev/null").await?;
            let refused = run("save_artifact", json!({"path": path, "name": "x"})).await?;
            ensure!(refused["status"] == "failed", "{refused:#}");
        }

        // What a result does not show is kept whole.
        let long = run("bash", json!({"command": "seq 1 200000; echo oops >&2"})).await?;
        let whole = long["result"]["truncated"]["artifact_id"].as_str().context("an artifact")?.to_owned();
        let short = run("bash", json!({"command": "seq 1 10"})).await?;
        ensure!(short["result"]["truncated"].is_null(), "{short:#}");

        client.delete(&format!("/v1/sessions/{session}")).await?.expect(202)?;
        let ended = wait::session(client, session, |session| session["status"] == "ended");
        tokio::time::timeout(std::time::Duration::from_secs(60), ended)
            .await
            .context("the session ends")??;
        let about = client.get(&format!("/v1/artifacts/{whole}")).await?.expect(200)?;
        ensure!(about["kind"] == "output" && about["size_bytes"] == 1_288_895 + 5, "{about:#}");
        let listed =
            client.get(&format!("/v1/artifacts?session_id={session}&versions=latest")).await?.expect(200)?;
        ensure!(listed["data"].as_array().is_some_and(|all| all.len() == 3), "{listed:#}");
        let link = client.post(&format!("/v1/artifacts/{whole}/links"), &json!({})).await?.expect(201)?;
        let url = format!("{}{}", host.base, link["url"].as_str().context("a URL")?);
        let http = reqwest::Client::builder().no_proxy().build()?;
        let text = http.get(&url).send().await?.error_for_status()?.text().await?;
        ensure!(text.starts_with("1\n2\n3\n") && text.contains("\n200000\n") && text.contains("oops\n"));
        let tail = http.get(&url).header("range", "bytes=-5").send().await?;
        ensure!(tail.status() == 206 && tail.text().await?.len() == 5);
        // The bytes are where the installation keeps them, under the tenant's name.
        let folders = std::fs::read_dir(host.folder().join("artifacts"))?.count();
        ensure!(folders == 1, "{folders} folders");
        Ok(())
    })
    .await;
}
