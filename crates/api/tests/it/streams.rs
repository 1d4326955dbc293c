//! Event streams by the contract: no gap, no repetition, wherever a reader is cut off, and an end that says why.

use std::time::Duration;

use domain::{Scope, ShellId};
use serde_json::json;
use store::SessionFence;
use store::testing::{TestDatabase, new_shell, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::app::{App, ended_call};
use crate::client::{Client, Reply, SseEvent, numbered};

const PIECES: &[&[u8]] = &[
    b"plain\n",
    "h\u{e9}\u{1f4a5}".as_bytes(),
    b"\xff\xfe\x00",
    b"data: x\n\nid: 99\nevent: end\n\n",
    b"cr\rlf\r\n\0",
    "\u{2028}\u{85}".as_bytes(),
];

fn text_of(events: &[SseEvent]) -> Vec<u8> {
    let outputs = events.iter().filter(|event| event.event == "call.output");
    outputs
        .flat_map(|event| match event.data["text"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => {
                let base64 = event.data["base64"].as_str().expect("text or base64");
                data_encoding::BASE64.decode(base64.as_bytes()).expect("base64")
            }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_at_every_event() {
    let app = App::start().await;
    let client = app.client().await;
    let id = ended_call(&app, &client, PIECES).await;
    let path = format!("/v1/calls/{id}/events");
    let stream = client.stream(&path, &[]).await;
    assert_eq!(stream.response_status, 200);
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache, no-transform"),
        ("x-accel-buffering", "no"),
        ("x-resumed-from", "0"),
    ] {
        assert_eq!(stream.headers[name], value);
    }
    let whole = stream.rest().await;
    assert_eq!(whole.last().map(|event| event.event.as_str()), Some("end"));
    let all = numbered(&whole);
    let last = all.len() as u64;
    assert_eq!(all.iter().filter_map(|event| event.id).collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>());
    assert_eq!(text_of(&all), PIECES.concat());
    assert_eq!(
        all.last().map(|event| (event.event.as_str(), &event.data["status"])),
        Some(("call.ended", &json!("succeeded")))
    );

    let stored = client.get(&path).await.expect(200);
    let data: Vec<_> = all.iter().map(|event| event.data.clone()).collect();
    assert_eq!(
        (&stored["data"], &stored["ended"], &stored["has_more"]),
        (&json!(data), &json!(true), &json!(false))
    );
    for after in 0..last {
        let text = after.to_string();
        let by_query = client.stream(&format!("{path}?after={after}"), &[]).await;
        assert_eq!(by_query.headers["x-resumed-from"], text);
        assert_eq!(numbered(&by_query.rest().await), all[after as usize..]);
        // The header wins: the query is that of the first connection.
        let by_header = client.stream(&format!("{path}?after=0"), &[("last-event-id", &text)]).await;
        assert_eq!(numbered(&by_header.rest().await), all[after as usize..]);
        let page = client.get(&format!("{path}?after={after}&limit=2")).await.expect(200);
        assert_eq!(page["data"].as_array().map(Vec::len), Some(2.min((last - after) as usize)));
    }
    let seen = client.stream(&path, &[("last-event-id", &last.to_string())]).await;
    assert_eq!(seen.response_status, 204);
    for bad in ["", "x", "-1", "1.0", &(last + 1).to_string(), "18446744073709551616"] {
        let request =
            client.request("GET", &path).header("accept", "text/event-stream").header("last-event-id", bad);
        client.send(request).await.problem(400, "invalid_cursor");
    }
    let neither = client.request("GET", &path).header("accept", "image/png");
    client.send(neither).await.problem(406, "not_acceptable");
    let head = client.send(client.request("HEAD", &path).header("accept", "text/event-stream")).await;
    assert_eq!((head.status, head.header("content-type")), (200, "text/event-stream"));
    assert_eq!(app.metric("toolhost_sse_streams"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_call_is_followed_as_it_goes() {
    let app = App::with(|config| {
        config.streams.heartbeat = Duration::from_millis(200);
        config.streams.bookmark = Duration::from_millis(700);
        config.streams.queue = Duration::from_millis(100);
    })
    .await;
    let client = app.client().await;
    let session = client.session().await;
    let (first, second) = (client.submit(&session).await, client.submit(&session).await);
    let mut stream = client.stream(&format!("/v1/calls/{second}/events"), &[]).await;
    assert_eq!(stream.next().await.expect("queued").data["position"], 2);
    assert_eq!(stream.until("queue").await.data["position"], 2);
    let mut worker = app.worker().await;
    worker.serve_sessions().await;
    let ahead = worker.claim().await;
    assert_eq!(ahead.id(), first);
    let moved = stream.until("queue").await;
    assert_eq!((&moved.data["position"], moved.id), (&json!(1), None));
    ahead.finish().await;
    let mut running = worker.claim().await;
    running.start().await;
    assert_eq!(stream.until("call.started").await.data["attempt"], 1);
    for n in 0..50_u32 {
        running.write(&[n.to_string().as_bytes(), b"\n"]).await;
    }
    let mut seen = vec![stream.until("call.output").await];
    while seen.len() < 100 {
        let event = stream.next().await.expect("goes on");
        if event.id.is_some() {
            seen.push(event);
        }
    }
    let expected: String = (0..50).map(|n| format!("{n}\n")).collect();
    assert_eq!(text_of(&seen), expected.into_bytes());
    let ids: Vec<u64> = seen.iter().filter_map(|event| event.id).collect();
    assert!(ids.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ids:?}");
    let bookmark = stream.until("bookmark").await;
    assert_eq!((bookmark.data["seq"].as_u64(), bookmark.id), (ids.last().copied(), None));
    // A bookmark may come before the first heartbeat; both go on for as long as the stream is open.
    while stream.comments == 0 {
        stream.until("bookmark").await;
    }
    assert!(stream.retry_ms.is_some_and(|retry| (1_000..=5_000).contains(&retry)));
    running.finish().await;
    assert_eq!(stream.until("call.ended").await.data["status"], "succeeded");
    assert_eq!(stream.next().await.map(|event| event.event), Some("end".to_owned()));
    assert_eq!(stream.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_may_stream_at_once() {
    // However long it takes until a worker has it: its place in the queue is not what this is about.
    let app = App::with(|config| config.streams.queue = Duration::from_secs(3_600)).await;
    let client = app.client().await;
    let session = client.session().await;
    let body = json!({"tool": "bash", "arguments": {"command": "true"}});
    let request = client.request("POST", &format!("/v1/sessions/{session}/calls")).json(&body);
    let following = tokio::spawn({
        let client = client.clone();
        async move { client.send(request.header("accept", "text/event-stream")).await }
    });
    let mut worker = app.worker().await;
    worker.serve_sessions().await;
    let submitted = async || client.get("/v1/calls").await.expect(200)["data"] != json!([]);
    until("it is submitted", Duration::from_secs(30), submitted).await;
    let mut running = worker.claim().await;
    running.write(&[b"hi"]).await;
    let id = running.id();
    running.finish().await;
    let reply = following.await.expect("joins");
    assert_eq!((reply.status, reply.header("location")), (200, format!("/v1/calls/{id}").as_str()));
    let text = String::from_utf8(reply.bytes).expect("text");
    let kinds: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds, ["call.queued", "call.started", "call.output", "call.ended", "end"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_url_opens_one_stream_and_nothing_else() {
    let app = App::start().await;
    let (tenant, everything) = app.tenant("acme").await;
    let (key, client) = app.key(tenant, vec![Scope::CallsRead]).await;
    let id = ended_call(&app, &everything, PIECES).await;
    let other = ended_call(&app, &everything, PIECES).await;
    let made = client.send(client.request("POST", &format!("/v1/calls/{id}/stream_url"))).await.expect(201);
    let url = made["url"].as_str().expect("a url").to_owned();
    let nobody = client.with_key("");
    let all = numbered(&nobody.stream(&url, &[]).await.rest().await);
    assert_eq!(text_of(&all), PIECES.concat());
    assert_eq!(numbered(&nobody.stream(&url, &[("last-event-id", "3")]).await.rest().await), all[3..]);
    let page = nobody.get(&url).await;
    assert_eq!((&page.expect(200)["ended"], page.header("access-control-allow-origin")), (&json!(true), "*"));
    let token = url.split("token=").nth(1).expect("a token");
    for path in [
        format!("/v1/calls/{other}/events?token={token}"),
        format!("/v1/calls/{id}?token={token}"),
        format!("/v1/calls/{id}/output?token={token}"),
        format!("/v1/me?token={token}"),
        format!("/v1/calls/{id}/events?token={token}x"),
        format!("/v1/calls/{id}/events?token={}", client.key),
    ] {
        nobody.get(&path).await.problem(401, "unauthenticated");
    }
    let short =
        client.post(&format!("/v1/calls/{id}/stream_url"), &json!({"expires_in_s": 1})).await.expect(201);
    let short = short["url"].as_str().expect("a url").to_owned();
    until("it expires", Duration::from_secs(30), async || nobody.get(&short).await.status == 401).await;
    for seconds in [0, 3_601] {
        let reply =
            client.post(&format!("/v1/calls/{id}/stream_url"), &json!({"expires_in_s": seconds})).await;
        assert_eq!(reply.status, 422);
    }
    app.store.revoke_key(&app.operator, key).await.expect("revokes");
    nobody.get(&url).await.problem(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_their_key_and_their_tenant() {
    let app = App::start().await;
    let (tenant, everything) = app.tenant("acme").await;
    let (key, client) = app.key(tenant, Scope::tenant_default()).await;
    let running = app.running(&everything).await;
    let path = format!("/v1/calls/{}/events", running.id());
    let signed = client
        .send(client.request("POST", &format!("/v1/calls/{}/stream_url", running.id())))
        .await
        .expect(201);
    let url = signed["url"].as_str().expect("a url");
    let by_key = client.stream(&path, &[]).await;
    let by_url = client.with_key("").stream(url, &[]).await;
    let by_other = everything.stream(&path, &[]).await;
    app.store.revoke_key(&app.operator, key).await.expect("revokes");
    for stream in [by_key, by_url] {
        let rest = timeout(Duration::from_secs(60), stream.rest()).await.expect("ends with its key");
        assert!(rest.iter().all(|event| event.event != "end"));
    }
    app.store
        .set_tenant_status(&app.operator, tenant, domain::TenantStatus::Suspended)
        .await
        .expect("suspends");
    timeout(Duration::from_secs(60), by_other.rest()).await.expect("ends with its tenant");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_asks_readers_to_come_back() {
    // Readers are asked within half of it, and far from its end they have time to hear it.
    let mut app = App::with(|config| config.drain = Duration::from_secs(20)).await;
    let client = app.client().await;
    let running = app.running(&client).await;
    let mut stream = client.stream(&format!("/v1/calls/{}/events", running.id()), &[]).await;
    stream.until("call.queued").await;
    app.stop.cancel();
    assert_eq!(stream.until("reconnect").await.data["seq"], 1);
    assert_eq!(stream.next().await, None);
    let served = timeout(Duration::from_secs(60), app.served.take().expect("serves")).await;
    assert!(served.expect("ends").expect("joins").is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_capped_per_tenant_and_in_all() {
    let app = App::with(|config| {
        config.streams.per_tenant = 2;
        config.streams.total = 3;
    })
    .await;
    let client = app.client().await;
    let id = client.submit(&client.session().await).await;
    let path = format!("/v1/calls/{id}/events");
    let open = [client.stream(&path, &[]).await, client.stream(&path, &[]).await];
    ask(&client, &path).await.problem(429, "quota_exceeded");
    let other = app.tenant("other").await.1;
    let theirs = format!("/v1/calls/{}/events", other.submit(&other.session().await).await);
    let third = other.stream(&theirs, &[]).await;
    ask(&other, &theirs).await.problem(503, "capacity");
    drop((open, third));
    let given_back = async || app.metric("toolhost_sse_streams") == 0.0;
    until("closed streams are given back", Duration::from_secs(30), given_back).await;
    assert_eq!(client.stream(&path, &[]).await.response_status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_reads_nothing_is_closed_and_one_that_is_slow_gets_everything() {
    // Each reads from a process of its own: how slow a reader is on a busy machine is nothing to rely on.
    let [app, strict] = {
        let database = TestDatabase::new().await.expect("a database");
        let with = async |stall: Duration| {
            App::on(database.clone(), |config| {
                config.streams.stall = stall;
                config.streams.buffer_bytes = 64 * 1024;
            })
            .await
        };
        [with(Duration::from_secs(3_600)).await, with(Duration::from_secs(2)).await]
    };
    let client = app.client().await;
    let mut running = app.running(&client).await;
    let request = format!(
        "GET /v1/calls/{}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nAccept: text/event-stream\r\n\r\n",
        running.id(),
        client.key
    );
    let (mut never, mut slowly) = (connect(&strict.base).await, connect(&app.base).await);
    never.write_all(request.as_bytes()).await.expect("writes");
    slowly.write_all(request.as_bytes()).await.expect("writes");
    let piece = vec![b'x'; 60_000];
    let reader = tokio::spawn(async move {
        let (mut buffer, mut all) = (vec![0; 32 * 1024], Vec::new());
        loop {
            // Slower than what is written.
            tokio::time::sleep(Duration::from_millis(2)).await;
            match slowly.read(&mut buffer).await {
                Ok(0) | Err(_) => return all,
                Ok(read) => all.extend_from_slice(&buffer[..read]),
            }
            if all.ends_with(b"0\r\n\r\n") {
                return all;
            }
        }
    });
    for _ in 0..40 {
        running.write(&[&piece, &piece, &piece, &piece]).await;
    }
    running.finish().await;
    let all = reader.await.expect("joins");
    let text = String::from_utf8_lossy(&all);
    assert!(text.contains("event: call.ended") && text.contains("event: end"), "the slow one has all of it");
    assert_eq!(text.matches("event: call.output").count(), 160);
    let patience = Duration::from_secs(60);
    until("the stream of the reader that reads nothing is closed", patience, async || {
        let slow = strict.metric("toolhost_sse_slow_consumers_total");
        slow >= 1.0 && strict.metric("toolhost_sse_streams") == 0.0
    })
    .await;
    // Not only its stream: the connection too, though nobody polls a body whose socket is full.
    let closed = async || strict.metric("toolhost_http_connections") == 0.0;
    until("its connection is closed", patience, closed).await;
    let mut rest = Vec::new();
    let _ = never.read_to_end(&mut rest).await;
    assert!(rest.len() < 160 * 60_000);
}

async fn ask(client: &Client, path: &str) -> Reply {
    client.send(client.request("GET", path).header("accept", "text/event-stream")).await
}

async fn connect(base: &str) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 * 1024).expect("a small buffer");
    let address = base.strip_prefix("http://").expect("http").parse().expect("an address");
    socket.connect(address).await.expect("connects")
}

/// A shell that runs and has written: where its output is, and what ends it.
pub(crate) async fn shell_that_wrote(
    app: &App,
    client: &Client,
    bytes: &[u8],
) -> (String, SessionFence, ShellId) {
    let worker = app.worker().await;
    let session = client.session().await;
    let call = client.submit(&session).await;
    let claimed = app.store.claim_sessions(worker.id(), 1).await.expect("sessions");
    let fence = SessionFence::of(&claimed[0]).expect("has a worker");
    let id: ShellId = app.store.clock().new_id();
    let new = store::NewShell { id, operation: 1, ..new_shell(&app.store, call.parse().expect("an id")) };
    app.store.create_shell(&fence, new).await.expect("a shell");
    let piece = domain::event::OutputPiece {
        log_offset: 0,
        stream: domain::StreamName::Stdout,
        offset: 0,
        bytes: bytes.to_vec(),
    };
    app.store.append_shell_output(&fence, id, vec![piece], bytes.len() as u64).await.expect("appended");
    (format!("/v1/sessions/{session}/shells/{id}/output"), fence, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_an_ended_shell_ends_for_good() {
    let app = App::start().await;
    let client = app.client().await;
    let (path, fence, id) = shell_that_wrote(&app, &client, b"hello").await;
    let running = client.stream(&path, &[("last-event-id", "5")]).await;
    assert_eq!(running.response_status, 200, "there may be more to come");
    drop(running);
    app.store.finish_shell(&fence, id, store::ShellEnd::default()).await.expect("ended");

    let whole = client.stream(&path, &[]).await.rest().await;
    let kinds: Vec<&str> = whole.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(kinds, ["shell.output", "shell.ended", "end"]);
    let last = whole.iter().filter_map(|event| event.id).next_back().expect("a number");
    // Cut off between the last output and the end: the end is still to come.
    let resumed = client.stream(&path, &[("last-event-id", &last.to_string())]).await.rest().await;
    let kinds: Vec<&str> = resumed.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(kinds, ["shell.ended", "end"]);
    let resumed = client.stream(&path, &[("last-event-id", &format!("{last}-end"))]).await;
    assert_eq!(resumed.response_status, 204);
    let bytes = client.send(client.request("GET", &path).header("range", "bytes=1-3")).await;
    assert_eq!((bytes.status, bytes.bytes.as_slice()), (206, &b"ell"[..]));
    for accept in ["text/event-stream", "application/json"] {
        for (query, header) in [("?since_offset=6", None), ("", Some("6")), ("", Some("x"))] {
            let request = client.request("GET", &format!("{path}{query}")).header("accept", accept);
            let request = header.into_iter().fold(request, |request, id| request.header("last-event-id", id));
            let problem = client.send(request).await.problem(400, "invalid_cursor");
            let detail = problem["detail"].as_str().expect("a text");
            assert!(detail.contains("shell") && !detail.contains("call"), "{detail}");
        }
    }
    let end = client.get(&format!("{path}?since_offset=5")).await.expect(200);
    assert_eq!((&end["chunks"], &end["next_offset"]), (&json!([]), &json!(5)));
}
