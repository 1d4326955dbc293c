//! More of what untrusted code tries: bombs, hijacks, paths of every shape. Many attacks share one session, so that the run stays short.
//!
//! They run on the runtime that `TOOLHOST_TEST_RUNTIME` names (`runc` when it names none). `docs/attacks.md` says which test
//! shows what.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::{Client, Host};

use crate::gvisor;
use crate::http_files::peak_bytes;

/// Most that API and worker together may grow by, however much a command writes.
pub(crate) const MEMORY_OF_A_FLOOD: u64 = 64 << 20;

const SMALL: &str = r#"{"resources": {"cpus": 1.0, "memory_mb": 256, "disk_mb": 64, "pids": 64}}"#;

async fn python(client: &Client, session: &str, code: &str) -> Result<String> {
    let call = client.run(session, "python_execute", json!({"code": code})).await?;
    ensure!(call["status"] == "succeeded", "{code}: {call:#}");
    Ok(call["result"]["structured"]["stdout"].as_str().context("stdout")?.to_owned())
}

async fn timed(client: &Client, session: &str, body: Value) -> Result<Value> {
    let call = client.submit_with(session, body).await?;
    client.ended(&call).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_of_files_and_descriptors_are_bounded_and_leave_a_usable_session() {
    Host::test(&[], async |host| {
        let client = host.tenant("attacker")?.client;
        let neighbour = host.tenant("neighbour")?.client;
        let other = neighbour.session(json!({})).await?;
        let session = &client.session(serde_json::from_str(SMALL)?).await?;

        // More files than there are inodes.
        let inodes = python(&client, session, "
import os
os.mkdir('many'); made = 0
try:
    for n in range(300_000):
        os.close(os.open(f'many/{n}', os.O_CREAT | os.O_WRONLY)); made += 1
    print('no limit', made)
except OSError as error:
    print('limit', error.errno, made > 100)
").await?;
        if nix::unistd::Uid::effective().is_root() {
            ensure!(inodes == "limit 28 True\n", "ENOSPC: {inodes}");
        }
        ensure!(client.stdout(session, "rm -rf many; echo ok > file; cat file").await? == "ok\n");

        // A file that only looks large takes no disk, and is read where it is asked; beyond the limit of sizes there is none.
        let sparse = python(&client, session, "
import os
def grown(name, sizes):
    for size in sizes:
        try:
            with open(name, 'wb') as file: file.truncate(size)
            return size
        except OSError: pass
grown('tib', [1 << 40])
size = grown('sparse', [10 << 30, 1 << 30, 60 << 20])
with open('sparse', 'ab') as file: file.write(b'end')
grown('other', [60 << 20])
# With two files that look like all of the disk, there is room for one that is.
with open('real', 'wb') as file: file.write(os.urandom(20 << 20))
print(size, os.stat('real').st_size)
for name in ('tib', 'other', 'real'): os.remove(name)
").await?;
        let (size, real) = sparse.trim().split_once(' ').context("two numbers")?;
        ensure!(real.parse::<u64>()? == 20 << 20, "{sparse}");
        let size: u64 = size.parse()?;
        let range = json!({"path": "sparse", "byte_range": {"start": size, "end": size + 3}});
        let read = client.run(session, "read_file", range).await?;
        ensure!(size >= 60 << 20 && read["result"]["structured"]["content"] == "end", "{sparse} {read:#}");
        for (tool, arguments) in [
            ("edit_file", json!({"path": "sparse", "old_string": "end", "new_string": "x"})),
            ("grep", json!({"pattern": "en+d", "path": "sparse"})),
        ] {
            let call = client.run(session, tool, arguments).await?;
            ensure!(call["status"] == "failed" || call["status"] == "succeeded", "comes to an end: {call:#}");
        }

        // Descriptors, processes that nobody waits for, threads that spin.
        let descriptors = python(&client, session, "
import os
opened = 0
try:
    while opened < 100_000: os.dup(0); opened += 1
except OSError as error:
    print(error.errno, opened < 100_000)
").await?;
        ensure!(descriptors == "24 True\n", "EMFILE: {descriptors}");
        let zombies = python(&client, session, "
import os
made = 0
try:
    while made < 5_000:
        if os.fork() == 0: os._exit(0)
        made += 1
    print('no limit')
except OSError as error:
    print(error.errno, made <= 64)
").await?;
        ensure!(zombies == "11 True\n", "EAGAIN: {zombies}");
        let spin = json!({"tool": "bash", "arguments": {"command": "for n in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait"}, "timeout_ms": 1_500});
        let (spun, well) = tokio::join!(timed(&client, session, spin), neighbour.bash(&other, "echo well"));
        ensure!(spun?["status"] == "timed_out");
        ensure!(well?["result"]["structured"]["stdout"] == "well\n");

        // Patterns that are dear elsewhere.
        client.stdout(session, "mkdir -p a/b/c/d/e/f; head -c 200000 /dev/zero | tr '\\0' a > aaa; rm sparse").await?;
        let bomb = client.run(session, "grep", json!({"pattern": "(a+)+$|(a|aa)+b", "path": "aaa"})).await?;
        ensure!(bomb["status"] == "succeeded", "linear time: {bomb:#}");
        let bomb = client.run(session, "glob", json!({"pattern": "**/**/**/**/**/*{a,b,c}*{d,e,f}*"})).await?;
        ensure!(bomb["status"] == "succeeded", "{bomb:#}");

        // What is left in memory-backed folders is another session's never.
        client.stdout(session, "for d in /dev/shm /tmp /var/tmp /run/lock; do echo mine > $d/left-4271 2>/dev/null; done; head -c 300M /dev/zero > /dev/shm/fill 2>/dev/null; rm -f /dev/shm/fill; echo usable").await?;
        let fresh = client.session(json!({})).await?;
        let left = "find /dev/shm /tmp /var/tmp /run/lock -name 'left-*' 2>/dev/null; ipcs -m 2>/dev/null | grep 0x; echo clean";
        ensure!(client.stdout(&fresh, left).await? == "clean\n");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_on_both_streams_and_lines_without_end_are_counted_and_searched() {
    Host::test(&[("policy.limits.output_bytes", "8388608")], async |host| {
        let client = host.tenant("attacker")?.client;
        let session = &client.session(json!({})).await?;
        client.stdout(session, "true").await?;
        let before = peak_bytes(host.processes[0].pid())?;
        // One line of 500 MB, beside another stream.
        let flood = "head -c 500000000 /dev/zero | tr '\\0' o & head -c 6000000 /dev/zero | tr '\\0' e >&2 & wait; echo the end";
        let call = client.bash(session, flood).await?;
        ensure!(call["status"] == "succeeded" && call["usage"]["bytes_out"] == 506_000_008, "{}", call["usage"]);
        let structured = &call["result"]["structured"];
        ensure!(structured["stdout_bytes"] == 500_000_008 && structured["stderr_bytes"] == 6_000_000);
        let grown = peak_bytes(host.processes[0].pid())?.saturating_sub(before);
        ensure!(grown < MEMORY_OF_A_FLOOD, "the service grew by {grown} bytes");
        let shown = call["result"]["output"].as_str().context("output")?;
        ensure!(shown.contains("the end") && shown.contains("[stderr]"), "both are shown");
        ensure!(shown.len() < 32_000, "within the budget: {}", shown.len());
        let id = call["id"].as_str().context("an id")?;
        let lines = client.get(&format!("/v1/calls/{id}/output?grep=.&limit=10")).await?.expect(200)?;
        let text = lines["lines"][0]["text"].as_str().context("a line")?;
        ensure!(lines["lines"][0]["cut"] == true && text.len() <= 2_000, "a line is shown by its beginning");
        // A pattern that backtracks elsewhere is linear here, over all that was kept.
        let grep = client.get(&format!("/v1/calls/{id}/output?grep=(o%2B)%2B%24x&stream=stdout")).await?.expect(200)?;
        ensure!(grep["lines"] == json!([]), "{grep:#}");
        // A small budget keeps head, tail and stderr.
        let body = json!({"tool": "bash", "arguments": {"command": "seq 1 100000; echo it broke >&2"}, "output_budget_bytes": 400});
        let call = timed(&client, session, body).await?;
        let shown = call["result"]["output"].as_str().context("output")?;
        ensure!(shown.starts_with("1\n2\n") && shown.contains("100000") && shown.ends_with("it broke"), "{shown}");
        ensure!(shown.len() < 1_000, "{shown}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_leaves_behind_does_not_change_what_runs_next() {
    Host::test(&[], async |host| {
        let client = host.tenant("attacker")?.client;
        let session = &client.session(json!({})).await?;
        let hijacks = r#"
printf '#!/bin/sh\necho hijacked\n' > bash; cp bash sh; cp bash python3; cp bash ls; chmod +x bash sh python3 ls
for f in "$HOME/.bashrc" "$HOME/.profile" "$HOME/.bash_profile" "$HOME/.bash_env" .bashrc sitecustomize.py usercustomize.py; do echo 'echo hijacked' > "$f"; done
echo 'import os; os.write(1, b"hijacked\n")' > sitecustomize.py
export PATH=/workspace:$PATH BASH_ENV=/workspace/.bashrc LD_PRELOAD=/workspace/evil.so PYTHONPATH=/workspace
alias ls='echo hijacked'; ls() { echo hijacked; }; export -f ls
( echo /workspace/evil.so > /etc/ld.so.preload ) 2>/dev/null && echo OPEN preload
for f in /proc/1/exe /.toolhost/agent /bin/bash /usr/bin/python3 /etc/passwd; do ( echo x > $f ) 2>/dev/null && echo OPEN $f; done
for f in /.toolhost/*; do [ -e "$f" ] && echo OPEN agent; done
echo tried"#;
        let tried = client.stdout(session, hijacks).await?;
        ensure!(tried == "tried\n", "{tried}");
        let next = client.stdout(session, "ls --version | head -c 9; echo \"[$LD_PRELOAD$BASH_ENV$PYTHONPATH]\"; type -t ls; command -v bash").await?;
        ensure!(next.starts_with("ls (GNU c[]\nfile\n") && !next.contains("/workspace/bash"), "{next}");
        ensure!(python(&client, session, "import os; print('PYTHONPATH' in os.environ)").await? == "False\n");

        // Everything that a tool may signal is its own.
        let shell = client.run(session, "bash", json!({"command": "sleep 4272", "background": true})).await?;
        let shell = shell["result"]["structured"]["shell_id"].as_str().context("a shell")?.to_owned();
        let call = client.bash(session, "kill -9 -1; echo survived").await?;
        ensure!(call["status"] == "succeeded" || call["status"] == "failed", "{call:#}");
        ensure!(client.stdout(session, "echo alive").await? == "alive\n");
        let ended = client.run(session, "bash_output", json!({"shell_id": shell, "wait_ms": 30_000})).await?;
        ensure!(ended["status"] == "succeeded", "its shell is told of, ended or not: {ended:#}");

        // The agent: its memory, descriptors and threads.
        let reached = python(&client, session, "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, value):
    if value != -1: print('OPEN', name)
tried('ptrace', libc.ptrace(16, 1, 0, 0))
pidfd = libc.syscall(434, 1, 0)
if pidfd != -1:
    tried('pidfd_getfd', libc.syscall(438, pidfd, 3, 0))
    tried('pidfd_send_signal', libc.syscall(424, pidfd, 9, 0, 0))
tried('process_vm_readv', libc.syscall(310, 1, 0, 0, 0, 0, 0) or -1)
tried('kill', libc.kill(1, 9))
tried('tgkill', libc.syscall(234, 1, 1, 9))
for name in ('mem', 'environ', 'maps', 'cwd/.', 'root/.'):
    try:
        os.close(os.open(f'/proc/1/{name}', os.O_RDONLY)); print('OPEN', name)
    except OSError: pass
try: descriptors = os.listdir('/proc/1/fd')
except OSError: descriptors = range(64)
for number in descriptors:
    for how in (os.O_RDONLY, os.O_WRONLY):
        try:
            opened = os.open(f'/proc/1/fd/{number}', how | os.O_NONBLOCK)
            target = os.readlink(f'/proc/self/fd/{opened}')
            if target.startswith(('pipe:', '/memfd:', 'host:')): print('OPEN descriptors')
            elif target != '/dev/null': print('OPEN descriptor', target, how)
        except OSError: pass
print('tried')
").await?;
        ensure!(reached.ends_with("tried\n"), "{reached}");
        gvisor::check("what_a_tool_leaves_behind_does_not_change_what_runs_next", gvisor::open(&reached))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_of_every_shape_stay_inside() {
    Host::test(&[], async |host| {
        let client = host.tenant("attacker")?.client;
        let session = &client.session(json!({})).await?;
        client.stdout(session, "mkdir d; ln -s / root; ln -s ../../../../etc up; ln -s /proc/self/root self; ln -s loop loop; ln -s /dev/zero zero; \
            mkfifo fifo; python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind(\"sock\")'; echo kept > kept").await?;
        let long = "a/".repeat(3_000);
        let paths = [
            "../etc/passwd", "../../../../../../etc/passwd", "/etc/passwd", "//etc/passwd", "/workspace/../etc/passwd",
            "./../etc/passwd", "d/../../etc/passwd", "/proc/self/environ", "/proc/1/environ", "/dev/zero", "/sys/kernel",
            "root/etc/passwd", "up/passwd", "self/etc/passwd", "loop", "loop/x", "zero", "fifo", "sock", "d",
            "%2e%2e/%2e%2e/etc/passwd", "..%2fetc%2fpasswd", "..\\..\\etc\\passwd", "C:\\windows", "~/../../etc/passwd",
            "file:///etc/passwd", "\u{ff0e}\u{ff0e}/etc/passwd", "d/\u{202e}gpj", "kept/below", long.as_str(), &"n".repeat(300),
        ];
        let mut tried = 0;
        for path in paths {
            for (tool, arguments) in [
                ("read_file", json!({"path": path})),
                ("write_file", json!({"path": path, "content": "x", "mode": "append"})),
                ("list_files", json!({"path": path})),
            ] {
                let body = json!({"tool": tool, "arguments": arguments, "wait_ms": 60_000});
                let reply = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?;
                let answer = reply.json();
                let text = answer.to_string();
                ensure!(reply.status < 500, "{tool} {path}: {answer:#}");
                ensure!(!text.contains("root:x:0") && !text.contains("nobody:"), "{tool} {path}: {answer:#}");
                ensure!(answer["status"] != "running", "{tool} {path} hangs: {answer:#}");
                tried += 1;
            }
        }
        ensure!(tried >= 90, "{tried}");
        // NUL never gets as far as the catalogue.
        let body = json!({"tool": "read_file", "arguments": {"path": "a\0b"}});
        let reply = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?;
        ensure!(matches!(reply.status, 400 | 422), "{}", reply.status);
        // Nothing outside was made, and what was there is as it was.
        ensure!(client.stdout(session, "cat kept; find /etc -maxdepth 1 -name x | wc -l; readlink root").await? == "kept\n0\n/\n");
        // Names that are not UTF-8, or look like something else, are listed and do no harm.
        client.stdout(session, "mkdir odd; cd odd; touch \"$(printf 'bad\\377name')\" \"$(printf 'new\\nline')\" \"$(printf '\\033[31mred')\" -- '-rf'").await?;
        let listed = client.run(session, "list_files", json!({"path": "odd"})).await?;
        ensure!(listed["result"]["structured"]["total"] == 4, "{listed:#}");
        ensure!(!listed["result"]["output"].as_str().is_some_and(|text| text.contains('\u{1b}')), "{listed:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_says_forges_no_line_of_the_log() {
    Host::test(&[], async |host| {
        let client = host.tenant("attacker")?.client;
        let session = client.session(json!({})).await?;
        let forged = r#"{\"level\":\"ERROR\",\"message\":\"forged-4273\"}"#;
        let line = "\n{\"level\":\"ERROR\",\"message\":\"forged-4273\"}\n";
        client.bash(&session, &format!("echo; echo \"{forged}\"; echo \"{forged}\" >&2; exit 3")).await?;
        let body = json!({"tool": "bash", "arguments": {"command": "true"}, "description": line, "metadata": {"label": line}});
        let call = client.submit_with(&session, body).await?;
        client.ended(&call).await?;
        client.get(&format!("/v1/tools/{}", "x%0a%7b%22level%22%3a%22ERROR%22%2c%22message%22%3a%22forged-4273%22%7d")).await?;
        client.run(&session, "read_file", json!({"path": "no\n{\"message\":\"forged-4273\"}"})).await?;
        for process in &mut host.processes {
            for said in process.said() {
                let parsed: Option<Value> = serde_json::from_str(said).ok();
                let forged = parsed.is_some_and(|line| line["message"] == "forged-4273");
                ensure!(!forged, "a line that nobody of ours wrote: {said}");
            }
        }
        Ok(())
    })
    .await;
}
