//! What a shell has said: read from anywhere, waited for, filtered, stripped.

use std::sync::Arc;
use std::time::Duration;

use domain::{ShellStatus, StreamName};
use serde_json::json;
use tools::port::{Captured, CommandEnd};

use crate::shell::ended;
use crate::world::{SHELL, World, exited, shell};

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
