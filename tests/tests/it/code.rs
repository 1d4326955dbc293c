//! Code in the sandbox: fresh interpreters, contexts whose state lasts, and what comes back beside the output.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::client::{id_of, structured};
use tests::sse::output_of;
use tests::{Client, Follower, Host};

async fn python(client: &Client, session: &str, context: &str, code: &str) -> Result<Value> {
    client.run(session, "python_execute", json!({"code": code, "context": context})).await
}

async fn submit(client: &Client, session: &str, code: &str, more: Value) -> Result<String> {
    let mut body = json!({"tool": "python_execute", "arguments": {"code": code, "context": "main"}});
    body.as_object_mut().context("an object")?.extend(more.as_object().context("an object")?.clone());
    client.submit_with(session, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn state_lasts_in_a_context_and_nowhere_else() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let call =
            python(&client, &session, "main", "import os\nx = 41\nos.environ['SEEN'] = 'yes'\nprint('set')")
                .await?;
        ensure!(call["status"] == "succeeded" && structured(&call, "stdout") == "set\n", "{call:#}");
        let call = python(&client, &session, "main", "x += 1\nx").await?;
        ensure!(
            structured(&call, "result") == "42" && structured(&call, "context")["executions"] == 2,
            "{call:#}"
        );
        let call = python(&client, &session, "other", "'x' in globals(), os").await?;
        ensure!(
            structured(&call, "error")["name"] == "NameError" && call["result"]["is_error"] == true,
            "{call:#}"
        );
        let fresh = client
            .run(
                &session,
                "python_execute",
                json!({"code": "import os\n'x' in globals(), 'SEEN' in os.environ"}),
            )
            .await?;
        ensure!(structured(&fresh, "result") == "(False, False)", "{fresh:#}");

        let listed = client.get(&format!("/v1/sessions/{session}/contexts")).await?.expect(200)?;
        let contexts = listed["data"].as_array().context("a list")?;
        ensure!(
            contexts.len() == 2 && contexts.iter().all(|context| context["status"] == "idle"),
            "{listed:#}"
        );
        let id = structured(&call, "context")["id"].as_str().context("an id")?.to_owned();
        let path = format!("/v1/sessions/{session}/contexts/{id}");
        ensure!(client.get(&path).await?.expect(200)?["name"] == "other");
        // Another tenant sees nothing of it, and neither does another session.
        let other = host.tenant("rival")?.client;
        other.get(&path).await?.problem(404, "not_found")?;
        let elsewhere = client.session(json!({})).await?;
        let call = client.run(&elsewhere, "python_execute", json!({"code": "1", "context_id": id})).await?;
        ensure!(call["status"] == "failed" && call["error"]["code"] == "context_not_found", "{call:#}");
        client.delete(&path).await?.expect(200)?;
        client.get(&path).await?.problem(404, "not_found")?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_loop_is_interrupted_and_the_state_kept_or_its_loss_told() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        python(&client, &session, "main", "x = 1").await?;
        let call = submit(&client, &session, "print('on')\nwhile True: pass", json!({"timeout_ms": 1500})).await?;
        let call = client.ended(&call).await?;
        // All that it wrote until then is in the result; a busy machine may not have let it write anything.
        let said = output_of(&client.follow(&id_of(&call)?).await?, "stdout");
        let kept = structured(&call, "stdout").as_str().unwrap_or_default();
        ensure!(kept == said && matches!(kept, "on\n" | ""), "{said:?} {call:#}");
        ensure!(call["status"] == "timed_out", "{call:#}");
        ensure!(structured(&call, "error")["name"] == "KeyboardInterrupt", "{call:#}");
        let call = python(&client, &session, "main", "x").await?;
        ensure!(structured(&call, "result") == "1", "{call:#}");

        // One that does not heed the interrupt takes the state with it, and both calls say so.
        let stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: pass";
        let call = submit(&client, &session, stubborn, json!({})).await?;
        Follower::new(&client, &call).until(|event| event.event == "call.output").await?;
        client.post(&format!("/v1/calls/{call}/cancel"), &json!({})).await?;
        let call = client.ended(&call).await?;
        ensure!(call["status"] == "cancelled" && structured(&call, "context")["lost"] == "cancelled", "{call:#}");
        let call = python(&client, &session, "main", "'x' in globals()").await?;
        ensure!(structured(&call, "result") == "False", "{call:#}");
        ensure!(structured(&call, "context")["lost_before"] == "cancelled", "{call:#}");
        ensure!(call["result"]["output"].as_str().is_some_and(|text| text.contains("new interpreter")), "{call:#}");

        // Asked for over the API: an interrupt keeps the state, a restart does not.
        python(&client, &session, "main", "y = 2").await?;
        let context = structured(&call, "context")["id"].as_str().context("an id")?.to_owned();
        let path = format!("/v1/sessions/{session}/contexts/{context}");
        let call = submit(&client, &session, "import time\nprint('on', flush=True)\ntime.sleep(600)", json!({})).await?;
        Follower::new(&client, &call).until(|event| event.event == "call.output").await?;
        ensure!(client.get(&path).await?.expect(200)?["status"] == "busy");
        client.post(&format!("{path}/interrupt"), &json!({})).await?.expect(200)?;
        let call = client.ended(&call).await?;
        ensure!(call["status"] == "succeeded" && structured(&call, "error")["name"] == "KeyboardInterrupt", "{call:#}");
        ensure!(structured(&python(&client, &session, "main", "y").await?, "result") == "2");
        let restarted = client.post(&format!("{path}/restart"), &json!({})).await?.expect(200)?;
        ensure!(restarted["status"] == "cold" && restarted["lost"]["reason"] == "restarted", "{restarted:#}");
        let call = python(&client, &session, "main", "'y' in globals()").await?;
        ensure!(structured(&call, "result") == "False" && structured(&call, "context")["lost_before"] == "restarted", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_interpreter_fails_its_call_and_the_next_is_told() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        for (code, reason) in [
            ("import os, sys\nprint('last', file=sys.stderr)\nos._exit(3)", "exited"),
            ("import ctypes\nctypes.string_at(0)", "signal"),
            ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "signal"),
        ] {
            python(&client, &session, "main", "x = 1").await?;
            let call = python(&client, &session, "main", code).await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == "interpreter_died", "{call:#}");
            ensure!(call["error"]["details"]["reason"] == reason, "{call:#}");
            let call = python(&client, &session, "main", "'x' in globals()").await?;
            ensure!(structured(&call, "result") == "False", "{call:#}");
            ensure!(structured(&call, "context")["lost_before"] == reason, "{call:#}");
        }
        // While nothing runs it may die as well: a thread that was left behind.
        let bomb = "import os, threading\nbombed = True\nthreading.Timer(0.2, os._exit, [1]).start()";
        python(&client, &session, "main", bomb).await?;
        // It ends with the interpreter that has the bomb; a new one knows nothing of it.
        let wait = "import time\nwhile 'bombed' in globals(): time.sleep(0.01)";
        let first = python(&client, &session, "main", wait).await?;
        let call =
            if first["status"] == "failed" { python(&client, &session, "main", "1").await? } else { first };
        ensure!(structured(&call, "context")["lost_before"] == "exited", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_context_run_in_order_and_those_of_others_do_not_wait() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        python(&client, &session, "main", "seen = []").await?;
        let gate = submit(
            &client,
            &session,
            "import time, os\nwhile not os.path.exists('go'): time.sleep(0.01)",
            json!({}),
        )
        .await?;
        let mut calls = Vec::new();
        for n in 0..6 {
            calls.push(submit(&client, &session, &format!("seen.append({n})"), json!({})).await?);
        }
        let aside = client.session(json!({})).await?;
        python(&client, &aside, "main", "1").await?;
        // Those that stand in line take no slot, so that there is one for this.
        client.run(&session, "write_file", json!({"path": "go", "content": ""})).await?;
        ensure!(client.ended(&gate).await?["status"] == "succeeded");
        for call in &calls {
            ensure!(client.ended(call).await?["status"] == "succeeded");
        }
        let call = python(&client, &session, "main", "seen").await?;
        ensure!(structured(&call, "result") == "[0, 1, 2, 3, 4, 5]", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_charts_and_pictures_come_back_with_their_data() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let code = "import pandas as pd, matplotlib.pyplot as plt\n\
            frame = pd.DataFrame({'day': pd.to_datetime(['2026-01-01', '2026-01-02']), 'sold': [3, 4.5]})\n\
            plt.bar(['a', 'b'], [1, 2], label='bars')\nplt.title('Sold')\nplt.show()\n\
            plt.plot([1, 2, 3], [4, 5, 6])\nframe";
        for context in [json!({}), json!({"context": "main"})] {
            let mut arguments = json!({"code": code});
            arguments
                .as_object_mut()
                .context("an object")?
                .extend(context.as_object().context("an object")?.clone());
            let call = client.run(&session, "python_execute", arguments).await?;
            ensure!(call["status"] == "succeeded", "{call:#}");
            let content = call["result"]["content"].as_array().context("content")?;
            let of =
                |mime: &str| content.iter().filter(|block| block["mime_type"] == mime).collect::<Vec<_>>();
            let pictures = of("image/png");
            ensure!(
                pictures.len() == 2
                    && pictures[0]["data"].as_str().is_some_and(|data| data.starts_with("iVBOR")),
                "{pictures:?}"
            );
            let charts = of("application/vnd.toolhost.chart+json");
            let plot = &charts[0]["json"]["plots"][0];
            ensure!(plot["type"] == "bar" && plot["title"] == "Sold", "{plot:#}");
            ensure!(
                plot["series"][0]["x"] == json!(["a", "b"]) && plot["series"][0]["y"] == json!([1.0, 2.0]),
                "{plot:#}"
            );
            ensure!(charts[1]["json"]["plots"][0]["series"][0]["y"] == json!([4, 5, 6]), "{charts:?}");
            let tables = of("application/vnd.toolhost.table+json");
            let table = &tables[0]["json"];
            ensure!(
                table["columns"][1] == json!({"name": "sold", "type": "float64"}) && table["total_rows"] == 2,
                "{table:#}"
            );
            ensure!(table["rows"][1] == json!(["2026-01-02T00:00:00", 4.5]), "{table:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_code_leaves_behind_reaches_no_other_interpreter() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        // Files that stand in for the standard library, patched builtins, forged reports on every descriptor.
        let poison = "import builtins, json, os, io, sys\n\
            for name in ('json', 'ast', 'socket', 'traceback'):\n    open(name + '.py', 'w').write('raise SystemExit(99)')\n\
            builtins.print = builtins.open = json.dumps = None\nsys.stdout = sys.stderr = None\n\
            for fd in range(3, 300):\n    try:\n        os.write(fd, b'd\\x00')\n    except OSError:\n        pass";
        python(&client, &session, "poisoned", poison).await?;
        for arguments in [json!({"code": "print(1)\n2"}), json!({"code": "print(1)\n2", "context": "clean"})] {
            for _ in 0..3 {
                let call = client.run(&session, "python_execute", arguments.clone()).await?;
                ensure!(structured(&call, "stdout") == "1\n" && structured(&call, "result") == "2", "{call:#}");
            }
        }
        // Programs that code starts have 0, 1 and 2 only, in either kind. One that has answered has left behind what it was before `exec`.
        let descriptors = "import os, subprocess\nchild = subprocess.Popen(['cat'], stdin=-1, stdout=-1, close_fds=False)\n\
            child.stdin.write(b'there\\n'); child.stdin.flush(); child.stdout.readline()\n\
            print(sorted(os.listdir(f'/proc/{child.pid}/fd')))\nchild.stdin.close()\nchild.wait()";
        for arguments in [json!({"code": descriptors}), json!({"code": descriptors, "context": "clean"})] {
            let call = client.run(&session, "python_execute", arguments).await?;
            ensure!(structured(&call, "stdout") == "['0', '1', '2']\n", "{call:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_come_from_the_wheels_of_the_image() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let run = async |packages: Value, code: &str| {
            client.run(&session, "python_execute", json!({"code": code, "packages": packages})).await
        };
        let names = async || -> Result<Value> {
            let call = client.bash(&session, "find /workspace -printf '%p %y %m %s\\n' | sort").await?;
            Ok(structured(&call, "stdout").clone())
        };
        // What cannot be installed leaves no trace, neither in a workspace that has no packages yet nor in one that has.
        let empty = names().await?;
        for (packages, code) in [("no-such-package-here", "network_required"), ("humanize>=4,<4", "package_failed")] {
            let call = run(json!([packages]), "print('not run')").await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == code, "{call:#}");
            let now = names().await?;
            ensure!(now == empty, "{empty:#} {now:#}");
        }
        let call = run(
            json!(["python-slugify>=9", "seaborn; python_version >= '3.8'"]),
            "from slugify import slugify\nimport seaborn\nslugify('Größe A')",
        )
        .await?;
        ensure!(
            structured(&call, "result") == "'grosse-a'" || structured(&call, "result") == "'groesse-a'",
            "{call:#}"
        );
        // It stays for later calls, for programs too, and is not looked for again.
        let call = client.bash(&session, "python3 -c 'import slugify; print(1)'").await?;
        ensure!(structured(&call, "stdout") == "1\n", "{call:#}");
        let installed = names().await?;
        ensure!(installed.as_str().is_some_and(|names| !names.contains(".cache/uv")), "{installed:#}");
        for (packages, code) in [
            (json!(["no-such-package-here"]), "network_required"),
            (json!(["humanize==0.0.1"]), "network_required"),
            (json!(["humanize>=4,<4"]), "package_failed"),
        ] {
            let call = run(packages, "print('not run')").await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == code, "{call:#}");
            ensure!(
                call["error"]["details"]["said"].as_str().is_some_and(|said| said.len() > 20),
                "{call:#}"
            );
            let now = names().await?;
            ensure!(now == installed, "{installed:#} {now:#}");
        }
        // One that does not build: the image's folder has none, so what installs is given another one.
        let broken = r#"
import io, os, tarfile
os.makedirs('folder')
files = {
    'PKG-INFO': 'Metadata-Version: 2.1\nName: broken-one\nVersion: 1.0\n',
    'pyproject.toml': '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    'backend.py': 'def build_wheel(*arguments, **settings): raise RuntimeError("no compiler")\n',
}
with tarfile.open('folder/broken_one-1.0.tar.gz', 'w:gz') as tar:
    for name, text in files.items():
        info = tarfile.TarInfo('broken_one-1.0/' + name); info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
"#;
        ensure!(client.run(&session, "python_execute", json!({"code": broken})).await?["result"]["is_error"] == false);
        let install = include_str!("../../../crates/tools/src/code/install.py");
        client.run(&session, "write_file", json!({"path": "install.py", "content": install})).await?;
        let request = json!({"packages": ["broken-one"], "names": ["broken-one"], "wheels": "/workspace/folder"});
        let command = format!("python3 -X utf8 -c \"$(cat install.py)\" 3<<< '{request}'; echo \"exit $?\"; pip list --user 2>/dev/null | grep -c broken");
        let call = client.bash(&session, &command).await?;
        ensure!(structured(&call, "stdout").as_str().is_some_and(|text| text.contains("exit 12\n0\n")), "{call:#}");
        let call = python(&client, &session, "main", "import slugify").await?;
        ensure!(call["status"] == "succeeded" && call["result"]["is_error"] == false, "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_and_typescript_run() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let run = async |arguments: Value| client.run(&session, "node_execute", arguments).await;
        let call = run(json!({"code": "console.log('hi', process.argv[2]);\nconst x = 20;\nx + 22", "args": ["a"]})).await?;
        ensure!(structured(&call, "stdout") == "hi a\n" && structured(&call, "result") == "42", "{call:#}");
        let call = run(json!({"code": "interface A { n: number }\nconst a: A = {n: 1};\na", "typescript": true})).await?;
        ensure!(structured(&call, "result") == "{ n: 1 }", "{call:#}");
        let call = run(json!({"code": "import { readFile } from 'fs/promises';\nconst text = await readFile('/etc/hostname', 'utf8').catch(() => 'x');\ntypeof text"})).await?;
        ensure!(structured(&call, "result") == "'string'" && call["result"]["is_error"] == false, "{call:#}");
        let call = run(json!({"code": "function f() { throw new TypeError('no') }\nf()"})).await?;
        ensure!(structured(&call, "error")["name"] == "TypeError" && structured(&call, "error")["value"] == "no", "{call:#}");
        ensure!(structured(&call, "exit_code") == 1 && structured(&call, "stderr").as_str().is_some_and(|text| text.contains("code.js:1")), "{call:#}");
        for code in ["const x = ;", "import x from 'y'; const = 1"] {
            let call = run(json!({"code": code})).await?;
            ensure!(structured(&call, "error")["name"] == "SyntaxError" && call["status"] == "succeeded", "{call:#}");
        }
        let call = run(json!({"code": "let x: = 1", "typescript": true})).await?;
        ensure!(structured(&call, "error")["name"] == "SyntaxError", "{call:#}");
        let call = run(json!({"code": "1", "dependencies": ["no-such-thing@^1"]})).await?;
        ensure!(call["status"] == "failed" && call["error"]["code"] == "network_required", "{call:#}");
        let call = client.bash(&session, "mkdir -p node_modules/two && echo 'module.exports = 2' > node_modules/two/index.js && echo '{}' > node_modules/two/package.json").await?;
        ensure!(call["status"] == "succeeded");
        let call = run(json!({"code": "require('two') + 1", "dependencies": ["two"]})).await?;
        ensure!(structured(&call, "result") == "3", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_and_linters_are_found_and_counted() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let nothing = client.run(&session, "run_tests", json!({})).await?;
        ensure!(nothing["status"] == "failed" && nothing["error"]["code"] == "start_failed", "{nothing:#}");
        client.bash(&session, "mkdir p u n && cd p && printf 'import os\\nimport pytest\\n\\ndef test_a(): pass\\n\\ndef test_b(): assert 1 == 2\\n\\n@pytest.mark.skip\\ndef test_c(): pass\\n' > test_x.py
            cd ../u && printf 'import unittest\\nclass T(unittest.TestCase):\\n    def test_a(self): pass\\n    def test_b(self): 1/0\\n' > test_u.py
            cd ../n && printf \"const test = require('node:test');\\ntest('ok', () => {});\\ntest('bad', () => { throw new Error('x') });\\n\" > a.test.js").await?;
        let run = async |tool: &str, arguments: Value| client.run(&session, tool, arguments).await;
        let call = run("run_tests", json!({"path": "p"})).await?;
        let counts = &call["result"]["structured"];
        ensure!(counts["passed"] == 1 && counts["failed"] == 1 && counts["skipped"] == 1 && counts["total"] == 3, "{call:#}");
        ensure!(counts["failures"] == json!(["test_x.py::test_b"]) && counts["success"] == false, "{call:#}");
        ensure!(counts["command"].as_str().is_some_and(|command| command.contains("pytest")), "{call:#}");
        let call = run("check_tests", json!({"path": "u", "command": "python3 -m unittest discover -v"})).await?;
        let counts = &call["result"]["structured"];
        ensure!(counts["passed"] == 1 && counts["errors"] == 1 && counts["total"] == 2, "{call:#}");
        let call = run("run_tests", json!({"path": "n"})).await?;
        let counts = &call["result"]["structured"];
        ensure!(counts["passed"] == 1 && counts["failed"] == 1, "{call:#}");
        ensure!(counts["failures"].as_array().is_some_and(|names| names.contains(&json!("bad"))), "{call:#}");
        // A test counts once, whatever its subtests did, and their names are told.
        let subtests = "import unittest\nclass T(unittest.TestCase):\n    def test_even(self):\n        for i in range(4):\n            \
            with self.subTest(i=i): self.assertEqual(i % 2, 0)\n    def test_fine(self):\n        for i in range(3):\n            \
            with self.subTest(i=i): pass\n";
        run("write_file", json!({"path": "s/test_s.py", "content": subtests})).await?;
        for command in [json!(null), json!("python3 -m unittest discover -v")] {
            let mut arguments = json!({"path": "s"});
            if !command.is_null() {
                arguments["command"] = command;
            }
            let call = run("run_tests", arguments).await?;
            let counts = &call["result"]["structured"];
            ensure!(counts["parsed"] == true && counts["passed"] == 1 && counts["failed"] == 1 && counts["total"] == 2, "{call:#}");
            let names = counts["failures"].as_array().context("names")?;
            let named = |part: &str| names.iter().any(|name| name.as_str().is_some_and(|name| name.contains(part)));
            ensure!(named("test_even") && named("(i=1)") && named("(i=3)") && !named("(i=2)"), "{call:#}");
        }
        let call = run("run_lint", json!({"path": "p"})).await?;
        let found = &call["result"]["structured"];
        let rules: Vec<_> = found["findings"].as_array().context("findings")?.iter().map(|one| &one["rule"]).collect();
        ensure!(rules.contains(&&json!("F401")) && found["total"] == rules.len() && found["success"] == false, "{call:#}");
        // eslint is asked wherever its configuration lies, and the project's own before the image's.
        client.bash(&session, "mkdir -p y j f/node_modules/.bin && echo 'var unused = 1;' | tee y/a.js j/a.js f/a.js
            printf 'root: true\nrules: {no-unused-vars: error, no-var: error}\n' > y/.eslintrc.yaml
            echo '{\"eslintConfig\": {\"root\": true, \"rules\": {\"no-unused-vars\": \"error\", \"no-var\": \"error\"}}}' > j/package.json
            echo 'export default [];' > f/eslint.config.mjs").await?;
        let own = "#!/bin/sh\n[ \"$1\" != --version ] || { echo v9.1.0; exit; }\necho \"$PWD/a.js\"\necho '  1:5  error  own  no-var'\nexit 1\n";
        run("write_file", json!({"path": "f/node_modules/.bin/eslint", "content": own, "permissions": "0755"})).await?;
        for (path, expected) in [("y", vec!["no-var", "no-unused-vars"]), ("j", vec!["no-var", "no-unused-vars"]), ("f", vec!["no-var"])] {
            let call = run("run_lint", json!({"path": path})).await?;
            let found = &call["result"]["structured"];
            let rules: Vec<_> = found["findings"].as_array().context("findings")?.iter().filter_map(|one| one["rule"].as_str()).collect();
            ensure!(rules == expected && found["findings"][0]["path"] == format!("/workspace/{path}/a.js"), "{call:#}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_be_started_leaves_its_context() {
    Host::test(&[("policy.limits.session_shells", "64")], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client
            .session(json!({"resources": {"cpus": 1, "memory_mb": 512, "disk_mb": 512, "pids": 32}}))
            .await?;
        python(&client, &session, "main", "x = 41").await?;
        // Until not one more process can be started: by then each call is refused for that.
        let mut shells = Vec::new();
        let refused = loop {
            ensure!(shells.len() < 64, "the sandbox has no limit");
            let call = client
                .run(&session, "bash", json!({"command": "exec sleep 1000", "background": true}))
                .await?;
            match structured(&call, "shell_id").as_str() {
                Some(shell) => shells.push(shell.to_owned()),
                None => break call,
            }
        };
        ensure!(refused["error"]["code"] == "start_failed", "{refused:#}");
        let call = python(&client, &session, "main", "x").await?;
        ensure!(call["error"]["code"] == "start_failed", "{call:#}");
        for shell in shells {
            client.run(&session, "kill_bash", json!({"shell_id": shell})).await?;
        }
        let call = python(&client, &session, "main", "x + 1").await?;
        ensure!(
            structured(&call, "result") == "42" && structured(&call, "context")["lost_before"].is_null(),
            "{call:#}"
        );
        Ok(())
    })
    .await;
}
