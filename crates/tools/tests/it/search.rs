//! Finding files by name and by content.

use serde_json::json;
use tools::port::{Globbed, GlobbedEntry, GrepMode, Grepped, GreppedFile, GreppedLine};
use tools::{AdmitError, Catalog};

use crate::world::World;

fn entry(path: &str) -> GlobbedEntry {
    GlobbedEntry { path: path.to_owned(), size_bytes: 1, modified_ms: 0 }
}

#[tokio::test]
async fn files_are_found_by_name() {
    let world = World::new();
    *world.globbed.lock().expect("fresh") =
        Globbed { entries: vec![entry("b.rs"), entry("a/\u{1b}[2J.rs")], total: 5, truncated: true };
    let result = world
        .call("glob", json!({"pattern": "*.rs", "path": "src", "limit": 2}))
        .await
        .expect("found")
        .result;
    assert_eq!(result.structured["paths"], json!(["/workspace/src/b.rs", "/workspace/src/a/\u{1b}[2J.rs"]));
    assert!(
        result.output.ends_with("\n[2 of 5 files; narrow the pattern or raise limit]"),
        "{}",
        result.output
    );
    assert!(!result.output.contains('\u{1b}'));
    world.call("glob", json!({"pattern": "/tmp/x/{a,b}/*.rs"})).await.expect("found");
    let globs = world.globs.lock().expect("no test panicked");
    assert!(!globs[0].by_path && globs[0].respect_ignore && globs[0].limit == 2);
    assert_eq!(
        (globs[1].path.root, globs[1].path.relative.as_str(), globs[1].pattern.as_str()),
        ("/tmp", "x", "./{a,b}/*.rs")
    );
}

fn line(number: u64, text: &str, is_match: bool) -> GreppedLine {
    GreppedLine { number, text: text.to_owned(), is_match, is_cut: false }
}

#[tokio::test]
async fn lines_are_shown_as_grep_does() {
    let world = World::new();
    let lines = vec![line(1, "before", false), line(2, "match", true), line(9, "match", true)];
    let file = GreppedFile { path: "a.py".to_owned(), matches: 2, lines };
    *world.grepped.lock().expect("fresh") =
        Grepped { files: vec![file], searched_files: 3, truncated: true, ..Grepped::default() };
    let arguments = json!({"pattern": "match", "output_mode": "content", "type": "py", "-C": 1, "offset": 4});
    let result = world.call("Grep", arguments).await.expect("found").result;
    assert_eq!(
        result.output,
        "/workspace/a.py-1-before\n/workspace/a.py:2:match\n--\n/workspace/a.py:9:match\n[there may be more; go on with offset 6]"
    );
    assert_eq!((&result.structured["next_offset"], &result.structured["results"]), (&json!(6), &json!(2)));
    let greps = world.greps.lock().expect("no test panicked");
    assert_eq!((greps[0].mode, greps[0].before, greps[0].after, greps[0].skip), (GrepMode::Content, 1, 1, 4));
    assert_eq!(greps[0].globs, ["*.py", "*.pyi"]);
}

#[tokio::test]
async fn files_and_counts_are_shown() {
    let world = World::new();
    let file = |path: &str| GreppedFile { path: path.to_owned(), matches: 2, lines: Vec::new() };
    *world.grepped.lock().expect("fresh") =
        Grepped { files: vec![file(""), file("b")], ..Grepped::default() };
    let files = world.call("grep", json!({"pattern": "x", "path": "a"})).await.expect("found").result;
    assert_eq!(files.output, "/workspace/a\n/workspace/a/b");
    let counts =
        world.call("grep", json!({"pattern": "x", "output_mode": "count"})).await.expect("found").result;
    assert_eq!(counts.output, "/workspace:2\n/workspace/b:2");
    *world.grepped.lock().expect("fine") = Grepped { searched_files: 7, ..Grepped::default() };
    let none = world.call("grep", json!({"pattern": "x"})).await.expect("searched").result;
    assert_eq!(none.output, "[no match in /workspace (7 files searched)]");
}

#[test]
fn patterns_that_cannot_be_searched_for_are_refused() {
    for (pattern, words) in [
        ("(", "not a valid regular expression"),
        ("(?=a)", "not a valid regular expression"),
        (r"(a)\1", "not a valid regular expression"),
        ("(((a{100}){100}){100})", "too large when compiled"),
    ] {
        let Err(AdmitError::Invalid(problems)) =
            Catalog::standard().admit("grep", json!({"pattern": pattern}))
        else {
            panic!("{pattern} is admitted")
        };
        assert!(problems[0].message.contains(words), "{pattern}: {}", problems[0].message);
    }
    let unknown = Catalog::standard().admit("grep", json!({"pattern": "x", "type": "cobol"}));
    assert!(matches!(unknown, Err(AdmitError::Invalid(_))));
}
