//! What code may try against the interpreter of its own context of JavaScript, and what that does to others.

use anyhow::ensure;
use serde_json::json;
use tests::Host;
use tests::client::structured;

use crate::node_contexts::node;

#[tokio::test(flavor = "multi_thread")]
async fn code_that_meddles_with_its_interpreter_breaks_its_own_context_alone() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        node(&client, &session, "other", "let kept = 1").await?;
        for code in [
            "require('fs').closeSync(4)",
            "for (let i = 0; i < 1e6; i++) require('fs').writeSync(4, 'o 1\\n')",
            "require('fs').writeSync(4, 'garbage'); 1",
            "require('fs').writeSync(4, 'd 00 0 {}\\n'); await new Promise(() => {})",
            "require('fs').writeSync(4, 'x'.repeat(1 << 25)); 1",
            "process.kill(process.ppid, 'SIGKILL'); for (;;) {}",
        ] {
            node(&client, &session, "main", "let x = 1").await?;
            let call = node(&client, &session, "main", code).await?;
            ensure!(
                call["status"] == "failed" && call["error"]["code"] == "interpreter_died",
                "{code}: {call:#}"
            );
            let call = node(&client, &session, "main", "console.log('mine'); typeof x").await?;
            ensure!(structured(&call, "stdout") == "mine\n", "{code}: {call:#}");
            ensure!(structured(&call, "result") == "'undefined'", "{code}: {call:#}");
            ensure!(structured(&call, "context")["lost_before"].is_string(), "{code}: {call:#}");
            let call = node(&client, &session, "other", "kept").await?;
            ensure!(structured(&call, "result") == "1", "{code}: {call:#}");
        }
        // One that closes where it is told what to run can be told nothing.
        let call = node(&client, &session, "main", "require('fs').closeSync(3); let x = 1").await?;
        ensure!(call["status"] == "succeeded", "{call:#}");
        let call = node(&client, &session, "main", "x").await?;
        ensure!(call["status"] == "failed" && call["error"]["code"] == "interpreter_died", "{call:#}");
        // One that does not listen there holds its own calls up for their time and no longer.
        let deaf = "process._getActiveHandles().find((one) => one._handle?.fd === 3).pause(); setInterval(() => {}, 1 << 30); 'deaf'";
        let call = node(&client, &session, "main", deaf).await?;
        ensure!(structured(&call, "result") == "'deaf'", "{call:#}");
        let body = json!({"tool": "node_execute", "timeout_ms": 1000, "arguments": {"code": "1", "context": "main"}});
        let call = client.ended(&client.submit_with(&session, body).await?).await?;
        ensure!(
            call["status"] == "timed_out" && structured(&call, "context")["lost"] == "timeout",
            "{call:#}"
        );
        // A launcher that is stopped heeds nothing, and that it is stopped can be seen: before that it would heed the interrupt.
        let stops = "process.kill(process.ppid, 'SIGSTOP'); require('fs').writeFileSync('stopped', ''); for (;;) {}";
        let arguments = json!({"code": stops, "context": "main"});
        let call = client.submit(&session, "node_execute", arguments).await?;
        client.stdout(&session, "until test -e stopped; do sleep 0.05; done").await?;
        client.post(&format!("/v1/calls/{call}/cancel"), &json!({})).await?;
        let call = client.ended(&call).await?;
        ensure!(
            call["status"] == "cancelled" && structured(&call, "context")["lost"] == "cancelled",
            "{call:#}"
        );
        let call = node(&client, &session, "main", "typeof x").await?;
        ensure!(structured(&call, "result") == "'undefined'", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_javascript_leaves_behind_reaches_no_other_interpreter() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // Files that stand in for modules of the launcher and of Node.js, patched globals, and whatever descriptor there is.
        let poison = "const fs = require('fs')\nfor (const name of ['json', 'socket', 'select', 'fcntl']) fs.writeFileSync(name + '.py', 'raise SystemExit(9)')\n\
            fs.writeFileSync('inspector.js', 'process.exit(9)')\nconsole.log = null; process.stdout.write = null; JSON.stringify = null; Array.prototype.push = null\n\
            for (let fd = 6; fd < 300; fd++) try { fs.writeSync(fd, 'd\\0') } catch {}\n\
            setInterval(() => { try { process.stdout._write('poison') } catch {} ; fs.writeSync(1, 'poison') }, 1)";
        let poisoned = node(&client, &session, "poisoned", poison).await?;
        ensure!(poisoned["status"] == "succeeded" || poisoned["error"]["code"] == "interpreter_died", "{poisoned:#}");
        for arguments in [json!({"code": "console.log(1)\n2"}), json!({"code": "console.log(1)\n2", "context": "clean"})] {
            for _ in 0..3 {
                let call = client.run(&session, "node_execute", arguments.clone()).await?;
                ensure!(structured(&call, "stdout") == "1\n" && structured(&call, "result") == "2", "{call:#}");
            }
        }
        // Programs that code starts have 0, 1 and 2 only. One that has answered opens nothing any more to begin.
        let descriptors = "const child = require('child_process').spawn('cat', { stdio: ['pipe', 'pipe', 'inherit'] })\n\
            child.stdin.write('x'); await require('events').once(child.stdout, 'data')\n\
            const seen = require('fs').readdirSync(`/proc/${child.pid}/fd`); child.stdin.end(); seen";
        let call = node(&client, &session, "clean", descriptors).await?;
        ensure!(structured(&call, "result") == "[ '0', '1', '2' ]", "{call:#}");
        Ok(())
    })
    .await;
}
