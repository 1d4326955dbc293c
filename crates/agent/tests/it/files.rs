//! File verbs: what they do, and what no path gets out of them.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use protocol::{
    EntryKind, ErrorCode, FrameKind, ListRequest, Listing, ReadRequest, Reply, Request, WriteMode,
    WriteRequest,
};

use crate::harness::{Sandbox, Worker, argv, key, shell};

fn read(path: &str) -> ReadRequest {
    ReadRequest { root: "/workspace".to_owned(), path: path.to_owned(), offset: 0, max_bytes: u64::MAX }
}

fn write(owner: &str, path: &str, mode: WriteMode, content: &[u8]) -> WriteRequest {
    WriteRequest {
        key: key(owner),
        root: "/workspace".to_owned(),
        path: path.to_owned(),
        mode,
        size_bytes: content.len() as u64,
        permissions: None,
        expected_sha256: None,
        expected_version: None,
        open_ended: false,
    }
}

pub(crate) fn put(
    worker: &mut Worker,
    path: &str,
    mode: WriteMode,
    content: &[u8],
) -> Result<protocol::FileWritten, ErrorCode> {
    let request = write(&format!("{path}-{mode:?}-{}", content.len()), path, mode, content);
    let owner = request.key.owner.clone();
    let written = worker.write(request, content).map_err(|error| error.code);
    worker.ask(&Request::Forget { owner });
    written
}

fn list(worker: &mut Worker, request: ListRequest) -> Listing {
    match worker.ask(&Request::List(request)) {
        Reply::Listed(listing) => listing,
        other => panic!("unexpected {other:?}"),
    }
}

fn names(listing: &Listing) -> Vec<&str> {
    listing.entries.iter().map(|entry| entry.path.as_str()).collect()
}

fn tree(max_depth: u32) -> ListRequest {
    ListRequest {
        root: "/workspace".to_owned(),
        path: String::new(),
        max_depth,
        include_hidden: true,
        respect_ignore: false,
        limit: 1000,
    }
}

/// SHA-256 of nothing and of `abc`.
const EMPTY_SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const ABC_SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn content_goes_in_and_comes_out() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let big: Vec<u8> = (0..5_000_000_u32).map(|i| (i * 7 / 3) as u8).collect();
    for (path, content) in
        [("empty", &b""[..]), ("a/b/abc", b"abc"), ("big", &big), ("bytes-\u{fe}", b"\xff\x00\xfe")]
    {
        let written = put(&mut worker, path, WriteMode::Overwrite, content).expect("writes");
        assert!(
            written.created && written.size_bytes == content.len() as u64 && written.permissions == 0o644
        );
        let (back, facts) = worker.read(read(path)).expect("reads");
        assert!(back == content, "{path}");
        assert_eq!(facts.sha256.as_deref(), Some(written.sha256.as_str()));
    }
    assert_eq!(worker.read(read("empty")).expect("reads").1.sha256.as_deref(), Some(EMPTY_SHA));
    let metadata = std::fs::metadata(sandbox.workspace().join("a/b/abc")).expect("exists");
    assert_eq!((metadata.uid(), metadata.gid()), (sandbox.uid, sandbox.uid));
    let part = ReadRequest { offset: 4_999_990, max_bytes: 5, ..read("big") };
    let (back, facts) = worker.read(part).expect("reads");
    assert_eq!(
        (back.as_slice(), facts.sha256, facts.stat.size_bytes),
        (&big[4_999_990..4_999_995], None, 5_000_000)
    );
    let beyond = ReadRequest { offset: 6_000_000, ..read("big") };
    assert_eq!(worker.read(beyond).expect("reads").0, b"");
}

#[test]
fn modes_and_expectations_are_kept() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let file = sandbox.workspace().join("file");
    assert!(put(&mut worker, "file", WriteMode::CreateNew, b"a").expect("creates").created);
    assert_eq!(put(&mut worker, "file", WriteMode::CreateNew, b"x").expect_err("exists"), ErrorCode::Exists);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o750)).expect("mode");
    let inode = std::fs::metadata(&file).expect("exists").ino();
    let appended = put(&mut worker, "file", WriteMode::Append, b"bc").expect("appends");
    assert_eq!((appended.sha256.as_str(), appended.size_bytes, appended.created), (ABC_SHA, 3, false));
    assert_eq!(std::fs::metadata(&file).expect("exists").ino(), inode, "appending adds in place");
    let mut request = write("expecting", "file", WriteMode::Overwrite, b"new");
    request.expected_sha256 = Some(EMPTY_SHA.to_owned());
    assert_eq!(worker.write(request.clone(), b"new").expect_err("changed").code, ErrorCode::Conflict);
    assert_eq!(std::fs::read(&file).expect("reads"), b"abc");
    request.key = key("expecting rightly");
    request.expected_sha256 = Some(ABC_SHA.to_owned());
    assert_eq!(worker.write(request.clone(), b"new").expect("writes").permissions, 0o750);
    // Asked again, the journal answers, though the content is another by now.
    assert_eq!(worker.write(request, b"new").expect("answers").size_bytes, 3);
    let leftovers = list(&mut worker, tree(1));
    assert_eq!(names(&leftovers), ["file"], "no temporary file is left");
}

#[test]
fn a_write_that_is_cut_never_happened() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    put(&mut worker, "kept", WriteMode::Overwrite, b"old").expect("writes");
    let request = write("cut", "kept", WriteMode::Overwrite, &[0; 100_000]);
    let stream = worker.request(&Request::Write(request.clone()));
    let mut data = bytes::BytesMut::new();
    protocol::encode_data(&mut data, stream, 0, 0, &[0; 50_000]);
    worker.send_bytes(&data);
    assert!(matches!(worker.ask(&Request::Status), Reply::Status(_)));
    drop(worker);
    let mut worker = sandbox.worker();
    while names(&list(&mut worker, tree(1))) != ["kept"] {}
    assert_eq!(worker.read(read("kept")).expect("reads").0, b"old");
    assert_eq!(worker.write(request, &[1; 100_000]).expect("may be tried again").size_bytes, 100_000);
    let short = write("short", "kept", WriteMode::Overwrite, b"12345");
    assert_eq!(worker.write(short, b"123").expect_err("short").code, ErrorCode::Conflict);
    let long = write("long", "kept", WriteMode::Overwrite, b"123");
    assert_eq!(worker.write(long, b"12345").expect_err("long").code, ErrorCode::LimitExceeded);
    assert_eq!(worker.read(read("kept")).expect("reads").0.len(), 100_000);
    assert_eq!(names(&list(&mut worker, tree(1))), ["kept"]);
}

#[test]
fn no_path_leaves_its_root() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let workspace = sandbox.workspace();
    for (name, target) in [
        ("shadow", "/etc/shadow"),
        ("environ", "/proc/1/environ"),
        ("self", "/proc/self/root"),
        ("up", "../.."),
        ("etc", "/etc"),
        ("inside", "/workspace/real"),
        ("relative", "sub/../real"),
        ("loop", "loop"),
        ("dangling", "made-by-write"),
        ("tmp", "/tmp"),
    ] {
        symlink(target, workspace.join(name)).expect("a link");
    }
    std::fs::create_dir(workspace.join("sub")).expect("a folder");
    std::fs::write(workspace.join("real"), "real").expect("a file");
    chown(workspace.join("real"), Some(sandbox.uid), Some(sandbox.uid)).expect("owner");
    let outside = [
        "../etc/passwd",
        "sub/../../etc/passwd",
        "/etc/passwd",
        "/workspace/real",
        "shadow",
        "environ",
        "self/etc/passwd",
        "up/etc/passwd",
        "etc/passwd",
        "tmp/x",
        "..",
        "../workspace/real",
    ];
    for path in outside {
        assert_eq!(worker.read(read(path)).expect_err(path).code, ErrorCode::OutsideRoot, "read {path}");
        let refused = put(&mut worker, path, WriteMode::Overwrite, b"x").expect_err(path);
        assert_eq!(refused, ErrorCode::OutsideRoot, "write {path}");
    }
    for (path, code) in [
        ("loop", ErrorCode::InvalidPath),
        ("a\0b", ErrorCode::InvalidPath),
        (&"x/".repeat(3000), ErrorCode::InvalidPath),
        (&"y".repeat(300), ErrorCode::InvalidPath),
        ("nothing", ErrorCode::NotFound),
        ("real/below", ErrorCode::NotDirectory),
        ("sub", ErrorCode::IsDirectory),
        ("", ErrorCode::IsDirectory),
    ] {
        assert_eq!(worker.read(read(path)).expect_err("refused").code, code, "{path:?}");
    }
    for path in ["inside", "relative", "real", "./sub//../real"] {
        assert_eq!(worker.read(read(path)).expect("reads").0, b"real", "{path}");
        put(&mut worker, path, WriteMode::Overwrite, b"real").expect("writes the target");
    }
    assert!(
        workspace.join("inside").symlink_metadata().expect("exists").is_symlink(),
        "a link is not replaced"
    );
    put(&mut worker, "dangling", WriteMode::Overwrite, b"made").expect("writes the target");
    assert_eq!(std::fs::read(workspace.join("made-by-write")).expect("reads"), b"made");
    for root in ["/", "/etc", "/workspace/sub", "/proc", ""] {
        let request = ReadRequest { root: root.to_owned(), ..read("x") };
        assert_eq!(worker.read(request).expect_err("refused").code, ErrorCode::OutsideRoot);
    }
}

#[test]
fn nothing_but_a_regular_file_is_read_or_replaced() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; ln fifo link");
    let workspace = sandbox.workspace();
    for (name, kind, number) in [("zero", "c", "5"), ("full", "c", "7")] {
        let made =
            std::process::Command::new("mknod").arg(workspace.join(name)).args([kind, "1", number]).status();
        assert!(made.expect("mknod runs").success());
    }
    for path in ["fifo", "socket", "zero", "full", "link"] {
        let code = worker.read(read(path)).expect_err("refused").code;
        // A device of root's is refused for its rights already.
        assert!(matches!(code, ErrorCode::NotRegular | ErrorCode::PermissionDenied), "read {path}: {code:?}");
        let code = put(&mut worker, path, WriteMode::Append, b"x").expect_err("refused");
        assert_eq!(code, ErrorCode::NotRegular, "write {path}");
    }
    match worker.ask(&Request::Stat { root: "/workspace".to_owned(), path: "fifo".to_owned() }) {
        Reply::Stat(stat) => assert_eq!(stat.kind, EntryKind::Other),
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn files_of_others_are_as_closed_as_to_the_tool() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let secret = sandbox.workspace().join("secret");
    std::fs::write(&secret, "root's").expect("writes");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("mode");
    std::fs::create_dir(sandbox.workspace().join("closed")).expect("a folder");
    assert_eq!(worker.read(read("secret")).expect_err("refused").code, ErrorCode::PermissionDenied);
    let refused = put(&mut worker, "closed/new", WriteMode::Overwrite, b"x").expect_err("refused");
    assert_eq!(refused, ErrorCode::PermissionDenied);
}

/// Swaps that a race is run for, and rounds of reading in them at least.
const SWAPS: u64 = 100_000;
const ROUNDS: usize = 2_000;

#[test]
fn a_swap_race_gets_nothing_out() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let counted = sandbox.workspace().join("swaps");
    let swaps = || std::fs::read_to_string(&counted).ok().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    std::fs::write(sandbox.workspace().join("swapper.py"), SWAPPER).expect("writes");
    let stream = worker.exec(&key("swapper"), 0, Some(shell("exec python3 swapper.py")));
    worker.until(stream, "up");
    let mut outcomes = std::collections::BTreeMap::new();
    // At least so many, and until both have been met.
    for round in 0..1_000_000 {
        if round >= ROUNDS && outcomes.len() > 1 && swaps() >= SWAPS {
            break;
        }
        let outcome = match worker.read(read("dir/file")) {
            Ok((content, _)) => {
                assert!(
                    content == b"inside" || content.is_empty() || content == b"written",
                    "leaked {content:?}"
                );
                "read".to_owned()
            }
            Err(error) => format!("{:?}", error.code),
        };
        *outcomes.entry(outcome).or_insert(0) += 1;
        if round % 10 == 0 {
            let _ = put(&mut worker, "dir/file", WriteMode::Overwrite, b"written");
        }
    }
    worker.kill(&key("swapper"), 0);
    assert!(outcomes.len() > 1 && swaps() >= SWAPS, "the race never happened: {outcomes:?} {}", swaps());
    assert_eq!(worker.sh("cat /tmp/outside/file").stdout(), "outside");
}

const SWAPPER: &str = r#"
import ctypes, os
libc = ctypes.CDLL(None)
os.makedirs("/tmp/outside", exist_ok=True)
open("/tmp/outside/file", "w").write("outside")
os.makedirs("dir", exist_ok=True)
open("dir/file", "w").write("inside")
os.symlink("/tmp/outside", "escape")
swaps, counted = 0, os.open("swaps", os.O_CREAT | os.O_WRONLY)
print("up", flush=True)
while True:
    # renameat2 with RENAME_EXCHANGE: the name is always there, as one or the other.
    swaps += libc.renameat2(-100, b"dir", -100, b"escape", 2) == 0
    if swaps % 1000 == 0: os.pwrite(counted, b"%d" % swaps, 0)
"#;

#[test]
fn a_full_disk_keeps_the_old_content() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let tmp = |request: WriteRequest| WriteRequest { root: "/tmp".to_owned(), ..request };
    worker.write(tmp(write("first", "file", WriteMode::Overwrite, b"old")), b"old").expect("writes");
    let ended = worker.sh("head -c 100000000000 /dev/zero > /tmp/fill 2>/dev/null; truncate -s -20480 /tmp/fill; df --output=avail /tmp | tail -1");
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let content = vec![7; 500_000];
    for mode in [WriteMode::Overwrite, WriteMode::Append, WriteMode::CreateNew] {
        let path = if mode == WriteMode::CreateNew { "new" } else { "file" };
        let request = tmp(write(&format!("{mode:?}"), path, mode, &content));
        assert_eq!(worker.write(request, &content).expect_err("full").code, ErrorCode::NoSpace);
    }
    let back = worker.read(ReadRequest { root: "/tmp".to_owned(), ..read("file") }).expect("reads");
    assert_eq!(back.0, b"old");
    let listing = list(&mut worker, ListRequest { root: "/tmp".to_owned(), ..tree(1) });
    assert_eq!(names(&listing), ["file", "fill"]);
}

#[test]
fn a_listing_is_sorted_bounded_and_follows_no_link() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("mkdir -p b/c/d .hidden/x; echo 123 > a; echo 1 > b/c/f; ln -s /etc etc; ln -s b to-b; mkfifo p; touch \"$(printf 'bad\\xff')\"");
    let listing = list(&mut worker, tree(2));
    assert_eq!(names(&listing), [".hidden", ".hidden/x", "a", "b", "b/c", "bad\u{fffd}", "etc", "p", "to-b"]);
    assert_eq!((listing.total, listing.truncated), (9, false));
    let kinds: Vec<_> = listing.entries.iter().map(|entry| (entry.kind, entry.size_bytes)).collect();
    assert_eq!(kinds[2], (EntryKind::File, 4));
    assert_eq!((kinds[6].0, kinds[7].0), (EntryKind::Symlink, EntryKind::Other));
    let listing = list(&mut worker, ListRequest { include_hidden: false, limit: 3, ..tree(9) });
    assert_eq!((names(&listing), listing.total, listing.truncated), (vec!["a", "b", "bad\u{fffd}"], 9, true));
    let listing = list(&mut worker, ListRequest { path: "b/c".to_owned(), ..tree(1) });
    assert_eq!(names(&listing), ["d", "f"]);
    for (path, code) in
        [("a", ErrorCode::NotDirectory), ("none", ErrorCode::NotFound), ("etc", ErrorCode::OutsideRoot)]
    {
        match worker.ask(&Request::List(ListRequest { path: path.to_owned(), ..tree(1) })) {
            Reply::Error(error) => assert_eq!(error.code, code),
            other => panic!("unexpected {other:?}"),
        }
    }
}

#[test]
fn a_listing_leaves_out_what_is_ignored() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("mkdir -p .git/x node_modules/y target/debug src/gen; touch a.o a.c src/a.o src/keep.o src/gen/z target/t; printf '*.o\\n/target/\\n' > .gitignore; printf '!keep.o\\ngen/\\n' > src/.gitignore");
    let listing = list(&mut worker, ListRequest { respect_ignore: true, ..tree(5) });
    assert_eq!(names(&listing), [".gitignore", "a.c", "src", "src/.gitignore", "src/keep.o"]);
    let listing = list(&mut worker, ListRequest { respect_ignore: true, path: "src".to_owned(), ..tree(5) });
    assert_eq!(names(&listing), [".gitignore", "keep.o"], "the files above count as well");
}

#[test]
fn a_tree_ten_thousand_levels_deep_and_one_of_many_names_are_survived() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let deep = "import os\nos.chdir('/tmp')\nfor i in range(10000):\n    os.mkdir('d'); os.chdir('d')";
    assert_eq!(worker.run(argv(&["python3", "-c", deep])).code(), Some(0));
    let listing = list(&mut worker, ListRequest { root: "/tmp".to_owned(), ..tree(u32::MAX) });
    assert_eq!(listing.entries.len(), 64);
    worker.sh("mkdir many; cd many; seq 20000 | xargs touch");
    let listing = list(&mut worker, ListRequest { path: "many".to_owned(), limit: 50, ..tree(1) });
    assert_eq!((listing.entries.len(), listing.total, listing.truncated), (50, 20_000, true));
}

#[test]
fn a_reader_that_does_not_read_costs_no_memory_and_delays_nobody() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("truncate -s 10G sparse");
    let before = worker.status().agent_rss_bytes;
    let stream = worker.request(&Request::Read(read("sparse")));
    while worker.frame_of(stream).kind != FrameKind::Data {}
    worker.send(FrameKind::Close, stream, &[]);
    let status = worker.status();
    assert!(status.agent_rss_bytes < before + 2 * 1024 * 1024, "{before} → {}", status.agent_rss_bytes);
    let end = ReadRequest { offset: 10 * 1024 * 1024 * 1024 - 3, ..read("sparse") };
    assert_eq!(worker.read(end).expect("reads").0, [0; 3]);
}

#[test]
fn an_open_ended_write_is_whole_only_when_its_end_is_said() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let open = |owner: &str, most: u64| {
        Request::Write(WriteRequest {
            size_bytes: most,
            open_ended: true,
            ..write(owner, "f", WriteMode::Overwrite, b"")
        })
    };
    let send = |worker: &mut Worker, owner: &str, most: u64, pieces: &[&[u8]]| {
        let stream = worker.request(&open(owner, most));
        let mut offset = 0;
        for piece in pieces {
            let mut frame = bytes::BytesMut::new();
            protocol::encode_data(&mut frame, stream, offset, 0, piece);
            worker.send_bytes(&frame);
            offset += piece.len() as u64;
        }
        worker.send(FrameKind::Close, stream, &[]);
        worker.reply_of(stream)
    };
    match send(&mut worker, "whole", 100, &[b"one ", b"two", b""]) {
        Reply::Written(written) => {
            assert!(written.created && written.size_bytes == 7 && written.version.size_bytes == 7);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read(sandbox.workspace().join("f")).expect("there"), b"one two");
    // Without the end it was broken off, however much came; and there is a most.
    assert!(matches!(send(&mut worker, "cut", 100, &[b"half"]), Reply::Error(_)));
    match send(&mut worker, "more", 3, &[b"four", b""]) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::LimitExceeded),
        other => panic!("{other:?}"),
    }
    assert_eq!(worker.sh("cat f; ls -A | wc -l").stdout(), "one two1\n");
}

#[test]
fn a_write_over_a_version_loses_to_any_change() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let first = put(&mut worker, "f", WriteMode::Overwrite, b"one").expect("writes");
    let stat = |worker: &mut Worker| {
        let asked = Request::Stat { root: "/workspace".to_owned(), path: "f".to_owned() };
        match worker.ask(&asked) {
            Reply::Stat(stat) => stat.version,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(stat(&mut worker), first.version, "what a write says is what is seen");
    // The same bytes, size and time of change of content: a program can set those.
    assert_eq!(worker.sh("cp -p f g; printf two > f; touch -r g f; stat -c %s f").stdout(), "3\n");
    assert_ne!(stat(&mut worker), first.version);
    let over = |worker: &mut Worker, owner: &str, version| {
        let request = WriteRequest {
            expected_version: Some(version),
            ..write(owner, "f", WriteMode::Overwrite, b"three")
        };
        worker.write(request, b"three").map_err(|error| error.code)
    };
    assert_eq!(over(&mut worker, "stale", first.version), Err(ErrorCode::Conflict));
    let present = stat(&mut worker);
    let written = over(&mut worker, "fresh", present).expect("writes");
    assert_ne!(written.version, present);
    std::fs::remove_file(sandbox.workspace().join("f")).expect("removes");
    assert_eq!(over(&mut worker, "gone", written.version), Err(ErrorCode::Conflict));
    assert_eq!(worker.sh("ls -A").stdout(), "g\n");
}

#[test]
fn what_is_in_use_is_a_conflict_and_no_failure() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("echo kept > leased");
    // Whoever opens the file has to wait for the one that has the lease, and a thread for files waits for nobody.
    let hold = "import fcntl, signal, sys, time\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\nf = open('leased', 'r+')\n\
        fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\nprint('held', flush=True)\ntime.sleep(600)";
    let key = key("holder");
    let stream = worker.exec(&key, 0, Some(argv(&["python3", "-c", hold])));
    while worker.frame_of(stream).kind != FrameKind::Data {}
    assert_eq!(worker.read(read("leased")).map_err(|error| error.code).err(), Some(ErrorCode::Busy));
    worker.kill(&key, 0);
    assert_eq!(worker.read(read("leased")).expect("reads").0, b"kept\n");
}
