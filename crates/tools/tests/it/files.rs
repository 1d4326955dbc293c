//! The files toolkit.

use domain::Code;
use serde_json::{Value, json};
use tools::Catalog;
use tools::port::{EntryKind, ListedEntry, Listing, WriteMode};

use crate::world::{World, sha256};

#[tokio::test]
async fn lines_are_numbered_and_raw_text_is_kept() {
    let world = World::new().with_file("/workspace/a.txt", b"one\r\n\ttwo\nthree");
    let result = world.call("read_file", json!({"path": "a.txt"})).await.expect("read").result;
    assert_eq!(result.output, "     1\tone\n     2\t\ttwo\n     3\tthree");
    assert_eq!(result.structured["content"], "one\r\n\ttwo\nthree");
    insta::assert_json_snapshot!(result.structured);
}

#[tokio::test]
async fn a_part_says_where_to_read_on() {
    let text: String = (1..=10).map(|number| format!("line {number}\n")).collect();
    let world = World::new().with_file("/tmp/a", text.as_bytes());
    let arguments = json!({"path": "/tmp/a", "offset": 4, "limit": 2});
    let result = world.call("read_file", arguments).await.expect("read").result;
    assert_eq!(result.output, "     4\tline 4\n     5\tline 5\n[lines 4-5 of 10; read on with offset 6]");
    assert_eq!(
        (&result.structured["next_offset"], &result.structured["total_lines"]),
        (&json!(6), &json!(10))
    );
    assert!(result.truncated.is_some());
    let last = world.call("read_file", json!({"path": "/tmp/a", "offset": 10})).await.expect("read").result;
    assert_eq!(
        (&last.structured["next_offset"], &last.structured["truncated"]),
        (&Value::Null, &json!(false))
    );
    let error = world.call("read_file", json!({"path": "/tmp/a", "offset": 11})).await.expect_err("beyond");
    assert!(error.message.contains("has 10 lines"), "{}", error.message);
}

#[tokio::test]
async fn reading_on_shows_every_line_once_whatever_the_budget() {
    let text: String = (1..=500).map(|number| format!("line é {number}\n")).collect();
    let world = World::new().with_file("/workspace/a", text.as_bytes());
    let catalog = Catalog::standard();
    let (mut read, mut offset) = (String::new(), json!(1));
    while !offset.is_null() {
        let arguments = json!({"path": "a", "offset": offset});
        let finished = catalog.run("read_file", &world.context(700), arguments).await.expect("read");
        assert!(finished.result.output.len() < 900);
        read.push_str(finished.result.structured["content"].as_str().expect("text"));
        offset = finished.result.structured["next_offset"].clone();
    }
    assert_eq!(read, text);
}

#[tokio::test]
async fn an_outline_shows_headings_and_definitions_with_their_numbers() {
    let text = "import os\n\nclass A:\n    def one(self):\n        return 1\n\n\ndef two():\n    return 2\n";
    let world =
        World::new().with_file("/workspace/a.py", text.as_bytes()).with_file("/workspace/a.csv", b"a,b\n");
    let result =
        world.call("read_file", json!({"path": "a.py", "outline": true})).await.expect("read").result;
    assert_eq!(
        result.output,
        "     3\tclass A:\n     4\t    def one(self):\n     8\tdef two():\n[outline: 3 of 9 lines; read a part with offset and limit]"
    );
    assert_eq!(result.structured["outline"], json!([3, 4, 8]));
    assert_eq!(result.structured["sha256"], json!(sha256(text.as_bytes())), "it may be edited now");
    let arguments = json!({"path": "a.py", "outline": true, "offset": 4, "limit": 1});
    let part = world.call("read_file", arguments).await.expect("read").result;
    assert_eq!(
        (&part.structured["outline"], &part.structured["next_offset"]),
        (&json!([4]), &json!(8)),
        "{}",
        part.output
    );
    let cut = world
        .call("read_file", json!({"path": "a.py", "outline": true, "max_chars": 5}))
        .await
        .expect("read");
    assert_eq!(cut.result.structured["content"], "class", "{}", cut.result.output);
    assert_eq!(cut.result.structured["next_offset"], 4);
    let plain =
        world.call("read_file", json!({"path": "a.csv", "outline": true})).await.expect("read").result;
    assert_eq!((&plain.structured["outline"], plain.output.as_str()), (&Value::Null, "     1\ta,b"));
}

#[tokio::test]
async fn a_line_longer_than_the_budget_is_cut_and_says_so() {
    let world = World::new().with_file("/workspace/a", "é".repeat(10_000).as_bytes());
    let arguments = json!({"path": "a", "max_chars": 10});
    let result = world.call("read_file", arguments).await.expect("read").result;
    assert_eq!(result.structured["content"], "é".repeat(10));
    assert!(result.output.contains("use byte_range"), "{}", result.output);
    assert_eq!(result.structured["truncated"], true);
}

#[tokio::test]
async fn bytes_are_read_by_range_without_cut_characters() {
    let world = World::new().with_file("/workspace/a", "aéb€c".as_bytes());
    let arguments = json!({"path": "a", "byte_range": {"start": 2, "end": 6}});
    let result = world.call("read_file", arguments).await.expect("read").result;
    assert_eq!(result.structured["content"], "b");
    assert_eq!(result.structured["byte_range"], json!({"start": 3, "end": 4}));
    let beyond = json!({"path": "a", "byte_range": {"start": 9, "end": 10}});
    assert_eq!(world.call("read_file", beyond).await.expect_err("beyond").code, Code::InvalidArguments);
}

#[tokio::test]
async fn what_is_not_text_is_refused_by_name() {
    for (content, words) in [
        (&b"\x89PNG\r\n\x1a\n\x00"[..], "a PNG image"),
        (b"a\0b", "NUL"),
        (b"a\xffb", "byte 1"),
        (b"\x7fELF\x02\x01\x01\x00", "ELF"),
    ] {
        let world = World::new().with_file("/workspace/a", content);
        let error = world.call("read_file", json!({"path": "a"})).await.expect_err("not text");
        assert_eq!(error.code, Code::BinaryFile);
        assert!(error.message.contains(words), "{}", error.message);
    }
    let text = World::new().with_file("/workspace/a", b"%PDF- is how a PDF begins\n");
    assert!(text.call("read_file", json!({"path": "a"})).await.is_ok());
}

#[tokio::test]
async fn a_file_larger_than_the_limit_is_read_in_part() {
    let world = World::new().with_file("/workspace/a", "é\n".repeat(2_200_000).as_bytes());
    let result = world.call("read_file", json!({"path": "a", "limit": 1})).await.expect("read").result;
    assert_eq!(
        (&result.structured["total_lines"], &result.structured["sha256"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(result.structured["next_offset"], 2);
    let far = world.call("read_file", json!({"path": "a", "offset": 2_199_999})).await.expect_err("too far");
    assert_eq!(far.code, Code::FileTooLarge);
}

#[tokio::test]
async fn an_empty_file_is_said_to_be_empty() {
    let world = World::new().with_file("/workspace/a", b"");
    let result = world.call("read_file", json!({"path": "a"})).await.expect("read").result;
    assert_eq!(result.output, "[the file is empty]");
}

#[tokio::test]
async fn a_write_is_exact() {
    let world = World::new().with_file("/workspace/d/run.sh", b"old");
    let old = sha256(b"old");
    let arguments = json!({"path": "d/run.sh", "content": "a\r\n\tb", "permissions": "0755", "expected_sha256": old.to_uppercase()});
    let result = world.call("write_file", arguments).await.expect("written").result;
    let write = world.writes.lock().expect("no test panicked")[0].clone();
    assert_eq!(
        (&write.content[..], write.permissions, write.mode),
        (&b"a\r\n\tb"[..], Some(0o755), WriteMode::Overwrite)
    );
    assert_eq!((write.path.root, write.path.relative.as_str()), ("/workspace", "d/run.sh"));
    assert_eq!(write.expected_sha256, Some(old));
    assert_eq!(result.output, "replaced /workspace/d/run.sh (5 bytes, 2 lines; now 5 bytes)");
    assert_eq!(result.structured["permissions"], "0755");
}

#[tokio::test]
async fn bytes_are_written_from_base64_and_appended() {
    let world = World::new().with_file("/tmp/b", b"x");
    world.call("read_file", json!({"path": "/tmp/b"})).await.expect("read");
    let arguments = json!({"path": "/tmp/b", "content_base64": "AP8=", "mode": "append"});
    let result = world.call("write_file", arguments).await.expect("written").result;
    let write = world.writes.lock().expect("no test panicked")[0].clone();
    assert_eq!((&write.content[..], write.mode), (&b"\x00\xff"[..], WriteMode::Append));
    assert!(result.output.starts_with("appended to /tmp/b (2 bytes"), "{}", result.output);
}

#[tokio::test]
async fn paths_outside_and_roots_are_failed_calls() {
    let world = World::new();
    for (tool, arguments, code) in [
        ("read_file", json!({"path": "../etc/passwd"}), Code::PathOutsideWorkspace),
        ("write_file", json!({"path": "/etc/x", "content": ""}), Code::PathOutsideWorkspace),
        ("write_file", json!({"path": ".", "content": ""}), Code::IsDirectory),
        ("list_files", json!({"path": "/"}), Code::PathOutsideWorkspace),
        ("read_file", json!({"path": "none"}), Code::PathNotFound),
    ] {
        assert_eq!(world.call(tool, arguments).await.expect_err(tool).code, code, "{tool}");
    }
    assert!(world.writes.lock().expect("no test panicked").is_empty());
}

#[tokio::test]
async fn a_listing_is_a_tree() {
    let entry = |path: &str, kind| ListedEntry { path: path.to_owned(), kind, size_bytes: 5 };
    let world = World::new();
    *world.listing.lock().expect("no test panicked") = Listing {
        entries: vec![
            entry("a", EntryKind::Directory),
            entry("a-b.txt", EntryKind::File),
            entry("a/c\n.txt", EntryKind::File),
            entry("z", EntryKind::Symlink),
        ],
        total: 9,
        truncated: true,
    };
    let result = world.call("list_files", json!({"recursive": true})).await.expect("listed").result;
    insta::assert_snapshot!(result.output);
    insta::assert_json_snapshot!("a_listing_is_a_tree.structured", result.structured);
    world.call("list_files", json!({"max_depth": 9})).await.expect("listed");
    let lists = world.lists.lock().expect("no test panicked");
    assert_eq!((lists[0].max_depth, lists[1].max_depth), (3, 1));
    assert!(lists[0].respect_ignore && !lists[0].include_hidden);
}
