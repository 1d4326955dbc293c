//! One table of paths that mean harm, tried on every way to name a file: each route and each tool.

use anyhow::{Context, Result, ensure};
use reqwest::Body;
use serde_json::{Value, json};
use tests::{Client, Host};

use super::http_files::Files;

/// What a tenant's own code may prepare.
const PREPARE: &str = "mkdir -p d/deep; echo kept > d/kept; mkfifo fifo; ln -s / root; ln -s ../../../../etc up; ln -s /proc/self/root self; \
    ln -s /etc/passwd passwd; ln -s ../../../../etc/passwd climbs; ln -s /proc/1/environ environ; ln -s /dev/zero zero; ln -s /etc d/etc; ln -s ../up d/chain; \
    ln -s loop loop; ln -s pong ping; ln -s ping pong; touch closed; chmod 000 closed; mkdir shut; chmod 000 shut; \
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; echo made";

/// What has to become of whoever names a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It leads outside, by its text or by a link on the way.
    Outside,
    /// It is a link that leads outside.
    Link,
    /// It is a strange name of nothing.
    Missing,
    /// It is a pipe or socket.
    Special,
    /// It leads in a circle.
    Circle,
    /// The sandbox's user may not.
    Closed,
    /// It goes on below a file.
    BelowFile,
    /// No filesystem has such a path.
    TooLong,
}

/// The table.
fn paths() -> Vec<(String, Fate)> {
    use Fate::{BelowFile, Circle, Closed, Link, Missing, Outside, Special, TooLong};
    let mut paths: Vec<(String, Fate)> = [
        ("..", Outside),
        ("../", Outside),
        ("../etc/passwd", Outside),
        ("../../../../../../etc/passwd", Outside),
        ("./../etc/passwd", Outside),
        ("d/../../etc/passwd", Outside),
        ("d/deep/../../../etc/shadow", Outside),
        ("d//..//..//etc/passwd", Outside),
        ("/", Outside),
        ("//", Outside),
        ("/etc/passwd", Outside),
        ("//etc//passwd", Outside),
        ("/./etc/passwd", Outside),
        ("/workspace/../etc/passwd", Outside),
        ("/tmp/../etc/passwd", Outside),
        ("/workspacex", Outside),
        ("/workspace.bak/x", Outside),
        ("/tmpx/y", Outside),
        ("/proc/self/environ", Outside),
        ("/proc/1/environ", Outside),
        ("/proc/self/root/etc/passwd", Outside),
        ("/proc/self/fd/0", Outside),
        ("/proc/self/cwd/d/kept", Outside),
        ("/dev/zero", Outside),
        ("/dev/shm/x", Outside),
        ("/dev/fd/0", Outside),
        ("/sys/kernel", Outside),
        ("/run/x", Outside),
        ("/var/tmp/x", Outside),
        ("/root/.ssh/id", Outside),
        ("/.toolhost/agent", Outside),
        ("/.toolhost/link/worker.sock", Outside),
        ("/Workspace/d", Outside),
        ("root/etc/passwd", Outside),
        ("root/proc/1/environ", Outside),
        ("up/passwd", Outside),
        ("up/../etc/passwd", Missing),
        ("self/etc/passwd", Outside),
        ("self/workspace/d/kept", Outside),
        ("d/etc/passwd", Outside),
        ("d/chain/passwd", Outside),
        ("/workspace/root/etc/passwd", Outside),
        ("root", Link),
        ("up", Link),
        ("self", Link),
        ("passwd", Link),
        ("climbs", Link),
        ("environ", Link),
        ("zero", Link),
        ("d/etc", Link),
        ("d/chain", Link),
        ("%2e%2e/%2e%2e/etc/passwd", Missing),
        ("..%2fetc%2fpasswd", Missing),
        ("..%c0%af..%c0%afetc", Missing),
        ("..\\..\\etc\\passwd", Missing),
        ("C:\\windows\\system32", Missing),
        ("\\\\server\\share", Missing),
        ("~/x", Missing),
        ("~root/x", Missing),
        ("$HOME/x", Missing),
        ("file:///etc/passwd", Missing),
        ("\u{ff0e}\u{ff0e}/etc/passwd", Missing),
        ("\u{2025}/etc/passwd", Missing),
        ("d/\u{202e}gpj", Missing),
        (".../x", Missing),
        (". ./x", Missing),
        ("-rf", Missing),
        ("a\nb", Missing),
        ("\u{1b}[31mred", Missing),
        ("fifo", Special),
        ("sock", Special),
        ("d/../fifo", Special),
        ("loop", Circle),
        ("loop/x", Circle),
        ("ping", Circle),
        ("ping/x", Circle),
        ("shut/x", Closed),
        ("d/kept/below", BelowFile),
        ("fifo/below", BelowFile),
    ]
    .map(|(path, fate)| (path.to_owned(), fate))
    .into();
    paths.extend([
        ("n".repeat(300), TooLong),
        ("a/".repeat(2_100), TooLong),
        (format!("d/{}", "é".repeat(200)), TooLong),
    ]);
    paths
}

/// What may be said of it. `None`: whatever is harmless.
fn codes(fate: Fate, does: Does) -> Option<&'static [&'static str]> {
    use Does::{Asks, Lists, Reads, Removes, Writes};
    Some(match (fate, does) {
        (Fate::Outside, Removes | Reads | Lists | Asks) => &["path_outside_workspace"],
        // That a file has no name is said first.
        (Fate::Outside, Writes) => &["path_outside_workspace", "invalid_arguments"],
        (Fate::Link, Removes) | (Fate::Missing, Writes) => return None,
        (Fate::Link, Reads | Lists) => &["path_outside_workspace"],
        (Fate::Link, Writes | Asks) => &["path_outside_workspace", "not_read", "already_exists"],
        (Fate::Missing, Removes | Reads | Lists | Asks) => &["path_not_found"],
        (Fate::Special, Removes) => return None,
        (Fate::Special, Reads) => &["not_regular_file"],
        (Fate::Special, Lists) => &["not_directory", "not_regular_file"],
        (Fate::Special, Writes | Asks) => {
            &["not_regular_file", "not_read", "already_exists", "not_directory"]
        }
        (Fate::Circle, Removes) => return None,
        (Fate::Circle, Reads | Lists | Writes | Asks) => &["invalid_path"],
        (Fate::Closed, Removes | Reads | Lists | Writes | Asks) => &["permission_denied"],
        (Fate::BelowFile, Removes | Reads | Lists | Writes | Asks) => &["not_directory"],
        (Fate::TooLong, Removes | Reads | Lists | Writes | Asks) => {
            &["invalid_path", "invalid_arguments", "path_not_found"]
        }
    })
}

/// What a way of naming a path does there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Reads,
    Lists,
    Writes,
    /// It changes what has to be there.
    Asks,
    Removes,
}

/// Every file tool.
fn tools(path: &str) -> Vec<(&'static str, Does, Value)> {
    vec![
        ("read_file", Does::Reads, json!({"path": path})),
        ("read_document", Does::Reads, json!({"path": path})),
        ("str_replace_editor", Does::Reads, json!({"command": "view", "path": path})),
        ("list_files", Does::Lists, json!({"path": path})),
        ("glob", Does::Lists, json!({"path": path, "pattern": "*"})),
        ("grep", Does::Reads, json!({"path": path, "pattern": "root|kept"})),
        ("write_file", Does::Writes, json!({"path": path, "content": "x"})),
        ("edit_file", Does::Asks, json!({"path": path, "old_string": "root", "new_string": "x"})),
        (
            "str_replace_editor",
            Does::Asks,
            json!({"command": "str_replace", "path": path, "old_str": "root", "new_str": "x"}),
        ),
        ("delete_file", Does::Removes, json!({"path": path})),
        ("delete_directory", Does::Removes, json!({"path": path, "recursive": true, "confirm": path})),
    ]
}

/// Every route, asked once: its status and what it says. What streams says nothing that is a refusal.
async fn routes(files: &Files<'_>, path: &str) -> Result<Vec<(&'static str, Does, u16, Value)>> {
    let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let at = |route: &str| format!("{route}?path={encoded}");
    let mut replies = Vec::new();
    for (what, does, method, url) in [
        ("download", Does::Reads, "GET", at("")),
        ("list", Does::Lists, "GET", at("/list")),
        ("archive", Does::Lists, "GET", at("/archive")),
        ("delete", Does::Removes, "DELETE", at("")),
    ] {
        let reply = files.ask(method, &url, &[], None).await?;
        replies.push((what, does, reply.status, reply.json()));
    }
    for (what, does, method, url, kind, body) in [
        ("upload", Does::Writes, "PUT", at(""), "application/octet-stream", b"x".to_vec()),
        (
            "unpack",
            Does::Writes,
            "PUT",
            at("/archive"),
            "application/x-tar",
            super::http_files::archive_of("f"),
        ),
        (
            "form",
            Does::Writes,
            "POST",
            at(""),
            "multipart/form-data; boundary=XX",
            super::http_files::form_of("f"),
        ),
    ] {
        let reply = files.ask(method, &url, &[("content-type", kind)], Some(body.into())).await?;
        replies.push((what, does, reply.status, reply.json()));
    }
    // A watch that begins is a stream without an end: that it begins is what there is to say of it.
    let watch = files.client.request("GET", &files.url(&at("/watch"))).send().await?;
    let status = watch.status().as_u16();
    let said = if status == 200 { Value::Null } else { watch.json().await? };
    replies.push(("watch", Does::Lists, status, said));
    for (what, does, route, body) in [
        ("mkdir", Does::Writes, "/mkdir", json!({"path": path})),
        ("move to", Does::Writes, "/move", json!({"path": "d/kept", "to": path})),
        ("move from", Does::Removes, "/move", json!({"path": path, "to": "moved"})),
    ] {
        let reply = files.client.post(&files.url(route), &body).await?;
        replies.push((what, does, reply.status, reply.json()));
    }
    Ok(replies)
}

/// The code of a refusal, of one call or of one file of a form too.
fn code(answer: &Value) -> Option<&str> {
    [&answer["code"], &answer["error"]["code"], &answer["data"][0]["error"]["code"]]
        .into_iter()
        .find_map(Value::as_str)
}

fn check(what: &str, path: &str, fate: Fate, does: Does, answer: &Value) -> Result<()> {
    let shown: String = path.chars().take(60).collect();
    let text = answer.to_string();
    ensure!(!text.contains("root:x:0") && !text.contains("nobody:"), "{what} {shown:?} tells: {answer:#}");
    let code = code(answer);
    ensure!(!matches!(code, Some("internal" | "platform_error")), "{what} {shown:?}: {answer:#}");
    if let Some(allowed) = codes(fate, does) {
        let is_fine = code.is_some_and(|code| allowed.contains(&code));
        ensure!(
            is_fine,
            "{what} {shown:?} ({fate:?}, {does:?}): {code:?} is none of {allowed:?}: {answer:#}"
        );
    }
    Ok(())
}

/// Everything that the session may write, and what it may not.
async fn manifest(files: &Files<'_>) -> Result<String> {
    files
        .printed("find /workspace /tmp /etc /dev/shm -xdev -printf '%p %y %s %m\\n' 2>/dev/null | sort")
        .await
}

async fn ask_tools(
    client: &Client,
    session: &str,
    path: &str,
    fate: Fate,
    wrong: &mut Vec<String>,
) -> Result<usize> {
    let tools: Vec<_> = tools(path).into_iter().filter(|(_, does, _)| codes(fate, *does).is_some()).collect();
    let calls: Vec<_> = tools
        .iter()
        .map(|(tool, _, arguments)| json!({"tool": tool, "arguments": arguments, "wait_ms": 60_000}))
        .collect();
    let reply = client.post(&format!("/v1/sessions/{session}/calls/batch"), &json!({"calls": calls})).await?;
    let answer = reply.expect(200)?;
    let data = answer["data"].as_array().context("outcomes")?;
    ensure!(data.len() == tools.len());
    for ((tool, does, _), outcome) in tools.iter().zip(data) {
        let outcome = if outcome["call"].is_null() { &outcome["error"] } else { &outcome["call"] };
        ensure!(outcome["status"] != "running", "{tool} {path:?} hangs: {outcome:#}");
        if let Err(error) = check(tool, path, fate, *does, outcome) {
            wrong.push(error.to_string().chars().take(400).collect());
        }
    }
    Ok(tools.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tool_is_led_astray_by_any_path() {
    Host::test(&[], async |host| {
        let client = host.tenant("attacker")?.client;
        let files = Files::new(&client).await?;
        ensure!(files.printed(PREPARE).await? == "made\n");
        let before = manifest(&files).await?;
        let (mut tried, mut wrong) = (0, Vec::new());
        for (path, fate) in paths() {
            tried += ask_tools(&client, &files.session, &path, fate, &mut wrong).await?;
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        ensure!(tried >= 700, "{tried}");
        let after = manifest(&files).await?;
        ensure!(before == after, "{}", difference(&before, &after));
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_is_led_astray_by_any_path() {
    Host::test(&[], async |host| {
        let client = host.tenant("attacker")?.client;
        let mut files = Files::new(&client).await?;
        ensure!(files.printed(PREPARE).await? == "made\n");
        let before = manifest(&files).await?;
        ensure!(paths().len() >= 60);
        let mut tried = 0;
        for (path, fate) in paths()
            .into_iter()
            .filter(|(_, fate)| !matches!(fate, Fate::Missing | Fate::Link | Fate::Special | Fate::Circle))
        {
            for (what, does, status, said) in routes(&files, &path).await? {
                ensure!(status < 500, "{what} {path:?}: {status}");
                check(what, &path, fate, does, &said)?;
                tried += 1;
            }
        }
        let after = manifest(&files).await?;
        ensure!(before == after, "{}", difference(&before, &after));
        // What may be removed or made is tried where nothing else depends on it.
        files = Files::new(&client).await?;
        for (path, fate) in paths()
            .into_iter()
            .filter(|(_, fate)| matches!(fate, Fate::Missing | Fate::Link | Fate::Special | Fate::Circle))
        {
            files
                .printed(&format!("chmod 700 shut 2>/dev/null; find . -mindepth 1 -delete; {PREPARE}"))
                .await?;
            let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
            // What a way of naming it makes or removes is not there, or there, for those behind it.
            let upload = ("upload", Does::Writes, "PUT", "");
            let delete = ("delete", Does::Removes, "DELETE", "");
            let last = if fate == Fate::Missing { [delete, upload] } else { [upload, delete] };
            let first = [
                ("download", Does::Reads, "GET", ""),
                ("list", Does::Lists, "GET", "/list"),
                ("archive", Does::Lists, "GET", "/archive"),
                ("watch", Does::Lists, "GET", "/watch"),
            ];
            for (what, does, method, route) in first.into_iter().chain(last) {
                let body = (method == "PUT").then(|| Body::from("x"));
                let reply = files.ask(method, &format!("{route}?path={encoded}"), &[], body).await?;
                ensure!(reply.status < 500, "{what} {path:?}: {}", reply.status);
                let answer = if reply.status < 400 { Value::Null } else { reply.json() };
                check(what, &path, fate, does, &answer)?;
                tried += 1;
            }
        }
        ensure!(tried >= 600, "{tried}");
        let whole = "test -s /etc/passwd && test -c /dev/zero && test ! -e /etc/x && echo whole";
        ensure!(files.printed(whole).await? == "whole\n");
        Ok(())
    })
    .await;
}

fn difference(before: &str, after: &str) -> String {
    let (before, after): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let gone = before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}"));
    let new = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(new).collect::<Vec<_>>().join("\n")
}
