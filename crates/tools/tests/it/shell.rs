//! The shell toolkit.

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use domain::{CallId, CallStatus, Code, ShellId, ShellStatus, StreamName};
use serde_json::json;
use tools::port::{Background, Captured, CommandEnd, CommandOutcome, NamedEnd, Program};
use tools::{Catalog, Conclusion, ToolError};

use uuid::Uuid;

use crate::world::{SHELL, World, captured, exited, shell};

fn ended(end: CommandEnd) -> Result<CommandOutcome, ToolError> {
    Ok(CommandOutcome::Ended(end))
}

#[tokio::test]
async fn a_command_is_run_as_asked() {
    let world = World::new().with_outcome(ended(exited(0, "hi\n", "")));
    let arguments = json!({"command": "echo hi", "cwd": "src/../lib", "env": {"A": "1"}, "stdin": "in"});
    let finished = world.call("bash", arguments).await.expect("it ran");
    let command = world.commands.lock().expect("no test panicked")[0].clone();
    assert_eq!(command.program, Program::Shell("echo hi".to_owned()));
    assert_eq!((command.cwd.as_str(), command.stdin.as_deref()), ("/workspace/lib", Some("in")));
    assert_eq!((command.env["A"].as_str(), command.background), ("1", Background::Never));
    assert_eq!(finished.result.output, "hi");
    assert!(!finished.result.is_error);
    insta::assert_json_snapshot!(finished.result);
}

#[tokio::test]
async fn an_exit_code_is_an_error_of_the_command_and_not_of_the_call() {
    let world = World::new().with_outcome(ended(exited(3, "", "no\n")));
    let finished = world.call("bash", json!({"command": "false"})).await.expect("it ran");
    assert_eq!((finished.result.is_error, finished.result.exit_code), (true, Some(3)));
    assert_eq!(finished.conclusion, Conclusion::Finished);
    assert_eq!(finished.result.output, "[stderr]\nno\n[exit code 3]");
}

#[tokio::test]
async fn every_end_has_its_conclusion_and_its_words() {
    let signalled = CommandEnd {
        signal: Some("SIGKILL".to_owned()),
        ..CommandEnd { exit_code: None, ..exited(0, "part", "") }
    };
    for (end, conclusion, words) in [
        (exited(0, "", ""), Conclusion::Finished, "[no output]"),
        (signalled.clone(), Conclusion::Signalled, "[ended by SIGKILL]"),
        (CommandEnd { oom_killed: true, ..signalled.clone() }, Conclusion::OutOfMemory, "[out of memory"),
        (CommandEnd { oom_killed: true, ..exited(137, "", "") }, Conclusion::OutOfMemory, "exit code 137"),
        (CommandEnd { oom_killed: true, ..exited(0, "ok", "") }, Conclusion::Finished, "ok"),
        (
            CommandEnd { timed_out: true, ..signalled.clone() },
            Conclusion::TimedOut,
            "part\n[timed out after 12 ms",
        ),
        (CommandEnd { cancelled: true, ..signalled.clone() }, Conclusion::Cancelled, "[cancelled"),
        (
            CommandEnd { sandbox_reset: true, ..signalled },
            Conclusion::SandboxReset,
            "[everything in the sandbox",
        ),
    ] {
        let world = World::new().with_outcome(ended(end.clone()));
        let finished = world.call("bash", json!({"command": "x"})).await.expect("it ran");
        assert_eq!(finished.conclusion, conclusion, "{end:?}");
        assert!(finished.result.output.contains(words), "{}", finished.result.output);
        assert_eq!(finished.result.is_error, conclusion != Conclusion::Finished);
    }
}

#[tokio::test]
async fn long_output_is_shortened_and_says_so() {
    let stdout = Captured { head: vec![b'a'; 40_000], tail: vec![b'z'; 40_000], total_bytes: 1_000_000 };
    let end = CommandEnd { stdout, dropped_bytes: 7, left_over: 2, ..exited(0, "", "warn") };
    let world = World::new().with_outcome(ended(end));
    let result = world.call("bash", json!({"command": "x"})).await.expect("it ran").result;
    let truncated = result.truncated.expect("truncated");
    assert_eq!((truncated.total_bytes, truncated.dropped_bytes), (1_000_004, 7));
    assert!(result.output.len() < 30_300 && result.output.ends_with("[stderr]\nwarn"));
    assert_eq!(result.structured["truncated"], true);
    assert_eq!(result.structured["stdout_bytes"], 1_000_000);
    assert!(result.structured["stdout"].as_str().is_some_and(|text| text.len() < 30_300));
    let system = result.system.expect("remarks");
    assert!(system.contains("2 process(es)") && system.contains("7 bytes"), "{system}");
}

#[tokio::test]
async fn nothing_that_the_database_refuses_is_in_a_result() {
    let world = World::new().with_outcome(ended(exited(0, "a\0b\u{1b}[31mc", "\0")));
    let result = world.call("bash", json!({"command": "x"})).await.expect("it ran").result;
    let text = serde_json::to_string(&result).expect("serialises");
    assert!(!text.contains("\\u0000"), "{text}");
    assert_eq!(result.output, "abc");
}

#[tokio::test]
async fn a_background_command_returns_its_shell() {
    for (arguments, background) in [
        (json!({"command": "x", "background": true}), Background::Now { shell_timeout: None }),
        (json!({"command": "x", "background_after_ms": 0}), Background::Now { shell_timeout: None }),
        (
            json!({"command": "x", "background_after_ms": 5, "shell_timeout_ms": 9}),
            Background::After {
                wait: Duration::from_millis(5),
                shell_timeout: Some(Duration::from_millis(9)),
            },
        ),
    ] {
        let world = World::new().with_outcome(Ok(CommandOutcome::Shell {
            shell: shell(ShellStatus::Running),
            stdout: captured("so far\n"),
            stderr: captured(""),
        }));
        let result = world.call("bash", arguments).await.expect("it ran").result;
        assert_eq!(world.commands.lock().expect("no test panicked")[0].background, background);
        assert_eq!(result.structured["shell_id"], SHELL.to_string());
        assert_eq!((result.exit_code, result.is_error), (None, false));
        assert!(
            result.output.starts_with("so far\n[running in the background as shell_"),
            "{}",
            result.output
        );
    }
}

#[tokio::test]
async fn a_directory_outside_is_a_failed_call() {
    let world = World::new();
    let error = world.call("bash", json!({"command": "x", "cwd": "/etc"})).await.expect_err("outside");
    assert_eq!(error.code, Code::PathOutsideWorkspace);
    assert!(world.commands.lock().expect("no test panicked").is_empty());
}

#[tokio::test]
async fn a_log_is_read_from_any_offset_without_loss() {
    let log =
        [(StreamName::Stdout, "one\ntwo\n"), (StreamName::Stderr, "bad\n"), (StreamName::Stdout, "three")];
    let world = World::new().with_shell(shell(ShellStatus::Running), &log);
    let mut read = Vec::new();
    let mut since = 0;
    loop {
        let arguments = json!({"shell_id": SHELL.to_string(), "since_offset": since, "max_bytes": 5});
        let result = world.call("bash_output", arguments).await.expect("read").result;
        for chunk in result.structured["chunks"].as_array().expect("chunks") {
            assert_eq!(chunk["offset"], read.len() as u64);
            read.extend(chunk["text"].as_str().expect("text").bytes());
        }
        since = result.structured["next_offset"].as_u64().expect("an offset");
        if result.structured["more"] == false {
            break;
        }
    }
    assert_eq!(read, b"one\ntwo\nbad\nthree");
    assert_eq!(since, 17);
}

#[tokio::test]
async fn a_filter_shows_whole_lines_only() {
    let world = World::new()
        .with_shell(shell(ShellStatus::Running), &[(StreamName::Stdout, "ok\nerror 1\nok\nerror 2\nerr")]);
    let arguments = json!({"shell_id": SHELL.to_string(), "filter": "^err", "wait_ms": 100});
    let result = world.call("bash_output", arguments).await.expect("read").result;
    assert!(result.output.starts_with("error 1\nerror 2\n[shell_"), "{}", result.output);
    assert_eq!(result.structured["next_offset"], 22);
    assert_eq!(result.structured["more"], false);
    assert!(world.waits.lock().expect("no test panicked").is_empty(), "there was something to read");
}

#[tokio::test]
async fn a_line_that_is_written_in_parts_is_matched_as_one() {
    for strip_ansi in [false, true] {
        let world = World::new()
            .with_shell(shell(ShellStatus::Running), &[(StreamName::Stdout, "test foo ... \u{1b}[31m")]);
        let read = async |since: &serde_json::Value| {
            let arguments = json!({"shell_id": SHELL.to_string(), "filter": "foo.*FAILED", "since_offset": since, "wait_ms": 100,
                "strip_ansi": strip_ansi});
            world.call("bash_output", arguments).await.expect("read").result.structured
        };
        let first = read(&json!(0)).await;
        assert_eq!((&first["chunks"], &first["next_offset"]), (&json!([]), &json!(18)));
        let waits = [(18, Duration::from_millis(100))];
        assert_eq!(
            *world.waits.lock().expect("no test panicked"),
            waits,
            "a line without its end is none yet"
        );
        world.goes_on(StreamName::Stderr, "warning\n");
        world.goes_on(StreamName::Stdout, "FAILED\nnext");
        let second = read(&first["next_offset"]).await;
        let text = if strip_ansi { "test foo ... FAILED\n" } else { "test foo ... \u{1b}[31mFAILED\n" };
        assert_eq!(second["chunks"], json!([{"stream": "stdout", "offset": 0, "text": text}]));
        assert_eq!(second["next_offset"], 33);
        assert_eq!(world.waits.lock().expect("no test panicked").len(), 1, "there were whole lines");
        assert_eq!(read(&second["next_offset"]).await["chunks"], json!([]), "nothing is shown twice");
    }
}

#[tokio::test]
async fn a_wait_for_a_line_does_not_look_at_every_piece_of_it() {
    let world = Arc::new(World { drips: Some("."), ..World::default() });
    let world = world.with_shell(shell(ShellStatus::Running), &[(StreamName::Stdout, "50 %\n")]);
    let arguments =
        json!({"shell_id": SHELL.to_string(), "filter": "done", "since_offset": 5, "wait_ms": 1_000});
    let read = world.call("bash_output", arguments).await.expect("read").result;
    assert_eq!((&read.structured["chunks"], &read.structured["more"]), (&json!([]), &json!(false)));
    assert_eq!(world.waits.lock().expect("no test panicked").len(), 5, "four pauses between them");
    let reads = world.reads.lock().expect("no test panicked").clone();
    assert_eq!(reads, [5, 0, 5, 5, 5, 5], "what was before is read once");
}

#[tokio::test]
async fn a_read_waits_when_there_is_nothing_new() {
    let world = World::new().with_shell(shell(ShellStatus::Exited), &[(StreamName::Stdout, "x\u{0}")]);
    let arguments = json!({"shell_id": SHELL.to_string(), "since_offset": 2, "wait_ms": 100});
    let result = world.call("bash_output", arguments).await.expect("read").result;
    assert_eq!(*world.waits.lock().expect("no test panicked"), [(2, Duration::from_millis(100))]);
    assert!(result.output.starts_with("[no new output]\n[shell_") && result.output.contains("exit code 0"));
    let all = world.call("bash_output", json!({"shell_id": SHELL.to_string()})).await.expect("read").result;
    assert_eq!(all.structured["chunks"][0]["base64"], "eAA=", "NUL cannot be stored as text");
}

#[tokio::test]
async fn text_and_signals_reach_a_shell() {
    for (arguments, text, close, signal) in [
        (json!({"stdin": "y"}), Some("y\n"), false, None),
        (json!({"stdin": ""}), Some("\n"), false, None),
        (json!({"stdin": "y\n"}), Some("y\n"), false, None),
        (json!({"stdin": "y", "append_newline": false, "close": true}), Some("y"), true, None),
        (json!({"signal": "ctrl+c"}), None, false, Some(2)),
    ] {
        let world = World::new().with_shell(shell(ShellStatus::Running), &[(StreamName::Stdout, "> ")]);
        let mut arguments = arguments;
        arguments["shell_id"] = json!(SHELL.to_string());
        let result = world.call("bash_input", arguments).await.expect("sent").result;
        let input = world.inputs.lock().expect("no test panicked")[0].clone();
        assert_eq!((input.text.as_deref(), input.close, input.signal), (text, close, signal));
        assert_eq!(result.structured["next_offset"], 2);
    }
}

#[tokio::test]
async fn a_killed_shell_shows_its_last_output() {
    let world = World::new().with_shell(shell(ShellStatus::Running), &[(StreamName::Stdout, "bye\n")]);
    let result =
        world.call("kill_bash", json!({"shell_id": SHELL.to_string()})).await.expect("killed").result;
    assert_eq!(*world.kills.lock().expect("no test panicked"), [Duration::from_millis(200)]);
    assert_eq!(result.structured["was_running"], true);
    assert!(result.output.contains("was ended by SIGTERM (killed)") && result.output.ends_with("bye"));
}

#[tokio::test]
async fn a_shell_that_is_not_there_is_a_failed_call() {
    for tool in ["bash_output", "kill_bash"] {
        let error = World::new().call(tool, json!({"shell_id": SHELL.to_string()})).await.expect_err("none");
        assert_eq!(error.code, Code::ShellNotFound, "{tool}");
    }
}

#[tokio::test]
async fn lines_of_an_earlier_call_are_read_again() {
    let log = [(StreamName::Stdout, "one\ntwo\nTHREE\nfour\nfive\n"), (StreamName::Stderr, "oops\n")];
    let world = World::new().with_shell(shell(ShellStatus::Exited), &log);
    let id = "call_06b2m8j0v5x3t9q7k1h4c8n2rg";
    let grep = json!({"call_id": id, "pattern": "three", "ignore_case": true, "context": 1});
    let found = world.call("read_output", grep).await.expect("found").result;
    assert_eq!(found.output, "2-two\n3:THREE\n4-four");
    assert_eq!(found.structured["next_line"], serde_json::Value::Null);
    let part = world.call("read_output", json!({"call_id": id, "first_line": 2, "limit": 1})).await;
    let part = part.expect("found").result;
    assert_eq!(part.output, "2:two\n[there is more: first_line 3]");
    assert_eq!(part.structured["next_line"], 3);
    let none = world.call("read_output", json!({"call_id": id, "stream": "stderr", "pattern": "x"})).await;
    assert_eq!(none.expect("found").result.output, "[no lines]");
    let running = World::new().with_shell(shell(ShellStatus::Running), &log);
    let rest = running.call("read_output", json!({"call_id": id, "first_line": 5})).await.expect("found");
    assert!(rest.result.output.starts_with("5:five\n[call_"), "{}", rest.result.output);
    for (arguments, pointer) in [
        (json!({"call_id": "x"}), "/call_id"),
        (json!({"call_id": id, "pattern": "("}), "/pattern"),
        (json!({"call_id": id, "first_line": 3, "last_line": 2}), "/last_line"),
    ] {
        let refused = tools::Catalog::standard().admit("read_output", arguments);
        let Err(tools::AdmitError::Invalid(problems)) = refused else { panic!("{pointer}: {refused:?}") };
        assert_eq!(problems[0].pointer, pointer);
    }
}

#[tokio::test]
async fn shells_are_listed_by_status() {
    let ended = |exit_code: i32, reason: Option<&str>| domain::Shell {
        exit_code: Some(exit_code),
        end_reason: reason.map(str::to_owned),
        ..shell(ShellStatus::Exited)
    };
    let world = World::new()
        .with_shell(shell(ShellStatus::Running), &[])
        .with_shell(ended(0, None), &[])
        .with_shell(ended(1, None), &[])
        .with_shell(ended(143, Some("killed")), &[]);
    for (status, count) in [("all", 4), ("running", 1), ("completed", 1), ("error", 1), ("terminated", 1)] {
        let result = world.call("list_bash", json!({"status": status})).await.expect("listed").result;
        assert_eq!(result.structured["shells"].as_array().map(Vec::len), Some(count), "{status}");
    }
    let result = world.call("list_bash", json!({"status": "completed"})).await.expect("listed").result;
    assert!(result.output.ends_with("  completed, 2.5 s  sleep 100\\necho done"), "{}", result.output);
    let none = World::new().call("list_bash", json!({})).await.expect("listed").result;
    assert_eq!(none.output, "[no shells]");
}

#[tokio::test]
async fn a_tool_that_is_gone_fails_its_call() {
    let world = World::new();
    let error = Catalog::standard().run("gone", &world.context(1_000), json!({})).await.expect_err("gone");
    assert_eq!(error.code, Code::UnknownTool);
}

#[tokio::test]
async fn a_named_shell_that_was_replaced_says_so() {
    for (lost, words) in [
        (None, None),
        (Some("it was killed; it is as before"), Some("[shell_replaced: the shell main: it was killed")),
    ] {
        let world = World::new();
        let end = NamedEnd { cwd: "/tmp".to_owned(), is_new: false, lost: lost.map(str::to_owned) };
        world.named.lock().expect("no test panicked").push_back((exited(0, "hi\n", ""), end));
        let arguments = json!({"command": "echo hi", "shell": "main", "cwd": "src", "restart": true});
        let result = world.call("bash", arguments).await.expect("it ran").result;
        assert_eq!(result.structured["shell_replaced"], lost.is_some());
        assert_eq!(result.structured["shell"]["cwd"], "/tmp");
        assert_eq!(result.output.contains("shell_replaced"), words.is_some());
        assert!(words.is_none_or(|words| result.output.contains(words)), "{}", result.output);
        let asked = world.named_runs.lock().expect("no test panicked").remove(0);
        assert_eq!(
            (asked.name.as_str(), asked.cwd.as_deref(), asked.restart),
            ("main", Some("/workspace/src"), true)
        );
    }
}

#[tokio::test]
async fn what_has_no_meaning_in_a_named_shell_is_refused_all_at_once() {
    let arguments = json!({"command": "x", "shell": "a b", "background": true, "pty": {}, "env": {"A": "1"}});
    let Err(tools::AdmitError::Invalid(problems)) = Catalog::standard().admit("bash", arguments) else {
        panic!("refused")
    };
    let mut pointers: Vec<_> = problems.iter().map(|problem| problem.pointer.as_str()).collect();
    pointers.sort_unstable();
    assert_eq!(pointers, ["/env", "/pty", "/shell"]);
}

#[tokio::test]
async fn a_wait_says_what_ended_it_and_gives_its_slot_back() {
    let world = World::new();
    *world.elapsed.lock().expect("no test panicked") = Duration::from_secs(2);
    // Taken over after two seconds: only the rest is waited for.
    let result = world.call("sleep", json!({"seconds": 5})).await.expect("it waited").result;
    assert_eq!(
        (result.structured["ended_by"].as_str(), &result.structured["waited_ms"]),
        (Some("time"), &json!(5_000))
    );
    assert_eq!(result.output, "Waited 5.0 s.");
    let call = CallId::from_uuid(Uuid::from_u128(5));
    world.calls.lock().expect("no test panicked").insert(call, CallStatus::Succeeded);
    let arguments = json!({"until": {"call_id": call.to_string()}});
    let result = world.call("wait", arguments).await.expect("it waited").result;
    assert_eq!(
        (&result.structured["reached"], result.structured["call_status"].as_str()),
        (&json!(true), Some("succeeded"))
    );
    assert_eq!(*world.rests.lock().expect("no test panicked"), 2);
    let own = CallId::from_uuid(Uuid::from_u128(1)).to_string();
    let error = world.call("wait", json!({"until": {"call_id": own}})).await.expect_err("never ends");
    assert_eq!(error.code, Code::InvalidArguments);
}

#[tokio::test]
async fn escape_sequences_are_left_out_where_that_is_asked() {
    let coloured = "\u{1b}[31mred\u{1b}[0m 1%\r2%\n";
    for (strip_ansi, shown) in [(false, coloured), (true, "red 1%\r2%\n")] {
        let world = World::new().with_outcome(ended(exited(0, coloured, coloured)));
        let arguments = json!({"command": "x", "strip_ansi": strip_ansi});
        let result = world.call("bash", arguments).await.expect("it ran").result;
        assert_eq!(
            (&result.structured["stdout"], &result.structured["stderr"]),
            (&json!(shown), &json!(shown))
        );
        assert_eq!(result.structured["stdout_bytes"], coloured.len(), "what was written is counted");
    }
    // A gap is never taken for the rest of a sequence.
    let cut = Captured {
        head: b"head\x1b]0;ti".to_vec(),
        tail: b"tle\x07\x1b[1mtail\x1b[0m\nend".to_vec(),
        total_bytes: 9_000,
    };
    let world = World::new().with_outcome(ended(CommandEnd { stdout: cut, ..exited(0, "", "") }));
    let result =
        world.call("bash", json!({"command": "x", "strip_ansi": true})).await.expect("it ran").result;
    let stdout = result.structured["stdout"].as_str().expect("text");
    assert!(
        stdout.starts_with("head") && stdout.ends_with("…]\nend") && !stdout.contains('\u{1b}'),
        "{stdout:?}"
    );
}

/// Two streams, each in the middle of something when the other writes; the log ends with what may be a title that never ends.
const MIXED: &[(StreamName, &str)] = &[
    (StreamName::Stdout, "\u{1b}[3"),
    (StreamName::Stderr, "e\u{1b}]0;ti"),
    (StreamName::Stdout, "1mred\u{1b}[0m\nplain\n"),
    (StreamName::Stderr, "tle\u{7}rr\n"),
    (StreamName::Stdout, "\u{1b}]end"),
];

#[tokio::test]
async fn a_log_is_stripped_the_same_wherever_it_is_cut() {
    let length: usize = MIXED.iter().map(|(_, text)| text.len()).sum();
    // In pieces of the same size, and in two pieces, cut anywhere.
    let cuts = [1, 2, 3, 7, 1_000]
        .map(|step| (step, step))
        .into_iter()
        .chain((1..length).map(|first| (first, 1_000)));
    for (first, step) in cuts {
        for status in [ShellStatus::Running, ShellStatus::Exited] {
            let world = World::new().with_shell(shell(status), MIXED);
            let (mut stdout, mut stderr, mut at, mut max_bytes) = (String::new(), String::new(), 0, first);
            loop {
                let arguments = json!({"shell_id": SHELL.to_string(), "strip_ansi": true, "since_offset": at, "max_bytes": max_bytes});
                let read = world.call("bash_output", arguments).await.expect("it ran").result.structured;
                for chunk in read["chunks"].as_array().expect("chunks") {
                    let text = chunk["text"].as_str().expect("text");
                    assert!(!text.is_empty() && chunk["offset"].as_u64() >= Some(at), "{chunk}");
                    if chunk["stream"] == "stdout" { stdout.push_str(text) } else { stderr.push_str(text) }
                }
                let next = read["next_offset"].as_u64().expect("an offset");
                assert!(
                    next > at && next <= at + max_bytes as u64,
                    "the bytes of the log are what is counted: {read}"
                );
                (at, max_bytes) = (next, step);
                if read["more"] == false {
                    break;
                }
            }
            assert_eq!(at, length as u64);
            // What may still become a sequence is shown once it cannot.
            let end = if status == ShellStatus::Running { "" } else { "end" };
            assert_eq!(
                (stdout, stderr),
                (format!("red\nplain\n{end}"), "err\n".to_owned()),
                "{first} {step}"
            );
        }
    }
}

#[tokio::test]
async fn a_filter_sees_no_sequences_that_are_stripped() {
    let world = World::new()
        .with_shell(shell(ShellStatus::Exited), &[(StreamName::Stdout, "\u{1b}[31mred\u{1b}[0m\nblue\n")]);
    for (strip_ansi, found) in
        [(true, json!([{"stream": "stdout", "offset": 0, "text": "red\n"}])), (false, json!([]))]
    {
        let arguments = json!({"shell_id": SHELL.to_string(), "strip_ansi": strip_ansi, "filter": "^red$"});
        let result = world.call("bash_output", arguments).await.expect("it ran").result;
        assert_eq!((&result.structured["chunks"], &result.structured["next_offset"]), (&found, &json!(18)));
    }
}

#[tokio::test]
async fn a_shell_is_found_by_the_name_that_it_began_as() {
    let named = domain::Shell { name: Some("dev".parse().expect("a name")), ..shell(ShellStatus::Running) };
    let world = World::new().with_shell(named, &[(StreamName::Stdout, "up\n")]);
    let result = world.call("bash_output", json!({"shell_id": "dev"})).await.expect("it ran").result;
    assert_eq!(
        (&result.structured["shell_id"], &result.structured["chunks"][0]["text"]),
        (&json!(SHELL.to_string()), &json!("up\n"))
    );
    let wait = |name: &str| json!({"until": {"shell_id": name}, "seconds": 1});
    let result = world.call("wait", wait("dev")).await.expect("it waited").result;
    assert_eq!(
        (&result.structured["shell_status"], &result.structured["reached"]),
        (&json!("running"), &json!(false))
    );
    for (tool, arguments) in [
        ("bash_output", json!({"shell_id": "other"})),
        ("kill_bash", json!({"shell_id": "other"})),
        ("wait", wait("other")),
    ] {
        let error = world.call(tool, arguments).await.expect_err("nothing of that name");
        assert_eq!(error.code, Code::ShellNotFound, "{error:?}");
    }
    let Err(tools::AdmitError::Invalid(problems)) = Catalog::standard().admit("wait", wait("no name")) else {
        panic!("refused")
    };
    assert_eq!(problems[0].pointer, "/until/shell_id");
}

#[tokio::test]
async fn a_name_means_the_newest_shell_and_for_a_call_that_is_run_again_none_that_came_later() {
    let at = |seconds| DateTime::from_timestamp(seconds, 0);
    let started = |number: u128, seconds: i64| domain::Shell {
        id: ShellId::from_uuid(Uuid::from_u128(number)),
        // Their calls were admitted in the other order, and both after the call that asks.
        call_id: CallId::from_uuid(Uuid::from_u128(100 - number)),
        name: Some("dev".parse().expect("a name")),
        created_at: at(seconds).expect("a time"),
        ..shell(ShellStatus::Running)
    };
    for (run_before_at, meant) in [(None, Some(2)), (at(15), Some(1)), (at(20), Some(2)), (at(5), None)] {
        let world = Arc::new(World { run_before_at, ..World::default() });
        let world = world.with_shell(started(1, 10), &[]).with_shell(started(2, 20), &[]);
        for tool in ["bash_output", "kill_bash"] {
            let result = world.call(tool, json!({"shell_id": "dev"})).await;
            let meant = meant.map(|number| ShellId::from_uuid(Uuid::from_u128(number)).to_string());
            let found = match result {
                Ok(finished) => finished.result.structured["shell_id"].as_str().map(str::to_owned),
                Err(error) => {
                    assert_eq!(error.code, Code::ShellNotFound);
                    None
                }
            };
            assert_eq!(found, meant, "{tool}, run before at {run_before_at:?}");
        }
    }
}

#[tokio::test]
async fn a_filter_is_linear_whatever_it_says() {
    // A backtracking matcher would need longer than there is time: 2^40 steps and more.
    let line = format!("{}!\n", "a".repeat(5_000));
    let world = World::new().with_shell(
        shell(ShellStatus::Exited),
        &[(StreamName::Stdout, &line), (StreamName::Stdout, "aab\n")],
    );
    for (filter, found) in [("^(a+)+$", 0), ("^(a|aa)+$", 0), ("^(a*)*b$", 1), ("^(a?){40}(a){2}b$", 1)] {
        let arguments = json!({"shell_id": SHELL.to_string(), "filter": filter});
        let result = world.call("bash_output", arguments).await.expect("it ran").result;
        assert_eq!(result.structured["chunks"].as_array().map(Vec::len), Some(found), "{filter}");
    }
}
