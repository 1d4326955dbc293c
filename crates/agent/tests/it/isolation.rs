//! What a tool can reach: itself and its files, not the agent.

use crate::harness::{Options, Sandbox, argv};

#[test]
fn a_tool_has_no_capability_no_group_and_three_descriptors() {
    for warm_shells in [0, 1] {
        let mut sandbox = Sandbox::with(Options { warm_shells, ..Options::default() });
        let uid = sandbox.uid;
        let mut worker = sandbox.worker();
        for _ in 0..2 {
            let ended = worker.sh("grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Groups|Uid|Gid)' /proc/self/status; ls /proc/self/fd; cat /proc/self/oom_score_adj; umask; id -u");
            let zero = "0000000000000000";
            let expected = format!(
                "Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\nGroups:\t \nCapInh:\t{zero}\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapAmb:\t{zero}\nNoNewPrivs:\t1\n0\n1\n2\n3\n1000\n0022\n{uid}\n"
            );
            assert_eq!(ended.stdout(), expected);
        }
    }
}

const ATTACK: &str = r#"
import ctypes, os, resource, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
done = []
def attempt(name, action):
    try:
        action()
        done.append(name)
    except (OSError, ValueError, PermissionError):
        pass
def call(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
targets = [1] + [int(t) for t in os.listdir("/proc/1/task")]
targets += [int(p) for p in os.listdir("/proc") if p.isdigit() and os.stat("/proc/" + p).st_uid == 0]
for pid in set(targets):
    for sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCHLD):
        attempt(f"kill {pid} {sig}", lambda: os.kill(pid, sig))
        attempt(f"tgkill {pid} {sig}", lambda: call(234, 1, pid, int(sig)))
    attempt(f"ptrace {pid}", lambda: call(101, 0x4206, pid, 0, 0))
    attempt(f"prlimit {pid}", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)))
    attempt(f"nice {pid}", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attempt(f"affinity {pid}", lambda: os.sched_setaffinity(pid, {0}))
    for name in ("mem", "environ", "maps", "cwd", "root", "exe", "stack", "syscall", "auxv", "fd", "fdinfo", "io"):
        path = f"/proc/{pid}/{name}"
        attempt(f"read {path}", lambda: os.listdir(path) if name in ("fd", "fdinfo") else (os.readlink(path) if name in ("cwd", "root", "exe") else open(path, "rb").read(1)))
    for name in ("mem", "oom_score_adj", "coredump_filter", "clear_refs"):
        path = f"/proc/{pid}/{name}"
        attempt(f"write {path}", lambda: open(path, "r+b"))
attempt("enter", lambda: os.listdir("/.toolhost"))
attempt("agent", lambda: open("/.toolhost/agent", "rb"))
attempt("link", lambda: socket.socket(socket.AF_UNIX).connect("/.toolhost/link/worker.sock"))
attempt("setuid", lambda: os.setuid(0))
attempt("setgid", lambda: os.setgid(0))
attempt("chown", lambda: os.chown("/workspace", 0, 0))
attempt("root fs", lambda: open("/usr/planted", "w"))
attempt("preload", lambda: open("/etc/ld.so.preload", "w"))
attempt("mount", lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0))
print("succeeded:", done)
"#;

#[test]
fn a_tool_can_neither_signal_nor_trace_nor_reach_the_agent() {
    let mut sandbox = Sandbox::with(Options { warm_shells: 1, ..Options::default() });
    let mut worker = sandbox.worker();
    std::fs::write(sandbox.workspace().join("attack.py"), ATTACK).expect("writes");
    // Nothing may start beside the attack: a process that is still root when it is found and the tool's own when it is attacked
    // proves nothing. So the next shell waits already, and is not taken.
    worker.until_a_shell_waits();
    let ended = worker.run(argv(&["sh", "-c", "python3 attack.py; cat /proc/1/cmdline | tr '\\0' ' '"]));
    assert_eq!(ended.stdout(), "succeeded: []\n/.toolhost/agent ", "{}", ended.stderr());
    assert_eq!(worker.sh("kill -9 -1; echo alive").exit().signal, None);
    assert_eq!(worker.sh("echo alive").stdout(), "alive\n");
}

#[test]
fn a_tool_cannot_stop_the_agent_with_a_forged_signal() {
    let mut sandbox = Sandbox::start();
    let mut worker = sandbox.worker();
    // The tool can only ever signal what it owns; this proves the agent's handling from its own side.
    assert_ne!(worker.sh("kill -TERM 1").code(), Some(0));
    assert_eq!(worker.sh("echo alive").stdout(), "alive\n");
}
