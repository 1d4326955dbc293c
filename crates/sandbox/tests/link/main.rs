//! The link against an agent made of bytes: greeting, streams, back-pressure, and every way to lose a connection.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use protocol::{
    AgentError, ErrorCode, ExecExit, FrameKind, Hello, OUTPUT_WINDOW_BYTES, OperationKey, Reply, Request,
    Welcome, WriteMode, WriteRequest,
};
use sandbox::{ExecEvent, LinkError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

mod agent;

use agent::*;

const SILENCE_LIMIT: Duration = Duration::from_millis(protocol::SILENCE_LIMIT_MS);
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(protocol::HEARTBEAT_INTERVAL_MS);

#[tokio::test]
async fn the_greeting_tells_the_terms_and_picks_a_common_version() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::dial(dir.path(), &hello("boot", 4)).await;
    let welcome: Welcome = serde_json::from_slice(&agent.next().await.unwrap().payload).unwrap();
    assert_eq!((welcome.version, welcome.epoch, welcome.tool_uid), (protocol::VERSION, 5, 1_048_600));
    assert_eq!(welcome.env.get("LANG").map(String::as_str), Some("C.UTF-8"));
    link.connected(SOON).await.unwrap();
    assert_eq!((link.boot_id().as_deref(), link.agent_version().as_deref()), (Some("boot"), Some("0.0.0")));
}

#[tokio::test]
async fn an_agent_of_the_version_before_is_asked_only_for_what_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::dial(dir.path(), &Hello { newest_version: 1, ..hello("boot", 0) }).await;
    let welcome: Welcome = serde_json::from_slice(&agent.next().await.unwrap().payload).unwrap();
    assert_eq!(welcome.version, 1);
    let client = link.agent();

    // What it would ignore or not know never comes to it.
    let refused = |error| matches!(error, LinkError::Agent(error) if error.code == ErrorCode::Unsupported);
    let write = WriteRequest {
        key: OperationKey { owner: "call".to_owned(), operation: 1 },
        root: "/workspace".to_owned(),
        path: "a".to_owned(),
        mode: WriteMode::Overwrite,
        size_bytes: 1,
        permissions: None,
        expected_sha256: None,
        expected_version: None,
        open_ended: true,
    };
    assert!(refused(client.upload(write.clone()).await.unwrap_err()));
    let version = WriteRequest {
        expected_version: Some(protocol::FileVersion::default()),
        open_ended: false,
        ..write.clone()
    };
    assert!(refused(client.write(version, Bytes::from_static(b"a")).await.unwrap_err()));
    assert!(refused(client.make_directory("/workspace", "a").await.unwrap_err()));
    let size = protocol::TerminalSize { rows: 24, cols: 80 };
    assert!(refused(client.resize(write.key.clone(), size).await.unwrap_err()));

    // What it knows does, in the words of its version.
    let plain = WriteRequest { open_ended: false, ..write };
    let (written, raw) = tokio::join!(client.write(plain, Bytes::from_static(b"a")), async {
        let request = agent.next().await.unwrap();
        assert_eq!((request.kind, agent.next().await.unwrap().kind), (FrameKind::Request, FrameKind::Data));
        let answer = br#"{"written":{"created":true,"size_bytes":1,"sha256":"ab","permissions":420}}"#;
        agent.send(FrameKind::Reply, request.stream, answer).await;
        assert_eq!(agent.next().await.unwrap().kind, FrameKind::Close);
        serde_json::from_slice::<serde_json::Value>(&request.payload).unwrap()
    });
    assert!(written.unwrap().created);
    assert!(raw.get("open_ended").is_none() && raw.get("expected_version").is_none(), "{raw}");

    // The same sandbox with an agent that can: what was refused is sent.
    let mut newer = Agent::greeted(dir.path()).await;
    let (made, ()) = tokio::join!(client.make_directory("/workspace", "a"), async {
        let (stream, request) = newer.request().await;
        assert!(matches!(request, Request::MakeDirectory { .. }));
        newer.reply(stream, &Reply::DirectoryMade(protocol::DirectoryMade { created: true })).await;
    });
    assert!(made.unwrap().created);
}

#[tokio::test]
async fn operations_stream_are_acknowledged_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    let (id, mut stream) = attached_pair(&mut agent, &link.agent()).await;
    agent.output(id, 0, b"hello").await;
    assert!(
        matches!(next(&mut stream).await, Ok(Some(ExecEvent::Output(output))) if output.bytes == "hello" && output.offset == 0)
    );
    stream.ack(5);
    let ack = agent.next().await.unwrap();
    assert_eq!((ack.kind, ack.stream, (&ack.payload[..]).get_u64()), (FrameKind::Ack, id, 5));
    let exit = ExecExit { exit_code: Some(0), ..ExecExit::default() };
    agent.reply(id, &Reply::Exited(exit.clone())).await;
    agent.send(FrameKind::Close, id, &[]).await;
    assert_eq!(next(&mut stream).await.unwrap(), Some(ExecEvent::Exited(exit)));
    assert_eq!(next(&mut stream).await.unwrap(), None);
}

#[tokio::test]
async fn dropping_a_stream_closes_it_and_errors_are_typed() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    let (id, stream) = attached_pair(&mut agent, &link.agent()).await;
    drop(stream);
    let close = agent.next().await.unwrap();
    assert_eq!((close.kind, close.stream), (FrameKind::Close, id));
    // Frames that crossed the close are ignored.
    agent.output(id, 0, b"late").await;

    let error = AgentError { code: ErrorCode::NotFound, message: "no".to_owned() };
    let client = link.agent();
    let (answered, ()) = tokio::join!(client.stat("/tmp", "x"), async {
        let (id, _) = agent.request().await;
        agent.reply(id, &Reply::Error(error.clone())).await;
    });
    assert!(matches!(answered, Err(LinkError::Agent(got)) if got == error));
}

#[tokio::test]
async fn a_stream_that_nobody_reads_does_not_hold_up_others_and_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    let client = link.agent();
    let (id, mut unread) = attached_pair(&mut agent, &client).await;
    let piece = vec![b'x'; 64 * 1024];
    for number in 0..OUTPUT_WINDOW_BYTES / piece.len() as u64 {
        agent.output(id, number * piece.len() as u64, &piece).await;
    }
    let (answered, ()) = tokio::join!(client.stat("/workspace", ""), async {
        let (id, _) = agent.request().await;
        agent.reply(id, &stat()).await;
    });
    assert!(answered.is_ok());

    // Beyond the window the agent breaks the protocol, and memory stays bounded.
    for number in 4..8 {
        agent.output(id, number * piece.len() as u64, &piece).await;
    }
    assert!(agent.next().await.is_none(), "the connection is closed");
    let mut seen = 0;
    let end = loop {
        match next(&mut unread).await {
            Ok(Some(ExecEvent::Output(output))) => seen += output.bytes.len() as u64,
            other => break other,
        }
    };
    assert!(matches!(end, Err(LinkError::Disconnected)), "{end:?}");
    assert!(seen <= OUTPUT_WINDOW_BYTES + piece.len() as u64);
}

#[tokio::test]
async fn a_new_connection_supersedes_and_the_old_one_s_streams_end() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut first = Agent::greeted(dir.path()).await;
    let client = link.agent();
    let (_, mut stream) = attached_pair(&mut first, &client).await;
    let mut second = Agent::greeted(dir.path()).await;
    assert!(matches!(next(&mut stream).await, Err(LinkError::Disconnected)));
    assert!(first.next().await.is_none());
    let (_, mut again) = attached_pair(&mut second, &client).await;

    // When it goes away, what was under way ends, and what is asked next waits for another.
    drop(second);
    assert!(matches!(next(&mut again).await, Err(LinkError::Disconnected)));
    let mut waiting = tokio::spawn({
        let client = client.clone();
        async move { client.stat("/workspace", "").await }
    });
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "it does not wait: {early:?}");
    let mut third = Agent::greeted(dir.path()).await;
    let (id, _) = third.request().await;
    third.reply(id, &stat()).await;
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test]
async fn silence_ends_a_connection() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    // Before the last that is heard of the agent, and so it can only be longer than the silence.
    let since = Instant::now();
    let (_, mut stream) = attached_pair(&mut agent, &link.agent()).await;
    assert!(matches!(next(&mut stream).await, Err(LinkError::Disconnected)));
    assert!(since.elapsed() >= SILENCE_LIMIT, "{:?}", since.elapsed());
    assert!(!link.agent().is_connected());
}

#[tokio::test]
async fn heartbeats_keep_a_connection_and_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    // The first is sent at once, and so the last comes when silence would long have ended the connection.
    let beats = 2 + SILENCE_LIMIT.as_millis() / HEARTBEAT_INTERVAL.as_millis();
    let since = Instant::now();
    let mut agent = Agent::greeted(dir.path()).await;
    let mut heard = 0;
    while heard < beats {
        match agent.decoder.next_frame().unwrap() {
            Some(frame) => {
                assert_eq!(frame.kind, FrameKind::Ping);
                heard += 1;
                agent.send(FrameKind::Ping, 0, &[]).await;
            }
            None => {
                let read = timeout(SOON, agent.socket.read_buf(agent.decoder.buffer())).await;
                assert!(read.unwrap().unwrap() > 0, "the connection was ended");
            }
        }
    }
    assert!(link.agent().is_connected());
    assert!(since.elapsed() > SILENCE_LIMIT, "{beats} heartbeats in {:?}", since.elapsed());
}

#[tokio::test]
async fn another_boot_means_that_the_journal_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    let (_, mut stream) = attached_pair(&mut agent, &link.agent()).await;
    let mut other = Agent::dial(dir.path(), &hello("another boot", 0)).await;
    assert!(other.next().await.is_none(), "it is not welcome");
    assert!(matches!(next(&mut stream).await, Err(LinkError::Disconnected)));
    assert!(matches!(link.agent().exec(exec()).await, Err(LinkError::JournalLost)));
}

#[tokio::test]
async fn a_higher_epoch_fences_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::dial(dir.path(), &hello("boot", 6)).await;
    assert!(agent.next().await.is_none());
    assert!(matches!(link.agent().status().await, Err(LinkError::Fenced)));
}

#[tokio::test]
async fn an_agent_without_a_common_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let future = Hello { oldest_version: protocol::VERSION + 1, ..hello("boot", 0) };
    let mut agent = Agent::dial(dir.path(), &future).await;
    assert!(agent.next().await.is_none());
    assert!(matches!(link.agent().status().await, Err(LinkError::Protocol(_))));
}

#[tokio::test]
async fn rubbish_costs_only_its_own_connection() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    for rubbish in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0, 0, 0, 2, 1, 0, 0, 0, 0, b'{', b'}']] {
        let mut socket = UnixStream::connect(dir.path().join(protocol::LINK_SOCKET)).await.unwrap();
        socket.write_all(rubbish).await.unwrap();
        let mut answer = Vec::new();
        let _ = timeout(SOON, socket.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.is_empty());
    }
    let mut agent = Agent::greeted(dir.path()).await;
    let (_, mut stream) = attached_pair(&mut agent, &link.agent()).await;
    agent.send(FrameKind::Reply, 1, b"not json").await;
    assert!(matches!(next(&mut stream).await, Err(LinkError::Disconnected)));
    let mut again = Agent::greeted(dir.path()).await;
    let _ = attached_pair(&mut again, &link.agent()).await;
}

#[tokio::test]
async fn requests_from_the_agent_are_refused_politely() {
    let dir = tempfile::tempdir().unwrap();
    let _link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    agent.send(FrameKind::Request, 2, br#"{"verb":"tunnel"}"#).await;
    let reply = agent.next().await.unwrap();
    assert_eq!((reply.kind, reply.stream), (FrameKind::Reply, 2));
    assert!(
        matches!(serde_json::from_slice(&reply.payload), Ok(Reply::Error(error)) if error.code == ErrorCode::Unsupported)
    );
    assert_eq!(agent.next().await.unwrap().kind, FrameKind::Close);
}

#[tokio::test]
async fn a_write_sends_its_content_and_heeds_an_early_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    let client = link.agent();
    let request = WriteRequest {
        key: exec().key,
        root: "/workspace".to_owned(),
        path: "f".to_owned(),
        mode: WriteMode::Overwrite,
        size_bytes: 0,
        permissions: None,
        expected_sha256: None,
        expected_version: None,
        open_ended: false,
    };
    let content = Bytes::from(vec![7; 200_000]);
    let written = protocol::FileWritten {
        created: true,
        size_bytes: 200_000,
        sha256: "00".to_owned(),
        permissions: 0o644,
        version: protocol::FileVersion::default(),
    };
    let (answered, ()) = tokio::join!(client.write(request.clone(), content.clone()), async {
        let (id, asked) = agent.request().await;
        assert!(matches!(asked, Request::Write(asked) if asked.size_bytes == 200_000));
        let mut received = 0;
        loop {
            let frame = agent.next().await.unwrap();
            match frame.kind {
                FrameKind::Data => {
                    let (offset, channel, bytes) = protocol::decode_data(frame.payload).unwrap();
                    assert_eq!((offset, channel), (received, 0));
                    received += bytes.len() as u64;
                }
                FrameKind::Close => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received, 200_000);
        agent.reply(id, &Reply::Written(written.clone())).await;
    });
    assert_eq!(answered.unwrap(), written);

    let error = AgentError { code: ErrorCode::OutsideRoot, message: "no".to_owned() };
    let (refused, ()) = tokio::join!(client.write(request, content), async {
        let (id, _) = agent.request().await;
        agent.reply(id, &Reply::Error(error.clone())).await;
        agent.send(FrameKind::Close, id, &[]).await;
    });
    assert!(matches!(refused, Err(LinkError::Agent(got)) if got == error));
}

#[tokio::test]
async fn a_socket_in_a_deep_folder_is_bound_and_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("x".repeat(200));
    std::fs::create_dir(&deep).unwrap();
    let first = bind(&deep);
    let second = bind(&deep);
    drop(first);
    assert!(
        deep.join(protocol::LINK_SOCKET).exists(),
        "the old one's end does not unlink the new one's socket"
    );
    drop(second);
}

#[tokio::test]
async fn a_file_that_the_agent_has_already_is_not_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    let client = link.agent();
    let mut upload = client.upload(write()).await.unwrap();
    let (stream, _) = agent.request().await;
    agent.reply(stream, &Reply::Written(written())).await;
    agent.send(FrameKind::Close, stream, &[]).await;
    // Behind the answer to another question that one has come.
    let (answered, ()) = tokio::join!(client.stat("/tmp", "x"), async {
        let (id, _) = agent.request().await;
        agent.reply(id, &stat()).await;
    });
    answered.unwrap();
    for piece in ["a", "b", "c"] {
        upload.push(Bytes::from_static(piece.as_bytes())).await.unwrap();
    }
    assert!(upload.is_known());
    assert!(matches!(upload.push(Bytes::from_static(b"d")).await, Err(LinkError::TooLarge)));
    assert_eq!(upload.finish().await.unwrap().size_bytes, 3);
}

#[tokio::test]
async fn a_file_that_may_be_there_is_asked_for_before_there_is_content() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(dir.path());
    let mut agent = Agent::greeted(dir.path()).await;
    let client = link.agent();
    let refused = AgentError { code: ErrorCode::NoSpace, message: "full".to_owned() };
    for answer in [None, Some(Reply::Written(written())), Some(Reply::Error(refused))] {
        let (upload, ()) = tokio::join!(client.upload_again(write()), async {
            let (stream, _) = agent.request().await;
            if let Some(answer) = &answer {
                agent.reply(stream, answer).await;
                agent.send(FrameKind::Close, stream, &[]).await;
            }
            let (stream, asked) = agent.request().await;
            assert!(matches!(asked, Request::Status));
            agent.reply(stream, &status()).await;
            agent.send(FrameKind::Close, stream, &[]).await;
        });
        match answer {
            Some(Reply::Written(_)) => {
                let upload = upload.unwrap();
                assert!(upload.is_known());
                assert_eq!(upload.finish().await.unwrap().sha256, "ab");
            }
            Some(_) => assert!(matches!(upload, Err(LinkError::Agent(_)))),
            None => {
                // What is not there is written as ever.
                let mut upload = upload.unwrap();
                assert!(!upload.is_known());
                upload.push(Bytes::from_static(b"abc")).await.unwrap();
                let (finished, ()) = tokio::join!(upload.finish(), async {
                    let content = agent.next().await.unwrap();
                    assert_eq!(&protocol::decode_data(content.payload).unwrap().2[..], b"abc");
                    assert_eq!(agent.next().await.unwrap().kind, FrameKind::Close);
                    agent.reply(content.stream, &Reply::Written(written())).await;
                });
                assert_eq!(finished.unwrap().size_bytes, 3);
            }
        }
    }
}
