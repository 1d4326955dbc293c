//! Contexts of JavaScript: state that lasts, output that is a call's own, interrupts and ends. What code may try against its interpreter is in
//! `node_attacks.rs`, what it imports and declares in `node_imports.rs`, and starts that fail in `node_starts.rs`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::client::structured;
use tests::{Client, Follower, Host};

pub(crate) async fn node(client: &Client, session: &str, context: &str, code: &str) -> Result<Value> {
    client.run(session, "node_execute", json!({"code": code, "context": context})).await
}

pub(crate) fn is_result(call: &Value, result: &str) -> Result<()> {
    ensure!(call["status"] == "succeeded" && structured(call, "result") == result, "{result}: {call:#}");
    Ok(())
}

async fn submit(client: &Client, session: &str, code: &str, more: Value) -> Result<String> {
    let mut body = json!({"tool": "node_execute", "arguments": {"code": code, "context": "main"}});
    body.as_object_mut().context("an object")?.extend(more.as_object().context("an object")?.clone());
    client.submit_with(session, body).await
}

async fn output(client: &Client, call: &Value, stream: &str) -> Result<Vec<u8>> {
    let id = call["id"].as_str().context("an id")?;
    Ok(client.get(&format!("/v1/calls/{id}/output?stream={stream}")).await?.bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn state_lasts_in_a_context_of_javascript() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let run = async |code: &str| node(&client, &session, "main", code).await;
        let first = "let x = 1; const y = 2; var z = 3\nclass A { n() { return 4 } }\nfunction f() { return 5 }\nconsole.log('set')";
        let call = run(first).await?;
        ensure!(structured(&call, "stdout") == "set\n" && structured(&call, "context")["executions"] == 1, "{call:#}");
        is_result(&run("[x, y, z, new A().n(), f()]").await?, "[ 1, 2, 3, 4, 5 ]")?;
        // What is declared may be declared again, as one does who corrects it.
        is_result(&run("const x = 10; let y = 20; class A { n() { return 40 } }; x + y + new A().n()").await?, "70")?;
        is_result(&run("const z = 30, f = () => 50; function A() { return 4 }; var y = 2; [y, z, f(), A()]").await?, "[ 2, 30, 50, 4 ]")?;
        is_result(&run("const later = await new Promise((done) => setTimeout(done, 10, 7)); later").await?, "7")?;
        is_result(&run("later + (await Promise.resolve(1))").await?, "8")?;
        is_result(&run("Promise.resolve('awaited')").await?, "'awaited'")?;
        // Modules, of either kind, and what they hold.
        let own = json!({"path": "counter.js", "content": "let n = 0; module.exports = () => ++n;\n"});
        client.run(&session, "write_file", own).await?;
        let own = json!({"path": "es.mjs", "content": "export let n = 1; export default () => ++n;\n"});
        client.run(&session, "write_file", own).await?;
        is_result(&run("const count = require('./counter.js'); count()").await?, "1")?;
        is_result(&run("require('./counter.js')()").await?, "2")?;
        is_result(&run("import up, { n as live } from './es.mjs'\nimport * as all from './es.mjs'\nup(); [live, all.n]").await?, "[ 1, 2 ]")?;
        is_result(&run("up(); all.n + (await import('./es.mjs')).n").await?, "6")?;
        let call = run("import { nothing } from './es.mjs'").await?;
        ensure!(structured(&call, "error")["name"] == "SyntaxError", "{call:#}");
        let typescript = json!({"code": "enum E { One = 1 }\nimport { join } from 'path'\nconst box: { n: number } = { n: E.One }\nbox",
            "typescript": true, "context": "main"});
        is_result(&client.run(&session, "node_execute", typescript).await?, "{ n: 1 }")?;
        is_result(&run("join('a', String(E.One + box.n))").await?, "'a/2'")?;
        // Directory, variables and arguments, and text for stdin that is one call's.
        let arguments = json!({"code": "process.env.SEEN + process.argv[2] + require('fs').readFileSync(0, 'utf8')",
            "context": "main", "cwd": "/tmp", "env": {"SEEN": "yes "}, "args": ["arg "], "stdin": "text"});
        is_result(&client.run(&session, "node_execute", arguments).await?, "'yes arg text'")?;
        is_result(&run("let text = ''; for await (const piece of process.stdin) text += piece;\n[process.cwd(), process.env.SEEN, text]").await?,
            "[ '/tmp', 'yes ', '' ]")?;
        let arguments = json!({"code": "let said = ''; for await (const piece of process.stdin) said += piece\nsaid", "context": "main", "stdin": "again"});
        is_result(&client.run(&session, "node_execute", arguments).await?, "'again'")?;
        let arguments = json!({"code": "1", "context": "main", "cwd": "/workspace/nowhere"});
        let call = client.run(&session, "node_execute", arguments).await?;
        ensure!(call["status"] == "failed" && call["error"]["code"] == "start_failed", "{call:#}");
        let arguments = json!({"code": "1", "context": "main", "dependencies": ["no-such-thing"]});
        let call = client.run(&session, "node_execute", arguments).await?;
        ensure!(call["status"] == "failed" && call["error"]["code"] == "network_required", "{call:#}");
        // None of it anywhere else.
        is_result(&node(&client, &session, "other", "[typeof x, typeof f, process.env.SEEN]").await?, "[ 'undefined', 'undefined', undefined ]")?;
        is_result(&client.run(&session, "node_execute", json!({"code": "typeof x"})).await?, "'undefined'")?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_has_one_language() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let path = format!("/v1/sessions/{session}/contexts");
        let made = client.post(&path, &json!({"name": "js", "language": "javascript", "env": {"OWN": "1"}})).await?.expect(201)?;
        ensure!(made["language"] == "javascript" && made["status"] == "cold", "{made:#}");
        let id = made["id"].as_str().context("an id")?;
        is_result(&client.run(&session, "node_execute", json!({"code": "process.env.OWN", "context_id": id})).await?, "'1'")?;
        client.run(&session, "python_execute", json!({"code": "x = 1", "context": "py"})).await?;
        let listed = client.get(&path).await?.expect(200)?;
        let languages: Vec<_> = listed["data"].as_array().context("a list")?.iter().map(|one| (&one["name"], &one["language"])).collect();
        ensure!(languages == [(&json!("py"), &json!("python")), (&json!("js"), &json!("javascript"))], "{listed:#}");
        for (tool, context) in [("python_execute", json!({"context": "js"})), ("python_execute", json!({"context_id": id})), ("node_execute", json!({"context": "py"}))] {
            let mut arguments = json!({"code": "1"});
            arguments.as_object_mut().context("an object")?.extend(context.as_object().context("an object")?.clone());
            let call = client.run(&session, tool, arguments).await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == "context_language", "{call:#}");
        }
        let kept = client.run(&session, "python_execute", json!({"code": "x", "context": "py"})).await?;
        is_result(&kept, "1")?;
        // An image that lacks one of the two programs says which.
        let programs = "mkdir -p /workspace/bin /workspace/none && ln -s $(command -v python3) /workspace/bin/python3";
        client.bash(&session, programs).await?;
        for (place, says) in [("bin", "no node"), ("none", "python3")] {
            let body = json!({"name": place, "language": "javascript", "env": {"PATH": format!("/workspace/{place}")}});
            client.post(&path, &body).await?.expect(201)?;
            for _ in 0..2 {
                let call = node(&client, &session, place, "1").await?;
                ensure!(call["status"] == "failed" && call["error"]["code"] == "start_failed", "{call:#}");
                ensure!(call["error"].to_string().contains(says), "{call:#}");
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_a_context_streams_and_is_whole_and_its_calls() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let code = "const fs = require('fs')\nconsole.log('before')\nwhile (!fs.existsSync('go')) await new Promise((done) => setTimeout(done, 10))\nconsole.error('after')";
        let id = submit(&client, &session, code, json!({})).await?;
        Follower::new(&client, &id).until(|event| event.event == "call.output").await?;
        client.run(&session, "write_file", json!({"path": "go", "content": ""})).await?;
        let call = client.ended(&id).await?;
        ensure!(structured(&call, "stdout") == "before\n" && structured(&call, "stderr") == "after\n", "{call:#}");
        // A megabyte on both at once, by ways that wait and ways that do not, and by a child.
        let flood = "for (let i = 0; i < 10; i++) { console.log('o'.repeat(99_999)); console.error('e'.repeat(99_999)) }\n\
            require('child_process').spawnSync('sh', ['-c', 'head -c 300000 /dev/zero | tr \"\\\\0\" c'], { stdio: 'inherit' })\n1";
        let call = node(&client, &session, "main", flood).await?;
        is_result(&call, "1")?;
        let (stdout, stderr) = (output(&client, &call, "stdout").await?, output(&client, &call, "stderr").await?);
        let count = |bytes: &[u8], wanted: u8| bytes.iter().filter(|byte| **byte == wanted).count();
        ensure!(stdout.len() == 1_300_000 && count(&stdout, b'o') == 999_990 && count(&stdout, b'c') == 300_000, "{}", stdout.len());
        ensure!(stderr.len() == 1_000_000 && count(&stderr, b'e') == 999_990, "{}", stderr.len());
        // What is written between two calls belongs to neither.
        let late = "const timer = setInterval(() => { if (!fs.existsSync('say')) return\n\
            clearInterval(timer); console.log('late'.repeat(50_000)); fs.writeFileSync('late', '') }, 5)\nconsole.log('mine')";
        let call = node(&client, &session, "main", late).await?;
        ensure!(structured(&call, "stdout") == "mine\n", "{call:#}");
        client.stdout(&session, "touch say; until test -e late; do sleep 0.01; done").await?;
        let call = node(&client, &session, "main", "console.log('next')").await?;
        ensure!(output(&client, &call, "stdout").await? == b"next\n", "{call:#}");
        // A child that goes on does not hold the call.
        let child = "require('child_process').spawn('sleep', ['1000'], { stdio: 'inherit' }).unref(); 'started'";
        is_result(&node(&client, &session, "main", child).await?, "'started'")?;
        is_result(&node(&client, &session, "main", "2").await?, "2")?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_interrupts_leave_the_context_its_state() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let run = async |code: &str| node(&client, &session, "main", code).await;
        run("let x = 1\nfunction f() {\n  throw new TypeError('no')\n}").await?;
        for (code, name, traceback) in [
            ("f()", "TypeError", "TypeError: no\n    at f (code-1.js:3:9)\n    at code-2.js:1:1"),
            (
                "const y = ;",
                "SyntaxError",
                "code-4.js:1\nconst y = ;\n          ^\n\nSyntaxError: Unexpected token ';'",
            ),
            (
                "await Promise.reject(new RangeError('r'))",
                "RangeError",
                "RangeError: r\n    at code-6.js:1:22",
            ),
            ("throw 5", "number", "Uncaught 5"),
            // Nothing awaits these, and the call would wait for ever.
            (
                "setTimeout(() => { throw new EvalError('t') }, 1); await new Promise(() => {})",
                "EvalError",
                "EvalError: t",
            ),
            ("Promise.reject(new URIError('u')); await new Promise(() => {})", "URIError", "URIError: u"),
        ] {
            let call = run(code).await?;
            let error = structured(&call, "error");
            ensure!(call["status"] == "succeeded" && call["result"]["is_error"] == true, "{call:#}");
            ensure!(error["name"] == name && structured(&call, "exit_code") == 1, "{call:#}");
            let text = error["traceback"].as_str().context("a traceback")?;
            ensure!(text.starts_with(traceback) && !text.contains("node:"), "{text}");
            ensure!(
                structured(&call, "stderr").as_str().is_some_and(|stderr| stderr.contains(text)),
                "{call:#}"
            );
            is_result(&run("x").await?, "1")?;
        }
        // Asked for over the API. What is interrupted has begun: it has said so.
        let call = run("x").await?;
        let context = structured(&call, "context")["id"].as_str().context("an id")?.to_owned();
        let path = format!("/v1/sessions/{session}/contexts/{context}");
        for code in [
            "console.log('on'); while (true) {}",
            "console.log('on'); await new Promise(() => {})",
            "require('child_process').execSync('echo on; exec sleep 1000', { stdio: 'inherit' })",
            "console.log('on'); try { for (;;) {} } catch {}; console.log('off')",
        ] {
            let call = submit(&client, &session, code, json!({})).await?;
            Follower::new(&client, &call).until(|event| event.event == "call.output").await?;
            ensure!(client.get(&path).await?.expect(200)?["status"] == "busy");
            client.post(&format!("{path}/interrupt"), &json!({})).await?.expect(200)?;
            let call = client.ended(&call).await?;
            ensure!(call["status"] == "succeeded" && structured(&call, "stdout") == "on\n", "{call:#}");
            ensure!(
                structured(&call, "error")["name"] == "Interrupted"
                    && structured(&call, "context")["lost"].is_null(),
                "{call:#}"
            );
            is_result(&run("x").await?, "1")?;
        }
        // One whose time is over is interrupted as well. Where it is too slow to heed that, the state is lost, and the answer says so.
        let call =
            submit(&client, &session, "console.log('on'); while (true) {}", json!({"timeout_ms": 10_000}))
                .await?;
        let call = client.ended(&call).await?;
        let lost = &structured(&call, "context")["lost"];
        ensure!(call["status"] == "timed_out" && structured(&call, "stdout") == "on\n", "{call:#}");
        ensure!(lost == "timeout" || structured(&call, "error")["name"] == "Interrupted", "{call:#}");
        is_result(&run("typeof x").await?, if lost.is_null() { "'number'" } else { "'undefined'" })?;
        // One that does not heed it takes the state along, and both calls say so.
        let call = submit(
            &client,
            &session,
            "await 1; console.log('on'); require('fs').writeSync(1, 'now'); for (;;) {}",
            json!({}),
        )
        .await?;
        Follower::new(&client, &call).until(|event| event.event == "call.output").await?;
        client.post(&format!("/v1/calls/{call}/cancel"), &json!({})).await?;
        let call = client.ended(&call).await?;
        ensure!(
            call["status"] == "cancelled" && structured(&call, "context")["lost"] == "cancelled",
            "{call:#}"
        );
        let call = run("typeof x").await?;
        is_result(&call, "'undefined'")?;
        ensure!(structured(&call, "context")["lost_before"] == "cancelled", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_call_has_left_behind_ends_no_later_one() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let run = async |code: &str| node(&client, &session, "main", code).await;
        for left in ["throw Error('of the first')", "Promise.reject(Error('of the first'))"] {
            let first = format!(
                "globalThis.go = globalThis.gone = false\n\
                 const timer = setInterval(() => {{ if (go) {{ clearInterval(timer); gone = true; {left} }} }}, 5); 1"
            );
            is_result(&run(&first).await?, "1")?;
            let second = "go = true; while (!gone) await new Promise((done) => setTimeout(done, 5))\n\
                await new Promise((done) => setTimeout(done, 5)); 'own'";
            let call = run(second).await?;
            is_result(&call, "'own'")?;
            ensure!(structured(&call, "stderr").as_str().unwrap_or_default().contains("of the first"), "{call:#}");
            // Its own ends it.
            let call = run("setTimeout(() => { throw Error('mine') }, 5); await new Promise(() => {})").await?;
            ensure!(structured(&call, "error")["value"] == "mine", "{call:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_interpreter_of_javascript_is_told_and_replaced() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({"resources": {"cpus": 1, "memory_mb": 512, "disk_mb": 512, "pids": 128}})).await?;
        let run = async |code: &str| node(&client, &session, "main", code).await;
        for (code, reason) in [
            ("console.error('last'); process.exit(3)", "exited"),
            ("await 1; process.exit(0)", "exited"),
            ("process.abort()", "signal"),
            ("process.kill(process.pid, 'SIGKILL'); for (;;) {}", "signal"),
            ("const hog = []; for (;;) hog.push(Buffer.alloc(1 << 20, 1))", "oom"),
        ] {
            run("let x = 1").await?;
            let call = run(code).await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == "interpreter_died", "{code}: {call:#}");
            ensure!(call["error"]["details"]["reason"] == reason, "{code}: {call:#}");
            let call = run("typeof x").await?;
            is_result(&call, "'undefined'")?;
            ensure!(structured(&call, "context")["lost_before"] == reason, "{call:#}");
        }
        let call = run("console.error('last'); process.exit(3)").await?;
        let details = &call["error"]["details"];
        ensure!(details["exit_code"] == 3 && details["stderr"] == "last\n", "{call:#}");
        // While nothing runs it may die as well.
        run("const fs = require('fs'); setTimeout(() => { fs.writeFileSync('gone', ''); process.exit(1) }, 20)").await?;
        client.bash(&session, "until test -e gone; do sleep 0.01; done; while pgrep -x node; do sleep 0.01; done").await?;
        let call = run("2").await?;
        is_result(&call, "2")?;
        ensure!(structured(&call, "context")["lost_before"] == "exited", "{call:#}");
        // Restarted and deleted by wish.
        let path = format!("/v1/sessions/{session}/contexts/{}", structured(&call, "context")["id"].as_str().context("an id")?);
        let restarted = client.post(&format!("{path}/restart"), &json!({})).await?.expect(200)?;
        ensure!(restarted["status"] == "cold" && restarted["lost"]["reason"] == "restarted", "{restarted:#}");
        is_result(&run("let x = 3; x").await?, "3")?;
        client.delete(&path).await?.expect(200)?;
        client.get(&path).await?.problem(404, "not_found")?;
        let call = run("typeof x").await?;
        is_result(&call, "'undefined'")?;
        ensure!(structured(&call, "context")["executions"] == 1 && structured(&call, "context")["lost_before"].is_null(), "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_of_javascript_run_beside_each_other_and_their_calls_in_order() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // Each waits for a file that the other writes.
        let meet = |own: &str, other: &str| {
            format!("const fs = require('fs'); let seen = []; fs.writeFileSync('{own}', ''); while (!fs.existsSync('{other}')); '{own}'")
        };
        let (one, two) = (meet("one", "two"), meet("two", "one"));
        let both = tokio::join!(node(&client, &session, "main", &one), node(&client, &session, "two", &two));
        is_result(&both.0?, "'one'")?;
        is_result(&both.1?, "'two'")?;
        let mut calls = vec![submit(&client, &session, "await new Promise((done) => setTimeout(done, 200))", json!({})).await?];
        for n in 0..6 {
            calls.push(submit(&client, &session, &format!("seen.push({n}); console.log({n})"), json!({})).await?);
        }
        for (n, call) in calls.iter().enumerate() {
            let call = client.ended(call).await?;
            let own = if n == 0 { String::new() } else { format!("{}\n", n - 1) };
            ensure!(call["status"] == "succeeded" && structured(&call, "stdout") == &json!(own), "{call:#}");
        }
        is_result(&node(&client, &session, "main", "seen").await?, "[ 0, 1, 2, 3, 4, 5 ]")
    })
    .await;
}
