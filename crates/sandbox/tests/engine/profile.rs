//! The hardened profile, as seen from inside by a tool.

use sandbox::WorkspaceFate;

use crate::RUNTIME;
use crate::support::{Rig, bash, docker, small};

#[tokio::test]
async fn the_profile_holds_from_inside() {
    let rig = Rig::new();
    let worker = rig.worker();
    let sandbox = worker.acquire(small()).await.unwrap();
    let uid = sandbox.tool_uid();
    let check = async |command: &str| {
        let ran = bash(&sandbox, command).await;
        format!("{}{}", ran.stdout, ran.stderr)
    };

    assert_eq!(check("id -u; id -g; id -G; id -un").await, format!("{uid}\n{uid}\n{uid}\ntool\n"));
    let status = check("cat /proc/self/status").await;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    // KILL, CHOWN, SETGID, SETUID and nothing else, even for the agent.
    assert_eq!(field("CapBnd:"), "00000000000000e1");
    // gVisor's kernel shows none of these: it knows no ambient capabilities, never lets anybody gain any, and is
    // itself what our filter would be.
    if RUNTIME != "runsc" {
        assert_eq!(field("CapAmb:"), "0000000000000000");
        assert_eq!(field("Seccomp:"), "2");
        assert_eq!(field("NoNewPrivs:"), "1");
    }

    let interfaces = check("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await;
    assert!(matches!(interfaces.as_str(), "lo\n" | ""), "{interfaces}");
    assert_eq!(check("hostname").await, "sandbox\n");
    let mut wrong = Vec::new();
    // gVisor does these in its own kernel, which is the sandbox's alone: they reach nothing of the host.
    let of_the_host: &[&str] = match RUNTIME {
        "runsc" => &[],
        _ => &[
            "cat /proc/1/environ",
            "unshare -U true",
            "unshare -r true",
            "mknod /tmp/sda b 8 0",
            "python3 -c 'import ctypes; l = ctypes.CDLL(None); exit(l.ptrace(0, 0, 0, 0) == -1)'",
        ],
    };
    let environment = check("cat /proc/1/environ").await;
    assert!(
        !environment.replace("HOME=/root", "").contains('='),
        "the agent has no environment: {environment}"
    );
    for denied in [
        "touch /etc/x",
        "touch /x",
        "touch /usr/x",
        "touch /run/x",
        "touch /dev/x",
        "mkdir /workspace2",
        "python3 -c 'import os; os.listdir(\"/.toolhost\")'",
        "python3 -c 'import os; os.listdir(\"/.toolhost/link\")'",
        "cat /.toolhost/agent",
        "kill -0 1",
        "mount -t tmpfs none /tmp",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
        "python3 -c 'import socket; socket.create_connection((\"172.17.0.1\", 22), 2)'",
        "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'",
        "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"/.toolhost/link/worker.sock\")'",
        "test -e /var/run/docker.sock || test -e /run/docker.sock",
        "chown 0 /workspace",
        "echo 1 > /proc/sys/kernel/core_pattern",
        "python3 -c 'import ctypes, os; l = ctypes.CDLL(None, use_errno=True); exit(l.syscall(425, 1, 0) == -1)'", // io_uring_setup
        "python3 -c 'import ctypes; l = ctypes.CDLL(None); exit(l.syscall(250, 0, 0) == -1)'", // keyctl
        "python3 -c 'import ctypes; l = ctypes.CDLL(None); exit(l.syscall(323, 0) == -1)'",    // userfaultfd
        "mknod /tmp/disk b 8 0 && head -c 1 /tmp/disk",
    ]
    .iter()
    .chain(of_the_host)
    {
        let ran = bash(&sandbox, denied).await;
        if ran.exit.exit_code == Some(0) {
            wrong.push(format!("allowed: {denied}: {ran:?}"));
        }
    }
    for allowed in [
        "touch /workspace/x",
        "touch /tmp/x",
        "touch /var/tmp/x",
        "touch /dev/shm/x",
        "touch /run/lock/x",
        "cp /bin/true /tmp/t && /tmp/t",
        "echo x | tee /dev/stderr",
        "python3 -c 'print(1)'",
        "true > /dev/null",
        "head -c 4 /dev/urandom",
        "test \"$HOME\" = /workspace",
        "git init -q /workspace/repo",
        "python3 -c 'import threading; t = threading.Thread(target=print); t.start(); t.join()'",
        "node -e 'console.log(1)'",
        "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); socket.create_connection(s.getsockname())'",
    ] {
        let ran = bash(&sandbox, allowed).await;
        if ran.exit.exit_code != Some(0) {
            wrong.push(format!("refused: {allowed}: {ran:?}"));
        }
    }

    let mounts = check("cat /proc/self/mounts").await;
    for (target, options) in [
        ("/", &["ro"][..]),
        ("/workspace", &["rw", "nosuid", "nodev"]),
        ("/tmp", &["rw", "nosuid", "nodev"]),
        ("/var/tmp", &["rw", "nosuid", "nodev"]),
        ("/run", &["rw", "nosuid", "nodev", "noexec"]),
        ("/run/lock", &["rw", "nosuid", "nodev", "noexec"]),
        ("/dev/pts", if RUNTIME == "runsc" { &[] } else { &["rw", "nosuid", "noexec", "max=64"] }),
        ("/dev/shm", &["rw", "nosuid", "nodev", "noexec"]),
        ("/.toolhost", &["ro"]),
        ("/.toolhost/link", if RUNTIME == "runsc" { &["rw", "noexec"] } else { &["ro"] }),
        ("/etc/passwd", &["ro"]),
        ("/etc/group", &["ro"]),
    ] {
        let mount = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some(target));
        // Nobody gains anything by setuid, and devices are gVisor's own: it does not show these two.
        let is_shown = |option: &&&str| RUNTIME != "runsc" || !matches!(**option, "nosuid" | "nodev");
        let has: Vec<&str> =
            mount.and_then(|mount| mount.split(' ').nth(3)).unwrap_or_default().split(',').collect();
        if !options.iter().filter(is_shown).all(|option| has.contains(option)) {
            wrong.push(format!("mount {target}: {mount:?}"));
        }
    }
    let devices = check("find /dev -type b; find /dev -type c | sort").await;
    let harmless = ["full", "null", "ptmx", "random", "tty", "urandom", "zero"];
    // These two serve only those with capabilities.
    let of_gvisor = ["/dev/fuse", "/dev/net/tun"];
    let known = |line: &str| {
        RUNTIME == "runsc" && of_gvisor.contains(&line)
            || line.strip_prefix("/dev/").is_some_and(|name| harmless.contains(&name) || name == "pts/ptmx")
    };
    wrong.extend(devices.lines().filter(|line| !known(line)).map(|device| format!("device {device}")));
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(check("ulimit -c; ulimit -n").await, "0\n16384\n");
    let env = check("env").await;
    assert!(env.contains("PYTHONUNBUFFERED=1"), "the image's environment reaches commands: {env}");

    let inspected = docker(&[
        "inspect",
        "--format",
        "{{json .Config.Env}} {{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.CpuPeriod}} {{.HostConfig.CpuQuota}} \
         {{.HostConfig.PidsLimit}}",
        sandbox.container_id(),
    ]);
    let (env, limits) = inspected.as_ref().unwrap().split_once(' ').unwrap();
    assert!(!env.contains('='), "no environment reaches the agent: {env}");
    // A process of a sandbox takes several tasks of gVisor's own, and its kernel has threads besides.
    let pids = if RUNTIME == "runsc" { 768 } else { 256 };
    assert_eq!(limits, format!("536870912 536870912 100000 100000 {pids}"));
    worker.release(&sandbox, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}

/// The host counts terminals of all containers together: a sandbox that takes what it can leaves enough for others.
#[tokio::test]
async fn a_sandbox_takes_no_more_terminals_than_are_its_own() {
    let rig = Rig::new();
    let worker = rig.worker();
    let (greedy, neighbour) =
        (worker.acquire(small()).await.unwrap(), worker.acquire(small()).await.unwrap());
    let hoard = "python3 -c '
import os
taken = []
try:
    while len(taken) < 5000: taken.append(os.openpty())
except OSError: pass
print(len(taken))'";
    let ran = bash(&greedy, hoard).await;
    let taken: u32 = ran.stdout.trim().parse().unwrap();
    // gVisor's terminals are no terminals of the host.
    assert!(if RUNTIME == "runc" { (16..=64).contains(&taken) } else { taken > 0 }, "{ran:?}");
    let ran = bash(&neighbour, "python3 -c 'import os; print(os.ttyname(os.openpty()[1]))'").await;
    assert_eq!(ran.stdout, "/dev/pts/0\n", "its terminals are its own: {ran:?}");
    worker.release(&greedy, WorkspaceFate::Remove);
    worker.release(&neighbour, WorkspaceFate::Remove);
    rig.finish(&[&worker]).await;
}
