//! Changing files: the guard that asks for a reading, edits, undoing, removing.

use std::sync::Arc;

use bytes::Bytes;
use domain::Code;
use serde_json::{Value, json};
use tools::port::{Before, RemoveTarget, WriteMode};
use tools::{AdmitError, Catalog};

use crate::world::{World, sha256};

fn content(world: &World, path: &str) -> Option<String> {
    let files = world.files.lock().expect("no test panicked");
    files.get(path).map(|content| String::from_utf8(content.clone()).expect("text"))
}

/// The same file, changed by something else.
fn meddle(world: &World, path: &str, content: &[u8]) {
    world.files.lock().expect("no test panicked").insert(path.to_owned(), content.to_vec());
}

async fn done(world: &Arc<World>, tool: &str, arguments: Value) -> Value {
    world.call(tool, arguments).await.unwrap_or_else(|error| panic!("{tool}: {error:?}")).result.structured
}

async fn code(world: &Arc<World>, tool: &str, arguments: Value) -> Code {
    match world.call(tool, arguments).await {
        Ok(finished) => panic!("{tool}: {:?}", finished.result),
        Err(error) => {
            assert!(error.message.starts_with(tool) || error.message == "not there", "{}", error.message);
            error.code
        }
    }
}

fn problem(tool: &str, arguments: Value) -> String {
    match Catalog::standard().admit(tool, arguments.clone()) {
        Err(AdmitError::Invalid(problems)) => format!("{} {}", problems[0].pointer, problems[0].message),
        other => panic!("{tool} {arguments}: {other:?}"),
    }
}

#[tokio::test]
async fn a_file_has_to_be_read_before_it_is_changed() {
    let world = World::new().with_file("/workspace/a", b"one\ntwo\n");
    let edit = json!({"path": "a", "old_string": "two", "new_string": "three"});
    for (tool, arguments) in [
        ("edit_file", edit.clone()),
        ("write_file", json!({"path": "a", "content": "x"})),
        ("write_file", json!({"path": "a", "content": "x", "mode": "append"})),
        (
            "str_replace_editor",
            json!({"command": "str_replace", "path": "a", "old_str": "two", "new_str": "x"}),
        ),
        ("str_replace_editor", json!({"command": "insert", "path": "a", "insert_line": 0, "new_str": "x"})),
    ] {
        assert_eq!(code(&world, tool, arguments).await, Code::NotRead, "{tool}");
    }
    done(&world, "read_file", json!({"path": "a", "limit": 1})).await;
    meddle(&world, "/workspace/a", b"one\ntwo\n!");
    assert_eq!(code(&world, "edit_file", edit.clone()).await, Code::StaleRead);
    done(&world, "read_file", json!({"path": "a"})).await;
    let edited = done(&world, "edit_file", edit).await;
    assert_eq!(content(&world, "/workspace/a").as_deref(), Some("one\nthree\n!"));
    assert_eq!(edited["sha256"], sha256(b"one\nthree\n!"));
    // What the session wrote itself, it knows.
    done(&world, "edit_file", json!({"path": "a", "old_string": "one", "new_string": "1"})).await;
    done(&world, "write_file", json!({"path": "a", "content": "x"})).await;
    assert!(world.versions.lock().expect("no test panicked").iter().all(|(.., made)| made.is_some()));
}

#[tokio::test]
async fn the_expected_content_stands_for_reading() {
    let world = World::new().with_file("/workspace/a", b"one");
    let edit = |sha256: &str| json!({"path": "a", "old_string": "one", "new_string": "two", "expected_sha256": sha256});
    assert_eq!(code(&world, "edit_file", edit(&"0".repeat(64))).await, Code::StaleRead);
    done(&world, "edit_file", edit(&sha256(b"one").to_uppercase())).await;
    let new = json!({"path": "new", "content": "x", "expected_sha256": "0".repeat(64)});
    assert_eq!(code(&world, "write_file", new).await, Code::StaleRead);
}

#[tokio::test]
async fn new_files_need_no_reading() {
    let world = World::new();
    done(&world, "write_file", json!({"path": "a", "content": "x"})).await;
    done(&world, "write_file", json!({"path": "b", "content": "x", "mode": "append"})).await;
    done(&world, "str_replace_editor", json!({"command": "create", "path": "c", "file_text": "x"})).await;
    let modes: Vec<_> =
        world.writes.lock().expect("no test panicked").iter().map(|write| write.mode).collect();
    assert_eq!(modes, [WriteMode::CreateNew; 3], "nothing that appears meanwhile is replaced");
    let again = json!({"command": "create", "path": "c", "file_text": "y"});
    assert_eq!(code(&world, "str_replace_editor", again).await, Code::AlreadyExists);
    let again = json!({"path": "c", "content": "y", "mode": "create_new"});
    assert_eq!(code(&world, "write_file", again).await, Code::AlreadyExists);
}

#[tokio::test]
async fn several_edits_are_made_or_none() {
    let world = World::new().with_file("/workspace/a", b"one\r\ntwo\r\n");
    done(&world, "read_file", json!({"path": "a"})).await;
    let bad = json!({"path": "a", "edits": [
        {"old_string": "one", "new_string": "1"}, {"old_string": "three", "new_string": "3"}]});
    assert_eq!(code(&world, "edit_file", bad).await, Code::NoMatch);
    assert_eq!(content(&world, "/workspace/a").as_deref(), Some("one\r\ntwo\r\n"));
    let good = json!({"path": "a", "edits": [
        {"old_string": "one\ntwo", "new_string": "1\n2"}, {"old_string": "2", "new_string": "$&"}]});
    let dry = json!({"path": "a", "edits": good["edits"], "dry_run": true});
    let shown = done(&world, "edit_file", dry).await;
    assert_eq!((&shown["sha256"], &shown["dry_run"]), (&Value::Null, &json!(true)));
    let edited = world.call("edit_file", good).await.expect("edited").result;
    assert_eq!(content(&world, "/workspace/a").as_deref(), Some("1\r\n$&\r\n"));
    assert_eq!(edited.structured["diff"], shown["diff"]);
    assert_eq!(edited.output, "changed 2 places in /workspace/a:\n     1\t1\n     2\t$&");
    let kept = world.writes.lock().expect("no test panicked").iter().all(|write| write.permissions.is_none());
    assert!(kept, "the mode stays");
}

#[tokio::test]
async fn what_is_no_text_is_not_edited() {
    let world = World::new().with_file("/workspace/a", b"a\0b").with_file("/workspace/b", b"a\xffb");
    for path in ["a", "b"] {
        let edit = json!({"path": path, "old_string": "a", "new_string": "b",
            "expected_sha256": sha256(&world.files.lock().expect("no test panicked")[&format!("/workspace/{path}")])});
        assert_eq!(code(&world, "edit_file", edit).await, Code::BinaryFile);
    }
    let edit = json!({"path": "none", "old_string": "a", "new_string": "b"});
    assert_eq!(code(&world, "edit_file", edit).await, Code::PathNotFound);
}

#[tokio::test]
async fn the_editor_speaks_as_its_models_expect() {
    let world = World::new();
    let editor = async |arguments: Value| world.call("str_replace_editor", arguments).await;
    editor(json!({"command": "create", "path": "/workspace/a", "file_text": "one\ntwo\nthree\n"}))
        .await
        .expect("created");
    let viewed = editor(json!({"command": "view", "path": "/workspace/a", "view_range": [2, -1]}))
        .await
        .expect("viewed");
    assert_eq!(viewed.result.output, "     2\ttwo\n     3\tthree");
    let edited = editor(json!({"command": "str_replace", "path": "/workspace/a", "old_str": "two"}))
        .await
        .expect("edited");
    assert!(edited.result.output.contains("has been edited"), "{}", edited.result.output);
    let inserted = json!({"command": "insert", "path": "/workspace/a", "insert_line": 1, "new_str": "and"});
    editor(inserted).await.expect("inserted");
    assert_eq!(content(&world, "/workspace/a").as_deref(), Some("one\nand\n\nthree\n"));
    let beyond = json!({"command": "insert", "path": "/workspace/a", "insert_line": 9, "new_str": "x"});
    assert!(editor(beyond).await.expect_err("beyond").message.contains("has 4 lines"));
    let twice = json!({"command": "str_replace", "path": "/workspace/a", "old_str": "n", "new_str": "x"});
    let twice = editor(twice).await.expect_err("twice");
    assert_eq!(
        twice.message,
        "str_replace_editor: old_str appears 2 times (lines 1, 2); give more of the lines around it"
    );
    for left in ["one\n\nthree\n", "one\ntwo\nthree\n"] {
        editor(json!({"command": "undo_edit", "path": "/workspace/a"})).await.expect("undone");
        assert_eq!(content(&world, "/workspace/a").as_deref(), Some(left));
    }
    editor(json!({"command": "undo_edit", "path": "/workspace/a"})).await.expect("undone");
    assert_eq!(content(&world, "/workspace/a"), None, "undoing the creation removes the file");
    let nothing = editor(json!({"command": "undo_edit", "path": "/workspace/a"})).await.expect_err("nothing");
    assert_eq!(nothing.code, Code::NothingToUndo);
}

#[tokio::test]
async fn changes_are_taken_back_unless_something_else_came_between() {
    let world = World::new();
    for text in ["1", "2", "3"] {
        done(&world, "write_file", json!({"path": "a", "content": text})).await;
    }
    assert_eq!(code(&world, "undo_edit", json!({"path": "a", "steps": 9})).await, Code::NothingToUndo);
    let undone = done(&world, "undo_edit", json!({"path": "a", "steps": 2})).await;
    assert_eq!((&undone["undone"], &undone["removed"]), (&json!(2), &json!(false)));
    assert_eq!(content(&world, "/workspace/a").as_deref(), Some("1"));
    // What is there now is known: it may be changed at once.
    done(&world, "write_file", json!({"path": "a", "content": "4"})).await;
    meddle(&world, "/workspace/a", b"5");
    assert_eq!(code(&world, "undo_edit", json!({"path": "a"})).await, Code::StaleRead);
    assert_eq!(content(&world, "/workspace/a").as_deref(), Some("5"));
}

#[tokio::test]
async fn a_call_that_is_run_again_starts_from_where_it_started() {
    let before =
        Before::Content { bytes: Bytes::from_static(b"one"), sha256: sha256(b"one"), permissions: None };
    // Its edit had been planned; whether it was made, only the agent's journal knows.
    let world = World { is_run_again: true, ..World::default() };
    world.versions.lock().expect("fresh").push(("/workspace/a".to_owned(), before, None));
    let world = Arc::new(world).with_file("/workspace/a", b"one");
    let edited =
        done(&world, "edit_file", json!({"path": "a", "old_string": "one", "new_string": "two"})).await;
    assert_eq!(edited["sha256"], sha256(b"two"));
    let writes = world.writes.lock().expect("no test panicked");
    assert_eq!(writes[0].expected_sha256, Some(sha256(b"one")), "the same write is asked for");
}

#[tokio::test]
async fn removing_says_what_it_takes() {
    let world = World::new().with_file("/workspace/a", b"x").with_file("/workspace/d/e", b"x");
    done(&world, "delete_file", json!({"path": "a"})).await;
    assert_eq!(code(&world, "delete_file", json!({"path": "a"})).await, Code::PathNotFound);
    assert_eq!(code(&world, "delete_file", json!({"path": "."})).await, Code::IsDirectory);
    for root in ["/workspace", ".", "/tmp", "/workspace/a/.."] {
        let all = json!({"path": root, "recursive": true, "confirm": root});
        assert_eq!(code(&world, "delete_directory", all).await, Code::PermissionDenied, "{root}");
    }
    assert_eq!(code(&world, "delete_directory", json!({"path": "/etc"})).await, Code::PathOutsideWorkspace);
    for (arguments, target) in [
        (json!({"path": "d/e"}), RemoveTarget::EmptyDirectory),
        (json!({"path": "d/e", "recursive": true}), RemoveTarget::EmptyDirectory),
        (json!({"path": "d/e", "confirm": "d/e"}), RemoveTarget::EmptyDirectory),
        (json!({"path": "d/e", "recursive": true, "confirm": "/workspace/d/e/"}), RemoveTarget::Tree),
    ] {
        meddle(&world, "/workspace/d/e", b"x");
        done(&world, "delete_directory", arguments.clone()).await;
        let removals = world.removals.lock().expect("no test panicked");
        assert_eq!(removals.last().map(|removal| removal.target), Some(target), "{arguments}");
    }
    let other = problem("delete_directory", json!({"path": "d", "recursive": true, "confirm": "e"}));
    assert!(other.starts_with("/confirm is another path"), "{other}");
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    for (tool, arguments, words) in [
        ("edit_file", json!({"path": "a"}), "give `old_string`"),
        ("edit_file", json!({"path": "a", "old_string": "x"}), "/new_string"),
        (
            "edit_file",
            json!({"path": "a", "old_string": "", "new_string": "x"}),
            "/old_string must not be empty",
        ),
        ("edit_file", json!({"path": "a", "old_string": "x", "new_string": "x"}), "nothing would change"),
        ("edit_file", json!({"path": "a", "edits": []}), "/edits"),
        (
            "edit_file",
            json!({"path": "a", "edits": [{"old_string": "x", "new_string": "x"}]}),
            "/edits/0/old_string",
        ),
        ("updateFile", json!({"path": "a", "operation": {"command": "chop"}}), "update, rewrite or append"),
        (
            "updateFile",
            json!({"path": "a", "operation": {"command": "update", "oldStr": "x"}}),
            "needs `newStr`",
        ),
        ("str_replace_editor", json!({"command": "create", "path": "a"}), "/file_text"),
        ("str_replace_editor", json!({"command": "insert", "path": "a", "new_str": "x"}), "/insert_line"),
        ("str_replace_editor", json!({"command": "view", "path": "a", "view_range": [3, 2]}), "/view_range"),
        ("str_replace_editor", json!({"command": "rename", "path": "a"}), "/command"),
        ("undo_edit", json!({"path": "a", "steps": 0}), "/steps"),
    ] {
        let found = problem(tool, arguments.clone());
        assert!(found.contains(words), "{tool} {arguments}: {found}");
    }
}
