//! Commands: what they see, what they say, how they end.

use crate::harness::{Sandbox, argv, key, shell};
use protocol::ErrorCode;

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
fn a_program_that_is_missing_is_refused_and_stays_refused() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    for _ in 0..2 {
        let stream = worker.exec(&key("missing"), 0, Some(argv(&["no-such-program"])));
        let error = worker.follow(stream).error.expect("refused");
        assert_eq!(error.code, ErrorCode::StartFailed);
        assert!(error.message.contains("no-such-program"), "{}", error.message);
    }
    let _ = shell("true");
}
