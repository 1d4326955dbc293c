//! Each tool on a real sandbox: what its schema promises, and what goes wrong with words that help.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host};

/// Runs a tool that must succeed; its structured output.
async fn done(client: &Client, session: &str, tool: &str, arguments: Value) -> Result<Value> {
    let call = client.run(session, tool, arguments).await?;
    ensure!(call["status"] == "succeeded", "{tool}: {call:#}");
    Ok(call["result"]["structured"].clone())
}

/// Runs a tool that must fail; the code of its error.
async fn refused(client: &Client, session: &str, tool: &str, arguments: Value) -> Result<String> {
    let call = client.run(session, tool, arguments).await?;
    ensure!(call["status"] == "failed", "{tool}: {call:#}");
    Ok(call["error"]["code"].as_str().context("a code")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn bash_takes_directory_environment_and_input() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({"env": {"FROM_SESSION": "s"}})).await?;
        let out = done(
            &client,
            &session,
            "bash",
            json!({
                "command": "pwd; echo $FROM_SESSION$FROM_CALL; cat; whoami; echo $HOME",
                "cwd": "/tmp", "env": {"FROM_CALL": "c"}, "stdin": "typed\n",
            }),
        )
        .await?;
        let text = out["stdout"].as_str().context("stdout")?;
        ensure!(text.starts_with("/tmp\nsc\ntyped\n"), "{text}");
        let out =
            done(&client, &session, "Bash", json!({"command": "echo $0 alias", "timeout": 60_000})).await?;
        ensure!(out["stdout"].as_str().is_some_and(|text| text.contains("alias")), "{out}");
        let out = done(&client, &session, "bash", json!({"command": "kill -9 $$"})).await?;
        ensure!(out["signal"] == "SIGKILL", "{out}");
        // What a command leaves running is ended with it, and the result says so.
        let call = client.bash(&session, "sleep 4244 & echo started").await?;
        ensure!(call["result"]["exit_code"] == 0, "{call:#}");
        let out =
            done(&client, &session, "bash", json!({"command": "pgrep -f 'sleep 4244' || echo none"})).await?;
        ensure!(out["stdout"] == "none\n", "{out}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_live_beyond_their_call_and_answer() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let started = done(&client, &session, "bash", json!({
            "command": "echo ready; while read line; do echo got $line; done; echo over", "background": true,
        })).await?;
        let shell = started["shell_id"].as_str().context("a shell")?.to_owned();
        let first =
            done(&client, &session, "bash_output", json!({"shell_id": shell, "wait_ms": 30_000})).await?;
        ensure!(first.to_string().contains("ready"), "{first}");

        done(&client, &session, "bash_input", json!({"shell_id": shell, "stdin": "one"})).await?;
        let next = first["next_offset"].clone();
        let second = done(
            &client,
            &session,
            "bash_output",
            json!({"shell_id": shell, "since_offset": next, "wait_ms": 30_000}),
        )
        .await?;
        ensure!(second.to_string().contains("got one") && !second.to_string().contains("ready"), "{second}");
        let again = done(&client, &session, "bash_output", json!({"shell_id": shell})).await?;
        ensure!(again.to_string().contains("ready"), "reading takes nothing away: {again}");

        let listed = done(&client, &session, "list_bash", json!({"status": "running"})).await?;
        ensure!(listed["shells"][0]["shell_id"] == shell.as_str(), "{listed}");
        let killed = done(&client, &session, "kill_bash", json!({"shell_id": shell})).await?;
        ensure!(killed.to_string().contains("SIG") || killed.to_string().contains("exit"), "{killed}");
        let listed = done(&client, &session, "list_bash", json!({"status": "running"})).await?;
        ensure!(listed["shells"] == json!([]), "{listed}");
        ensure!(
            refused(&client, &session, "bash_input", json!({"shell_id": shell, "stdin": "x"})).await?
                == "shell_ended"
        );
        let nowhere = "shell_06b2m8j0v5x3t9q7k1h4c8n2rg";
        let code = refused(&client, &session, "bash_output", json!({"shell_id": nowhere})).await?;
        ensure!(code == "shell_not_found", "{code}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_may_move_to_the_background() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let quick =
            done(&client, &session, "bash", json!({"command": "echo quick", "background_after_ms": 20_000}))
                .await?;
        ensure!(quick["shell_id"].is_null() && quick["stdout"] == "quick\n", "{quick}");
        let slow = done(
            &client,
            &session,
            "bash",
            // Long after it has written: what comes later is in the log alone.
            json!({"command": "echo slow; sleep 4245", "background_after_ms": 10_000}),
        )
        .await?;
        let shell = slow["shell_id"].as_str().context("became a shell")?;
        ensure!(slow["stdout"] == "slow\n", "{slow}");
        let log = done(&client, &session, "bash_output", json!({"shell_id": shell})).await?;
        ensure!(log.to_string().contains("slow"), "one log from the start: {log}");
        done(&client, &session, "kill_bash", json!({"shell_id": shell})).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_read_and_listed() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let written = done(
            &client,
            &session,
            "write_file",
            json!({"path": "src/a.txt", "content": "one\ntwo\nthree\n"}),
        )
        .await?;
        ensure!(written["created"] == true && written["bytes"] == 14, "{written}");
        let read = done(
            &client,
            &session,
            "read_file",
            json!({"path": "/workspace/src/a.txt", "offset": 2, "limit": 1}),
        )
        .await?;
        ensure!(
            read["content"] == "two\n" && read["truncated"] == true && read["next_offset"] == 3,
            "{read}"
        );
        let whole = done(&client, &session, "read_file", json!({"path": "src/a.txt"})).await?;
        ensure!(whole["sha256"] == written["sha256"] && whole["total_lines"] == 3, "{whole}");
        let range = done(
            &client,
            &session,
            "read_file",
            json!({"path": "src/a.txt", "byte_range": {"start": 4, "end": 7}}),
        )
        .await?;
        ensure!(range["content"] == "two", "{range}");

        done(
            &client,
            &session,
            "write_file",
            json!({"path": "src/a.txt", "content": "four\n", "mode": "append"}),
        )
        .await?;
        done(
            &client,
            &session,
            "write_file",
            json!({"path": "bin/run", "content": "#!/bin/sh\necho ran\n", "permissions": "0755"}),
        )
        .await?;
        let ran = done(
            &client,
            &session,
            "bash",
            json!({"command": "wc -l < src/a.txt; bin/run; stat -c %U bin/run; whoami"}),
        )
        .await?;
        let lines: Vec<_> = ran["stdout"].as_str().context("stdout")?.lines().collect();
        ensure!(lines[..2] == ["4", "ran"] && lines[2] == lines[3], "{ran}");

        done(
            &client,
            &session,
            "bash",
            json!({"command": "mkdir -p .git skip; echo skip/ > .gitignore; touch skip/x .hidden"}),
        )
        .await?;
        let listed = done(&client, &session, "list_files", json!({"recursive": true})).await?;
        let text = listed.to_string();
        ensure!(
            text.contains("src/a.txt") && !text.contains("skip/x") && !text.contains(".hidden"),
            "{listed}"
        );
        let all = done(
            &client,
            &session,
            "list_files",
            json!({"recursive": true, "include_hidden": true, "respect_ignore": false}),
        )
        .await?;
        ensure!(all.to_string().contains("skip/x") && all.to_string().contains(".hidden"), "{all}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_tools_refuse_with_a_code() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let client = &client;
        let session = session.as_str();
        client.bash(session, "mkfifo pipe; mkdir folder; ln -s /etc/passwd link; head -c 64 /dev/urandom > binary; echo here > there").await?;
        for (tool, arguments, codes) in [
            ("read_file", json!({"path": "missing"}), &["path_not_found"][..]),
            ("read_file", json!({"path": "folder"}), &["is_directory"]),
            ("read_file", json!({"path": "pipe"}), &["not_regular_file"]),
            ("read_file", json!({"path": "binary"}), &["binary_file"]),
            ("read_file", json!({"path": "link"}), &["path_outside_workspace", "path_not_found", "permission_denied"]),
            ("write_file", json!({"path": "there", "content": "x", "mode": "create_new"}), &["already_exists"]),
            ("write_file", json!({"path": "there", "content": "x", "expected_sha256": "0".repeat(64)}), &["stale_read"]),
            ("list_files", json!({"path": "there"}), &["not_directory"]),
            ("list_files", json!({"path": "nowhere"}), &["path_not_found"]),
        ] {
            let code = refused(client, session, tool, arguments.clone()).await?;
            ensure!(codes.contains(&code.as_str()), "{tool} {arguments}: {code}");
        }
        for path in ["/etc/passwd", "../up", "/workspace/../etc/passwd", "/proc/self/environ"] {
            let body = json!({"tool": "read_file", "arguments": {"path": path}, "wait_ms": 60_000});
            let reply = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?;
            let text = reply.json().to_string();
            ensure!(reply.status == 422 || text.contains("path_outside_workspace"), "{path}: {text}");
            ensure!(!text.contains("root:"), "{path}: {text}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalogue_describes_them_in_every_dialect() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let listed = client.get("/v1/tools").await?.expect(200)?;
        let mut names: Vec<_> = listed["data"]
            .as_array()
            .context("data")?
            .iter()
            .filter_map(|tool| tool["name"].as_str())
            .collect();
        names.sort_unstable();
        let all = [
            "bash",
            "bash_input",
            "bash_output",
            "delete_directory",
            "delete_file",
            "edit_file",
            "glob",
            "grep",
            "kill_bash",
            "list_artifacts",
            "list_bash",
            "list_files",
            "load_artifact",
            "node_execute",
            "python_execute",
            "read_document",
            "read_file",
            "read_output",
            "run_lint",
            "run_tests",
            "save_artifact",
            "str_replace_editor",
            "undo_edit",
            "wait",
            "write_file",
        ];
        ensure!(names == all, "{names:?}");
        let one = client.get("/v1/tools/bash").await?.expect(200)?;
        ensure!(one["input_schema"]["properties"]["command"].is_object(), "{one:#}");
        for format in ["openai", "anthropic", "mcp"] {
            let shaped = client.get(&format!("/v1/tools?format={format}")).await?.expect(200)?;
            ensure!(shaped.to_string().contains("python_execute"), "{format}: {shaped:#}");
        }
        let shells = client.get("/v1/tools?toolkit=shell").await?.expect(200)?;
        ensure!(!shells.to_string().contains("\"read_file\""), "{shells:#}");
        // By words: all of them, in whatever case, in names, other names, titles and descriptions.
        for (query, found) in [
            ("q=SHELLSTART", json!(["bash"])),
            ("toolkit=files&q=atomic%20WRITE", json!(["write_file"])),
            ("toolkit=shell&q=atomic%20write", json!([])),
            ("q=no+such+words", json!([])),
        ] {
            let listed = client.get(&format!("/v1/tools?{query}")).await?.expect(200)?;
            let names: Vec<_> =
                listed["data"].as_array().context("data")?.iter().map(|tool| &tool["name"]).collect();
            ensure!(json!(names) == found, "{query}: {names:?}");
        }
        let shaped = client.get("/v1/tools?format=openai&q=SHELLSTART").await?.expect(200)?;
        ensure!(shaped["data"].as_array().is_some_and(|tools| tools.len() == 1), "{shaped:#}");
        client.get("/v1/tools/no_such").await?.problem(404, "not_found")?;
        Ok(())
    })
    .await;
}
