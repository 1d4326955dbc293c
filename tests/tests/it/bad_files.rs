//! What callers get wrong about files, tool by tool: a stable code, a sentence, and a workspace as it was.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host};

const PREPARE: &str = "mkdir -p dir/sub; echo text > text; printf 'a\\0b' > binary; printf 'caf\\351\\n' > latin; truncate -s 100M huge; \
    truncate -s 101M vast.pdf; yes line | head -c 7000000 > long; mkfifo pipe; \
    printf 'x\\nx\\n' > twice; echo one > stale; printf 'not a zip' > broken.docx; printf '%%PDF-1.4 cut' > broken.pdf; echo made";

/// SHA-256 of `binary` and of `latin`.
const BINARY_SHA: &str = "59b271ae1bbcb1d31d41929817f4b16fb439eb4f31520b5ad1d5ce98920a7138";
const LATIN_SHA: &str = "9e4efed0ff1dbcf37240f82e1aad6c763eb9331434d2b394a6441abbbe3634eb";

/// The code of a refusal, whether it is one of the request or of the call, and that it says something.
pub(crate) async fn refused(client: &Client, session: &str, tool: &str, arguments: &Value) -> Result<String> {
    let body = json!({"tool": tool, "arguments": arguments, "wait_ms": 60_000});
    let reply = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?;
    ensure!(reply.status < 500, "{tool} {arguments}: {} {}", reply.status, reply.json());
    let answer = reply.json();
    let (code, says) = match answer["code"].as_str() {
        Some(code) => (code, &answer["detail"]),
        None => (answer["error"]["code"].as_str().unwrap_or("none"), &answer["error"]["message"]),
    };
    ensure!(
        code == "none" || says.as_str().is_some_and(|text| text.len() > 10),
        "{tool} {arguments}: {answer:#}"
    );
    Ok(code.to_owned())
}

/// Name, kind, size and permissions of everything, and the content of what is not large.
pub(crate) async fn manifest(client: &Client, session: &str) -> Result<String> {
    client
        .stdout(
            session,
            "find . -printf '%p %y %s %m\\n' | sort; find . -type f -size -900k | sort | xargs md5sum",
        )
        .await
}

/// Every tool with what may be wrong about its arguments and what it finds.
fn cases() -> Vec<(&'static str, Value, &'static str)> {
    const ARGUMENTS: &str = "invalid_arguments";
    const MISSING: &str = "path_not_found";
    const DIRECTORY: &str = "is_directory";
    const NO_DIRECTORY: &str = "not_directory";
    const BINARY: &str = "binary_file";
    const LARGE: &str = "file_too_large";
    const SPECIAL: &str = "not_regular_file";
    const CLOSED: &str = "permission_denied";
    vec![
        // Wrong types, values and fields.
        ("list_files", json!({"path": 7}), ARGUMENTS),
        ("list_files", json!({"max_depth": "deep"}), ARGUMENTS),
        ("list_files", json!({"limit": -1}), ARGUMENTS),
        ("read_file", json!({"path": []}), ARGUMENTS),
        ("read_file", json!({"path": "text", "offset": "a"}), ARGUMENTS),
        ("read_file", json!({"path": ""}), ARGUMENTS),
        ("write_file", json!({"path": "x", "content": 7}), ARGUMENTS),
        ("write_file", json!({"path": "x"}), ARGUMENTS),
        ("write_file", json!({"path": "x", "content": "x", "mode": "sideways"}), ARGUMENTS),
        ("write_file", json!({"path": "x", "content_base64": "***"}), ARGUMENTS),
        ("edit_file", json!({"path": "text"}), ARGUMENTS),
        ("edit_file", json!({"path": "text", "old_string": 1, "new_string": ""}), ARGUMENTS),
        ("str_replace_editor", json!({"command": "fly", "path": "text"}), ARGUMENTS),
        ("str_replace_editor", json!({"command": "view"}), ARGUMENTS),
        ("undo_edit", json!({"path": "text", "steps": "x"}), ARGUMENTS),
        ("delete_file", json!({"path": {}}), ARGUMENTS),
        ("delete_directory", json!({"path": "dir", "recursive": "x"}), ARGUMENTS),
        ("delete_directory", json!({"path": "dir", "recursive": true, "confirm": "text"}), ARGUMENTS),
        ("glob", json!({"pattern": 7}), ARGUMENTS),
        ("glob", json!({"pattern": "{a"}), ARGUMENTS),
        ("glob", json!({"pattern": "*", "nope": 1}), ARGUMENTS),
        ("grep", json!({}), ARGUMENTS),
        ("grep", json!({"pattern": "("}), ARGUMENTS),
        ("grep", json!({"pattern": "(?<=a)b"}), ARGUMENTS),
        ("grep", json!({"pattern": "a", "glob": "{a"}), ARGUMENTS),
        ("read_file", json!({"path": "text", "byte_range": {"start": 3, "end": 3}}), ARGUMENTS),
        ("read_file", json!({"path": "stale", "offset": 2}), ARGUMENTS),
        ("write_file", json!({"path": "x", "content": "x", "content_base64": "eA=="}), ARGUMENTS),
        ("write_file", json!({"path": "x", "content": "x", "permissions": "0999"}), ARGUMENTS),
        ("edit_file", json!({"path": "text", "old_string": "", "new_string": "x"}), ARGUMENTS),
        ("edit_file", json!({"path": "text", "old_string": "text", "new_string": "text"}), ARGUMENTS),
        ("str_replace_editor", json!({"command": "view", "path": "text", "view_range": [2, 1]}), ARGUMENTS),
        ("undo_edit", json!({"path": "text", "steps": 0}), ARGUMENTS),
        ("glob", json!({"pattern": "*", "limit": 0}), ARGUMENTS),
        ("grep", json!({"pattern": "a", "head_limit": 0}), ARGUMENTS),
        ("read_document", json!({"path": 7}), ARGUMENTS),
        ("read_document", json!({"path": "text", "format": "song"}), ARGUMENTS),
        // Nothing there.
        ("list_files", json!({"path": "none"}), MISSING),
        ("read_file", json!({"path": "none"}), MISSING),
        ("edit_file", json!({"path": "none", "old_string": "a", "new_string": "b"}), MISSING),
        ("str_replace_editor", json!({"command": "view", "path": "none"}), MISSING),
        ("str_replace_editor", json!({"command": "str_replace", "path": "none", "old_str": "a"}), MISSING),
        (
            "str_replace_editor",
            json!({"command": "insert", "path": "none", "insert_line": 0, "new_str": "a"}),
            MISSING,
        ),
        ("write_file", json!({"path": "none", "content": "x", "expected_sha256": BINARY_SHA}), "stale_read"),
        ("undo_edit", json!({"path": "none"}), "nothing_to_undo"),
        ("delete_file", json!({"path": "none"}), MISSING),
        ("delete_directory", json!({"path": "none"}), MISSING),
        ("glob", json!({"path": "none", "pattern": "*"}), MISSING),
        ("grep", json!({"path": "none", "pattern": "a"}), MISSING),
        ("read_document", json!({"path": "none.pdf"}), MISSING),
        // A directory where a file is meant, and the other way round.
        ("read_file", json!({"path": "dir"}), DIRECTORY),
        ("write_file", json!({"path": "dir", "content": "x"}), DIRECTORY),
        ("write_file", json!({"path": "dir/", "content": "x"}), ARGUMENTS),
        ("edit_file", json!({"path": "dir", "old_string": "a", "new_string": "b"}), DIRECTORY),
        ("str_replace_editor", json!({"command": "create", "path": "dir", "file_text": "x"}), DIRECTORY),
        ("delete_file", json!({"path": "dir"}), DIRECTORY),
        ("delete_directory", json!({"path": "dir"}), "not_empty"),
        ("delete_directory", json!({"path": "."}), CLOSED),
        ("delete_directory", json!({"path": ".", "recursive": true, "confirm": "."}), CLOSED),
        ("delete_directory", json!({"path": "/tmp/", "recursive": true, "confirm": "/tmp"}), CLOSED),
        ("read_document", json!({"path": "dir"}), DIRECTORY),
        ("list_files", json!({"path": "text"}), NO_DIRECTORY),
        ("glob", json!({"path": "text", "pattern": "*"}), NO_DIRECTORY),
        ("delete_directory", json!({"path": "text"}), NO_DIRECTORY),
        ("write_file", json!({"path": "text/below", "content": "x"}), NO_DIRECTORY),
        ("read_file", json!({"path": "text/below"}), NO_DIRECTORY),
        // No text, too much of it, and no document.
        ("read_file", json!({"path": "binary"}), BINARY),
        ("str_replace_editor", json!({"command": "view", "path": "binary"}), BINARY),
        ("str_replace_editor", json!({"command": "view", "path": "latin"}), BINARY),
        ("read_file", json!({"path": "latin"}), BINARY),
        (
            "edit_file",
            json!({"path": "binary", "old_string": "a", "new_string": "b", "expected_sha256": BINARY_SHA}),
            BINARY,
        ),
        (
            "edit_file",
            json!({"path": "latin", "old_string": "caf", "new_string": "b", "expected_sha256": LATIN_SHA}),
            BINARY,
        ),
        (
            "edit_file",
            json!({"path": "latin", "old_string": "caf", "new_string": "b", "expected_sha256": BINARY_SHA}),
            "stale_read",
        ),
        ("edit_file", json!({"path": "huge", "old_string": "a", "new_string": "b"}), LARGE),
        ("write_file", json!({"path": "huge", "content": "x", "mode": "append"}), "not_read"),
        ("write_file", json!({"path": "huge", "content": "x", "expected_sha256": BINARY_SHA}), "stale_read"),
        ("read_file", json!({"path": "long", "offset": 5_000_000}), LARGE),
        ("read_document", json!({"path": "vast.pdf"}), LARGE),
        ("read_file", json!({"path": "pipe"}), SPECIAL),
        ("read_document", json!({"path": "pipe"}), SPECIAL),
        ("write_file", json!({"path": "pipe", "content": "x"}), SPECIAL),
        ("edit_file", json!({"path": "pipe", "old_string": "a", "new_string": "b"}), SPECIAL),
        ("grep", json!({"path": "pipe", "pattern": "a"}), SPECIAL),
        ("read_document", json!({"path": "broken.docx"}), "invalid_document"),
        ("read_document", json!({"path": "broken.pdf"}), "invalid_document"),
        ("read_document", json!({"path": "binary"}), "unsupported_document"),
        // Files that were not read, are there already, or have nothing to take back.
        ("write_file", json!({"path": "text", "content": "x"}), "not_read"),
        ("edit_file", json!({"path": "text", "old_string": "text", "new_string": "b"}), "not_read"),
        (
            "write_file",
            json!({"path": "text", "content": "x", "expected_sha256": "0".repeat(64)}),
            "stale_read",
        ),
        ("write_file", json!({"path": "text", "content": "x", "mode": "create_new"}), "already_exists"),
        (
            "str_replace_editor",
            json!({"command": "create", "path": "/workspace/text", "file_text": "x"}),
            "already_exists",
        ),
        ("undo_edit", json!({"path": "text"}), "nothing_to_undo"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_tool_names_what_is_wrong_and_changes_nothing() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        ensure!(client.stdout(session, PREPARE).await? == "made\n");
        let before = manifest(client, session).await?;
        let mut wrong = Vec::new();
        for (tool, arguments, wanted) in cases() {
            let code = refused(client, session, tool, &arguments).await?;
            if code != wanted {
                wrong.push(format!("{tool} {arguments}: {code}, not {wanted}"));
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        // What is no error: as much of a long text as fits, and lines that are no UTF-8, whose other characters are searched.
        let long = client.run(session, "read_file", json!({"path": "long"})).await?;
        let read = &long["result"]["structured"];
        ensure!(read["truncated"] == true && read["size_bytes"] == 7_000_000 && read["next_offset"].is_u64(), "{long:#}");
        let search = json!({"pattern": "^caf", "path": "latin", "output_mode": "content"});
        let found = client.run(session, "grep", search).await?;
        let shown = found["result"]["output"].as_str().context("output")?;
        ensure!(found["result"]["structured"]["results"] == 1 && shown.contains("caf\u{fffd}"), "{found:#}");
        let none = client.run(session, "grep", json!({"pattern": "a", "path": "binary"})).await?;
        ensure!(none["result"]["structured"]["binary_files"] == 1, "{none:#}");
        // What was read and does not fit.
        for path in ["text", "twice", "stale"] {
            let call = client.run(session, "read_file", json!({"path": path})).await?;
            ensure!(call["status"] == "succeeded", "{call:#}");
        }
        client.stdout(session, "echo two > stale").await?;
        let before_edits = manifest(client, session).await?;
        let edit = |path: &str, old: &str| json!({"path": path, "old_string": old, "new_string": "new"});
        let both = json!({"path": "text", "edits": [{"old_string": "text", "new_string": "new"}, {"old_string": "absent", "new_string": "b"}]});
        for (tool, arguments, wanted) in [
            ("edit_file", edit("text", "absent"), "no_match"),
            ("edit_file", edit("twice", "x"), "multiple_matches"),
            ("edit_file", edit("stale", "one"), "stale_read"),
            ("edit_file", both, "no_match"),
            ("write_file", json!({"path": "stale", "content": "x"}), "stale_read"),
            ("str_replace_editor", json!({"command": "str_replace", "path": "text", "old_str": "absent", "new_str": "b"}), "no_match"),
            ("str_replace_editor", json!({"command": "str_replace", "path": "twice", "old_str": "x", "new_str": "b"}), "multiple_matches"),
        ] {
            let code = refused(client, session, tool, &arguments).await?;
            ensure!(code == wanted, "{tool} {arguments}: {code}");
        }
        ensure!(manifest(client, session).await? == before_edits, "refused edits change nothing");
        client.stdout(session, "echo one > stale").await?;
        ensure!(manifest(client, session).await? == before, "nothing else was changed");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_without_room_or_names_keeps_what_it_has() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        let large = "y".repeat(3_000_000);
        client.stdout(session, "seq 1 100000 > old; printf 'a\\n' > small").await?;
        for path in ["old", "small"] {
            client.run(session, "read_file", json!({"path": path})).await?;
        }
        let fill = "fallocate -l $(( $(df --output=avail -B1 . | tail -1) - 1024 * 1024 )) filler; echo full";
        ensure!(client.stdout(session, fill).await? == "full\n");
        let before = manifest(client, session).await?;
        for (tool, arguments) in [
            ("write_file", json!({"path": "small", "content": large})),
            ("write_file", json!({"path": "new", "content": large})),
            ("write_file", json!({"path": "small", "content": large, "mode": "append"})),
            ("edit_file", json!({"path": "small", "old_string": "a", "new_string": large})),
            (
                "str_replace_editor",
                json!({"command": "create", "path": "/workspace/made", "file_text": large}),
            ),
            (
                "str_replace_editor",
                json!({"command": "insert", "path": "/workspace/small", "insert_line": 0, "new_str": large}),
            ),
        ] {
            let code = refused(client, session, tool, &arguments).await?;
            ensure!(code == "no_space", "{tool} {}: {code}", arguments["path"]);
            ensure!(manifest(client, session).await? == before, "{tool} left something");
        }
        // Reading and removing go on, and with room again writing does.
        ensure!(
            client.run(session, "grep", json!({"pattern": "^99999$", "path": "old"})).await?["status"]
                == "succeeded"
        );
        ensure!(
            client.run(session, "delete_file", json!({"path": "filler"})).await?["status"] == "succeeded"
        );
        let written = client.run(session, "write_file", json!({"path": "small", "content": large})).await?;
        ensure!(written["status"] == "succeeded", "{}", written["error"]);
        Ok(())
    })
    .await;
}
