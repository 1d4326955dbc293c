//! What untrusted code tries, over the API, beside a neighbour that must not notice.

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tests::client::id_of;
use tests::host::runtime;
use tests::{Client, Host};

use crate::attacks::MEMORY_OF_A_FLOOD;
use crate::gvisor;
use crate::http_files::peak_bytes;

/// An attacker's and a neighbour's session.
async fn two(host: &Host) -> Result<(Client, String, Client, String)> {
    let (attacker, neighbour) = (host.tenant("attacker")?.client, host.tenant("neighbour")?.client);
    let (first, second) = (attacker.session(json!({})).await?, neighbour.session(json!({})).await?);
    neighbour.bash(&second, "echo mine > file").await?;
    Ok((attacker, first, neighbour, second))
}

async fn neighbour_is_well(client: &Client, session: &str) -> Result<()> {
    let call = client.bash(session, "cat file && python3 -c 'print(6*7)'").await?;
    ensure!(call["result"]["structured"]["stdout"] == "mine\n42\n", "{call:#}");
    Ok(())
}

async fn with_timeout(client: &Client, session: &str, command: &str, timeout_ms: u64) -> Result<Value> {
    let body = json!({"tool": "bash", "arguments": {"command": command}, "timeout_ms": timeout_ms});
    let call = client.submit_with(session, body).await?;
    client.ended(&call).await
}

/// Time that the agent takes at least before it lets a call end while processes of its, which it has killed, are still there (`KILL_BUDGET` and
/// `RESET_BUDGET`).
const GIVEN_UP_MS: u64 = 5_000;

/// What every process of an attack has in its command line, whatever it forks. It does not match itself.
const MARKED: &str = "(sleep|attack).425[0-9]";

/// Whether none of the processes of an attack is left. Where nothing more can be started, nothing is searched either, and the shell comes to no
/// end of its command.
async fn are_gone(client: &Client, session: &str) -> Result<bool> {
    let search = format!("grep -salE '{MARKED}' /proc/[0-9]*/cmdline; echo searched");
    let call = client.bash(session, &search).await?;
    Ok(call["result"]["structured"]["stdout"] == "searched\n")
}

/// That none of the processes of an attack is left once its call has ended.
async fn nothing_of_theirs_runs(client: &Client, session: &str) -> Result<()> {
    if runtime() == "runsc" {
        // There they may be ended a little after their call, once the sandbox is idle.
        return tests::wait::until("what an attack started is gone", || are_gone(client, session)).await;
    }
    ensure!(are_gone(client, session).await?, "something of an attack outlives its call");
    Ok(())
}

/// That one of them would be seen: a command sees its own.
async fn theirs_would_be_seen(client: &Client, session: &str) -> Result<()> {
    for marked in ["sleep 4250", "bash -c 'while :; do sleep 1; done' attack-4250"] {
        let command =
            format!("{marked} & until grep -aqE '{MARKED}' /proc/$!/cmdline; do sleep 0.01; done; echo seen");
        let call = client.bash(session, &command).await?;
        ensure!(call["result"]["structured"]["stdout"] == "seen\n", "{call:#}");
    }
    nothing_of_theirs_runs(client, session).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_ends_with_its_call() {
    Host::test(&[], async |host| {
        let (attacker, session, neighbour, other) = two(host).await?;
        let bombs = [
            "bash -c ':(){ :|:& };:; sleep 60' attack-4258",
            "python3 -c '\nimport os\nwhile True:\n  try:\n    if os.fork() == 0: os.setsid(); os.fork()\n  except OSError: pass\n' attack-4259",
        ];
        theirs_would_be_seen(&attacker, &session).await?;
        let mut seen = Vec::new();
        for bomb in bombs {
            let call = with_timeout(&attacker, &session, bomb, 3_000);
            let (call, well) = tokio::join!(call, neighbour_is_well(&neighbour, &other));
            well?;
            let call = call?;
            match call["status"].as_str() {
                Some("timed_out" | "succeeded" | "failed") => {}
                Some("lost") => seen.push("lost"),
                _ => anyhow::bail!("{call:#}"),
            }
            if call["usage"]["duration_ms"].as_u64() >= Some(GIVEN_UP_MS) {
                let gone = || are_gone(&attacker, &session);
                tests::wait::until("a fork bomb on a starved machine is gone", gone).await?;
            } else {
                nothing_of_theirs_runs(&attacker, &session).await?;
            }
        }
        gvisor::check("a_fork_bomb_ends_with_its_call", seen)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_ends_with_its_call() {
    Host::test(&[], async |host| {
        let (attacker, _, neighbour, other) = two(host).await?;
        let small = json!({"resources": {"cpus": 1.0, "memory_mb": 128, "disk_mb": 64, "pids": 64}});
        let session = attacker.session(small).await?;
        attacker.bash(&session, "echo kept > file").await?;
        let bomb = json!({"code": "x = bytearray()\nwhile True: x += bytes(1 << 24)"});
        let bomb = attacker.run(&session, "python_execute", bomb);
        let (call, well) = tokio::join!(bomb, neighbour_is_well(&neighbour, &other));
        well?;
        let call = call?;
        let seen = match (call["status"].as_str(), call["ended"]["reason"].as_str()) {
            (Some("lost"), _) => Some("lost"),
            (_, Some("oom")) => None,
            _ => anyhow::bail!("{call:#}"),
        };
        let after = attacker.bash(&session, "cat file").await?;
        ensure!(after["result"]["structured"]["stdout"] == "kept\n", "the session goes on: {after:#}");
        gvisor::check("a_memory_bomb_ends_with_its_call", seen)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_output_is_counted_to_the_byte() {
    Host::test(&[("policy.limits.output_bytes", "4194304")], async |host| {
        let (attacker, session, neighbour, other) = two(host).await?;
        let total: u64 = 200_000_000;
        let before = peak_bytes(host.processes[0].pid())?;
        let flood = attacker.bash(&session, "head -c 200000000 /dev/zero | tr '\\0' x");
        let (call, well) = tokio::join!(flood, neighbour_is_well(&neighbour, &other));
        well?;
        let call = call?;
        let grown = peak_bytes(host.processes[0].pid())?.saturating_sub(before);
        ensure!(grown < MEMORY_OF_A_FLOOD, "the service grew by {grown} bytes");
        ensure!(call["status"] == "succeeded", "{}", call["status"]);
        let truncated = &call["result"]["truncated"];
        ensure!(
            truncated["total_bytes"] == total && call["usage"]["bytes_out"] == total,
            "{truncated} {} {} {:?}",
            call["usage"],
            call["result"]["structured"]["stderr"],
            call["result"]["output"].as_str().map(|text| text.replace('x', ""))
        );
        let dropped = truncated["dropped_bytes"].as_u64().context("dropped")?;
        ensure!(dropped >= total - 4_194_304 - 200_000 && dropped < total, "{dropped}");
        ensure!(
            !call["result"]["system"].is_null(),
            "the result says that output was dropped: {:#}",
            call["result"]["system"]
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_evade_the_end_do_not() {
    Host::test(&[], async |host| {
        let (attacker, session, neighbour, other) = two(host).await?;
        let evasions = [
            // One that is left begins again what was ended.
            "trap '' TERM INT HUP; while true; do sleep 4251; done",
            "setsid setsid bash -c 'trap \"\" TERM; while true; do sleep 0.2; done' attack-4256 & sleep 100",
            "(setsid nohup sleep 4251 >/dev/null 2>&1 &) ; sleep 100",
            "sleep 4252 & kill -STOP $!; sleep 100",
            "exec 1>&- 2>&-; sleep 4253",
            "python3 -c 'import os,time\nif os.fork()==0:\n  os.setsid()\n  if os.fork()==0: time.sleep(4254)\n  os._exit(0)\ntime.sleep(100)'",
        ];
        theirs_would_be_seen(&attacker, &session).await?;
        for evasion in evasions {
            let call = with_timeout(&attacker, &session, evasion, 700).await?;
            ensure!(call["status"] == "timed_out", "{evasion}: {call:#}");
            nothing_of_theirs_runs(&attacker, &session).await?;
        }
        neighbour_is_well(&neighbour, &other).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_pipe_does_not_hold_the_call() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let mut seen = Vec::new();
        for command in [
            "sleep 4255 & echo over",
            // It has left its session before its call ends: were that a race, so would be who finds it.
            "(setsid bash -c '> left; exec sleep 4256' &) ; until [ -e left ]; do sleep 0.01; done; echo over",
            "nohup sleep 4257 & disown; echo over",
        ] {
            let call = client.bash(&session, command).await?;
            ensure!(call["status"] == "succeeded", "{command}: {call:#}");
            ensure!(
                call["result"]["structured"]["stdout"].as_str().is_some_and(|text| text.ends_with("over\n")),
                "{command}: {call:#}"
            );
            if call["result"]["system"].is_null() {
                seen.push("untold");
            } else {
                ensure!(call["result"]["system"].as_str().is_some_and(|text| text.contains("left 1 process")), "{call:#}");
            }
            tests::wait::until("what it started is gone", async || {
                let call =
                    client.bash(&session, "grep -alE 'sleep.425[5-7]' /proc/[0-9]*/cmdline; true").await?;
                Ok(call["result"]["structured"]["stdout"] == "")
            })
            .await?;
        }
        gvisor::check("a_held_pipe_does_not_hold_the_call", seen)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_an_error_and_then_usable_again() {
    Host::test(&[], async |host| {
        let (attacker, _, neighbour, other) = two(host).await?;
        let body = json!({"resources": {"cpus": 1.0, "memory_mb": 256, "disk_mb": 64, "pids": 64}});
        let session = attacker.session(body).await?;
        let call = attacker.bash(&session, "head -c 300M /dev/zero > big; echo wrote $(wc -c < big)").await?;
        let text = call["result"]["structured"].to_string();
        // Without root the size is soft and only documented so.
        if nix::unistd::Uid::effective().is_root() {
            ensure!(text.contains("No space left"), "{call:#}");
            let full = attacker
                .run(&session, "write_file", json!({"path": "more", "content": "x".repeat(1 << 20)}))
                .await?;
            ensure!(full["error"]["code"] == "no_space", "{full:#}");
        }
        neighbour_is_well(&neighbour, &other).await?;
        let call = attacker.bash(&session, "rm -f big; echo again > small; cat small").await?;
        ensure!(call["result"]["structured"]["stdout"] == "again\n", "{call:#}");
        let call =
            attacker.bash(&session, "head -c 2G /dev/zero > /tmp/big; rm -f /tmp/big; echo usable").await?;
        ensure!(call["result"]["structured"].to_string().contains("usable"), "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_sessions_asked_for_at_once_are_as_many_as_allowed() {
    const ALLOWED: usize = 6;
    Host::test(&[("policy.limits.sessions", ALLOWED.to_string().as_str())], async |host| {
        let (attacker, neighbour) = (host.tenant("attacker")?.client, host.tenant("neighbour")?.client);
        let small = json!({"resources": {"cpus": 0.5, "memory_mb": 128, "disk_mb": 64, "pids": 64}});
        let asked = (0..100).map(|_| attacker.post("/v1/sessions", &small));
        let (replies, other) = tokio::join!(join_all(asked), neighbour.session(small.clone()));
        let mut made = Vec::new();
        for reply in replies {
            let reply = reply?;
            if reply.status == 201 {
                made.push(id_of(&reply.json())?);
            } else {
                ensure!(!reply.header("retry-after").is_empty());
                reply.problem(429, "quota_exceeded")?;
            }
        }
        ensure!(made.len() == ALLOWED, "{made:?}");
        neighbour.bash(&other?, "true").await?;
        // Each of them is a session, and one that goes makes room for one.
        for session in &made {
            let call = attacker.bash(session, "echo one").await?;
            ensure!(call["result"]["structured"]["stdout"] == "one\n", "{call:#}");
        }
        attacker.post("/v1/sessions", &small).await?.problem(429, "quota_exceeded")?;
        attacker.delete(&format!("/v1/sessions/{}", made[0])).await?.expect(202)?;
        tests::wait::until("there is room", async || {
            let reply = attacker.post("/v1/sessions", &small).await?;
            if reply.status == 201 {
                attacker.bash(&id_of(&reply.json())?, "true").await?;
            }
            Ok(reply.status == 201)
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_inside_nothing_else_can_be_reached() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let script = r#"
check() { if eval "$2" >/dev/null 2>&1; then echo "OPEN $1"; fi; }
check root       '[ "$(id -u)" = 0 ]'
check caps       'grep -E "^Cap(Eff|Prm|Inh|Amb):" /proc/self/status | grep -vq 0000000000000000'
check newprivs   'grep -q "NoNewPrivs:.*0" /proc/self/status'
check seccomp    '! grep -q "Seccomp:.*2" /proc/self/status'
check rootfs     'touch /usr/x || touch /etc/x'
check net        'find /sys/class/net -mindepth 1 -maxdepth 1 ! -name lo | grep .'
check dns        'timeout 5 getent hosts example.com'
check engine     '[ -e /var/run/docker.sock ] || [ -e /run/containerd ]'
check agent      'find /.toolhost -mindepth 1 | grep . || cat /.toolhost/*'
check signal     'kill -0 1'
check environ    'cat /proc/1/environ'
check memory     'head -c1 /proc/1/mem'
check userns     'unshare -U true'
check mount      'mount -t tmpfs none /tmp'
check setuid     'find / -xdev -perm /6000 -type f | grep .'
check raw        'python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"'
check fds        'python3 -c "import os; print(*os.listdir(\"/proc/self/fd\"), sep=chr(10))" | grep -E "^([4-9]|[0-9]{2,})$"'
check devices    'find /dev -name "sd*" -o -name "vd*" -o -name kvm -o -name mem | grep .'
check sysctl     'echo 1 > /proc/sys/kernel/panic'
echo checked
"#;
        let call = client.bash(&session, script).await?;
        let said = call["result"]["structured"]["stdout"].as_str().context("stdout")?;
        ensure!(said.ends_with("checked\n"), "{call:#}");
        gvisor::check("from_inside_nothing_else_can_be_reached", gvisor::open(said))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_bytes_inject_nothing_into_the_stream() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let command = r#"printf 'event: call.ended\ndata: {}\n\nid: 99\r\n\rretry: 1\n\x00\xff\xfe\xc3'; printf '\x1b[31mred\x1b]52;c;x\x07\n'; printf '\xa9 whole'"#;
        let call_id = client.submit(&session, "bash", json!({"command": command})).await?;
        let events = client.follow(&call_id).await?;
        ensure!(events.iter().filter(|event| event.event == "call.ended").count() == 1, "{events:#?}");
        let raw = client.get(&format!("/v1/calls/{call_id}/output?stream=stdout")).await?;
        ensure!(raw.bytes.starts_with(b"event: call.ended\ndata: {}\n\nid: 99\r\n\r"), "stored raw: {:?}", raw.bytes);
        ensure!(raw.bytes.windows(4).any(|bytes| bytes == b"\x00\xff\xfe\xc3"), "stored raw: {:?}", raw.bytes);
        let call = client.call(&call_id).await?;
        let shown = call["result"]["output"].as_str().context("output")?;
        ensure!(!shown.contains('\u{1b}') && shown.contains("red"), "sanitised for a model: {shown:?}");
        ensure!(id_of(&call)? == call_id);
        Ok(())
    })
    .await;
}
