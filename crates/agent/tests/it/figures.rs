//! What the agent costs. Prints figures and asserts bounds on memory only; no test depends on time.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Options, Sandbox, Worker, argv, key};

/// The agent's promise, in bytes.
const AGENT_RSS_LIMIT: u64 = 8 * 1024 * 1024;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn timed(action: impl FnOnce()) -> Duration {
    let began = Instant::now();
    action();
    began.elapsed()
}

#[test]
fn the_agent_stays_small_under_load() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    let idle = worker.status().agent_rss_bytes;
    for _ in 0..200 {
        worker.sh("echo hi");
    }
    let after_calls = worker.status().agent_rss_bytes;
    let floods: Vec<_> = (0..32)
        .map(|i| worker.exec(&key(&format!("flood-{i}")), 0, Some(argv(&["cat", "/dev/zero"]))))
        .collect();
    for &stream in &floods {
        while worker.frame_of(stream).kind != protocol::FrameKind::Data {}
    }
    let flooded = worker.status().agent_rss_bytes;
    for i in 0..floods.len() {
        worker.kill(&key(&format!("flood-{i}")), 0);
    }
    println!("agent RSS: idle {idle}, after 200 calls {after_calls}, with 32 unread floods {flooded}");
    for bytes in [idle, after_calls, flooded] {
        assert!(bytes <= AGENT_RSS_LIMIT, "{bytes} bytes");
    }
}

#[test]
fn a_large_request_is_not_paid_for_ever() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    let before = worker.status().agent_rss_bytes;
    for _ in 0..3 {
        let ended = worker.sh(&format!(": {}; echo done", "x".repeat(3_000_000)));
        assert_eq!(ended.stdout(), "done\n");
    }
    let after = worker.status().agent_rss_bytes;
    println!("agent RSS: before commands of 3 MB {before}, after {after}");
    assert!(after <= AGENT_RSS_LIMIT, "{after} bytes");
}

#[test]
fn latency_of_a_call() {
    let mut cold = Sandbox::start();
    let mut warm = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let (mut cold, mut warm) = (cold.worker(), warm.worker());
    let (mut host, mut new, mut waiting, mut served) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut plain = Vec::new();
    let call = |worker: &mut Worker, i: usize| {
        let key = key(&format!("echo-{i}"));
        let stream = worker.exec(&key, 0, Some(crate::harness::shell("echo hi")));
        let ended = worker.follow(stream);
        assert_eq!(ended.stdout(), "hi\n");
        ended.is_warm()
    };
    for i in 0..300 {
        host.push(timed(|| {
            assert!(Command::new("bash").args(["-c", "echo hi"]).output().expect("runs").status.success());
        }));
        new.push(timed(|| assert!(!call(&mut cold, i))));
        waiting.push(timed(|| served += usize::from(call(&mut warm, i))));
        plain.push(timed(|| {
            let stream = cold.exec(&key(&format!("plain-{i}")), 0, Some(argv(&["bash", "-c", "echo hi"])));
            assert_eq!(cold.follow(stream).stdout(), "hi\n");
        }));
        cold.ask(&protocol::Request::Forget { owner: format!("plain-{i}") });
        for worker in [&mut cold, &mut warm] {
            worker.ask(&protocol::Request::Forget { owner: format!("echo-{i}") });
        }
    }
    let (host, new, waiting, plain) = (median(host), median(new), median(waiting), median(plain));
    println!(
        "bash -c 'echo hi', medians of 300: host {host:?}, new shell {new:?} (without prelude {plain:?}), warm shell {waiting:?} ({served} warm)"
    );
}

#[test]
fn rate_of_bulk_output() {
    const BYTES: u64 = 400_000_000;
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let began = Instant::now();
    let stream = worker.exec(&key("bulk"), 0, Some(argv(&["head", "-c", &BYTES.to_string(), "/dev/zero"])));
    let mut end = 0;
    loop {
        let frame = worker.frame_of(stream);
        match frame.kind {
            protocol::FrameKind::Data => {
                let (offset, _, content) = protocol::decode_data(frame.payload).expect("data");
                assert_eq!(offset, end);
                end += content.len() as u64;
                worker.ack(stream, end);
            }
            protocol::FrameKind::Close => break,
            _ => {}
        }
    }
    assert_eq!(end, BYTES);
    println!("bulk output: {:.0} MB/s", BYTES as f64 / 1e6 / began.elapsed().as_secs_f64());
}

#[test]
fn rate_of_calls_in_eight_sandboxes_at_once() {
    const CALLS: usize = 200;
    let rate = |began: Instant| (8 * CALLS) as f64 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..CALLS {
                    let output = Command::new("bash").args(["-c", "echo hi"]).output();
                    assert!(output.expect("runs").status.success());
                }
            });
        }
    });
    let host = rate(began);
    let sandboxes = |warm_shells| {
        let mut sandboxes: Vec<_> =
            (0..8).map(|_| Sandbox::with(Options { warm_shells, ..Options::default() })).collect();
        let mut workers: Vec<_> = sandboxes.iter_mut().map(Sandbox::worker).collect();
        let began = Instant::now();
        let warm: usize = std::thread::scope(|scope| {
            let calls = |worker: &mut Worker| (0..CALLS).filter(|_| worker.sh("echo hi").is_warm()).count();
            let threads: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(move || calls(worker))).collect();
            threads.into_iter().map(|thread| thread.join().expect("joins")).sum()
        });
        (rate(began), warm)
    };
    let ((new, _), (waiting, warm)) = (sandboxes(0), sandboxes(1));
    println!(
        "calls per second, 8 at once: host {host:.0}, new shells {new:.0}, with warm shells {waiting:.0} ({warm} of {} warm)",
        8 * CALLS
    );
}
