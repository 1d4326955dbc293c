//! Commands with a terminal in the place of pipes.

use protocol::{ErrorCode, KillRequest, OperationKey, Reply, Request, StdinMode, StreamId, TerminalSize};

use crate::harness::{Options, Sandbox, Worker, key, shell};

const SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Starts a command in a terminal of its own.
fn start(worker: &mut Worker, owner: &str, command: &str) -> (OperationKey, StreamId) {
    let mut spec = shell(command);
    spec.stdin = StdinMode::Open;
    spec.terminal = Some(SIZE);
    let key = key(owner);
    let stream = worker.exec(&key, 0, Some(spec));
    (key, stream)
}

/// Types into a terminal.
fn type_in(worker: &mut Worker, target: &OperationKey, operation: u32, data: &str, close: bool) {
    let key = OperationKey { owner: target.owner.clone(), operation };
    let target = target.clone();
    let write = Request::WriteStdin { key, target, data: data.to_owned(), bytes: None, close };
    match worker.ask(&write) {
        Reply::StdinWritten(written) => {
            let line_begun = close && !data.is_empty() && !data.ends_with('\n');
            assert_eq!(written.written_bytes, data.len() as u64 + u64::from(close) + u64::from(line_begun))
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_command_finds_a_controlling_terminal_of_its_own() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    let (_, stream) = start(
        &mut worker,
        "tty",
        "test -t 0 && test -t 1 && test -t 2 && echo all three; stty size; echo typed > /dev/tty; ls /proc/self/fd | tr '\\n' ' '",
    );
    let ended = worker.follow(stream);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.attached.as_ref().is_some_and(|attached| attached.terminal && !attached.warm));
    let said = ended.stdout();
    assert!(said.contains("all three\r\n24 80\r\ntyped\r\n0 1 2 3"), "{said:?}");
    assert_eq!(ended.stderr(), "", "a terminal is one stream");
}

#[test]
fn ctrl_c_goes_through_the_line_discipline_to_the_foreground_alone() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    // An interactive shell puts its commands into groups of their own, and lives on when one is interrupted. It leaves the terminal
    // as it is: an end of input that is typed before its line editor is back would be lost.
    let (target, stream) = start(&mut worker, "job", "exec bash --norc --noediting -i");
    type_in(&mut worker, &target, 1, "PS1=; sh -c \"echo rea''dy; exec sleep 1000\"\n", false);
    worker.until(stream, "ready\r\n");
    type_in(&mut worker, &target, 2, "\u{3}", false);
    type_in(&mut worker, &target, 3, "echo first $?\n", false);
    worker.until(stream, "first 130");
    // A signal by name reaches the same group.
    type_in(&mut worker, &target, 4, "sh -c \"echo ag''ain; exec sleep 1000\"\n", false);
    worker.until(stream, "again\r\n");
    let interrupt = KillRequest { key: target.clone(), signal: Some(2), grace_ms: 0 };
    assert!(matches!(worker.ask(&Request::Kill(interrupt)), Reply::Done));
    type_in(&mut worker, &target, 5, "echo status $?\n", false);
    worker.until(stream, "status 130");
    // Ctrl-D ends it, with the status of its last command.
    type_in(&mut worker, &target, 6, "", true);
    let ended = worker.follow_on(stream);
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn the_end_of_input_ends_a_line_that_has_begun_and_nothing_behind_it() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    // The second reader sees whatever the end of the first one's input leaves.
    let twice = "stty -echo; echo ready; cat; echo first over; cat; echo second over";
    let (target, stream) = start(&mut worker, "lines", twice);
    worker.until(stream, "ready\r\n");
    type_in(&mut worker, &target, 1, "half a line", true);
    worker.until(stream, "half a linefirst over\r\n");
    type_in(&mut worker, &target, 2, "whole\n", true);
    let ended = worker.follow_on(stream);
    assert_eq!((ended.code(), ended.stdout()), (Some(0), "whole\r\nsecond over\r\n".to_owned()));
}

#[test]
fn a_new_size_is_seen_and_told() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let (target, stream) = start(
        &mut worker,
        "size",
        "trap 'stty size' WINCH; echo ready; while :; do read -r -t 1 line; [ \"$line\" = over ] && exit 7; done",
    );
    worker.until(stream, "ready");
    let size = TerminalSize { rows: 40, cols: 132 };
    assert!(matches!(worker.ask(&Request::Resize { key: target.clone(), size }), Reply::Done));
    worker.until(stream, "40 132");
    type_in(&mut worker, &target, 1, "over\n", false);
    assert_eq!(worker.follow_on(stream).code(), Some(7));
    let late = worker.ask(&Request::Resize { key: target, size });
    assert!(matches!(late, Reply::Error(error) if error.code == ErrorCode::Ended));
}

#[test]
fn a_command_with_pipes_has_no_size() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let key = key("pipes");
    let stream = worker.exec(&key, 0, Some(shell("echo ready; sleep 1000")));
    worker.until(stream, "ready");
    let refused = worker.ask(&Request::Resize { key: key.clone(), size: SIZE });
    assert!(matches!(refused, Reply::Error(error) if error.code == ErrorCode::Conflict));
    assert!(matches!(worker.kill(&key, 0), Reply::Done));
}

#[test]
fn the_whole_tree_of_a_terminal_is_ended() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let evasive = "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000') & \
        nohup sleep 1000 >/dev/null 2>&1 & echo ready; sleep 1000";
    let (target, stream) = start(&mut worker, "evasive", evasive);
    worker.until(stream, "ready");
    assert!(matches!(worker.kill(&target, 100), Reply::Done));
    assert_eq!(worker.status().processes, 0);
    assert!(worker.follow_on(stream).exit().killed);
}

#[test]
fn nothing_that_was_written_before_the_end_is_lost() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    for round in 0..20 {
        let (_, stream) = start(&mut worker, &format!("flood-{round}"), "stty -onlcr; seq 1 20000");
        let said = worker.follow(stream).stdout();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 20_000, "round {round}: ends with {:?}", lines.last());
        assert_eq!(lines.last(), Some(&"20000"));
    }
}
