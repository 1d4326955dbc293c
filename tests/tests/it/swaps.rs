//! A tree that a tenant's own code swaps under every way to name a file: nothing of outside is read, written or removed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::Host;
use tests::client::PATIENCE;
use tests::host::runtime;

use super::http_files::Files;

/// Makes `dir` a directory and a link to one outside in turns, by an exchange where the kernel has it, so that the name is always there.
const SWAPPER: &str = r#"
import ctypes, os, shutil
libc = ctypes.CDLL(None)
os.mkdir("/tmp/outside")
open("/tmp/outside/file", "w").write("outside")
os.mkdir("dir")
open("dir/file", "w").write("inside")
os.symlink("/tmp/outside", "escape")
def exchange():
    return libc.renameat2(-100, b"dir", -100, b"escape", 2) == 0
def move(name, to):
    while True:
        try: return os.rename(name, to)
        except OSError: shutil.rmtree(to, ignore_errors=True) # A write has made it meanwhile.
has_exchange = exchange()
swaps, counted = 0, os.open("swaps", os.O_CREAT | os.O_WRONLY)
while True:
    if has_exchange:
        swaps += exchange()
    else:
        move("dir", "aside"); move("escape", "dir"); move("dir", "escape"); move("aside", "dir")
        swaps += 2
    if swaps % 1000 == 0: os.pwrite(counted, b"%d" % swaps, 0)
"#;

/// One round of everything that goes by a path; the answer to a download.
async fn round(files: &Files<'_>) -> Result<u16> {
    let read = files.get("dir/file").await?;
    let text = String::from_utf8_lossy(&read.bytes).into_owned();
    ensure!(read.status < 500 && !text.contains("outside\n") && text != "outside", "{} {text}", read.status);
    for (method, rest, body) in [
        ("GET", "/archive?path=dir", None),
        ("PUT", "?path=dir/file", Some("inside")),
        ("PUT", "?path=dir/new/deep", Some("inside")),
        ("DELETE", "?path=dir/new&recursive=true", None),
        ("DELETE", "?path=dir/file", None),
        ("PUT", "?path=dir/file", Some("inside")),
    ] {
        // An archive whose directory goes under it may break off.
        if let Ok(reply) = files.ask(method, rest, &[], body.map(Into::into)).await {
            let told = reply.bytes.windows(7).any(|bytes| bytes == b"outside");
            ensure!(
                reply.status < 500 && (!told || reply.status >= 400),
                "{method} {rest}: {}",
                reply.status
            );
        }
    }
    for (tool, arguments) in [
        ("read_file", json!({"path": "dir/file"})),
        ("grep", json!({"path": "dir", "pattern": "outs?ide", "output_mode": "content"})),
        ("write_file", json!({"path": "dir/tool", "content": "inside"})),
        ("delete_file", json!({"path": "dir/tool"})),
    ] {
        let call = files.client.run(&files.session, tool, arguments).await?;
        let told = call["status"] == "succeeded" && call["result"].to_string().contains("outside");
        ensure!(!told, "{tool}: {call:#}");
        let code = call["error"]["code"].as_str().unwrap_or_default();
        ensure!(!matches!(code, "internal" | "platform_error"), "{tool}: {call:#}");
    }
    Ok(read.status)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_way_to_name_a_file_loses_a_race_against_swaps() {
    // An old gVisor has no exchange, and each of its renames asks the host.
    let goal = if runtime() == "runsc" { 4_000 } else { 100_000 };
    Host::test(&[], async |host| {
        let client = host.tenant("attacker")?.client;
        let files = Files::new(&client).await?;
        files.put("swapper.py", SWAPPER).await?;
        let swapper = json!({"command": "exec python3 swapper.py", "background": true});
        let shell = client.run(&files.session, "bash", swapper).await?;
        let shell = shell["result"]["structured"]["shell_id"].as_str().context("a shell")?.to_owned();
        tests::wait::until("the swapper begins", async || Ok(files.get("swaps").await?.status == 200))
            .await?;
        let (mut seen, mut rounds) = (BTreeSet::new(), 0);
        let race = async {
            loop {
                seen.insert(round(&files).await?);
                rounds += 1;
                let swaps =
                    String::from_utf8_lossy(&files.get("swaps").await?.bytes).parse().unwrap_or(0_u64);
                if rounds >= 40 && swaps >= goal && seen.contains(&200) && seen.contains(&403) {
                    return Ok::<_, anyhow::Error>(());
                }
            }
        };
        let raced = tokio::time::timeout(PATIENCE, race).await;
        raced.with_context(|| format!("the race did not happen: {rounds} rounds, {seen:?}"))??;
        client.run(&files.session, "kill_bash", json!({"shell_id": shell, "grace_ms": 0})).await?;
        let left = files.printed("cat /tmp/outside/file; echo; cd /tmp/outside && ls -A").await?;
        ensure!(left == "outside\nfile\n", "{left}");
        Ok(())
    })
    .await;
}
