//! Prompts of the source systems run unchanged: their names, their arguments, their units.

use serde_json::{Value, json};
use tools::{AdmitError, Catalog, Dialect};

use crate::world::SHELL;

#[test]
fn names_arguments_and_units_are_translated() {
    let id = SHELL.to_string();
    for (name, given, tool, arguments, timeout_ms) in [
        (
            "Bash",
            json!({"command": "x", "timeout": 5000, "run_in_background": true, "description": "d"}),
            "bash",
            json!({"command": "x", "background": true}),
            5_000,
        ),
        (
            "bash",
            json!({"command": "x", "timeout_seconds": 1.5, "directory": "src"}),
            "bash",
            json!({"command": "x", "cwd": "src"}),
            1_500,
        ),
        (
            "shellStart",
            json!({"command": "x", "description": "d", "showStdIn": true}),
            "bash",
            json!({"command": "x", "background_after_ms": 10_000}),
            120_000,
        ),
        (
            "shellStart",
            json!({"command": "x", "timeout": 50}),
            "bash",
            json!({"command": "x", "background_after_ms": 50}),
            120_000,
        ),
        ("shellExecute", json!({"command": "x"}), "bash", json!({"command": "x"}), 30_000),
        ("shellExecute", json!({"command": "x", "timeout": 100}), "bash", json!({"command": "x"}), 100),
        (
            "execute_command",
            json!({"command": "x", "folder": "a"}),
            "bash",
            json!({"command": "x", "cwd": "a", "background": true}),
            60_000,
        ),
        (
            "execute_command",
            json!({"command": "x", "blocking": true, "timeout": 9}),
            "bash",
            json!({"command": "x", "background": false}),
            9_000,
        ),
        ("RunCommandTool", json!({"command": "x"}), "bash", json!({"command": "x"}), 30_000),
        (
            "run_command",
            json!({"command": "x", "timeout_seconds": 60}),
            "bash",
            json!({"command": "x"}),
            60_000,
        ),
        (
            "BashOutput",
            json!({"bash_id": id, "filter": "x"}),
            "bash_output",
            json!({"shell_id": id, "filter": "x"}),
            120_000,
        ),
        (
            "execute_command",
            json!({"command": "x", "session_name": "dev"}),
            "bash",
            json!({"command": "x", "shell": "dev", "background": true}),
            60_000,
        ),
        (
            "execute_command",
            json!({"command": "x", "session_name": "dev", "blocking": true}),
            "bash",
            json!({"command": "x", "shell": "dev", "background": false}),
            60_000,
        ),
        (
            "check_command_output",
            json!({"session_name": "dev"}),
            "bash_output",
            json!({"shell_id": "dev"}),
            120_000,
        ),
        (
            "terminate_command",
            json!({"session_name": "dev"}),
            "kill_bash",
            json!({"shell_id": "dev"}),
            60_000,
        ),
        (
            "check_command_output",
            json!({"session_name": id, "kill_session": false}),
            "bash_output",
            json!({"shell_id": id}),
            120_000,
        ),
        (
            "shellMessage",
            json!({"shellId": id, "description": "d"}),
            "bash_output",
            json!({"shell_id": id}),
            120_000,
        ),
        (
            "shellMessage",
            json!({"instanceId": id, "stdin": "y", "signal": null}),
            "bash_input",
            json!({"shell_id": id, "stdin": "y"}),
            30_000,
        ),
        (
            "shellMessage",
            json!({"instanceId": id, "signal": "SIGINT"}),
            "bash_input",
            json!({"shell_id": id, "signal": "SIGINT"}),
            30_000,
        ),
        ("KillBash", json!({"shell_id": id}), "kill_bash", json!({"shell_id": id}), 60_000),
        ("terminate_command", json!({"session_name": id}), "kill_bash", json!({"shell_id": id}), 60_000),
        ("ListBash", json!({}), "list_bash", json!({}), 30_000),
        (
            "listShells",
            json!({"status": "error", "verbose": true}),
            "list_bash",
            json!({"status": "error"}),
            30_000,
        ),
        ("list_commands", json!({}), "list_bash", json!({}), 30_000),
        ("CodeExec", json!({"code": "1"}), "python_execute", json!({"code": "1"}), 60_000),
        ("PythonExecute", json!({"code": "1", "timeout": 5}), "python_execute", json!({"code": "1"}), 5_000),
        (
            "visualization_preparation",
            json!({"code": "1", "code_type": "process"}),
            "python_execute",
            json!({"code": "1"}),
            60_000,
        ),
        (
            "Read",
            json!({"file_path": "a", "offset": 3, "limit": 4}),
            "read_file",
            json!({"path": "a", "offset": 3, "limit": 4}),
            30_000,
        ),
        (
            "readFile",
            json!({"path": "a", "range": {"start": 0, "end": 9}, "maxSize": 100}),
            "read_file",
            json!({"path": "a", "byte_range": {"start": 0, "end": 9}, "max_chars": 100}),
            30_000,
        ),
        ("ReadFileTool", json!({"path": "a"}), "read_file", json!({"path": "a"}), 30_000),
        (
            "read_file_truncated",
            json!({"path": "a", "prefer_structure": true}),
            "read_file",
            json!({"path": "a", "max_chars": 2_000, "outline": true}),
            30_000,
        ),
        (
            "Write",
            json!({"file_path": "a", "content": "b"}),
            "write_file",
            json!({"path": "a", "content": "b"}),
            30_000,
        ),
        (
            "create_file",
            json!({"file_path": "a", "file_contents": "b", "permissions": "644"}),
            "write_file",
            json!({"path": "a", "content": "b", "permissions": "644"}),
            30_000,
        ),
        (
            "WriteFileTool",
            json!({"path": "a", "content": "b"}),
            "write_file",
            json!({"path": "a", "content": "b"}),
            30_000,
        ),
        (
            "Edit",
            json!({"file_path": "a", "old_string": "b", "new_string": "c", "replace_all": true}),
            "edit_file",
            json!({"path": "a", "old_string": "b", "new_string": "c", "replace_all": true}),
            30_000,
        ),
        (
            "MultiEdit",
            json!({"file_path": "a", "edits": [{"old_string": "b", "new_string": "c"}]}),
            "edit_file",
            json!({"path": "a", "edits": [{"old_string": "b", "new_string": "c"}]}),
            30_000,
        ),
        (
            "updateFile",
            json!({"path": "a", "operation": {"command": "update", "oldStr": "b", "newStr": "c"}, "description": "d"}),
            "edit_file",
            json!({"path": "a", "old_string": "b", "new_string": "c"}),
            30_000,
        ),
        (
            "updateFile",
            json!({"path": "a", "operation": {"command": "rewrite", "content": "c"}}),
            "write_file",
            json!({"path": "a", "content": "c", "mode": "overwrite"}),
            30_000,
        ),
        (
            "updateFile",
            json!({"filePath": "a", "operation": {"command": "append", "content": "c"}}),
            "write_file",
            json!({"path": "a", "content": "c", "mode": "append"}),
            30_000,
        ),
        (
            "str_replace",
            json!({"file_path": "a", "old_str": "b", "new_str": "c"}),
            "edit_file",
            json!({"path": "a", "old_string": "b", "new_string": "c"}),
            30_000,
        ),
        (
            "StrReplaceEditor",
            json!({"command": "view", "path": "a", "view_range": [1, -1]}),
            "str_replace_editor",
            json!({"command": "view", "path": "a", "view_range": [1, -1]}),
            30_000,
        ),
        (
            "textEditor",
            json!({"command": "create", "path": "a", "file_text": "b", "description": "d"}),
            "str_replace_editor",
            json!({"command": "create", "path": "a", "file_text": "b"}),
            30_000,
        ),
        ("DeleteFileTool", json!({"path": "a"}), "delete_file", json!({"path": "a"}), 30_000),
        ("delete_file", json!({"file_path": "a"}), "delete_file", json!({"path": "a"}), 30_000),
        ("DeleteDirectoryTool", json!({"path": "a"}), "delete_directory", json!({"path": "a"}), 120_000),
        (
            "Glob",
            json!({"pattern": "**/*.rs", "path": "a"}),
            "glob",
            json!({"pattern": "**/*.rs", "path": "a"}),
            30_000,
        ),
        (
            "Grep",
            json!({"pattern": "x", "-A": 1, "-B": 2, "-C": 3, "-i": true, "-n": false, "type": "py", "head_limit": 5}),
            "grep",
            json!({"pattern": "x", "after": 1, "before": 2, "context": 3, "ignore_case": true, "line_numbers": false,
                "type": "py", "head_limit": 5}),
            60_000,
        ),
        (
            "ListFilesTool",
            json!({"path": "a", "recursive": true, "max_depth": 2}),
            "list_files",
            json!({"path": "a", "recursive": true, "max_depth": 2}),
            30_000,
        ),
    ] {
        let admitted = Catalog::standard()
            .admit(name, given.clone())
            .unwrap_or_else(|error| panic!("{name} {given}: {error:?}"));
        assert_eq!((admitted.tool, &admitted.arguments), (tool, &arguments), "{name} {given}");
        assert_eq!(admitted.timeout(None), Ok(timeout_ms), "{name} {given}");
        assert_eq!(admitted.requested_tool.as_deref(), (name != tool).then_some(name));
    }
}

fn problem(name: &str, given: Value) -> (String, String) {
    let Err(AdmitError::Invalid(problems)) = Catalog::standard().admit(name, given.clone()) else {
        panic!("{name} {given} is admitted")
    };
    assert_eq!(problems.len(), 1, "{problems:?}");
    (problems[0].pointer.clone(), problems[0].message.clone())
}

#[test]
fn the_same_thing_twice_is_a_clash() {
    for (name, given) in [
        ("bash", json!({"command": "x", "timeout": 5, "timeout_seconds": 5})),
        ("bash", json!({"command": "x", "timeout": 5, "timeout_ms": 5})),
        ("bash", json!({"command": "x", "cwd": "a", "directory": "a"})),
        ("bash", json!({"command": "x", "background": true, "run_in_background": true})),
        ("Read", json!({"file_path": "a", "path": "a"})),
    ] {
        let (_, message) = problem(name, given);
        assert!(message.contains("give only"), "{message}");
    }
}

#[test]
fn problems_point_at_the_name_that_was_given() {
    assert_eq!(problem("Read", json!({"file_path": ""})).0, "/file_path");
    assert_eq!(problem("readFile", json!({"path": "a", "range": {"start": 5, "end": 1}})).0, "/range/end");
    assert_eq!(problem("bash", json!({"command": "x", "run_in_background": 1})).0, "/run_in_background");
}

#[test]
fn what_another_system_has_and_we_have_not_is_refused_with_a_reason() {
    for (name, given, message) in [
        ("execute_command", json!({"command": "x", "session_name": "a b"}), "letters, digits"),
        ("execute_command", json!({"command": "x", "blocking": "no"}), "true or false"),
        (
            "check_command_output",
            json!({"session_name": SHELL.to_string(), "kill_session": true}),
            "kill_bash",
        ),
        ("read_file_truncated", json!({"path": "a", "prefer_structure": 1}), "must be true or false"),
    ] {
        let (_, found) = problem(name, given);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn an_alias_knows_its_dialect() {
    let catalog = Catalog::standard();
    for (name, dialect) in [
        ("bash", Dialect::Toolhost),
        ("Bash", Dialect::OpenCowork),
        ("shellStart", Dialect::Mycoder),
        ("PythonExecute", Dialect::OpenManus),
        ("RunCommandTool", Dialect::CoworkForge),
    ] {
        assert_eq!(catalog.get(name).expect(name).dialect(), dialect, "{name}");
    }
}
