//! Ending: what must be killed is, all of it, and nothing else.

use protocol::{ExecLimits, KillRequest, Reply, Request};

use crate::harness::{Options, Sandbox, Worker, argv, key, shell};

/// Ways to outlive one's end. Each says `up` when it has got away.
const EVASIONS: [(&str, &str); 13] = [
    ("plain", "echo up; sleep 1000"),
    ("setsid", "setsid sleep 1000 & echo up; wait"),
    ("double fork", "(setsid sh -c 'sleep 1000 & sleep 1000 &' &) ; echo up; sleep 1000"),
    ("ignored TERM", "trap '' TERM INT HUP; echo up; while :; do sleep 1; done"),
    ("ignored TERM in children", "trap '' TERM; (trap '' TERM; sleep 1000) & echo up; wait"),
    ("stopped", "echo up; kill -STOP $$; sleep 1000"),
    ("stopped child", "sleep 1000 & kill -STOP $!; echo up; wait"),
    ("held pipe", "trap '' TERM; (trap '' TERM; exec sleep 1000) 2>/dev/null & echo up; wait"),
    ("closed output", "echo up; exec >&- 2>&-; sleep 1000"),
    ("nohup disown", "nohup sleep 1000 >/dev/null 2>&1 & disown; echo up; sleep 1000"),
    (
        "respawn on TERM",
        "trap 'setsid sleep 1000 & setsid sleep 1000 &' TERM; echo up; while :; do sleep 1; done",
    ),
    (
        "new session in python",
        "exec python3 -c 'import os,time\nfor i in range(5):\n    if os.fork()==0:\n        os.setsid()\n        if os.fork()==0:\n            time.sleep(1000)\n        os._exit(0)\nprint(\"up\",flush=True)\ntime.sleep(1000)'",
    ),
    (
        "zombies",
        "exec python3 -c 'import os,time\nfor i in range(30):\n    if os.fork()==0: os._exit(0)\nprint(\"up\",flush=True)\ntime.sleep(1000)'",
    ),
];

fn no_survivor(worker: &mut Worker) {
    let status = worker.status();
    assert_eq!(status.processes, 0, "{status:?}");
}

#[test]
fn a_deadline_ends_whatever_tries_to_outlive_it() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    for (name, command) in EVASIONS {
        let ended = worker.run_past_deadline(&key(name), shell(command), "up\n");
        assert!(
            ended.exit().timed_out && !ended.exit().killed && !ended.exit().sandbox_reset,
            "{name}: {ended:?}"
        );
        assert_eq!(ended.stdout(), "", "{name}");
        no_survivor(&mut worker);
    }
}

#[test]
fn a_command_has_its_deadline_from_the_start() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let mut command = shell("sleep 1000");
    command.timeout_ms = Some(50);
    let ended = worker.run(command);
    assert!(ended.exit().timed_out && !ended.exit().killed, "{ended:?}");
    no_survivor(&mut worker);
}

#[test]
fn a_kill_ends_whatever_tries_to_outlive_it() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    for (name, command) in EVASIONS {
        let key = key(name);
        let mut command = shell(command);
        command.detached = true;
        let stream = worker.exec(&key, 0, Some(command));
        worker.until(stream, "up");
        assert!(matches!(worker.kill(&key, 50), Reply::Done));
        no_survivor(&mut worker);
        let ended = worker.follow_on(stream);
        assert!(ended.exit().killed && !ended.exit().timed_out, "{name}: {ended:?}");
        assert!(matches!(worker.kill(&key, 50), Reply::Done), "a second kill finds it done");
    }
}

#[test]
fn what_a_command_leaves_behind_is_ended_and_counted() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let ended = worker.sh("setsid sleep 1000 & (trap '' TERM; while :; do sleep 1; done) & echo done");
    assert_eq!((ended.stdout().as_str(), ended.code()), ("done\n", Some(0)));
    assert!((2..=3).contains(&ended.exit().left_over), "{:?}", ended.exit());
    no_survivor(&mut worker);
    let mut logging = shell("echo logged > >(sleep 0.05; cat); true");
    logging.grace_ms = 20_000;
    let ended = worker.run(logging);
    assert_eq!((ended.stdout().as_str(), ended.exit().left_over), ("logged\n", 0), "it had time to finish");
}

#[test]
fn a_signal_reaches_the_process_group_and_ends_nothing_by_itself() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    for round in 0..3 {
        let key = key(&format!("signalled-{round}"));
        let stream =
            worker.exec(&key, 0, Some(shell("trap 'echo usr1' USR1; echo up; while :; do sleep 0.01; done")));
        worker.until(stream, "up");
        let signal = KillRequest { key: key.clone(), signal: Some(nix::libc::SIGUSR1), grace_ms: 0 };
        assert!(matches!(worker.ask(&Request::Kill(signal)), Reply::Done));
        worker.until(stream, "usr1");
        worker.kill(&key, 0);
        assert!(worker.follow_on(stream).exit().killed);
    }
}

#[test]
fn a_kill_spares_the_neighbours() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let (one, other) = (key("one"), key("other"));
    let neighbour = worker.exec(&other, 0, Some(shell("echo up; read -t 3 x < <(sleep 1); echo intact")));
    worker.until(neighbour, "up");
    let stream = worker.exec(&one, 0, Some(shell("echo up; setsid sleep 1000 & sleep 1000")));
    worker.until(stream, "up");
    worker.kill(&one, 0);
    assert!(String::from_utf8_lossy(&worker.until(neighbour, "intact")).contains("intact"));
    assert_eq!(worker.follow_on(neighbour).code(), Some(0));
}

const BOMB: &str = r#"exec python3 -c '
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
'"#;

#[test]
fn a_fork_bomb_is_bounded_and_ended() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let limits = ExecLimits { processes: Some(150), ..ExecLimits::default() };
    let mut bomb = shell(BOMB);
    bomb.limits = limits.clone();
    let key = key("bomb");
    let stream = worker.exec(&key, 0, Some(bomb));
    worker.until(stream, "up");
    while worker.status().processes < 140 {}
    assert!(worker.status().processes <= 150);
    // The uid has no process left to give, which is told and not met as a riddle.
    let mut other = argv(&["true"]);
    other.limits = ExecLimits { processes: Some(100), ..limits };
    let refused = worker.run(other);
    let message = refused.error.map(|error| error.message).unwrap_or_default();
    assert!(message.contains("no process is left"), "{message}");
    assert!(matches!(worker.kill(&key, 100), Reply::Done));
    no_survivor(&mut worker);
    assert!(worker.follow_on(stream).exit().killed);
    assert_eq!(worker.sh("echo alive").stdout(), "alive\n");
}

/// A version 1 freezer of its own: what is frozen there takes SIGKILL only when it is thawed.
struct Freezer {
    mount: tempfile::TempDir,
    group: std::path::PathBuf,
}

impl Freezer {
    fn new() -> Self {
        let mount = tempfile::tempdir().expect("a folder");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "cgroup", "-o", "freezer", "toolhost-test"])
            .arg(mount.path())
            .status();
        assert!(mounted.expect("mount runs").success(), "this kernel has no freezer");
        let group = mount.path().join(format!("toolhost-agent-test-{}", std::process::id()));
        std::fs::create_dir(&group).expect("a group");
        Self { mount, group }
    }

    fn set(&self, state: &str) {
        std::fs::write(self.group.join("freezer.state"), state).expect("freezes");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set("THAWED");
        while std::fs::remove_dir(&self.group).is_err() {}
        let unmounted = std::process::Command::new("umount").arg(self.mount.path()).status();
        assert!(unmounted.expect("umount runs").success());
    }
}

#[test]
fn a_tree_that_outlives_the_budget_costs_the_whole_sandbox() {
    let freezer = Freezer::new();
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let (frozen, other) = (key("frozen"), key("other"));
    let stream = worker.exec(&frozen, 0, Some(shell("echo up; exec sleep 1000")));
    worker.until(stream, "up");
    let agent = sandbox.agent_pid();
    let child = |pid: i32| -> i32 {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("lives");
        children.trim().parse().expect("one child")
    };
    let command = child(child(agent));
    std::fs::write(freezer.group.join("cgroup.procs"), command.to_string()).expect("enters");
    freezer.set("FROZEN");
    while std::fs::read_to_string(freezer.group.join("freezer.state")).expect("reads") != "FROZEN\n" {}
    let neighbour = worker.exec(&other, 0, Some(shell("echo up; sleep 1000")));
    worker.until(neighbour, "up");
    let kill = Request::Kill(KillRequest { key: frozen.clone(), signal: None, grace_ms: 0 });
    let killing = worker.request(&kill);
    // The neighbour dies of the last resort, and says so.
    let ended = worker.follow_on(neighbour);
    // At once: what was frozen has to be gone before its supervisor gives up.
    freezer.set("THAWED");
    assert_eq!(
        (ended.exit().sandbox_reset, ended.exit().killed, ended.exit().signal),
        (true, false, Some(9))
    );
    assert!(matches!(worker.reply_of(killing), Reply::Done));
    let ended = worker.follow_on(stream);
    assert!(ended.exit().sandbox_reset && ended.exit().killed && ended.exit().signal.is_some(), "{ended:?}");
    no_survivor(&mut worker);
    assert_eq!(worker.sh("echo alive").stdout(), "alive\n");
}

#[test]
fn a_pipe_held_from_outside_the_tree_delays_nothing() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let (holder, held) = (key("holder"), key("held"));
    let stream =
        worker.exec(&held, 0, Some(shell("echo $$ > pid; echo up; until [ -e taken ]; do sleep 0.01; done")));
    worker.until(stream, "up");
    let take = "exec 9>/proc/$(cat pid)/fd/1; touch taken; echo holding; while echo flood >&9; do :; done; sleep 1000";
    let flood = worker.exec(&holder, 0, Some(shell(take)));
    worker.until(flood, "holding");
    let ended = worker.follow_on(stream);
    assert_eq!(ended.code(), Some(0));
    worker.kill(&holder, 0);
}

#[test]
fn an_out_of_memory_kill_is_told_and_the_agent_survives_it() {
    let mut sandbox = Sandbox::with(Options { memory_bytes: Some(64 * 1024 * 1024), ..Options::default() });
    let mut worker = sandbox.worker();
    assert!(!worker.sh("true").exit().oom_killed);
    let ended = worker.sh("python3 -c 'x = bytearray(500_000_000)'; echo code $?");
    assert!(ended.exit().oom_killed, "{ended:?}");
    let status = worker.status();
    assert!(status.oom_kills >= 1 && status.memory_bytes.is_some(), "{status:?}");
    assert!(!worker.sh("true").exit().oom_killed);
}

#[test]
fn a_supervisor_that_dies_takes_its_tree_along() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let key = key("orphaned");
    let stream = worker.exec(
        &key,
        0,
        Some(shell("setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up; wait")),
    );
    worker.until(stream, "up");
    let agent = sandbox.agent_pid();
    let children =
        std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).expect("the agent lives");
    for pid in children.split_whitespace() {
        let pid = nix::unistd::Pid::from_raw(pid.parse().expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("kills");
    }
    let ended = worker.follow_on(stream);
    assert_eq!((ended.code(), ended.exit().signal), (None, Some(9)));
    while worker.status().processes > 0 {}
    assert_eq!(worker.sh("echo alive").stdout(), "alive\n");
}

#[test]
fn the_agent_stops_when_the_outside_asks() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    let stream =
        worker.exec(&key("long"), 0, Some(shell("trap '' TERM; echo up; while :; do sleep 1; done")));
    worker.until(stream, "up");
    let agent = nix::unistd::Pid::from_raw(sandbox.agent_pid());
    nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGTERM).expect("signals");
    assert!(sandbox.wait().success());
}
