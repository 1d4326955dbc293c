//! Every problem is listed with its pointer and what to change.

use serde_json::{Value, json};
use tools::{AdmitError, Admitted, Catalog};

use crate::world::SHELL;

fn admit(tool: &str, arguments: Value) -> Admitted {
    Catalog::standard().admit(tool, arguments).expect("admitted")
}

fn problems(tool: &str, arguments: Value) -> Vec<(String, String)> {
    match Catalog::standard().admit(tool, arguments.clone()) {
        Err(AdmitError::Invalid(problems)) => {
            problems.into_iter().map(|problem| (problem.pointer, problem.message)).collect()
        }
        other => panic!("{tool} {arguments}: {other:?}"),
    }
}

#[track_caller]
fn has(tool: &str, arguments: Value, pointer: &str, message: &str) {
    let found = problems(tool, arguments.clone());
    assert!(
        found.iter().any(|(at, text)| at == pointer && text.contains(message)),
        "{tool} {arguments}: no {pointer:?} {message:?} in {found:#?}"
    );
}

#[test]
fn what_is_right_is_admitted_as_it_is() {
    let arguments = json!({"command": "echo hi", "env": {"A": "b"}});
    let admitted = admit("bash", arguments.clone());
    assert_eq!(admitted.arguments, arguments);
    assert_eq!((admitted.tool, admitted.requested_tool, admitted.timeout_ms), ("bash", None, None));
    assert_eq!((admitted.default_timeout_ms, admitted.max_timeout_ms), (120_000, 600_000));
}

#[test]
fn null_is_nothing_and_a_whole_float_is_an_integer() {
    let admitted = admit("read_file", json!({"path": "a", "offset": 5.0, "limit": null, "byte_range": null}));
    assert_eq!(admitted.arguments, json!({"path": "a", "offset": 5}));
    has("read_file", json!({"path": null}), "/path", "`path` is missing");
}

#[test]
fn every_problem_is_listed_at_once() {
    let found = problems(
        "bash",
        json!({"comand": "x", "background": "yes", "env": {"A": 1}, "background_after_ms": -1}),
    );
    let pointers: Vec<&str> = found.iter().map(|(pointer, _)| pointer.as_str()).collect();
    for expected in ["/comand", "/command", "/background", "/env/A", "/background_after_ms"] {
        assert!(pointers.contains(&expected), "{expected} in {found:#?}");
    }
}

#[test]
fn problems_say_what_to_change() {
    for (tool, arguments, pointer, message) in [
        ("bash", json!({"command": "x", "comand": "y"}), "/comand", "did you mean `command`?"),
        ("bash", json!({"command": "x", "zzz": 1}), "/zzz", "it has `background`, `background_after_ms`"),
        ("bash", json!({"command": 7}), "/command", "must be of type string, not number"),
        ("bash", json!({"command": ""}), "/command", "must not be empty"),
        ("bash", json!({"command": " \n"}), "/command", "must not be empty"),
        ("bash", json!({"command": "a\0b"}), "/command", "NUL"),
        ("bash", json!({"command": "x", "stdin": "\0"}), "/stdin", "NUL"),
        ("bash", json!({"command": "x", "env": {"1A": ""}}), "/env/1A", "name of a variable"),
        ("bash", json!({"command": "x", "env": {"a/b": ""}}), "/env/a~1b", "name of a variable"),
        ("bash", json!({"command": "x", "env": {"A": "x".repeat(40_000)}}), "/env/A", "must be shorter"),
        ("bash", json!({"command": "x", "env": {"A\0": ""}}), "/env/A\u{fffd}", "NUL"),
        ("bash", json!({"command": "x", "cwd": ""}), "/cwd", "must not be empty"),
        ("bash", json!({"command": "x", "cwd": "a".repeat(5_000)}), "/cwd", "at most 4096 bytes"),
        (
            "bash",
            json!({"command": "x", "background": true, "background_after_ms": 5}),
            "/background_after_ms",
            "one of the two",
        ),
        (
            "bash",
            json!({"command": "x", "background_after_ms": 700_000}),
            "/background_after_ms",
            "at most 600000",
        ),
        (
            "bash",
            json!({"command": "x", "shell_timeout_ms": 5}),
            "/shell_timeout_ms",
            "no meaning in the foreground",
        ),
        ("bash", json!({"command": "x", "restart": true}), "/restart", "kill_bash"),
        ("bash", json!({"command": "x", "secrets": ["a"]}), "/secrets", "not available yet"),
        (
            "bash",
            json!({"command": "x", "idempotency_key": "a"}),
            "/idempotency_key",
            "Idempotency-Key header",
        ),
        (
            "bash",
            json!({"command": "x", "description": "x".repeat(201)}),
            "/description",
            "at most 200 characters",
        ),
        ("bash_output", json!({"shell_id": "shell_7"}), "/shell_id", "list_bash"),
        ("bash_output", json!({"shell_id": "a b"}), "/shell_id", "list_bash"),
        (
            "bash_output",
            json!({"shell_id": SHELL.to_string(), "filter": "("}),
            "/filter",
            "not a regular expression",
        ),
        (
            "bash_output",
            json!({"shell_id": SHELL.to_string(), "wait_ms": 60_001}),
            "/wait_ms",
            "at most 60000",
        ),
        (
            "bash_output",
            json!({"shell_id": SHELL.to_string(), "since_offset": u64::MAX}),
            "/since_offset",
            "beyond any log",
        ),
        ("bash_input", json!({"shell_id": SHELL.to_string()}), "", "at least one of"),
        (
            "bash_input",
            json!({"shell_id": SHELL.to_string(), "signal": "NOPE"}),
            "/signal",
            "must be one of HUP, INT",
        ),
        ("kill_bash", json!({}), "/shell_id", "is missing"),
        ("kill_bash", json!({"shell_id": SHELL.to_string(), "grace_ms": 1e9}), "/grace_ms", "at most 30000"),
        ("list_bash", json!({"status": "done"}), "/status", "must be one of \"all\", \"running\""),
        (
            "python_execute",
            json!({"code": "1", "packages": ["x", "-r y"]}),
            "/packages/1",
            "is not a requirement",
        ),
        (
            "node_execute",
            json!({"code": "1", "dependencies": ["../x"]}),
            "/dependencies/0",
            "is not an npm package",
        ),
        (
            "python_execute",
            json!({"code": "1", "context_id": "x"}),
            "/context_id",
            "is not the id of a context",
        ),
        (
            "python_execute",
            json!({"code": "1", "context_id": "ctx_00000000000000000000000000", "context": "a"}),
            "/context",
            "one of the two",
        ),
        ("python_execute", json!({"code": "1", "tool_bridge": true}), "/tool_bridge", "not available yet"),
        ("python_execute", json!({"code": "1", "timeout": 5}), "/timeout", "`timeout_seconds`"),
        ("python_execute", json!({"code": "1", "args": [1]}), "/args/0", "must be of type string"),
        (
            "python_execute",
            json!({"code": "1", "args": ["x".repeat(40_000)]}),
            "/args/0",
            "use `stdin` or a file",
        ),
        ("read_file", json!({"path": "a", "outline": 1}), "/outline", "must be of type boolean"),
        (
            "read_file",
            json!({"path": "a", "outline": true, "byte_range": {"start": 0, "end": 5}}),
            "/byte_range",
            "cannot be combined with `outline`",
        ),
        ("read_file", json!({"path": "a", "offset": 0}), "/offset", "at least 1"),
        ("read_file", json!({"path": "a", "offset": 1.5}), "/offset", "must be of type integer"),
        (
            "read_file",
            json!({"path": "a", "byte_range": {"start": 5, "end": 5}}),
            "/byte_range/end",
            "greater than `start`",
        ),
        ("read_file", json!({"path": "a", "byte_range": {"start": 5}}), "/byte_range/end", "is missing"),
        (
            "read_file",
            json!({"path": "a", "limit": 5, "byte_range": {"start": 0, "end": 5}}),
            "/byte_range",
            "cannot be combined",
        ),
        ("write_file", json!({"path": "a"}), "", "give `content`"),
        ("write_file", json!({"path": "a/", "content": ""}), "/path", "names a directory"),
        (
            "write_file",
            json!({"path": "a", "content": "", "content_base64": ""}),
            "/content_base64",
            "cannot be combined",
        ),
        ("write_file", json!({"path": "a", "content_base64": "?"}), "/content_base64", "is not base64"),
        (
            "write_file",
            json!({"path": "a", "content": "x".repeat(6 * 1024 * 1024 + 1)}),
            "/content",
            "at most 6291456",
        ),
        (
            "write_file",
            json!({"path": "a", "content": "", "permissions": "0999"}),
            "/permissions",
            "must match",
        ),
        (
            "write_file",
            json!({"path": "a", "content": "", "permissions": "4755"}),
            "/permissions",
            "must match",
        ),
        (
            "write_file",
            json!({"path": "a", "content": "", "mode": "create_new", "expected_sha256": "a".repeat(64)}),
            "/expected_sha256",
            "no meaning",
        ),
        ("list_files", json!({"limit": 0}), "/limit", "at least 1"),
        ("list_files", json!({"path": "a\0"}), "/path", "NUL"),
    ] {
        has(tool, arguments, pointer, message);
    }
}

#[test]
fn arguments_are_an_object() {
    for arguments in [json!(null), json!([]), json!("{}"), json!(1)] {
        has("list_files", arguments, "", "must be an object");
    }
}

#[test]
fn values_are_not_repeated() {
    let secret = "hunter2".repeat(3);
    for arguments in [json!({"command": 1, "env": {"A": [secret]}}), json!({"command": [secret]})] {
        let found = format!("{:?}", problems("bash", arguments));
        assert!(!found.contains("hunter2"), "{found}");
    }
}

#[test]
fn an_unknown_tool_is_answered_with_the_nearest_names() {
    let catalog = Catalog::standard();
    for (name, nearest) in
        [("bahs", "bash"), ("readfile", "read_file"), ("python", "python_execute"), ("BASH", "bash")]
    {
        let Err(AdmitError::UnknownTool { nearest: found }) = catalog.admit(name, json!({})) else {
            panic!("{name} is known")
        };
        assert!(found.iter().any(|found| found == nearest), "{name}: {found:?}");
    }
    assert!(catalog.nearest(&"x".repeat(100_000)).is_empty());
}

#[test]
fn a_timeout_is_taken_from_either_place_but_not_from_both() {
    let admitted = admit("bash", json!({"command": "x", "timeout_ms": 5_000}));
    assert_eq!(admitted.timeout(None), Ok(5_000));
    assert_eq!(admitted.timeout(Some(5_000)), Ok(5_000));
    assert!(admitted.timeout(Some(6_000)).is_err());
    let silent = admit("bash", json!({"command": "x"}));
    assert_eq!(silent.timeout(None), Ok(120_000));
    assert_eq!(silent.timeout(Some(600_000)), Ok(600_000));
    for wrong in [0, 600_001, u64::MAX] {
        assert_eq!(silent.timeout(Some(wrong)).expect_err("out of range").pointer, "/timeout_ms");
    }
}

#[test]
fn timeouts_out_of_range_are_refused() {
    for (name, value) in [
        ("timeout_ms", json!(0)),
        ("timeout_ms", json!(600_001)),
        ("timeout_ms", json!("5")),
        ("timeout_ms", json!(1.5)),
        ("timeout", json!(-5)),
        ("timeout_seconds", json!(0)),
        ("timeout_seconds", json!(601)),
        ("timeout_seconds", json!(1e300)),
        ("timeout_seconds", json!("5")),
    ] {
        has("bash", json!({"command": "x", name: value}), &format!("/{name}"), &format!("`{name}`"));
    }
}

#[test]
fn a_description_among_the_arguments_is_the_calls() {
    let admitted = admit("bash", json!({"command": "x", "description": "see"}));
    assert_eq!(admitted.description.as_deref(), Some("see"));
    assert_eq!(admitted.arguments, json!({"command": "x"}));
}
