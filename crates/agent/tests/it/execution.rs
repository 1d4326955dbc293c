//! Commands: what they see, what they say, what they read.

use std::collections::BTreeMap;

use protocol::{ErrorCode, ExecLimits, ExecSpec, OperationKey, Program, Reply, Request, StdinMode};

use crate::harness::{Options, Sandbox, Worker, argv, key, shell, spec};

#[test]
fn a_command_runs_and_its_output_and_exit_come_back() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let ended = worker.sh("echo out; echo err >&2; exit 3");
    assert_eq!((ended.stdout().as_str(), ended.stderr().as_str()), ("out\n", "err\n"));
    assert_eq!(ended.code(), Some(3));
    assert_eq!((ended.exit().stdout_bytes, ended.exit().stderr_bytes), (4, 4));
    let ended = worker.run(argv(&["printf", "%s-", "a b", "c"]));
    assert_eq!(ended.stdout(), "a b-c-");
}

#[test]
fn a_signal_is_told_from_an_exit_code() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let ended = worker.sh("kill -USR1 $$");
    assert_eq!((ended.code(), ended.exit().signal), (None, Some(nix::libc::SIGUSR1)));
    let ended = worker.sh("sh -c 'kill -9 $$'; exit $?");
    assert_eq!((ended.code(), ended.exit().signal), (Some(137), None));
}

#[test]
fn what_cannot_be_started_is_refused_and_stays_refused() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let mut missing_directory = shell("true");
    missing_directory.cwd = "/workspace/nowhere".to_owned();
    let mut relative = shell("true");
    relative.cwd = "workspace".to_owned();
    let cases = [
        (argv(&["no-such-program"]), "no-such-program"),
        (argv(&["/etc/passwd"]), "/etc/passwd"),
        (argv(&[]), "no program"),
        (missing_directory, "/workspace/nowhere"),
        (relative, "not absolute"),
        (shell("echo \0"), "NUL"),
    ];
    for (spec, hint) in cases {
        let key = key(hint);
        for _ in 0..2 {
            let stream = worker.exec(&key, 0, Some(spec.clone()));
            let error = worker.follow(stream).error.expect("refused");
            assert_eq!(error.code, ErrorCode::StartFailed);
            assert!(error.message.contains(hint), "{}", error.message);
        }
    }
}

#[test]
fn the_environment_is_the_sandboxes_and_the_commands_own_and_nothing_else() {
    let env =
        BTreeMap::from([("FROM_WORKER".to_owned(), "w".to_owned()), ("OVER".to_owned(), "w".to_owned())]);
    for warm_shells in [0, 1] {
        let mut sandbox = Sandbox::with(Options { env: env.clone(), warm_shells, ..Options::default() });
        let mut worker = sandbox.worker();
        let mut command = argv(&["env"]);
        command.env = BTreeMap::from([
            ("OVER".to_owned(), "c".to_owned()),
            ("QUOTED".to_owned(), "it's\n$X".to_owned()),
        ]);
        let native = worker.run(command.clone()).stdout();
        for expected in
            ["FROM_WORKER=w\n", "OVER=c\n", "QUOTED=it's\n$X\n", "HOME=/workspace\n", "PATH=/usr/local/sbin:"]
        {
            assert!(native.contains(expected), "{expected:?} in {native:?}");
        }
        assert!(!native.contains("TOOLHOST"), "{native}");
        command.program =
            Program::Shell { command: "printf '%s|%s|%s' \"$FROM_WORKER\" \"$OVER\" \"$QUOTED\"".to_owned() };
        assert_eq!(worker.run(command).stdout(), "w|c|it's\n$X");
    }
}

#[test]
fn a_command_finds_its_input() {
    for warm_shells in [0, 1] {
        let mut sandbox = Sandbox::with(Options { warm_shells, ..Options::default() });
        let mut worker = sandbox.worker();
        assert_eq!(worker.sh("cat; readlink /proc/self/fd/0").stdout(), "/dev/null\n");
        let text = "line\n".repeat(60_000);
        let mut command = shell("wc -c; cat");
        command.stdin = StdinMode::Text(text.clone());
        assert_eq!(worker.run(command).stdout(), format!("{}\n", text.len()));
    }
}

#[test]
fn an_open_input_takes_each_write_once() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    let target = key("reader");
    let mut command = shell("while read -r line; do echo \"got $line\"; done; echo over");
    command.stdin = StdinMode::Open;
    let stream = worker.exec(&target, 0, Some(command));
    let write = |operation, data: &str, close| Request::WriteStdin {
        key: OperationKey { owner: "reader".to_owned(), operation },
        target: target.clone(),
        data: data.to_owned(),
        bytes: None,
        close,
    };
    for _ in 0..3 {
        match worker.ask(&write(1, "one\n", false)) {
            Reply::StdinWritten(written) => assert_eq!(written.written_bytes, 4),
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(worker.until(stream, "got one\n"), b"got one\n");
    let mut data = bytes::BytesMut::new();
    protocol::encode_data(&mut data, stream, 0, 0, b"two\n");
    worker.send_bytes(&data);
    assert_eq!(worker.until(stream, "got two\n"), b"got two\n");
    assert!(matches!(worker.ask(&write(2, "three\n", true)), Reply::StdinWritten(_)));
    assert_eq!(worker.until(stream, "over\n"), b"got three\nover\n");
    match worker.ask(&write(3, "late", false)) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::Ended),
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_write_to_a_command_that_does_not_read_tells_how_much_went_in() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let target = key("deaf");
    let mut command = shell("echo ready; exec sleep 1000");
    command.stdin = StdinMode::Open;
    let stream = worker.exec(&target, 0, Some(command));
    worker.until(stream, "ready");
    let data = "x".repeat(300_000);
    let key = OperationKey { owner: "deaf".to_owned(), operation: 1 };
    match worker.ask(&Request::WriteStdin { key, target: target.clone(), data, bytes: None, close: false }) {
        Reply::StdinWritten(written) => assert_eq!(written.written_bytes, 65_536),
        other => panic!("unexpected {other:?}"),
    }
    assert!(matches!(worker.kill(&target, 0), Reply::Done));
}

#[test]
fn a_script_comes_on_descriptor_3() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let argv = ["bash", "-c", "cat <&3"].map(str::to_owned).to_vec();
    let ended = worker.run(spec(Program::Argv { argv, script: Some("the script".to_owned()) }));
    assert_eq!(ended.stdout(), "the script");
}

#[test]
fn limits_hold_and_cannot_be_raised() {
    for warm_shells in [0, 1] {
        let mut sandbox = Sandbox::with(Options { warm_shells, ..Options::default() });
        let mut worker = sandbox.worker();
        let limits = ExecLimits {
            cpu_s: Some(100),
            processes: Some(50),
            open_files: Some(64),
            file_bytes: Some(1024 * 1024),
        };
        for _ in 0..3 {
            let mut command = shell(
                "ulimit -t; ulimit -u; ulimit -n; ulimit -f; ulimit -c; ulimit -n 65 2>/dev/null || echo no",
            );
            command.limits = limits.clone();
            assert_eq!(worker.run(command).stdout(), "100\n50\n64\n1024\n0\nno\n");
        }
    }
}

#[test]
fn a_sandbox_without_bash_has_sh() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, without_bash: true, ..Options::default() });
    let mut worker = sandbox.worker();
    for _ in 0..3 {
        let ended = worker.sh("echo \"$0 it's\"; ls /proc/self/fd | wc -l; exit 4");
        assert_eq!(
            (ended.stdout().as_str(), ended.stderr().as_str()),
            ("sh it's\n4\n", ""),
            "{:?}",
            ended.error
        );
        assert_eq!(ended.code(), Some(4));
    }
}

#[test]
fn a_command_as_long_as_a_program_is_no_problem() {
    for warm_shells in [0, 1] {
        let mut sandbox = Sandbox::with(Options { warm_shells, ..Options::default() });
        let mut worker = sandbox.worker();
        let text = "é'\"$x\\".repeat(60_000);
        let ended = worker.sh(&format!("cat <<'END' | wc -c\n{text}\nEND"));
        assert_eq!(ended.stdout(), format!("{}\n", text.len() + 1));
    }
}

#[test]
fn what_runs_tells_the_time_that_it_has_taken_so_far() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let (busy, idle) = (key("busy"), key("idle"));
    // One that ends again and again, and one that goes on, both below a shell that waits.
    let spin = "(while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; echo turn; done) & (while :; do :; done) & wait";
    let [turns, _] = [(&busy, spin), (&idle, "sleep 1000")].map(|(key, command)| {
        let stream = worker.exec(key, 0, Some(ExecSpec { detached: true, ..shell(command) }));
        assert!(matches!(worker.reply_of(stream), Reply::Attached(_)));
        stream
    });
    let taken = |worker: &mut Worker, key: &OperationKey| {
        let status = worker.status();
        let operation = status.operations.iter().find(|operation| operation.key == *key);
        operation.and_then(|operation| operation.cpu_ms).expect("a time")
    };
    let first = taken(&mut worker, &busy);
    while taken(&mut worker, &busy) < first + 500 {
        worker.until(turns, "turn\n");
    }
    assert!(taken(&mut worker, &idle) < 500);
    let so_far = taken(&mut worker, &busy);
    worker.kill(&busy, 0);
    let status = worker.status();
    let ended = status.operations.iter().find(|operation| operation.key == busy).expect("is kept");
    let exit = ended.exit.as_ref().expect("has ended");
    assert_eq!(ended.cpu_ms, None);
    assert!(exit.cpu_ms + 100 >= so_far, "{} after {so_far}", exit.cpu_ms);
}

#[test]
fn usage_is_counted_over_the_tree() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let ended = worker.sh("(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done) & wait; head -c 50000000 /dev/zero | tail >/dev/null");
    assert!(ended.exit().cpu_ms >= 20, "{:?}", ended.exit());
    assert!(ended.exit().max_rss_bytes > 40_000_000, "{:?}", ended.exit());
}
