//! Watching directories: nothing is missed where directories appear, what is lost is said, and a worker that takes nothing costs no memory.

use std::collections::BTreeSet;

use protocol::{
    ChangeKind, EntryKind, ErrorCode, FileChange, FrameKind, Reply, Request, StreamId, WatchEnd, WatchRequest,
};

use super::harness::{Sandbox, Worker};

/// A watch as the worker sees it.
struct Watch {
    stream: StreamId,
    text: Vec<u8>,
    changes: Vec<FileChange>,
    taken: u64,
}

fn request(path: &str, recursive: bool) -> Request {
    Request::Watch(WatchRequest { root: "/workspace".to_owned(), path: path.to_owned(), recursive })
}

fn watch(worker: &mut Worker, path: &str, recursive: bool) -> Watch {
    let stream = worker.request(&request(path, recursive));
    match worker.reply_of(stream) {
        Reply::Watching => Watch { stream, text: Vec::new(), changes: Vec::new(), taken: 0 },
        other => panic!("{other:?}"),
    }
}

impl Watch {
    /// Takes one frame; the reason when it was the last.
    fn take(&mut self, worker: &mut Worker) -> Option<WatchEnd> {
        let frame = worker.frame_of(self.stream);
        match frame.kind {
            FrameKind::Data => {
                let (offset, channel, bytes) = protocol::decode_data(frame.payload).expect("data");
                assert_eq!((offset, channel), (self.taken, 1));
                self.taken += bytes.len() as u64;
                worker.ack(self.stream, self.taken);
                self.text.extend_from_slice(&bytes);
                while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.text.drain(..=end).collect();
                    self.changes.push(serde_json::from_slice(&line).expect("a change"));
                }
                None
            }
            FrameKind::Reply => match serde_json::from_slice(&frame.payload).expect("a reply") {
                Reply::WatchEnded(ended) => Some(ended.reason),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Takes changes until one is this, and returns all of them.
    fn until(&mut self, worker: &mut Worker, change: ChangeKind, path: &str) -> Vec<FileChange> {
        loop {
            if let Some(at) = self.changes.iter().position(|it| it.change == change && it.path == path) {
                return self.changes.drain(..=at).collect();
            }
            assert_eq!(self.take(worker), None, "ended before {change:?} {path}; {:?}", self.changes);
        }
    }

    fn end(&mut self, worker: &mut Worker) -> WatchEnd {
        loop {
            if let Some(reason) = self.take(worker) {
                return reason;
            }
        }
    }
}

fn short(changes: &[FileChange]) -> Vec<(ChangeKind, &str)> {
    changes.iter().map(|change| (change.change, change.path.as_str())).collect()
}

/// As [`short`], without what is only modified: when a creation has been told while a command was still at it, the rest of it follows.
fn short_but_modified(changes: &[FileChange]) -> Vec<(ChangeKind, &str)> {
    short(changes).into_iter().filter(|(change, _)| *change != ChangeKind::Modified).collect()
}

#[test]
fn changes_are_told_in_their_order_with_what_is_there() {
    use ChangeKind::{Created, Deleted, Modified, Moved};
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("mkdir -p d/deep; touch d/old");
    let mut flat = watch(&mut worker, "d", false);
    let mut deep = watch(&mut worker, "", true);
    worker.sh("printf 12345 > d/five; mkdir d/new; ln -s five d/link; mkfifo d/pipe; echo x > d/deep/below; chmod 600 d/old; touch d/end");
    let told = flat.until(&mut worker, Created, "end");
    let of = |path: &str| {
        told.iter().find(|change| change.path == path).unwrap_or_else(|| panic!("{path}: {told:?}"))
    };
    assert_eq!((of("five").kind, of("new").kind), (Some(EntryKind::File), Some(EntryKind::Directory)));
    assert_eq!((of("link").kind, of("pipe").kind), (Some(EntryKind::Symlink), Some(EntryKind::Other)));
    assert_eq!((of("old").change, of("link").size_bytes), (Modified, None));
    let last = told.iter().rfind(|change| change.path == "five").expect("told");
    assert_eq!(last.size_bytes, Some(5));
    assert!(!told.iter().any(|change| change.path.contains("below")), "{told:?}");
    let all = deep.until(&mut worker, Created, "d/end");
    assert!(short(&all).contains(&(Created, "d/deep/below")), "{all:?}");

    worker.sh("mv d/five d/six; mv d/six d/deep/six; mv d/deep/six /tmp/out; mv /tmp/out d/back; rm d/back d/old; rmdir d/new; touch d/end2");
    let told = deep.until(&mut worker, Created, "d/end2");
    let wanted = [
        (Moved, "d/six"),
        (Moved, "d/deep/six"),
        (Deleted, "d/deep/six"),
        (Created, "d/back"),
        (Deleted, "d/back"),
        (Deleted, "d/old"),
        (Deleted, "d/new"),
        (Created, "d/end2"),
    ];
    assert_eq!(short_but_modified(&told), wanted);
    let moved = told.iter().find(|change| change.change == Moved).expect("told");
    assert_eq!(moved.from.as_deref(), Some("d/five"));
    let told = flat.until(&mut worker, Created, "end2");
    assert_eq!(
        short_but_modified(&told)[..3],
        [(Moved, "six"), (Deleted, "six"), (Created, "back")],
        "out of sight is gone"
    );
    // Writes of the agent's own are one change, of which kind it was.
    for (content, wanted) in [("one", Created), ("two", Modified)] {
        let name =
            super::files::put(&mut worker, "saved", protocol::WriteMode::Overwrite, content.as_bytes());
        name.expect("writes");
        let mut told = deep.until(&mut worker, wanted, "saved");
        // The rest of the command before, as above.
        told.retain(|change| (change.change, change.path.as_str()) != (Modified, "d/end2"));
        assert_eq!(short(&told), [(wanted, "saved")]);
    }
}

#[test]
fn nothing_is_missed_where_directories_appear_and_move() {
    use ChangeKind::{Created, Deleted, Modified, Moved};
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let mut watch = watch(&mut worker, "", true);
    // As fast as a program can: most files are there before anybody can watch their directory.
    let make = "import os\nfor i in range(60):\n    os.makedirs(f'a{i}/b/c')\n    for j in range(5):\n        open(f'a{i}/b/c/f{j}', 'w').write('x' * j)\nopen('end', 'w')";
    let made = worker.run(super::harness::argv(&["python3", "-c", make]));
    assert_eq!(made.code(), Some(0));
    let told = watch.until(&mut worker, Created, "end");
    let mut missing: BTreeSet<String> =
        (0..60).flat_map(|i| (0..5).map(move |j| format!("a{i}/b/c/f{j}"))).collect();
    missing.extend((0..60).flat_map(|i| [format!("a{i}"), format!("a{i}/b"), format!("a{i}/b/c")]));
    for change in &told {
        missing.remove(&change.path);
    }
    // What was found in a directory may be told behind what lies beside it.
    while !missing.is_empty() {
        assert_eq!(watch.take(&mut worker), None);
        for change in &watch.changes {
            missing.remove(&change.path);
        }
    }
    watch.changes.clear();
    worker.sh("mkdir -p /tmp/in/x/y; touch /tmp/in/x/y/z; mv /tmp/in in; touch end1");
    let told = watch.until(&mut worker, Created, "in/x/y/z");
    for path in ["in", "in/x", "in/x/y"] {
        assert!(short(&told).contains(&(Created, path)), "{path}: {told:?}");
    }
    worker.sh("mv in/x moved; echo 1 > moved/y/z; mv moved away; echo 2 > away/y/new; mv away /tmp/away; echo 3 > /tmp/away/y/z; touch end2");
    let told = watch.until(&mut worker, Created, "end2");
    assert!(
        told.iter().any(|it| it.change == Moved && it.path == "moved" && it.from.as_deref() == Some("in/x"))
    );
    for wanted in [(Modified, "moved/y/z"), (Moved, "away"), (Created, "away/y/new"), (Deleted, "away")] {
        assert!(short(&told).contains(&wanted), "{wanted:?}: {told:?}");
    }
    worker.sh("echo 4 > /tmp/away/y/z; mkdir away; touch away/end3");
    let told = watch.until(&mut worker, Created, "away/end3");
    assert!(!told.iter().any(|change| change.path.contains("y/z")), "it left: {told:?}");
}

#[test]
fn a_directory_that_left_and_came_back_is_still_watched() {
    use ChangeKind::{Created, Deleted};
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("mkdir -p away project/d");
    let mut project = watch(&mut worker, "project", true);
    for round in 0..20 {
        let (left, end) = (format!("d/left{round}"), format!("end{round}"));
        worker.sh(&format!("mv project/d away/d; mv away/d project/d; touch project/{end}"));
        project.until(&mut worker, Created, &end);
        // Longer than the other half of a move is waited for.
        worker.sh("mv project/end* away/; touch project/later");
        project.until(&mut worker, Deleted, &end);
        project.until(&mut worker, Created, "later");
        worker.sh(&format!("touch project/{left}; rm project/later"));
        project.until(&mut worker, Created, &left);
    }
}

#[test]
fn what_is_lost_is_said_and_what_comes_after_is_not() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let mut flood = watch(&mut worker, "", true);
    let before = worker.status().agent_rss_bytes;
    // Nobody takes anything while far more happens than the kernel keeps.
    let make = "import os\nos.mkdir('d')\nfor i in range(60000):\n    os.close(os.open(f'd/{i}', os.O_CREAT))\n    os.unlink(f'd/{i}')";
    assert_eq!(worker.run(super::harness::argv(&["python3", "-c", make])).code(), Some(0));
    let grown = worker.status().agent_rss_bytes.saturating_sub(before);
    assert!(grown < 2 * 1024 * 1024, "{grown}");
    worker.sh("mkdir -p d/unseen");
    flood.until(&mut worker, ChangeKind::Overflow, "");
    worker.sh("touch d/unseen/after");
    flood.until(&mut worker, ChangeKind::Created, "d/unseen/after");
    // A directory with more names than are told one by one.
    worker.sh("mkdir /tmp/many; cd /tmp/many; seq 20000 | xargs touch; mv /tmp/many /workspace/many; touch /workspace/many/end");
    flood.until(&mut worker, ChangeKind::Overflow, "");
    let status = worker.status();
    assert!(status.agent_rss_bytes < 8 * 1024 * 1024, "{}", status.agent_rss_bytes);
}

#[test]
fn a_watch_ends_with_its_directory_and_its_limits() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    worker.sh("mkdir -p a/b c/d e/f; ln -s e/f inside; ln -s /etc outside; mkdir closed; chmod 000 closed; touch file");
    for (path, code) in [
        ("none", ErrorCode::NotFound),
        ("file", ErrorCode::NotDirectory),
        ("outside", ErrorCode::OutsideRoot),
        ("../etc", ErrorCode::OutsideRoot),
        ("closed", ErrorCode::PermissionDenied),
    ] {
        match worker.ask(&request(path, true)) {
            Reply::Error(error) => assert_eq!(error.code, code, "{path}: {}", error.message),
            other => panic!("{path}: {other:?}"),
        }
    }
    let mut watches: Vec<Watch> =
        ["a/b", "c/d", "inside", ""].map(|path| watch(&mut worker, path, true)).into();
    match worker.ask(&request("a", false)) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::LimitExceeded),
        other => panic!("{other:?}"),
    }
    // Removed; moved with what is above it, which the kernel does not tell; led elsewhere.
    worker.sh("rm -r a; mv c moved; rm inside; ln -s moved inside");
    for watch in &mut watches[..3] {
        assert_eq!(watch.end(&mut worker), WatchEnd::DirectoryGone);
    }
    // There is room again, and links are not followed on the way down.
    let mut again = watch(&mut worker, "e", true);
    worker.sh("ln -s ../moved/d e/f/link; touch moved/d/x e/f/end");
    let told = again.until(&mut worker, ChangeKind::Created, "f/end");
    assert!(!told.iter().any(|change| change.path.ends_with('x')), "{told:?}");
    // Opened by a change of its bits.
    worker.sh("chmod 700 closed; touch closed/seen");
    watches[3].until(&mut worker, ChangeKind::Created, "closed/seen");
    let deep = "import os\nfor i in range(80):\n    os.mkdir('d'); os.chdir('d')";
    assert_eq!(worker.run(super::harness::argv(&["python3", "-c", deep])).code(), Some(0));
    assert_eq!(watches[3].end(&mut worker), WatchEnd::LimitExceeded);
    match worker.ask(&request("", true)) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::LimitExceeded),
        other => panic!("{other:?}"),
    }
    worker.sh("mkdir /tmp/wide; cd /tmp/wide; seq 12000 | xargs mkdir");
    let wide = WatchRequest { root: "/tmp".to_owned(), path: "wide".to_owned(), recursive: true };
    match worker.ask(&Request::Watch(wide)) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::LimitExceeded),
        other => panic!("{other:?}"),
    }
    assert!(worker.status().agent_rss_bytes < 8 * 1024 * 1024);
}

#[test]
fn names_that_are_no_text_are_watched_too_and_a_closed_watch_is_over() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let mut first = watch(&mut worker, "", true);
    worker.sh("mkdir \"$(printf 'bad\\377')\"; touch \"$(printf 'bad\\377')/x\"; mkdir \"$(printf 'a\\nb')\"; touch end");
    let mut told = first.until(&mut worker, ChangeKind::Created, "end");
    while !short(&told).contains(&(ChangeKind::Created, "bad\u{fffd}/x")) {
        assert_eq!(first.take(&mut worker), None);
        told.append(&mut first.changes);
    }
    assert!(short(&told).contains(&(ChangeKind::Created, "a\nb")), "{told:?}");
    // Whoever closes the stream, and a worker that goes away, leave nothing behind.
    for _ in 0..20 {
        let closed = watch(&mut worker, "", true);
        worker.send(FrameKind::Close, closed.stream, &[]);
    }
    for _ in 0..3 {
        let _open = watch(&mut worker, "", true);
    }
    let mut next = {
        drop(worker);
        sandbox.replace_socket();
        sandbox.worker()
    };
    for _ in 0..4 {
        let _open = watch(&mut next, "", true);
    }
}
