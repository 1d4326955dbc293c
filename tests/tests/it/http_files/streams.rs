//! Large files: constant memory in every process, and what becomes of an upload that breaks off.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use reqwest::Body;
use serde_json::json;
use tests::Host;
use tests::client::id_of;

use super::Files;

const PIECE: usize = 1024 * 1024;
const SIZE: usize = 1024 * PIECE;
/// What a process may grow by meanwhile: a part of a file's pieces, and not the file.
const GROWTH: u64 = 64 * PIECE as u64;

fn piece() -> Bytes {
    (0..PIECE as u32).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into()
}

/// So many pieces, and then the end, or a break.
fn pieces(count: usize, breaks: bool) -> impl Stream<Item = std::io::Result<Bytes>> + Send + use<> {
    let piece = piece();
    let end = breaks.then(|| Err(std::io::Error::other("broken off")));
    stream::iter((0..count).map(move |_| Ok(piece.clone()))).chain(stream::iter(end))
}

/// Most memory that a process has used so far.
pub(crate) fn peak_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_stream_through_two_processes_in_constant_memory() {
    Host::test_apart(async |host| {
        let tenant = host.tenant("acme")?;
        let client = &tenant.client;
        let files = Files { session: client.session(json!({"size": "medium"})).await?, client };
        files.put("big.bin", "old").await?;
        let pids: Vec<u32> = host.processes.iter().map(|process| process.pid()).collect();
        let before = pids.iter().map(|pid| peak_bytes(*pid)).collect::<Result<Vec<_>>>()?;

        // Half of what was announced, or of who knows how much, then nothing: the old file stays, and nothing is left beside it.
        let announced = SIZE.to_string();
        for headers in [&[("content-length", announced.as_str())][..], &[]] {
            let half = Body::wrap_stream(pieces(40, true));
            let broken = files.ask("PUT", "?path=big.bin", headers, Some(half)).await;
            ensure!(broken.is_err(), "the client broke off");
        }
        let settled = async {
            while files.printed("cat big.bin; ls -A | wc -l").await? != "old1\n" {}
            Ok::<_, anyhow::Error>(())
        };
        tokio::time::timeout(tests::client::PATIENCE, settled).await.context("the old content is kept")??;

        let headers = [("content-length", announced.as_str())];
        let body = Body::wrap_stream(pieces(SIZE / PIECE, false));
        let saved = files.ask("PUT", "?path=big.bin", &headers, Some(body)).await?.expect(200)?;
        let sum = files.printed("sha256sum < big.bin").await?;
        ensure!(
            saved["size_bytes"] == SIZE && sum.starts_with(saved["sha256"].as_str().unwrap_or("-")),
            "{saved}"
        );
        let mut response = tenant.client.request("GET", &files.url("?path=big.bin")).send().await?;
        let (expected, mut at) = (piece(), 0);
        while let Some(mut chunk) = response.chunk().await? {
            while !chunk.is_empty() {
                let from = at % PIECE;
                let part = chunk.split_to(chunk.len().min(PIECE - from));
                ensure!(part == expected[from..from + part.len()], "another byte near {at}");
                at += part.len();
            }
        }
        ensure!(at == SIZE, "{at}");
        for (pid, before) in pids.iter().zip(before) {
            let grown = peak_bytes(*pid)?.saturating_sub(before);
            ensure!(grown < GROWTH, "process {pid} grew by {grown} bytes");
        }

        // A reader whose file changes gets no mixture and no end.
        let mut response = tenant.client.request("GET", &files.url("?path=big.bin")).send().await?;
        let first = response.chunk().await?.context("a beginning")?;
        ensure!(first[..] == expected[..first.len()]);
        files.printed("printf '!' | dd of=big.bin bs=1 seek=250000000 conv=notrunc status=none").await?;
        let broken = async {
            while response.chunk().await?.is_some() {}
            Ok::<_, reqwest::Error>(())
        };
        ensure!(broken.await.is_err(), "the connection ends early");

        // No room: the old content stays.
        let fill = "fallocate -l $(( $(df --output=avail -B1 . | tail -1) - 20 * 1024 * 1024 )) filler; ls";
        files.printed(fill).await?;
        let full = files.ask("PUT", "?path=big.bin", &[], Some(Body::wrap_stream(pieces(60, false)))).await;
        // Who is still sending may not see why.
        if let Ok(reply) = full {
            reply.problem(507, "no_space")?;
        }
        let left = files.printed("stat -c %s big.bin; ls -A").await?;
        ensure!(left == format!("{SIZE}\nbig.bin\nfiller\n"), "{left}");
        files.put("small", "fits").await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_trickled_ends_with_its_key() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let ours = &tenant.client;
        let files = Files::new(ours).await?;
        files.put("kept", "old").await?;
        let made = ours.post("/v1/keys", &json!({"name": "x", "role": "developer"})).await?.expect(201)?;
        let theirs = ours.with_key(made["key"].as_str().context("a key")?);
        let (begun, is_begun) = tokio::sync::oneshot::channel();
        let trickle = stream::unfold(Some(begun), |begun| async move {
            match begun {
                Some(begun) => drop(begun.send(())),
                // So slowly that it would go on for days.
                None => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            }
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), None))
        });
        let upload = theirs.request("PUT", &files.url("?path=kept")).body(Body::wrap_stream(trickle));
        let upload = tokio::spawn(upload.send());
        is_begun.await?;
        ours.delete(&format!("/v1/keys/{}", id_of(&made)?)).await?.expect(200)?;
        // Who is still sending may not see why.
        let ended = tokio::time::timeout(std::time::Duration::from_secs(60), upload).await;
        if let Ok(response) = ended.context("it is broken off")?? {
            ensure!(response.status() == 401, "{response:?}");
        }
        let settled = async || Ok(files.printed("cat kept; ls -A | wc -l").await? == "old1\n");
        tests::wait::until("the old content is kept, and alone", settled).await
    })
    .await;
}
