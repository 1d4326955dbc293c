//! What is wrong with code, over the API: an exception's name, value and traceback, and a context that goes on. And what an interpreter
//! has of ours: no descriptor but those that it works with.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host};

async fn run(client: &Client, session: &str, code: &str, context: Option<&str>) -> Result<Value> {
    let mut arguments = json!({"code": code});
    if let Some(context) = context {
        arguments["context"] = context.into();
    }
    let call = client.run(session, "python_execute", arguments).await?;
    ensure!(call["status"] == "succeeded", "{call:#}");
    Ok(call["result"].clone())
}

/// Code that fails, the error's name, its value, what its traceback has, and what it has not.
const WRONG: &[(&str, &str, &str, &[&str])] = &[
    ("x = (", "SyntaxError", "'(' was never closed", &["x = (", "line 1"]),
    ("x = 5\nfor n in 3\n    pass", "SyntaxError", "expected ':'", &["for n in 3", "line 2"]),
    ("x = 5\n  y = 6", "IndentationError", "unexpected indent", &["y = 6", "line 2"]),
    ("x = '''never ended", "SyntaxError", "unterminated triple-quoted string literal", &["line 1"]),
    ("return 1", "SyntaxError", "'return' outside function", &["line 1"]),
    (
        "def f(n):\n    return 1 // n\nf(0)",
        "ZeroDivisionError",
        "integer division or modulo by zero",
        &["Traceback (most recent call last)", "line 3", "f(0)", "line 2, in f", "return 1 // n"],
    ),
    (
        "class Own(Exception): pass\ntry:\n    {}['key']\nexcept KeyError as error:\n    raise Own('first\\nsecond') from error",
        "Own",
        "first\nsecond",
        &["KeyError: 'key'", "The above exception was the direct cause", "line 5"],
    ),
    ("raise ValueError", "ValueError", "", &["raise ValueError"]),
    (
        "import no_such_module",
        "ModuleNotFoundError",
        "No module named 'no_such_module'",
        &["import no_such_module"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_error_has_name_value_and_traceback_and_the_state_is_kept() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        run(client, session, "x = 1", Some("main")).await?;
        let mut executions = 1;
        for (code, name, value, traceback) in WRONG {
            for context in [None, Some("main")] {
                let result = run(client, session, code, context).await?;
                let error = &result["structured"]["error"];
                ensure!(result["is_error"] == true && error["name"] == *name, "{code}: {result:#}");
                let found = error["value"].as_str().context("a value")?;
                // Python adds where a literal begins.
                ensure!(
                    found.starts_with(value) && (found == *value || *name == "SyntaxError"),
                    "{code}: {error:#}"
                );
                let shown = error["traceback"].as_str().context("a traceback")?;
                ensure!(traceback.iter().all(|part| shown.contains(part)), "{code}: {shown}");
                for ours in ["_toolhost", "<string>", "kernel", "in run", "in one"] {
                    ensure!(!shown.contains(ours), "{code}: {shown}");
                }
                let stderr = result["structured"]["stderr"].as_str().context("stderr")?;
                ensure!(stderr.contains(name), "{code}: {result:#}");
                ensure!(result["structured"]["exit_code"] == 1, "{code}: {result:#}");
            }
            executions += 2;
            // Neither what could not be compiled nor what broke off has cost the context its state.
            let result = run(client, session, "isinstance(x, int), x in (1, 5)", Some("main")).await?;
            let structured = &result["structured"];
            ensure!(structured["result"] == "(True, True)", "{code}: {result:#}");
            ensure!(structured["context"]["executions"] == executions, "{code}: {result:#}");
            ensure!(structured["context"]["lost_before"].is_null(), "{code}: {result:#}");
        }
        // Nothing of a program that does not compile is run.
        let result = run(client, session, "x", Some("main")).await?;
        ensure!(result["structured"]["result"] == "1", "{result:#}");
        Ok(())
    })
    .await;
}

/// Each descriptor of the interpreter that asks, with what it is and whether programs that it starts get it. That of the listing itself is closed by then.
const DESCRIPTORS: &str = "
import fcntl, json, os
found = {}
for number in map(int, os.listdir('/proc/self/fd')):
    try:
        found[number] = [os.readlink(f'/proc/self/fd/{number}').split(':')[0].split(' ')[0], not fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC]
    except OSError:
        pass
print(json.dumps(found))";

async fn descriptors(
    client: &Client,
    session: &str,
    context: Option<&str>,
) -> Result<BTreeMap<u32, (String, bool)>> {
    let result = run(client, session, DESCRIPTORS, context).await?;
    let text = result["structured"]["stdout"].as_str().context("stdout")?;
    serde_json::from_str(text).with_context(|| text.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interpreter_has_its_own_descriptors_and_no_others() {
    Host::test(&[], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({})).await?;
        // Others that could leave theirs behind: shells, a call that writes, a context that opens much.
        client.run(session, "bash", json!({"command": "sleep 1000", "background": true})).await?;
        client.run(session, "bash", json!({"command": "cd /tmp", "shell": "main"})).await?;
        run(
            client,
            session,
            "import os, socket\nopened = [os.dup(0) for _ in range(50)] + [socket.socket()]",
            Some("busy"),
        )
        .await?;
        // Beside the three: where it finds its request and leaves its report. A context has the two ends of its line to the agent and one of nothing as well.
        for (context, own) in
            [(None, vec!["/memfd"]), (Some("main"), vec!["/dev/null", "/memfd", "socket", "socket"])]
        {
            for _ in 0..5 {
                let found = descriptors(client, session, context).await?;
                let standard: Vec<_> = found.range(..3).map(|(_, (what, _))| what.as_str()).collect();
                ensure!(standard == ["/dev/null", "pipe", "pipe"], "{context:?}: {found:?}");
                let mut others: Vec<_> = found.range(3..).map(|(_, (what, _))| what.as_str()).collect();
                others.sort_unstable();
                ensure!(others == own, "{context:?}: {found:?}");
                let inherited: Vec<_> = found.iter().filter(|(_, (_, inherited))| *inherited).collect();
                ensure!(inherited.len() == 3 && found.len() == 3 + own.len(), "{context:?}: {found:?}");
                ensure!(inherited.iter().all(|(number, _)| **number < 3), "{context:?}: {found:?}");
            }
        }
        // Those of a context's code are its own affair, and nobody else's.
        let busy = descriptors(client, session, Some("busy")).await?;
        ensure!(busy.len() == 3 + 4 + 51, "{busy:?}");
        Ok(())
    })
    .await;
}
