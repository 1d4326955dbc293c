//! The largest upload: what is announced as more is refused before a byte of it has come.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::client::PATIENCE;
use tests::{Client, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Says what it would send, sends nothing of it, and reads to the end of the answer: its head and its body.
async fn announce(client: &Client, head: &str, kind: &str, bytes: u64) -> Result<(String, Value)> {
    let address = client.base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "{head} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nContent-Type: {kind}\r\n\
         Content-Length: {bytes}\r\nConnection: close\r\n\r\n",
        client.key()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.context("an answer comes")??;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| answer.clone())?;
    Ok((head.to_owned(), serde_json::from_str(body).with_context(|| answer.clone())?))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_announced_as_too_large_is_refused_before_it_comes() {
    // Beyond this an answer would say that nothing came.
    Host::test(&[("server.body_timeout_ms", "600000")], async |host| {
        let client = &host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        let files = format!("/v1/sessions/{session}/files");
        let limit = domain::limits::UPLOAD_BYTES;
        for (head, kind) in [
            (format!("PUT {files}?path=vast"), "application/octet-stream"),
            (format!("PUT {files}/archive?path=vast"), "application/x-tar"),
            (format!("POST {files}?path=vast"), "multipart/form-data; boundary=x"),
        ] {
            for bytes in [limit + 1, 9 << 30, u64::MAX / 2] {
                let (status, problem) = announce(client, &head, kind, bytes).await?;
                ensure!(status.starts_with("HTTP/1.1 413 "), "{head}, {bytes}: {status}");
                ensure!(problem["code"] == "body_too_large" && problem["status"] == 413, "{problem:#}");
                ensure!(
                    problem["detail"].as_str().is_some_and(|text| text.contains(&limit.to_string())),
                    "{problem:#}"
                );
            }
        }
        let left = client.bash(&session, "ls -A").await?;
        ensure!(left["result"]["structured"]["stdout"] == "", "{left:#}");
        Ok(())
    })
    .await;
}
