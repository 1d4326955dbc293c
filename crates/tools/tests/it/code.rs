//! The code toolkit.

use std::collections::BTreeMap;

use chrono::DateTime;
use domain::limits::WHEEL_ROUNDS;
use domain::{CallId, Code, CodeContext, ContextId, ContextStatus, Language, SessionId, TenantId};
use serde_json::json;
use tools::ToolError;
use tools::port::{Background, CommandEnd, CommandOutcome, ContextEnd, Program, RemoveTarget};
use uuid::Uuid;

use crate::world::{World, exited};

#[tokio::test]
async fn code_comes_on_a_descriptor_and_arguments_as_arguments() {
    let world = World::new();
    let arguments =
        json!({"code": "print('secret')", "args": ["a", "b c"], "stdin": "in", "last_expression": true});
    world.call("python_execute", arguments).await.expect("it ran");
    let command = world.commands.lock().expect("no test panicked")[0].clone();
    let Program::Interpreter { argv, request } = command.program else { panic!("an interpreter") };
    let shown = format!("/tmp/.toolhost-shown-{}", CallId::from_uuid(Uuid::from_u128(1)));
    let expected = json!({"code": "print('secret')", "show": true, "args": ["a", "b c"], "shown": shown});
    assert_eq!(serde_json::Value::Object(request), expected);
    assert_eq!(argv[0], "python3");
    assert!(argv.iter().all(|argument| !argument.contains("secret")));
    assert_eq!((command.background, command.stdin.as_deref()), (Background::Never, Some("in")));
}

#[tokio::test]
async fn an_exception_is_named() {
    let stderr = "Traceback (most recent call last):\n  File \"<code>\", line 1, in <module>\n    1/0\nZeroDivisionError: division by zero\n";
    let world = World::new().with_outcome(Ok(CommandOutcome::Ended(exited(1, "", stderr))));
    let result = world.call("python_execute", json!({"code": "1/0"})).await.expect("it ran").result;
    assert_eq!(
        result.structured["error"],
        json!({"name": "ZeroDivisionError", "value": "division by zero", "traceback": ""})
    );
    assert!(result.is_error && result.output.ends_with("[exit code 1]"));
}

#[tokio::test]
async fn what_is_too_large_for_a_report_is_gathered_and_kept() {
    let report = json!({"report": 1, "result": null, "error": null, "content": [
        {"type": "kept", "mime_type": "image/png", "name": "0"},
        {"type": "kept", "mime_type": "text/html", "name": "1"},
        {"type": "kept", "mime_type": "text/plain", "name": "2"},
        {"type": "text", "mime_type": "text/markdown", "text": "# small"}]});
    for (tool, code) in [("python_execute", "show()"), ("node_execute", "show()")] {
        let report = bytes::Bytes::from(report.to_string());
        let world =
            World::new().with_outcome(Ok(CommandOutcome::Ended(CommandEnd { report, ..exited(0, "", "") })));
        let folder = format!("/tmp/.toolhost-shown-{}", CallId::from_uuid(Uuid::from_u128(1)));
        let world = world
            .with_file(&format!("{folder}/0"), b"\x89PNG")
            .with_file(&format!("{folder}/1"), b"<p>large</p>");
        let result = world.call(tool, json!({"code": code})).await.expect("it ran").result;
        let kept: Vec<_> =
            world.artifacts.lock().expect("no test panicked").iter().map(|(one, _)| one.clone()).collect();
        let seen: Vec<_> = kept.iter().map(|one| (one.mime_type.as_str(), one.size_bytes)).collect();
        assert_eq!(seen, [("image/png", 4), ("text/html; charset=utf-8", 12)]);
        let content = serde_json::to_value(&result.content).expect("serialises");
        let (picture, page) = (kept[0].id.to_string(), kept[1].id.to_string());
        assert_eq!(content[0], json!({"type": "image", "mime_type": "image/png", "artifact_id": picture}));
        assert_eq!((&content[1]["artifact_id"], &content[1]["mime_type"]), (&json!(page), &json!(null)));
        let missing = content[2]["text"].as_str().expect("text");
        assert!(missing.contains("could not be kept") && content[2]["artifact_id"].is_null(), "{missing}");
        assert_eq!(content[3]["text"], "# small");
        assert!(result.output.contains(&picture) && result.output.contains(&page), "{}", result.output);
    }
}

#[tokio::test]
async fn a_missing_interpreter_is_told() {
    let world = World::new().with_outcome(Err(ToolError::new(Code::StartFailed, "python3: not found")));
    let error = world.call("python_execute", json!({"code": "1"})).await.expect_err("not started");
    assert_eq!(error.code, Code::StartFailed);
    assert!(error.hint.is_some_and(|hint| hint.contains("python3")));
}

#[tokio::test]
async fn an_interrupt_of_a_context_claims_no_more_than_it_did() {
    let context = |language| CodeContext {
        id: ContextId::from_uuid(Uuid::from_u128(9)),
        tenant_id: TenantId::from_uuid(Uuid::from_u128(3)),
        session_id: SessionId::from_uuid(Uuid::from_u128(2)),
        name: Some("main".to_owned()),
        language,
        cwd: "/workspace".to_owned(),
        env: BTreeMap::new(),
        metadata: BTreeMap::new(),
        interpreter: 1,
        generation: Some(1),
        status: ContextStatus::Idle,
        call_id: None,
        lost: None,
        interrupts: (0, 0),
        restarts: (0, 0),
        created_at: DateTime::UNIX_EPOCH,
        deleted_at: None,
    };
    for (timed_out, lost, says, silent) in [
        (true, None, "processes that it started may go on in the context", "everything it started"),
        (false, None, "processes that it started may go on in the context", "everything it started"),
        (true, Some("timeout".to_owned()), "everything it started were ended", "may go on"),
    ] {
        for (tool, language) in [("python_execute", Language::Python), ("node_execute", Language::Javascript)]
        {
            let end = CommandEnd { timed_out, cancelled: !timed_out, ..exited(130, "", "") };
            let world = World::new();
            let ended = Ok(ContextEnd { context: context(language), end, lost: lost.clone() });
            world.contexts.lock().expect("no test panicked").push_back(ended);
            let finished = world.call(tool, json!({"code": "1", "context": "main"})).await.expect("it ran");
            let output = finished.result.output;
            assert!(output.contains(says) && !output.contains(silent), "{output}");
        }
    }
}

/// The prelude in a real interpreter; what only a sandbox can show is tested there.
#[tokio::test]
async fn tracebacks_show_the_code_and_nothing_of_ours() {
    for (code, last, exit_code, stdout, stderr, result) in [
        ("import sys\nprint('é', sys.argv, __name__)", false, 0, "é ['<code>', 'x'] __main__\n", "", None),
        ("x = 3\nx * 14", true, 0, "", "", Some("42")),
        ("x = 3\nx * 14", false, 0, "", "", None),
        (
            "def f():\n    raise ValueError('no')\nf()",
            false,
            1,
            "",
            "Traceback (most recent call last):\n  File \"<code>\", line 3, in <module>\n    f()\n  \
             File \"<code>\", line 2, in f\n    raise ValueError('no')\nValueError: no\n",
            None,
        ),
        (
            "x = (",
            false,
            1,
            "",
            "  File \"<code>\", line 1\n    x = (\nSyntaxError: '(' was never closed\n",
            None,
        ),
        ("raise SystemExit(7)", false, 7, "", "", None),
        (
            "import os\ntry:\n    os.fstat(3)\nexcept OSError:\n    print('closed')",
            false,
            0,
            "closed\n",
            "",
            None,
        ),
    ] {
        let world = World::new();
        let arguments = json!({"code": code, "last_expression": last, "args": ["x"]});
        world.call("python_execute", arguments).await.expect("it ran");
        let command = world.commands.lock().expect("no test panicked")[0].clone();
        let Program::Interpreter { argv, mut request } = command.program else { panic!("an interpreter") };
        request.extend([
            ("cwd".to_owned(), json!("/")),
            ("env".to_owned(), json!({})),
            ("null_stdin".to_owned(), json!(true)),
        ]);
        let script = serde_json::Value::Object(request).to_string();
        let file = std::env::temp_dir().join(format!("toolhost-prelude-{}", std::process::id()));
        std::fs::write(&file, script).expect("a file for descriptor 3");
        let output = std::process::Command::new("sh")
            .args(["-c", "exec 3<>\"$0\"; exec \"$@\""])
            .arg(&file)
            .args(&argv)
            .output()
            .expect("sh is there");
        let report = std::fs::read(&file).expect("the report");
        std::fs::remove_file(&file).expect("it was there");
        if output.status.code() == Some(127) {
            eprintln!("python3 is not on this machine: skipped");
            return;
        }
        assert_eq!(output.status.code(), Some(exit_code), "{code}");
        let report: serde_json::Value = serde_json::from_slice(&report).expect("a report");
        assert_eq!(report["result"].as_str(), result, "{code}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "{code}");
        // Where the carets stand differs between versions of Python.
        let without_carets: String = String::from_utf8_lossy(&output.stderr)
            .split_inclusive('\n')
            .filter(|line| line.trim().is_empty() || line.contains(|c: char| !" ~^\n".contains(c)))
            .collect();
        assert_eq!(without_carets, stderr, "{code}");
    }
}

#[tokio::test]
async fn each_way_that_packages_fail_has_its_code_and_says_what_uv_said() {
    for (exit_code, code, words) in [
        (10, Code::NetworkRequired, "not among the wheels"),
        (11, Code::PackageFailed, "do not fit together"),
        (12, Code::PackageFailed, "did not build"),
        (13, Code::PackageFailed, "no uv"),
        (1, Code::PackageFailed, "could not be installed"),
    ] {
        let world = World::new().with_outcome(Ok(CommandOutcome::Ended(exited(
            exit_code,
            "",
            "error: no compiler\n",
        ))));
        let arguments = json!({"code": "1", "packages": ["broken-one"]});
        let error = world.call("python_execute", arguments).await.expect_err("nothing was installed");
        assert_eq!(error.code, code);
        assert!(error.message.contains(words) && error.hint.is_some(), "{error:?}");
        assert!(error.details["said"].as_str().is_some_and(|said| said.contains("no compiler")), "{error:?}");
        assert_eq!(world.commands.lock().expect("no test panicked").len(), 1, "the code is not run");
    }
}

#[tokio::test]
async fn the_tenants_wheels_come_as_they_are_asked_for() {
    let folder = format!("/tmp/.toolhost-wheels-{}", CallId::from_uuid(Uuid::from_u128(1)));
    let ended = |code| Ok(CommandOutcome::Ended(exited(code, "", "")));
    let world = World::new()
        .with_wheel("one-1.0-py3-none-any.whl", b"1")
        .with_wheel("two-1.0-py3-none-any.whl", b"22")
        .with_file(&folder, b"")
        // What a sandbox writes could be anything: only wheels of the tenant's are heeded, and each once.
        .with_file(
            &format!("{folder}/asked-0"),
            br#"["one-1.0-py3-none-any.whl", "../x", "other-1.0-py3-none-any.whl"]"#,
        )
        .with_file(
            &format!("{folder}/asked-1"),
            br#"["one-1.0-py3-none-any.whl", "two-1.0-py3-none-any.whl"]"#,
        )
        .with_file(&format!("{folder}/asked-2"), b"{nonsense")
        .with_outcome(ended(14))
        .with_outcome(ended(14))
        .with_outcome(ended(14))
        .with_outcome(ended(0));
    world.call("python_execute", json!({"code": "1", "packages": ["one"]})).await.expect("it ran");
    let commands = world.commands.lock().expect("no test panicked");
    let turns: Vec<_> = commands
        .iter()
        .filter_map(|command| match &command.program {
            Program::Argv { script: Some(script), .. } => {
                serde_json::from_str::<serde_json::Value>(script).ok()
            }
            _ => None,
        })
        .collect();
    assert_eq!((commands.len(), turns.len()), (5, 4));
    let cache = json!([["one-1.0-py3-none-any.whl", 1], ["two-1.0-py3-none-any.whl", 2]]);
    for (number, turn) in turns.iter().enumerate() {
        assert_eq!(
            (&turn["turn"], &turn["cache"], &turn["copies"]),
            (&json!(number), &cache, &json!(folder))
        );
    }
    let copies = world.copies.lock().expect("no test panicked");
    assert_eq!(*copies, [vec!["one-1.0-py3-none-any.whl"], vec!["two-1.0-py3-none-any.whl"], vec![]]);
    let told = world.told.lock().expect("no test panicked");
    assert_eq!(
        *told,
        [
            "1 of the tenant's wheels: one-1.0-py3-none-any.whl",
            "1 of the tenant's wheels: two-1.0-py3-none-any.whl"
        ]
    );
    let removals = world.removals.lock().expect("no test panicked");
    assert_eq!((removals.len(), removals[0].target), (1, RemoveTarget::Tree));
    assert_eq!(format!("{}/{}", removals[0].path.root, removals[0].path.relative), folder);
}

/// The second worker finds the tenant with other wheels, the third the same as the second.
#[tokio::test]
async fn a_wheel_has_the_same_number_whenever_the_call_is_run() {
    let folder = format!("/tmp/.toolhost-wheels-{}", CallId::from_uuid(Uuid::from_u128(1)));
    let [one, two, three] =
        ["one-1.0-py3-none-any.whl", "two-1.0-py3-none-any.whl", "three-1.0-py3-none-any.whl"];
    let mut world = World::new()
        .with_wheel(one, b"1")
        .with_wheel(two, b"2")
        .with_file(&folder, b"")
        .with_file(&format!("{folder}/asked-0"), json!([one, two, three, one]).to_string().as_bytes())
        .with_file(&format!("{folder}/asked-1"), json!([three, two]).to_string().as_bytes());
    let ended = |code| Ok(CommandOutcome::Ended(exited(code, "", "")));
    let arguments = json!({"code": "1", "packages": ["one"]});
    for run in 0..3 {
        if run == 1 {
            world.wheels.lock().expect("no test panicked").retain(|(name, _)| name != one);
            world = world.with_wheel(three, b"3");
        }
        for code in [14, 14, 0, 0] {
            world = world.with_outcome(ended(code));
        }
        world.call("python_execute", arguments.clone()).await.expect("it ran");
    }
    let copied = world.copied.lock().expect("no test panicked");
    let numbers: Vec<_> = copied.iter().map(|(number, name)| (*number, name.as_str())).collect();
    assert_eq!(numbers, [(0, one), (1, two), (2, three)]);
    let told = world.told.lock().expect("no test panicked");
    // In the second run one of a round is new: nobody has told of that round as it is now.
    let [first, second] = [[one, two], [two, three]].map(|names| names.join(", "));
    assert_eq!(
        *told,
        [first, second].map(|names| format!("2 of the tenant's wheels: {names}")),
        "each is told of when it came"
    );
}

#[tokio::test]
async fn an_installation_without_the_tenants_wheels_asks_for_none() {
    let world = World::new().with_wheel("one-1.0-py3-none-any.whl", b"1");
    world.call("python_execute", json!({"code": "1", "packages": ["humanize"]})).await.expect("it ran");
    assert!(world.copies.lock().expect("no test panicked").is_empty());
    assert!(world.removals.lock().expect("no test panicked").is_empty());
    assert_eq!(world.commands.lock().expect("no test panicked").len(), 2);
}

#[tokio::test]
async fn what_keeps_wheels_from_being_installed_is_told() {
    for (code, said, expected) in [
        (15, "one-1.0-py3-none-any.whl: BadZipFile", "a wheel of the tenant is damaged"),
        (16, "/tmp has 0 bytes left", "no room for the packages"),
        (10, "one was not found", "the session has no network"),
    ] {
        let world = World::new().with_outcome(Ok(CommandOutcome::Ended(exited(code, "", said))));
        let call = world.call("python_execute", json!({"code": "1", "packages": ["one"]}));
        let error = call.await.expect_err("not installed");
        let known = if code == 10 { Code::NetworkRequired } else { Code::PackageFailed };
        assert_eq!((error.code, &error.details["said"]), (known, &json!(said)));
        assert!(error.message.contains(expected), "{}", error.message);
    }
    // One that asks and asks is stopped.
    let mut world = World::new();
    for _ in 0..=WHEEL_ROUNDS {
        world = world.with_outcome(Ok(CommandOutcome::Ended(exited(14, "", ""))));
    }
    let error =
        world.call("python_execute", json!({"code": "1", "packages": ["one"]})).await.expect_err("no end");
    assert_eq!(
        (error.code, world.copies.lock().expect("no test panicked").len()),
        (Code::PackageFailed, WHEEL_ROUNDS as usize)
    );
}
