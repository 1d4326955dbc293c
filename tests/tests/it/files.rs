//! The files toolkit through the public API, on real sandboxes: editing, undoing, finding, removing, and what attacks make of it.

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
async fn a_file_is_read_before_it_is_changed_and_changes_are_taken_back() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        client
            .stdout(session, r"printf '\xef\xbb\xbfone\r\n\ttwo\r\nthree' > a.txt; chmod 750 a.txt")
            .await?;
        let edit = json!({"path": "a.txt", "old_string": "two\nthree", "new_string": "2\n$&"});
        ensure!(refused(client, session, "edit_file", edit.clone()).await? == "not_read");
        ensure!(
            refused(client, session, "write_file", json!({"path": "a.txt", "content": "x"})).await?
                == "not_read"
        );
        done(client, session, "read_file", json!({"path": "a.txt"})).await?;
        client.stdout(session, "printf '!' >> a.txt").await?;
        ensure!(refused(client, session, "edit_file", edit.clone()).await? == "stale_read");
        done(client, session, "read_file", json!({"path": "a.txt"})).await?;
        let edited = done(client, session, "edit_file", edit).await?;
        ensure!(edited["replacements"] == 1 && edited["diff"].to_string().contains("+\\t2"), "{edited}");
        let shown = client
            .stdout(session, "od -An -v -tx1 a.txt | tr -d ' \\n'; echo; find a.txt -printf '%m\\n'")
            .await?;
        ensure!(shown == "efbbbf6f6e650d0a09320d0a242621\n750\n", "{shown}");
        // What the session wrote itself, it may change again; another session has to read it.
        done(client, session, "Edit", json!({"file_path": "a.txt", "old_string": "one", "new_string": "1"}))
            .await?;
        done(client, session, "undo_edit", json!({"path": "a.txt", "steps": 2})).await?;
        let shown = client
            .stdout(session, "od -An -v -tx1 a.txt | tr -d ' \\n'; find a.txt -printf ' %m\\n'")
            .await?;
        ensure!(shown == "efbbbf6f6e650d0a0974776f0d0a746872656521 750\n", "{shown}");
        ensure!(refused(client, session, "undo_edit", json!({"path": "a.txt"})).await? == "nothing_to_undo");

        // The bits that a change has set go with it; those that somebody else has set stay.
        for (content, permissions) in [("x", json!("0600")), ("y", json!(null)), ("z", json!("0644"))] {
            let mut write = json!({"path": "a.txt", "content": content});
            if !permissions.is_null() {
                write["permissions"] = permissions;
            }
            done(client, session, "write_file", write).await?;
        }
        for (steps, mode) in [(1, "600"), (2, "750")] {
            done(client, session, "undo_edit", json!({"path": "a.txt", "steps": steps})).await?;
            ensure!(client.stdout(session, "stat -c %a a.txt").await? == format!("{mode}\n"), "{steps}");
        }
        done(client, session, "write_file", json!({"path": "a.txt", "content": "w"})).await?;
        client.stdout(session, "chmod 700 a.txt").await?;
        done(client, session, "undo_edit", json!({"path": "a.txt"})).await?;
        ensure!(client.stdout(session, "stat -c %a a.txt").await? == "700\n");

        let editor = "str_replace_editor";
        let file = "/workspace/new/b.py";
        let create = json!({"command": "create", "path": file, "file_text": "def f():\n    return 1\n"});
        done(client, session, editor, create.clone()).await?;
        ensure!(refused(client, session, editor, create).await? == "already_exists");
        let replace =
            json!({"command": "str_replace", "path": file, "old_str": "return 1", "new_str": "return 2"});
        done(client, session, editor, replace).await?;
        let insert = json!({"command": "insert", "path": file, "insert_line": 0, "new_str": "# f"});
        done(client, session, "textEditor", insert).await?;
        ensure!(client.stdout(session, "cat new/b.py").await? == "# f\ndef f():\n    return 2\n");
        let viewed = client.run(session, editor, json!({"command": "view", "path": "/workspace"})).await?;
        ensure!(viewed["result"]["output"].to_string().contains("b.py"), "{viewed:#}");
        client.stdout(session, "echo >> new/b.py").await?;
        let undo = json!({"command": "undo_edit", "path": file});
        ensure!(refused(client, session, editor, undo.clone()).await? == "stale_read");
        client.stdout(session, "truncate -s -1 new/b.py").await?;
        for _ in 0..3 {
            done(client, session, editor, undo.clone()).await?;
        }
        ensure!(
            client.stdout(session, "cd new && ls").await?.is_empty(),
            "undoing the creation removes the file"
        );

        let other = &client.session(json!({})).await?;
        ensure!(refused(client, other, "undo_edit", json!({"path": "a.txt"})).await? == "nothing_to_undo");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_found_searched_and_removed() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        client
            .stdout(
                session,
                "mkdir -p src/deep skip; echo 'skip/' > .gitignore; echo 'fn main() {}' > src/main.rs; \
             printf 'one\\nTODO: two\\nthree\\n' > src/deep/lib.rs; echo TODO > skip/x.rs; ln -s /etc out; \
             touch -d 2001-01-01 src/main.rs",
            )
            .await?;
        let found = done(client, session, "Glob", json!({"pattern": "**/*.rs"})).await?;
        ensure!(found["paths"] == json!(["/workspace/src/deep/lib.rs", "/workspace/src/main.rs"]), "{found}");
        let searched = json!({"pattern": "todo", "-i": true, "output_mode": "content", "-A": 1});
        let call = client.run(session, "Grep", searched).await?;
        let text = call["result"]["output"].as_str().context("text")?;
        ensure!(
            text == "/workspace/src/deep/lib.rs:2:TODO: two\n/workspace/src/deep/lib.rs-3-three",
            "{call:#}"
        );
        let files =
            done(client, session, "grep", json!({"pattern": ".", "type": "rust", "path": "src"})).await?;
        ensure!(files["results"] == 2 && files["truncated"] == false, "{files}");

        ensure!(refused(client, session, "delete_file", json!({"path": "src"})).await? == "is_directory");
        ensure!(refused(client, session, "delete_directory", json!({"path": "src"})).await? == "not_empty");
        ensure!(
            refused(client, session, "delete_directory", json!({"path": "out"})).await? == "not_directory"
        );
        let everything = json!({"path": ".", "recursive": true, "confirm": "."});
        ensure!(refused(client, session, "delete_directory", everything).await? == "permission_denied");
        let all = json!({"path": "src", "recursive": true, "confirm": "/workspace/src"});
        let removed = done(client, session, "DeleteDirectoryTool", all).await?;
        ensure!(removed["files"] == 2 && removed["directories"] == 2, "{removed}");
        done(client, session, "delete_file", json!({"path": "out"})).await?;
        ensure!(client.stdout(session, "ls; head -c 5 /etc/passwd").await? == "skip\nroot:");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_tool_leaves_the_workspace_or_hangs() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        client.stdout(session,
            "mkdir folder; ln -s /etc/shadow link; ln -s /proc/self proc; ln -s /etc folder/etc; mkfifo pipe; \
             printf 'a\\0b' > binary; truncate -s 100M huge; echo x > file; touch \"$(printf 'bad\\377')\"",
        )
        .await?;
        let outside = ["path_outside_workspace", "path_not_found", "permission_denied", "not_regular_file"];
        for (path, codes) in [
            ("link", &outside[..]),
            ("proc/environ", &outside),
            ("folder/etc/passwd", &outside),
            ("../etc/passwd", &outside),
            ("/proc/1/environ", &outside),
            ("pipe", &["not_regular_file"]),
            ("folder", &["is_directory"]),
            ("binary", &["not_read", "binary_file"]),
            ("huge", &["file_too_large"]),
            ("file/below", &["not_directory"]),
        ] {
            let edit = json!({"path": path, "old_string": "root", "new_string": "x"});
            let code = refused(client, session, "edit_file", edit).await?;
            ensure!(codes.contains(&code.as_str()), "edit_file {path}: {code}");
            if path != "file/below" {
                let code = refused(client, session, "write_file", json!({"path": path, "content": "x"})).await?;
                ensure!(codes.contains(&code.as_str()) || code == "not_read", "write_file {path}: {code}");
            }
        }
        for path in ["link", "proc", "folder/etc", "../etc", "/etc"] {
            let code = refused(client, session, "grep", json!({"pattern": "root", "path": path})).await?;
            ensure!(outside.contains(&code.as_str()), "grep {path}: {code}");
            let code = refused(client, session, "glob", json!({"pattern": "*", "path": path})).await?;
            ensure!(outside.contains(&code.as_str()) || code == "not_directory", "glob {path}: {code}");
        }
        for path in ["folder/etc/passwd", "proc/environ", "../etc/passwd", "/dev/null"] {
            let code = refused(client, session, "delete_file", json!({"path": path})).await?;
            ensure!(outside.contains(&code.as_str()), "delete_file {path}: {code}");
        }
        let searched = done(client, session, "grep", json!({"pattern": "root|x"})).await?;
        ensure!(searched["results"] == 1 && searched["binary_files"] == 2, "{searched}");
        for (tool, arguments) in [
            ("grep", json!({"pattern": "("})),
            ("grep", json!({"pattern": "(?<=a)b"})),
            ("delete_directory", json!({"path": "folder", "recursive": true, "confirm": "file"})),
        ] {
            let body = json!({"tool": tool, "arguments": arguments, "wait_ms": 60_000});
            let reply = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?;
            ensure!(reply.status == 422, "{tool} {arguments}: {}", reply.status);
        }
        let code = refused(client, session, "glob", json!({"pattern": "{a"})).await?;
        ensure!(code == "invalid_arguments", "{code}");
        ensure!(client.stdout(session, "head -c 5 /etc/passwd; cat file").await? == "root:x\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_keeps_the_old_content() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        done(client, session, "write_file", json!({"path": "/tmp/a", "content": "old\n"})).await?;
        client.bash(session, "head -c 10G /dev/zero > /tmp/full").await?;
        let large = "x".repeat(3_000_000);
        let code =
            refused(client, session, "write_file", json!({"path": "/tmp/a", "content": large})).await?;
        ensure!(code == "no_space", "{code}");
        ensure!(client.stdout(session, "cat /tmp/a; cd /tmp && ls").await? == "old\na\nfull\n");
        done(client, session, "delete_file", json!({"path": "/tmp/full"})).await?;
        // The refused change is no change: what it would have replaced is known, and can be edited at once.
        done(
            client,
            session,
            "edit_file",
            json!({"path": "/tmp/a", "old_string": "old", "new_string": "new"}),
        )
        .await?;
        done(client, session, "undo_edit", json!({"path": "/tmp/a"})).await?;
        ensure!(client.stdout(session, "cat /tmp/a").await? == "old\n");
        Ok(())
    })
    .await;
}
