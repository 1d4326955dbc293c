//! Verbs on trees: what they find and remove, and what no link, swap or bomb makes of them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{
    ErrorCode, GlobRequest, GlobSort, Globbed, GrepMode, GrepRequest, Grepped, RemoveRequest, RemoveTarget,
    Removed, Reply, Request,
};

use crate::harness::{Sandbox, Worker, key};

fn remove(worker: &mut Worker, path: &str, target: RemoveTarget) -> Result<Removed, ErrorCode> {
    let key = key(&format!("remove-{path}-{target:?}"));
    let (root, path) = ("/workspace".to_owned(), path.to_owned());
    let owner = key.owner.clone();
    let removed = answer(worker, RemoveRequest { key, root, path, target, expected_sha256: None });
    worker.ask(&Request::Forget { owner });
    removed
}

fn answer(worker: &mut Worker, request: RemoveRequest) -> Result<Removed, ErrorCode> {
    match worker.ask(&Request::Remove(request)) {
        Reply::Removed(removed) => Ok(removed),
        Reply::Error(error) => Err(error.code),
        other => panic!("unexpected {other:?}"),
    }
}

fn glob_request(pattern: &str) -> GlobRequest {
    GlobRequest {
        root: "/workspace".to_owned(),
        path: String::new(),
        pattern: pattern.to_owned(),
        include_hidden: false,
        respect_ignore: true,
        sort: GlobSort::Path,
        limit: 100,
    }
}

fn glob(worker: &mut Worker, request: GlobRequest) -> Result<Globbed, ErrorCode> {
    match worker.ask(&Request::Glob(request)) {
        Reply::Globbed(found) => Ok(found),
        Reply::Error(error) => Err(error.code),
        other => panic!("unexpected {other:?}"),
    }
}

fn paths(found: &Globbed) -> Vec<&str> {
    found.entries.iter().map(|entry| entry.path.as_str()).collect()
}

fn grep_request(pattern: &str) -> GrepRequest {
    GrepRequest {
        root: "/workspace".to_owned(),
        path: String::new(),
        pattern: pattern.to_owned(),
        ignore_case: false,
        multiline: false,
        globs: Vec::new(),
        include_hidden: false,
        respect_ignore: true,
        mode: GrepMode::Content,
        before: 0,
        after: 0,
        skip: 0,
        limit: 100,
        max_bytes: 100_000,
    }
}

fn grep(worker: &mut Worker, request: GrepRequest) -> Result<Grepped, ErrorCode> {
    match worker.ask(&Request::Grep(request)) {
        Reply::Grepped(found) => Ok(found),
        Reply::Error(error) => Err(error.code),
        other => panic!("unexpected {other:?}"),
    }
}

/// `path:number:text` of each line, with `-` for those around.
fn lines(found: &Grepped) -> Vec<String> {
    let show = |path: &str, line: &protocol::GrepLine| {
        let mark = if line.is_match { ':' } else { '-' };
        format!("{path}{mark}{}{mark}{}", line.number, line.text)
    };
    found.files.iter().flat_map(|file| file.lines.iter().map(|line| show(&file.path, line))).collect()
}

/// A file of the tool's own, directories above it included.
fn put(sandbox: &Sandbox, path: &str, content: impl AsRef<[u8]>) {
    let path = sandbox.workspace().join(path);
    std::fs::create_dir_all(path.parent().expect("below the workspace")).expect("directories");
    std::fs::write(&path, content).expect("writes");
}

fn own(sandbox: &Sandbox) {
    let status = std::process::Command::new("chown")
        .args(["-hR", &format!("{0}:{0}", sandbox.uid)])
        .arg(sandbox.workspace())
        .status();
    assert!(status.expect("chown runs").success());
}

#[test]
fn what_is_named_is_removed_and_nothing_else() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    for path in ["file", "full/a/b", "full/c", "kept/x"] {
        put(&sandbox, path, path);
    }
    std::fs::create_dir(sandbox.workspace().join("empty")).expect("a directory");
    let root = sandbox.workspace();
    for (link, target) in
        [("link", "kept/x"), ("full/out", "../kept"), ("dangling", "none"), ("escape", "/etc")]
    {
        symlink(target, root.join(link)).expect("a link");
    }
    nix::unistd::mkfifo(&root.join("full/pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    own(&sandbox);
    use RemoveTarget::{EmptyDirectory, File, Tree};
    for (path, target, code) in [
        ("full", File, ErrorCode::IsDirectory),
        ("full", EmptyDirectory, ErrorCode::NotEmpty),
        ("file", EmptyDirectory, ErrorCode::NotDirectory),
        ("link", Tree, ErrorCode::NotDirectory),
        ("none", File, ErrorCode::NotFound),
        ("none/below", File, ErrorCode::NotFound),
        ("file/below", File, ErrorCode::NotDirectory),
        ("", Tree, ErrorCode::InvalidPath),
        (".", Tree, ErrorCode::InvalidPath),
        ("full/..", Tree, ErrorCode::InvalidPath),
        ("full/a/../..", Tree, ErrorCode::InvalidPath),
        ("../workspace/file", File, ErrorCode::OutsideRoot),
        ("/etc/passwd", File, ErrorCode::OutsideRoot),
        ("escape/passwd", File, ErrorCode::OutsideRoot),
        ("a\0b", File, ErrorCode::InvalidPath),
    ] {
        assert_eq!(remove(&mut worker, path, target), Err(code), "{path:?}");
    }
    for path in ["file", "link", "dangling", "escape"] {
        assert_eq!(remove(&mut worker, path, File), Ok(Removed { files: 1, directories: 0 }), "{path}");
    }
    assert_eq!(remove(&mut worker, "empty", EmptyDirectory), Ok(Removed { files: 0, directories: 1 }));
    assert_eq!(remove(&mut worker, "full/", Tree), Ok(Removed { files: 4, directories: 2 }));
    let left: Vec<_> =
        std::fs::read_dir(&root).expect("lists").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["kept"]);
    assert!(root.join("kept/x").exists() && Path::new("/etc/passwd").exists());
}

#[test]
fn a_removal_happens_once() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    put(&sandbox, "file", "abc");
    own(&sandbox);
    let request = |owner: &str, sha256: &str| RemoveRequest {
        key: key(owner),
        root: "/workspace".to_owned(),
        path: "file".to_owned(),
        target: RemoveTarget::File,
        expected_sha256: Some(sha256.to_owned()),
    };
    assert_eq!(answer(&mut worker, request("other", &"0".repeat(64))), Err(ErrorCode::Conflict));
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert!(answer(&mut worker, request("once", abc)).is_ok());
    put(&sandbox, "file", "abc");
    own(&sandbox);
    assert!(answer(&mut worker, request("once", abc)).is_ok(), "the journal answers");
    assert!(sandbox.workspace().join("file").exists());
}

#[test]
fn a_tree_of_any_depth_is_removed() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let deepest = sandbox.workspace().join("deep").join("d/".repeat(1000));
    std::fs::create_dir_all(&deepest).expect("directories");
    for (level, folder) in deepest.ancestors().take(1000).enumerate() {
        std::fs::write(folder.join(level.to_string()), "").expect("writes");
    }
    own(&sandbox);
    assert_eq!(worker.sh("mkdir wide && cd wide && seq 5000 | xargs touch").code(), Some(0));
    assert_eq!(
        remove(&mut worker, "deep", RemoveTarget::Tree),
        Ok(Removed { files: 1000, directories: 1001 })
    );
    assert_eq!(remove(&mut worker, "wide", RemoveTarget::Tree), Ok(Removed { files: 5000, directories: 1 }));
    assert_eq!(std::fs::read_dir(sandbox.workspace()).expect("lists").count(), 0);
    let rss = worker.status().agent_rss_bytes;
    assert!(rss < 8 * 1024 * 1024, "the agent has {rss} bytes");
}

#[test]
fn swapping_a_directory_for_a_link_takes_nothing_outside() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let root = sandbox.workspace();
    put(&sandbox, "outside/precious", "x");
    own(&sandbox);
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (root, stop) = (root.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let inner = root.join("tree/inner");
                let _ = std::fs::create_dir_all(&inner);
                let _ = std::fs::write(inner.join("f"), "x");
                let _ = std::fs::rename(&inner, root.join("aside"));
                let _ = symlink("../outside", &inner);
                let _ = std::fs::remove_file(&inner);
                let _ = std::fs::rename(root.join("aside"), &inner);
            }
        })
    };
    for _ in 0..500 {
        let _ = remove(&mut worker, "tree", RemoveTarget::Tree);
        let _ = remove(&mut worker, "tree/inner/precious", RemoveTarget::File);
        assert!(root.join("outside").exists());
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().expect("swaps");
}

#[test]
fn names_are_found_by_pattern() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    for path in
        ["a.rs", "src/b.rs", "src/deep/c.rs", "src/d.txt", ".hidden/e.rs", "skip/f.rs", "node_modules/g.rs"]
    {
        put(&sandbox, path, path);
    }
    put(&sandbox, ".gitignore", "skip/\n");
    symlink("/etc", sandbox.workspace().join("etc.rs")).expect("a link");
    std::fs::write(sandbox.workspace().join(OsStr::from_bytes(b"x\xff.rs")), "").expect("writes");
    own(&sandbox);
    for (pattern, expected) in [
        ("*.rs", &["a.rs", "etc.rs", "src/b.rs", "src/deep/c.rs", "x\u{fffd}.rs"][..]),
        ("src/*.rs", &["src/b.rs"]),
        ("src/**/*.{rs,txt}", &["src/b.rs", "src/d.txt", "src/deep/c.rs"]),
        ("**/deep/*", &["src/deep/c.rs"]),
        (".hidden/*.rs", &[".hidden/e.rs"]),
        ("etc.rs/*", &[]),
        ("../*", &[]),
    ] {
        assert_eq!(paths(&glob(&mut worker, glob_request(pattern)).expect(pattern)), expected, "{pattern}");
    }
    let all = GlobRequest { include_hidden: true, respect_ignore: false, ..glob_request("**/*.rs") };
    assert_eq!(glob(&mut worker, all).expect("found").total, 8);
    let first = glob(&mut worker, GlobRequest { limit: 2, ..glob_request("*.rs") }).expect("found");
    assert_eq!((paths(&first), first.total, first.truncated), (vec!["a.rs", "etc.rs"], 5, true));
    assert_eq!(worker.sh("touch -d 2100-01-01 src/d.txt").code(), Some(0));
    let newest = GlobRequest { limit: 1, sort: GlobSort::Modified, ..glob_request("**") };
    assert_eq!(paths(&glob(&mut worker, newest).expect("found")), ["src/d.txt"]);
    for (request, code) in [
        (glob_request("{a"), ErrorCode::InvalidPattern),
        (glob_request("[a"), ErrorCode::InvalidPattern),
        (GlobRequest { path: "a.rs".to_owned(), ..glob_request("*") }, ErrorCode::NotDirectory),
        (GlobRequest { path: "etc.rs".to_owned(), ..glob_request("*") }, ErrorCode::OutsideRoot),
        (GlobRequest { path: "..".to_owned(), ..glob_request("*") }, ErrorCode::OutsideRoot),
        (GlobRequest { root: "/etc".to_owned(), ..glob_request("*") }, ErrorCode::OutsideRoot),
    ] {
        assert_eq!(glob(&mut worker, request.clone()), Err(code), "{request:?}");
    }
}

#[test]
fn contents_are_searched_line_by_line() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    put(&sandbox, "a.txt", "one\r\ntwo\r\nthree\r\nfour\r\nfive two\n");
    put(&sandbox, "src/b.rs", "fn two() {\n}\n");
    put(&sandbox, "src/bytes", b"two \xff\n");
    put(&sandbox, "binary", b"two\0two");
    put(&sandbox, ".hidden", "two");
    symlink("/etc/passwd", sandbox.workspace().join("link")).expect("a link");
    own(&sandbox);
    let found = grep(&mut worker, grep_request("two")).expect("found");
    assert_eq!(
        lines(&found),
        ["a.txt:2:two", "a.txt:5:five two", "src/b.rs:1:fn two() {", "src/bytes:1:two \u{fffd}"]
    );
    assert_eq!((found.searched_files, found.binary_files, found.truncated), (4, 1, false));
    let around =
        GrepRequest { before: 1, after: 1, globs: vec!["*.txt".to_owned()], ..grep_request("^two$") };
    assert_eq!(
        lines(&grep(&mut worker, around).expect("found")),
        ["a.txt-1-one", "a.txt:2:two", "a.txt-3-three"]
    );
    let page = GrepRequest { skip: 1, limit: 1, ..grep_request("TWO") };
    let page = grep(&mut worker, GrepRequest { ignore_case: true, ..page }).expect("found");
    assert_eq!((lines(&page), page.truncated), (vec!["a.txt:5:five two".to_owned()], true));
    let count =
        grep(&mut worker, GrepRequest { mode: GrepMode::Count, ..grep_request("two") }).expect("found");
    let counts: Vec<_> = count.files.iter().map(|file| (file.path.as_str(), file.matches)).collect();
    assert_eq!(counts, [("a.txt", 2), ("src/b.rs", 1), ("src/bytes", 1)]);
    let files = GrepRequest {
        mode: GrepMode::Files,
        globs: vec!["!*.txt".to_owned()],
        limit: 1,
        ..grep_request("two")
    };
    let files = grep(&mut worker, files).expect("found");
    assert_eq!((files.files.len(), files.files[0].path.as_str(), files.truncated), (1, "src/b.rs", true));
    let spanning = GrepRequest { multiline: true, path: "src/b.rs".to_owned(), ..grep_request(r"\{.\}") };
    assert_eq!(lines(&grep(&mut worker, spanning).expect("found")), [":1:fn two() {", ":2:}"]);
    for (request, code) in [
        (grep_request("("), ErrorCode::InvalidPattern),
        (grep_request("(((a{100}){100}){100})"), ErrorCode::InvalidPattern),
        (grep_request(&"(".repeat(1000)), ErrorCode::InvalidPattern),
        (GrepRequest { globs: vec!["{".to_owned()], ..grep_request("a") }, ErrorCode::InvalidPattern),
        (GrepRequest { path: "link".to_owned(), ..grep_request("root") }, ErrorCode::OutsideRoot),
        (GrepRequest { path: "none".to_owned(), ..grep_request("a") }, ErrorCode::NotFound),
    ] {
        assert_eq!(grep(&mut worker, request.clone()).expect_err("refused"), code, "{request:?}");
    }
}

#[test]
fn large_and_odd_files_neither_hang_nor_grow() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let made = worker
        .sh("mkfifo pipe; truncate -s 10G sparse; head -c 30000000 /dev/zero | tr '\\0' a > long; \
        (yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaab | head -n 500000; echo needle) > lines");
    assert_eq!(made.code(), Some(0), "{}", made.stderr());
    let found = grep(&mut worker, grep_request("needle")).expect("found");
    assert_eq!((lines(&found), found.binary_files), (vec!["lines:500001:needle".to_owned()], 1));
    let flood = grep(&mut worker, GrepRequest { limit: 10_000, ..grep_request("(a*)*b") }).expect("found");
    assert!(flood.truncated && lines(&flood).iter().map(String::len).sum::<usize>() < 700_000);
    let long = grep(&mut worker, GrepRequest { limit: 1, path: "long".to_owned(), ..grep_request("a") })
        .expect("found");
    assert!(long.files[0].lines[0].is_cut && long.files[0].lines[0].text.len() < 4096);
    let large = GrepRequest { multiline: true, path: "lines".to_owned(), ..grep_request("needle") };
    assert_eq!(grep(&mut worker, large).expect("searched").large_files, 1);
    let rss = worker.status().agent_rss_bytes;
    assert!(rss < 8 * 1024 * 1024, "the agent has {rss} bytes");
}
