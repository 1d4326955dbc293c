//! Output by range: the bytes as they were written, over events and chunks, and what was dropped.

use domain::StreamName;
use serde_json::{Value, json};

use crate::app::{App, ended_call};
use crate::client::{Client, Reply};

async fn range(client: &Client, path: &str, range: &str) -> Reply {
    client.send(client.request("GET", path).header("range", range)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_the_bytes_that_were_written() {
    let app = App::start().await;
    let client = app.client().await;
    let mut running = app.running(&client).await;
    let path = format!("/v1/calls/{}/output", running.id());
    assert_eq!(client.get(&path).await.expect(200), serde_json::Value::Null);
    range(&client, &path, "bytes=0-").await.problem(416, "range_not_satisfiable");
    running.write(&["h\u{e9}llo ".as_bytes(), b"\xff\xfe", b" world\n"]).await;
    running.write_to(StreamName::Stderr, &[b"err"]).await;
    running.write(&[b"more"]).await;
    let whole = "h\u{e9}llo ".bytes().chain(*b"\xff\xfe").chain(*b" world\nmore").collect::<Vec<u8>>();
    let reply = client.get(&format!("{path}?stream=stdout")).await;
    assert_eq!((reply.status, &reply.bytes), (200, &whole));
    assert_eq!(
        (reply.header("accept-ranges"), reply.header("content-type")),
        ("bytes", "application/octet-stream")
    );
    assert_eq!(client.get(&format!("{path}?stream=stderr")).await.bytes, b"err");
    let total = whole.len();
    for from in 0..total {
        for to in [from, from + 1, from + 3, total + 5] {
            let reply = range(&client, &path, &format!("bytes={from}-{to}")).await;
            let end = (to + 1).min(total);
            assert_eq!((reply.status, &reply.bytes[..]), (206, &whole[from..end]), "{from}-{to}");
            assert_eq!(reply.header("content-range"), format!("bytes {from}-{}/{total}", end - 1));
        }
    }
    assert_eq!(range(&client, &path, "bytes=-4").await.bytes, b"more");
    assert_eq!(range(&client, &path, "bytes=-999").await.bytes, whole);
    for bad in [format!("bytes={total}-"), "bytes=99999999999999999999-".to_owned(), "bytes=-0".to_owned()] {
        let reply = range(&client, &path, &bad).await;
        reply.problem(416, "range_not_satisfiable");
        assert_eq!(reply.header("content-range"), format!("bytes */{total}"), "{bad}");
    }
    for ignored in ["bytes=5-2", "bytes=0-1,4-5", "items=0-1"] {
        assert_eq!(range(&client, &path, ignored).await.expect(200), serde_json::Value::Null);
    }
    client.get(&format!("{path}?stream=stdin")).await.problem(400, "invalid_request");
    let head = client.send(client.request("HEAD", &path)).await;
    assert_eq!((head.status, head.bytes.len(), head.header("content-length")), (200, 0, "20"));
}

#[tokio::test(flavor = "multi_thread")]
async fn long_output_is_streamed_and_what_was_dropped_is_told() {
    let app = App::start().await;
    let client = app.client().await;
    let mut running = app.running(&client).await;
    let path = format!("/v1/calls/{}/output", running.id());
    let piece = |letter: u8| vec![letter; 60_000];
    let pieces: Vec<Vec<u8>> = (0..40).map(|n| piece(b'a' + n % 26)).collect();
    for group in pieces.chunks(10) {
        running.write(&group.iter().map(Vec::as_slice).collect::<Vec<_>>()).await;
    }
    let head: Vec<u8> = pieces.concat();
    let reply = client.get(&path).await;
    assert_eq!((reply.bytes, reply.headers.contains_key("x-dropped-bytes")), (head.clone(), false));
    running.drop_bytes(StreamName::Stdout, 3_000_000);
    running.write(&[b"tail"]).await;
    let total = head.len() as u64 + 3_000_004;
    let mut kept = head.clone();
    kept.extend(b"tail");
    let whole = client.get(&path).await;
    assert_eq!(whole.bytes, kept, "the whole leaves out what was dropped");
    assert_eq!(whole.header("x-dropped-bytes"), "3000000");
    let tail = range(&client, &path, "bytes=-4").await;
    assert_eq!((&tail.bytes[..], tail.header("x-dropped-bytes")), (&b"tail"[..], "3000000"));
    let before = range(&client, &path, &format!("bytes={}-", head.len() - 10)).await;
    assert_eq!(before.bytes, head[head.len() - 10..], "a range ends before it");
    assert_eq!(
        before.header("content-range"),
        format!("bytes {}-{}/{total}", head.len() - 10, head.len() - 1)
    );
    let within = range(&client, &path, &format!("bytes={}-{}", head.len() + 1, head.len() + 100)).await;
    assert_eq!(within.problem(416, "range_not_satisfiable")["total_bytes"], total);
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_output_are_found_without_a_sandbox() {
    let app = App::start().await;
    let client = app.client().await;
    let mut text = String::new();
    for line in 1..=5_000 {
        text.push_str(&format!(
            "line {line}{}\n",
            if line % 1_000 == 0 { " \u{1b}[31mERROR\u{1b}[0m" } else { "" }
        ));
    }
    text.push_str("no end");
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(10_007).collect();
    let call = ended_call(&app, &client, &pieces).await;
    let path = format!("/v1/calls/{call}/output");
    let found = client.get(&format!("{path}?grep=error%24&ignore_case=true&context=1")).await.expect(200);
    assert_eq!(
        (&found["object"], &found["ended"], &found["next"]),
        (&json!("output_lines"), &json!(true), &Value::Null)
    );
    let lines = found["lines"].as_array().expect("lines");
    assert_eq!(lines.len(), 15);
    assert_eq!(
        (&lines[1]["line"], &lines[1]["text"], &lines[1]["match"]),
        (&json!(1000), &json!("line 1000 ERROR"), &json!(true))
    );
    assert_eq!((&lines[2]["line"], &lines[2]["match"]), (&json!(1001), &json!(false)));
    let offset = lines[1]["offset"].as_u64().expect("an offset") as usize;
    assert!(text[offset..].starts_with("line 1000 "));
    let last = client.get(&format!("{path}?lines=5000-")).await.expect(200);
    assert_eq!(last["lines"][1]["text"], "no end");
    let part = client.get(&format!("{path}?lines=10-12")).await.expect(200);
    assert_eq!((part["lines"].as_array().map(Vec::len), &part["next"]), (Some(3), &Value::Null));
    // Page by page, every line comes once.
    let (mut seen, mut query) = (Vec::new(), "grep=ERROR&limit=2".to_owned());
    for _ in 0..3 {
        let page = client.get(&format!("{path}?{query}")).await.expect(200);
        seen.extend(page["lines"].as_array().expect("lines").iter().map(|line| line["line"].clone()));
        let next = &page["next"];
        query = format!("grep=ERROR&limit=2&from_offset={}&from_line={}", next["offset"], next["line"]);
    }
    assert_eq!(seen, [1_000, 2_000, 3_000, 4_000, 5_000]);
    for bad in [
        "grep=(",
        "grep=",
        "lines=0",
        "lines=9-1",
        "grep=x&context=51",
        "grep=x&limit=0",
        "grep=x&from_line=3",
        "context=1",
    ] {
        client.get(&format!("{path}?{bad}")).await.problem(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_a_running_call_come_when_they_are_whole() {
    let app = App::start().await;
    let client = app.client().await;
    let mut running = app.running(&client).await;
    running.start().await;
    running.write(&[b"one\ntwo\nthr"]).await;
    let path = format!("/v1/calls/{}/output", running.id());
    let first = client.get(&format!("{path}?lines=1-")).await.expect(200);
    assert_eq!((first["lines"].as_array().map(Vec::len), &first["ended"]), (Some(2), &json!(false)));
    assert_eq!(first["next"], json!({"offset": 8, "line": 3}));
    running.write(&[b"ee\n"]).await;
    running.drop_bytes(domain::StreamName::Stdout, 100);
    running.write(&[b"after the gap"]).await;
    running.finish().await;
    let rest = client.get(&format!("{path}?lines=1-&from_offset=8&from_line=3")).await.expect(200);
    let texts: Vec<_> = rest["lines"].as_array().expect("lines").iter().map(|line| &line["text"]).collect();
    assert_eq!(texts, ["three", "after the gap"]);
    assert_eq!((&rest["dropped_bytes"], &rest["next"]), (&json!(100), &Value::Null));
}
