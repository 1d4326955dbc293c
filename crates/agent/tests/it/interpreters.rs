//! Interpreters that wait and leave reports, and kernels that take one request after another.

use protocol::{ErrorCode, KERNEL_ABSENT, KERNEL_LOST, OperationKey, Program, Reply, Role};

use crate::harness::{Options, Sandbox, Worker, key, spec};

/// Keeps the contract of an interpreter: waits, takes its request, begins, leaves a report.
const INTERPRETER: &str = r#"read -ru4 _||exit 1; request=$(cat <&3); printf s>&4; exec 4>&-
echo "ran $request"; printf 'report of %s' "$request" >/proc/self/fd/3"#;

/// A kernel that evaluates each request in the same place.
const KERNEL: &str = r#"
import os, signal, socket, struct
control = socket.socket(fileno=3)
names = {}
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    word, fds, _, _ = socket.recv_fds(control, 1, 5)
    if not word: break
    answer = socket.socket(fileno=fds[4])
    code = os.pread(fds[3], 65536, 0).decode()
    os.ftruncate(fds[3], 0)
    names["out"] = lambda text: os.write(fds[1], text.encode())
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        answer.send(b"p" + struct.pack("=i", os.getpid()))
        exec(code, names)
        end = 0
    except KeyboardInterrupt:
        end = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.pwrite(fds[3], b"end %d" % end, 0)
    for fd in fds[:4]: os.close(fd)
    answer.send(b"d" + bytes([end]))
    answer.close()
"#;

fn interpreter(request: &str) -> protocol::ExecSpec {
    let argv = ["bash", "-c", INTERPRETER].map(str::to_owned).to_vec();
    let program = Program::Argv { argv, script: Some(request.to_owned()) };
    protocol::ExecSpec { role: Role::Interpreter, ..spec(program) }
}

fn start_kernel(worker: &mut Worker) -> OperationKey {
    let kernel = key("kernel");
    let argv = ["python3", "-c", KERNEL].map(str::to_owned).to_vec();
    let program = Program::Argv { argv, script: None };
    let spec = protocol::ExecSpec { role: Role::Kernel, detached: true, timeout_ms: None, ..spec(program) };
    worker.exec(&kernel, 0, Some(spec));
    kernel
}

fn request(kernel: &OperationKey, code: &str) -> protocol::ExecSpec {
    let program = Program::Argv { argv: Vec::new(), script: Some(code.to_owned()) };
    protocol::ExecSpec { role: Role::Request { kernel: kernel.clone() }, ..spec(program) }
}

#[test]
fn interpreters_wait_serve_once_and_leave_a_report() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    let was_warm = (0..2_000).any(|n| {
        let ended = worker.run(interpreter(&format!("call {n}")));
        assert_eq!((ended.stdout(), ended.code()), (format!("ran call {n}\n"), Some(0)));
        ended.is_warm()
    });
    assert!(was_warm, "no interpreter waited");
    let asked = key("with-report");
    let stream = worker.exec(&asked, 0, Some(interpreter("mine")));
    worker.follow(stream);
    assert_eq!(worker.report(&asked).expect("a report"), b"report of mine");
    assert_eq!(worker.report(&key("never")).expect_err("never was").code, ErrorCode::NotFound);
}

#[test]
fn a_kernel_keeps_its_state_from_request_to_request() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let kernel = start_kernel(&mut worker);
    assert_eq!(worker.run(request(&kernel, "x = 1")).code(), Some(0));
    let ended = worker.run(request(&kernel, "out(f'x is {x}')"));
    assert_eq!((ended.stdout().as_str(), ended.code()), ("x is 1", Some(0)));
    // One that heeds the interrupt keeps the kernel.
    let mut slow = request(&kernel, "import time\nout('on')\ntime.sleep(1000)");
    slow.grace_ms = 10_000;
    let ended = worker.run_past_deadline(&key("slow"), slow, "on");
    assert_eq!((ended.stdout().as_str(), ended.code()), ("", Some(130)));
    assert!(ended.exit().timed_out);
    // One that does not is left to the worker: its own operation ends all the same.
    let mut deaf = request(
        &kernel,
        "signal = __import__('signal')\nsignal.signal(2, signal.SIG_IGN)\nx += 1\nout('deaf')\nwhile True: pass",
    );
    deaf.grace_ms = 200;
    let ended = worker.run_past_deadline(&key("deaf"), deaf, "deaf");
    assert!(ended.stdout().is_empty() && ended.exit().timed_out && ended.exit().signal.is_some());
    assert!(matches!(worker.kill(&kernel, 0), Reply::Done));
    let refused = worker.run(request(&kernel, "x"));
    assert_eq!(refused.error.map(|error| error.code), Some(ErrorCode::Ended));
}

#[test]
fn a_kernel_that_dies_ends_its_request() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let kernel = start_kernel(&mut worker);
    let ended = worker.run(request(&kernel, "out('last')\n__import__('os')._exit(3)"));
    assert_eq!((ended.stdout().as_str(), ended.code()), ("last", Some(KERNEL_LOST)));
}

#[test]
fn a_request_that_does_not_reach_its_kernel_says_so() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let kernel = start_kernel(&mut worker);
    assert_eq!(worker.run(request(&kernel, "x = 1")).code(), Some(0));
    // It lives on with its end of the socket shut.
    let deaf = "import socket, time\nsocket.recv_fds = lambda *_: time.sleep(1000)\n__import__('__main__').control.shutdown(2)";
    assert_eq!(worker.run(request(&kernel, deaf)).code(), Some(0));
    let ended = worker.run(request(&kernel, "out('never')"));
    assert_eq!((ended.stdout().as_str(), ended.code()), ("", Some(KERNEL_ABSENT)));
    assert!(ended.exit().signal.is_none() && ended.error.is_none());
    assert!(matches!(worker.kill(&kernel, 0), Reply::Done));
}
