//! The journal: operations outlive connections, and happen once.

use protocol::{ErrorCode, FrameKind, OUTPUT_WINDOW_BYTES, OperationState, Reply, Request, StdinMode};

use crate::harness::{Options, Sandbox, argv, key, shell};

#[test]
fn the_same_key_runs_once_and_answers_again() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let key = key("once");
    let command = shell("echo ran | tee -a ledger");
    let stream = worker.exec(&key, 0, Some(command.clone()));
    let first = worker.follow_without_acks(stream);
    assert!(first.attached.as_ref().expect("attached").started);
    for spec in [Some(command), None] {
        let stream = worker.exec(&key, 0, spec);
        let again = worker.follow_without_acks(stream);
        assert_eq!((again.stdout(), again.exit()), (first.stdout(), first.exit()));
        let attached = again.attached.expect("attached");
        assert_eq!((attached.started, attached.state), (false, OperationState::Ended));
    }
    assert_eq!(worker.sh("cat ledger").stdout(), "ran\n");
    assert!(matches!(worker.ask(&Request::Forget { owner: key.owner.clone() }), Reply::Done));
    let stream = worker.exec(&key, 0, None);
    assert_eq!(worker.follow(stream).error.expect("forgotten").code, ErrorCode::NotFound);
}

#[test]
fn output_goes_on_where_it_was_durable_when_the_connection_is_cut() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let key = key("long");
    let lines = 60_000;
    let command = shell(&format!("for i in $(seq 1 {lines}); do echo line $i; done"));
    let expected: String = (1..=lines).map(|i| format!("line {i}\n")).collect();
    let mut stream = worker.exec(&key, 0, Some(command));
    let mut durable: Vec<u8> = Vec::new();
    let mut cuts = 0;
    // Cut after so many bytes, however many frames they take, with acknowledgements that lag behind by a part of a frame.
    loop {
        let part = 20_000 + cuts * 1_000 % 7_000;
        let mut taken = 0;
        let mut over = false;
        while taken < part {
            let frame = worker.frame_of(stream);
            match frame.kind {
                FrameKind::Data => {
                    let (offset, channel, content) = protocol::decode_data(frame.payload).expect("data");
                    assert_eq!((offset, channel), (durable.len() as u64, 1), "a gap or a repetition");
                    let kept = content.len().min(part - taken);
                    durable.extend_from_slice(&content[..kept]);
                    worker.ack(stream, durable.len() as u64);
                    taken += kept;
                }
                FrameKind::Close => {
                    over = true;
                    break;
                }
                _ => {}
            }
        }
        if over {
            break;
        }
        cuts += 1;
        drop(worker);
        worker = sandbox.worker();
        stream = worker.exec(&key, durable.len() as u64, None);
    }
    assert!(cuts > 20, "{cuts}");
    assert_eq!(String::from_utf8_lossy(&durable), expected);
}

#[test]
fn output_beyond_the_window_waits_for_acknowledgements() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let key = key("flood");
    let total = 3_000_000;
    let stream =
        worker.exec(&key, 0, Some(shell(&format!("head -c {total} /dev/zero; echo written > done"))));
    let mut end = 0;
    while end < OUTPUT_WINDOW_BYTES {
        let frame = worker.frame_of(stream);
        if frame.kind == FrameKind::Data {
            let (offset, _, content) = protocol::decode_data(frame.payload).expect("data");
            assert_eq!(offset, end);
            end += content.len() as u64;
        }
    }
    assert_eq!(end, OUTPUT_WINDOW_BYTES);
    let status = worker.status();
    assert_eq!(status.operations[0].log_bytes, OUTPUT_WINDOW_BYTES);
    assert!(!sandbox.workspace().join("done").exists());
    let stream = worker.exec(&key, end, None);
    let ended = worker.follow(stream);
    assert_eq!(ended.attached.as_ref().expect("attached").offset, end);
    assert_eq!(end + ended.log.len() as u64, total);
    assert_eq!(ended.exit().stdout_bytes, total);
}

#[test]
fn output_of_an_ended_command_is_kept_until_it_is_durable() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let key = key("kept");
    let stream = worker.exec(&key, 0, Some(argv(&["head", "-c", "330000", "/dev/zero"])));
    assert_eq!(worker.frame_of(stream).kind, FrameKind::Reply);
    drop(worker);
    let mut worker = sandbox.worker();
    let stream = worker.exec(&key, 0, None);
    assert_eq!(worker.follow(stream).exit().stdout_bytes, 330_000);
    assert_eq!(worker.status().operations[0].state, OperationState::Ended);
}

#[test]
fn both_streams_keep_their_order_in_one_log() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let mut command = shell("while read -r i; do echo out$i; read -r i; echo err$i >&2; done");
    command.stdin = StdinMode::Open;
    let key = key("ordered");
    let stream = worker.exec(&key, 0, Some(command));
    let mut expected = Vec::new();
    for round in 1..=5_u8 {
        for (channel, name) in [(1, "out"), (2, "err")] {
            let mut line = bytes::BytesMut::new();
            protocol::encode_data(&mut line, stream, 0, 0, format!("{round}\n").as_bytes());
            worker.send_bytes(&line);
            let text = format!("{name}{round}\n");
            worker.until_without_acks(stream, &text);
            expected.extend(text.bytes().map(|byte| (channel, byte)));
        }
    }
    let mut end = bytes::BytesMut::new();
    protocol::encode_data(&mut end, stream, 0, 0, b"");
    worker.send_bytes(&end);
    while worker.frame_of(stream).kind != FrameKind::Close {}
    let stream = worker.exec(&key, 0, None);
    assert_eq!(worker.follow(stream).log, expected);
}

#[test]
fn only_the_newest_stream_of_an_operation_gets_its_output() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let key = key("shared");
    let old = worker.exec(&key, 0, Some(shell("echo up; until [ -e go ]; do sleep 0.01; done; echo end")));
    worker.until(old, "up");
    let new = worker.exec(&key, 0, None);
    while worker.frame_of(old).kind != FrameKind::Close {}
    std::fs::write(sandbox.workspace().join("go"), "").expect("writes");
    assert_eq!(worker.follow(new).stdout(), "end\n", "what was acknowledged is not sent again");
}

#[test]
fn an_old_epoch_is_refused_and_a_newer_worker_takes_over_at_once() {
    let mut sandbox = Sandbox::start();
    let (mut first, hello) = sandbox.accept();
    assert_eq!(hello.highest_epoch, 0);
    first.welcome(sandbox.uid, 7, &Options::default());
    let key = key("inherited");
    let stream = first.exec(&key, 0, Some(shell("echo up; until [ -e go ]; do sleep 0.01; done; echo end")));
    first.until(stream, "up");
    // The old worker's connection is healthy; the new one's socket takes its place in the folder.
    sandbox.replace_socket();
    let (mut zombie, hello) = sandbox.accept();
    assert_eq!(hello.highest_epoch, 7);
    zombie.welcome(sandbox.uid, 6, &Options::default());
    assert!(zombie.try_frame().is_none(), "an old epoch must be refused");
    assert!(matches!(first.ask(&Request::Status), Reply::Status(_)), "and must not disturb the owner");
    sandbox.replace_socket();
    let (mut second, _) = sandbox.accept();
    second.welcome(sandbox.uid, 8, &Options::default());
    assert!(first.try_frame().is_none(), "the owner that was is let go");
    std::fs::write(sandbox.workspace().join("go"), "").expect("writes");
    let stream = second.exec(&key, 3, None);
    let ended = second.follow(stream);
    assert_eq!((ended.stdout().as_str(), ended.attached.expect("attached").started), ("end\n", false));
}

#[test]
fn a_silent_worker_is_given_up_and_redialled() {
    let mut sandbox = Sandbox::start();
    let (silent, hello) = sandbox.accept();
    let (_, again) = sandbox.accept();
    assert_eq!(hello.boot_id, again.boot_id);
    drop(silent);
}

#[test]
fn malformed_frames_end_the_connection_and_nothing_else() {
    let mut sandbox = Sandbox::start();
    for garbage in [&[0xff; 64][..], &[0, 0, 0, 0, 77, 0, 0, 0, 1], &[0, 0, 0, 1, 6, 0, 0, 0, 1, 9]] {
        let mut worker = sandbox.worker();
        worker.send_bytes(garbage);
        assert!(worker.try_frame().is_none());
    }
    let mut worker = sandbox.worker();
    let stream = 1_001;
    worker.send(FrameKind::Request, stream, b"{\"verb\":\"fly\"}");
    match worker.reply_of(stream) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::Unsupported),
        other => panic!("unexpected {other:?}"),
    }
    assert_eq!(worker.frame_of(stream).kind, FrameKind::Close);
    assert!(matches!(worker.ask(&Request::Status), Reply::Status(_)));
}

#[test]
fn a_worker_of_the_version_before_is_served_and_so_is_the_one_that_takes_over_from_it() {
    let mut sandbox = Sandbox::start();
    let mut old = sandbox.worker_of(1);
    let key = key("across");
    let stream = old.exec(&key, 0, Some(shell("mkfifo go; echo up; read -r line < go; echo $line")));
    old.until(stream, "up");
    let directory = Request::MakeDirectory { root: "/workspace".to_owned(), path: "a".to_owned() };
    match old.ask(&directory) {
        Reply::Error(error) => assert_eq!(error.code, ErrorCode::Unsupported),
        other => panic!("version 1 has no such request: {other:?}"),
    }

    sandbox.replace_socket();
    let mut new = sandbox.worker();
    assert!(matches!(new.ask(&directory), Reply::DirectoryMade(made) if made.created));
    let stream = new.exec(&key, 3, None);
    std::fs::write(sandbox.workspace().join("go"), "on\n").expect("writes");
    let ended = new.follow(stream);
    assert_eq!((ended.stdout().as_str(), ended.attached.expect("attached").started), ("on\n", false));
}

#[test]
fn forgetting_kills_what_is_not_detached_and_keeps_what_is() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let (kept, dropped) = (key("kept"), key("dropped"));
    for key in [&kept, &dropped] {
        let stream = worker.exec(key, 0, Some(shell("echo up; sleep 1000")));
        worker.until(stream, "up");
    }
    assert!(matches!(worker.ask(&Request::Detach { key: kept.clone(), timeout_ms: None }), Reply::Done));
    for key in [&kept, &dropped] {
        assert!(matches!(worker.ask(&Request::Forget { owner: key.owner.clone() }), Reply::Done));
    }
    while worker.status().processes > 2 {}
    let status = worker.status();
    assert_eq!(status.operations.len(), 1);
    assert!(status.operations[0].detached && status.operations[0].key == kept);
    let detach = Request::Detach { key: kept.clone(), timeout_ms: Some(50) };
    assert!(matches!(worker.ask(&detach), Reply::Done));
    let stream = worker.exec(&kept, 0, None);
    assert!(worker.follow(stream).exit().timed_out, "a new deadline holds");
}

#[test]
fn too_many_operations_are_refused_and_may_be_asked_for_again() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let streams: Vec<_> =
        (0..64).map(|i| worker.exec(&key(&format!("many-{i}")), 0, Some(argv(&["sleep", "1000"])))).collect();
    let refused = worker.exec(&key("one-more"), 0, Some(argv(&["echo", "hi"])));
    assert_eq!(worker.follow(refused).error.expect("refused").code, ErrorCode::LimitExceeded);
    assert!(matches!(worker.kill(&key("many-0"), 0), Reply::Done));
    assert!(worker.follow(streams[0]).exit().killed);
    let accepted = worker.exec(&key("one-more"), 0, Some(argv(&["echo", "hi"])));
    assert_eq!(worker.follow(accepted).stdout(), "hi\n");
}
