//! What callers get wrong about commands, code and artifacts, tool by tool: a stable code, a sentence, and a session as it was.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use tests::{Client, Host};

use super::bad_files::{manifest, refused};

const PREPARE: &str = "mkdir -p dir/sub shut; chmod 000 shut; echo text > text; mkfifo pipe; ln -s /etc out; ln -s loop loop; \
    printf 'a\\0b' > binary; truncate -s 300M vast; echo made";

const ARGUMENTS: &str = "invalid_arguments";
const OUTSIDE: &str = "path_outside_workspace";
const NOT_STARTED: &str = "start_failed";
/// Ids of what never was.
const NO_SHELL: &str = "shell_00000000000000000000000000";
const NO_CALL: &str = "call_00000000000000000000000000";
const NO_CONTEXT: &str = "ctx_00000000000000000000000000";
const NO_ARTIFACT: &str = "art_00000000000000000000000000";

type Case = (&'static str, Value, &'static str);

/// Every tool that starts something in a directory, in what is none that it may be in.
fn directories() -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, wanted) in [
        ("none", NOT_STARTED),
        ("text", NOT_STARTED),
        ("text/below", NOT_STARTED),
        ("loop", NOT_STARTED),
        ("shut", NOT_STARTED),
        ("/etc", OUTSIDE),
        ("../etc", OUTSIDE),
        ("", ARGUMENTS),
    ] {
        for (tool, name, other) in [
            ("bash", "cwd", json!({"command": "echo no > made"})),
            ("bash", "cwd", json!({"command": "echo no > made", "background": true})),
            ("bash", "cwd", json!({"command": "echo no > made", "shell": "main"})),
            ("python_execute", "cwd", json!({"code": "open('made', 'w')"})),
            ("python_execute", "cwd", json!({"code": "open('made', 'w')", "context": "main"})),
            ("node_execute", "cwd", json!({"code": "require('fs').writeFileSync('made', '')"})),
            ("run_tests", "path", json!({})),
            ("run_tests", "path", json!({"command": "echo no > made"})),
            ("run_lint", "path", json!({})),
            ("run_lint", "path", json!({"command": "echo no > made"})),
        ] {
            let mut arguments = other;
            arguments[name] = place.into();
            cases.push((tool, arguments, wanted));
        }
    }
    cases
}

fn shells() -> Vec<Case> {
    const NO: &str = "shell_not_found";
    vec![
        ("bash", json!({}), ARGUMENTS),
        ("bash", json!({"command": ""}), ARGUMENTS),
        ("bash", json!({"command": " \n"}), ARGUMENTS),
        ("bash", json!({"command": 7}), ARGUMENTS),
        ("bash", json!({"command": "true", "cwd": 7}), ARGUMENTS),
        ("bash", json!({"command": "true", "env": {"A=B": "c"}}), ARGUMENTS),
        ("bash", json!({"command": "true", "env": {"A": 7}}), ARGUMENTS),
        ("bash", json!({"command": "true", "stdin": 7}), ARGUMENTS),
        ("bash", json!({"command": "true", "background": true, "background_after_ms": 5}), ARGUMENTS),
        ("bash", json!({"command": "true", "shell_timeout_ms": 5}), ARGUMENTS),
        ("bash", json!({"command": "true", "restart": true}), ARGUMENTS),
        ("bash", json!({"command": "true", "shell": "a b"}), ARGUMENTS),
        ("bash", json!({"command": "true", "shell": "main", "pty": {}}), ARGUMENTS),
        ("bash", json!({"command": "true", "shell": "main", "env": {"A": "b"}}), ARGUMENTS),
        ("bash", json!({"command": "true", "pty": {"rows": 0}}), ARGUMENTS),
        ("bash", json!({"command": "true", "pty": {"term": "a b"}}), ARGUMENTS),
        ("bash", json!({"command": "true", "nope": 1}), ARGUMENTS),
        ("bash", json!({"command": "a\0b"}), "malformed_json"),
        ("bash_output", json!({}), ARGUMENTS),
        ("bash_output", json!({"shell_id": 7}), ARGUMENTS),
        ("bash_output", json!({"shell_id": "shell_x"}), ARGUMENTS),
        ("bash_output", json!({"shell_id": "a b"}), ARGUMENTS),
        ("bash_output", json!({"shell_id": "none", "filter": "("}), ARGUMENTS),
        ("bash_output", json!({"shell_id": "none", "max_bytes": 0}), ARGUMENTS),
        ("bash_output", json!({"shell_id": "none", "since_offset": -1}), ARGUMENTS),
        ("bash_output", json!({"shell_id": "none", "wait_ms": 60_001}), ARGUMENTS),
        ("bash_output", json!({"shell_id": "none"}), NO),
        ("bash_output", json!({"shell_id": NO_SHELL}), NO),
        ("bash_input", json!({"shell_id": "none"}), ARGUMENTS),
        ("bash_input", json!({"shell_id": "none", "signal": "NOPE"}), ARGUMENTS),
        ("bash_input", json!({"shell_id": "none", "stdin": 7}), ARGUMENTS),
        ("bash_input", json!({"shell_id": "none", "stdin": "x"}), NO),
        ("bash_input", json!({"shell_id": NO_SHELL, "signal": "INT"}), NO),
        ("kill_bash", json!({}), ARGUMENTS),
        ("kill_bash", json!({"shell_id": "none", "grace_ms": 30_001}), ARGUMENTS),
        ("kill_bash", json!({"shell_id": "none"}), NO),
        ("kill_bash", json!({"shell_id": NO_SHELL}), NO),
        ("list_bash", json!({"status": "asleep"}), ARGUMENTS),
        ("read_output", json!({}), ARGUMENTS),
        ("read_output", json!({"call_id": "x"}), ARGUMENTS),
        ("read_output", json!({"call_id": NO_CALL, "pattern": "("}), ARGUMENTS),
        ("read_output", json!({"call_id": NO_CALL, "first_line": 0}), ARGUMENTS),
        ("read_output", json!({"call_id": NO_CALL, "first_line": 5, "last_line": 4}), ARGUMENTS),
        ("read_output", json!({"call_id": NO_CALL, "stream": "stdin"}), ARGUMENTS),
        ("read_output", json!({"call_id": NO_CALL}), "call_not_found"),
        ("wait", json!({}), ARGUMENTS),
        ("wait", json!({"seconds": -1}), ARGUMENTS),
        ("wait", json!({"seconds": 3_601}), ARGUMENTS),
        ("wait", json!({"until": {}}), ARGUMENTS),
        ("wait", json!({"until": {"shell_id": NO_SHELL, "call_id": NO_CALL}}), ARGUMENTS),
        ("wait", json!({"until": {"shell_id": "a b"}}), ARGUMENTS),
        ("wait", json!({"until": {"shell_id": NO_SHELL}}), NO),
        ("wait", json!({"until": {"call_id": NO_CALL}}), "call_not_found"),
    ]
}

fn code() -> Vec<Case> {
    vec![
        ("python_execute", json!({}), ARGUMENTS),
        ("python_execute", json!({"code": ""}), ARGUMENTS),
        ("python_execute", json!({"code": 7}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "args": "x"}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "env": {"1A": "x"}}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "timeout": 5}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "packages": ["./x"]}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "packages": ["--index-url x"]}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "context": "a\nb"}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "context": "a", "context_id": NO_CONTEXT}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "context_id": "x"}), ARGUMENTS),
        ("python_execute", json!({"code": "1", "context_id": NO_CONTEXT}), "context_not_found"),
        ("node_execute", json!({}), ARGUMENTS),
        ("node_execute", json!({"code": ""}), ARGUMENTS),
        ("node_execute", json!({"code": "1", "args": "x"}), ARGUMENTS),
        ("node_execute", json!({"code": "1", "typescript": "yes"}), ARGUMENTS),
        ("node_execute", json!({"code": "1", "dependencies": ["../x"]}), ARGUMENTS),
        ("node_execute", json!({"code": "1", "dependencies": ["git+ssh://x"]}), ARGUMENTS),
        ("node_execute", json!({"code": "1", "dependencies": ["no-such-package-4271"]}), "network_required"),
        ("run_tests", json!({"path": 7}), ARGUMENTS),
        ("run_tests", json!({"command": ""}), ARGUMENTS),
        ("run_tests", json!({"path": "dir"}), NOT_STARTED),
        ("run_lint", json!({"path": 7}), ARGUMENTS),
        ("run_lint", json!({"command": ""}), ARGUMENTS),
        ("run_lint", json!({"path": "dir"}), NOT_STARTED),
    ]
}

/// There is a text `kept` of four bytes and one `bytes` that is none.
fn artifacts() -> Vec<Case> {
    const NO: &str = "artifact_not_found";
    vec![
        ("save_artifact", json!({}), ARGUMENTS),
        ("save_artifact", json!({"name": "x"}), ARGUMENTS),
        ("save_artifact", json!({"content": "x"}), ARGUMENTS),
        ("save_artifact", json!({"name": "x", "content": "x", "path": "text"}), ARGUMENTS),
        ("save_artifact", json!({"name": "", "content": "x"}), ARGUMENTS),
        ("save_artifact", json!({"name": "a\nb", "content": "x"}), ARGUMENTS),
        ("save_artifact", json!({"name": "x", "content": 7}), ARGUMENTS),
        ("save_artifact", json!({"name": "x", "content_base64": "***"}), ARGUMENTS),
        ("save_artifact", json!({"name": "x", "content": "x", "kind": "song"}), ARGUMENTS),
        ("save_artifact", json!({"name": "x", "content": "x", "mime_type": "none"}), ARGUMENTS),
        ("save_artifact", json!({"name": "x", "content": "x", "metadata": {"": "x"}}), ARGUMENTS),
        ("save_artifact", json!({"path": "."}), ARGUMENTS),
        ("save_artifact", json!({"path": ""}), ARGUMENTS),
        ("save_artifact", json!({"path": "none"}), "path_not_found"),
        ("save_artifact", json!({"path": "dir"}), "is_directory"),
        ("save_artifact", json!({"path": "text/below"}), "not_directory"),
        ("save_artifact", json!({"path": "pipe"}), "not_regular_file"),
        ("save_artifact", json!({"path": "shut/x"}), "permission_denied"),
        ("save_artifact", json!({"path": "loop"}), "invalid_path"),
        ("save_artifact", json!({"path": "out/passwd"}), OUTSIDE),
        ("save_artifact", json!({"path": "/etc/passwd"}), OUTSIDE),
        ("save_artifact", json!({"path": "vast"}), "file_too_large"),
        ("load_artifact", json!({}), ARGUMENTS),
        ("load_artifact", json!({"name": "kept", "artifact_id": NO_ARTIFACT}), ARGUMENTS),
        ("load_artifact", json!({"artifact_id": "x"}), ARGUMENTS),
        ("load_artifact", json!({"artifact_id": NO_ARTIFACT, "version": 1}), ARGUMENTS),
        ("load_artifact", json!({"name": "kept", "version": 0}), ARGUMENTS),
        ("load_artifact", json!({"name": "kept", "offset": 5}), ARGUMENTS),
        ("load_artifact", json!({"name": "kept", "path": ""}), ARGUMENTS),
        ("load_artifact", json!({"name": "none"}), NO),
        ("load_artifact", json!({"name": "kept", "version": 2}), NO),
        ("load_artifact", json!({"artifact_id": NO_ARTIFACT}), NO),
        ("load_artifact", json!({"name": "bytes"}), "binary_file"),
        ("load_artifact", json!({"name": "kept", "path": "dir"}), "is_directory"),
        ("load_artifact", json!({"name": "kept", "path": "."}), "is_directory"),
        ("load_artifact", json!({"name": "kept", "path": "text/below"}), "not_directory"),
        ("load_artifact", json!({"name": "kept", "path": "pipe"}), "not_regular_file"),
        ("load_artifact", json!({"name": "kept", "path": "shut/x"}), "permission_denied"),
        ("load_artifact", json!({"name": "kept", "path": "out/x"}), OUTSIDE),
        ("load_artifact", json!({"name": "kept", "path": "/etc/x"}), OUTSIDE),
        ("list_artifacts", json!({"name": ""}), ARGUMENTS),
        ("list_artifacts", json!({"kind": "song"}), ARGUMENTS),
        ("list_artifacts", json!({"limit": 0}), ARGUMENTS),
    ]
}

/// What of a session its tools show beside its files.
async fn kept(client: &Client, session: &str) -> Result<Value> {
    let artifacts = client.run(session, "list_artifacts", json!({"all_versions": true})).await?;
    let shells = client.run(session, "list_bash", json!({})).await?;
    Ok(json!([artifacts["result"]["structured"], shells["result"]["structured"]]))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_other_tool_names_what_is_wrong_and_changes_nothing() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        ensure!(client.stdout(session, PREPARE).await? == "made\n");
        for artifact in
            [json!({"name": "kept", "content": "text"}), json!({"name": "bytes", "content_base64": "AP8="})]
        {
            let saved = client.run(session, "save_artifact", artifact).await?;
            ensure!(saved["status"] == "succeeded", "{saved:#}");
        }
        let shell = client.run(session, "bash", json!({"command": "true", "background": true})).await?;
        let shell = shell["result"]["structured"]["shell_id"].as_str().context("a shell")?.to_owned();
        client.run(session, "wait", json!({"until": {"shell_id": shell}})).await?;

        let before = (manifest(client, session).await?, kept(client, session).await?);
        let ended: Vec<Case> = vec![
            ("bash_input", json!({"shell_id": shell, "stdin": "x"}), "shell_ended"),
            ("bash_input", json!({"shell_id": shell, "close": true}), "shell_ended"),
            ("bash_input", json!({"shell_id": shell, "signal": "INT"}), "shell_ended"),
            // That is how it should be.
            ("kill_bash", json!({"shell_id": shell}), "none"),
        ];
        let cases: Vec<Case> = [directories(), shells(), code(), artifacts(), ended].concat();
        ensure!(cases.len() >= 200, "{}", cases.len());
        let mut wrong = Vec::new();
        for (tool, arguments, wanted) in &cases {
            let code = refused(client, session, tool, arguments).await?;
            if code != *wanted {
                wrong.push(format!("{tool} {arguments}: {code}, not {wanted}"));
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        let after = (manifest(client, session).await?, kept(client, session).await?);
        ensure!(before == after, "{before:#?} {after:#?}");
        for tool in ["python_execute", "node_execute"] {
            let call = client.run(session, tool, json!({"code": "1", "cwd": "none"})).await?;
            let hint = call["error"]["hint"].as_str().context("a hint")?;
            ensure!(hint.contains("`cwd`"), "{call:#}");
        }
        // What an earlier call wrote is no longer kept: that is not as if it had written nothing.
        let wrote = client.bash(session, "echo words").await?;
        let asked = json!({"call_id": wrote["id"]});
        ensure!(refused(client, session, "read_output", &asked).await? == "none");
        let mut postgres = PgConnection::connect(&host.postgres.url()).await?;
        postgres.execute("DELETE FROM output_chunks").await?;
        ensure!(refused(client, session, "read_output", &asked).await? == "events_pruned");
        // And it is as good as ever.
        for (tool, arguments) in [
            ("bash", json!({"command": "true", "shell": "main"})),
            ("python_execute", json!({"code": "1", "context": "main"})),
            ("node_execute", json!({"code": "1"})),
        ] {
            let call = client.run(session, tool, arguments).await?;
            ensure!(call["status"] == "succeeded", "{call:#}");
        }
        Ok(())
    })
    .await;
}
