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

pub(crate) fn ended(end: CommandEnd) -> Result<CommandOutcome, ToolError> {
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
