//! The greeting on a new connection: version, epoch and boot id, before anything else is believed.

use std::time::Duration;

use bytes::BytesMut;
use protocol::{Decoder, FrameKind, Hello, Welcome, encode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::connection::fill;
use super::{Closed, Shared};

/// Time that a whole greeting on a socket may take.
const GREETING_LIMIT: Duration = Duration::from_secs(3);

pub(super) struct Greeted<R, W> {
    pub(super) reader: R,
    pub(super) writer: W,
    pub(super) decoder: Decoder,
    /// The version that is spoken on it.
    pub(super) version: u32,
}

pub(super) enum Refused {
    /// This connection is no good.
    Peer(&'static str),
    /// No connection of this sandbox will be.
    Over(Closed),
}

/// Greets who has dialled the worker's socket.
pub(super) async fn greet_socket(
    socket: UnixStream,
    shared: &Shared,
) -> Result<Greeted<OwnedReadHalf, OwnedWriteHalf>, Refused> {
    // The folder keeps tools away; should one get here all the same, its uid gives it away.
    match socket.peer_cred() {
        Ok(peer) if peer.uid() == shared.terms.tool_uid => return Err(Refused::Peer("a tool dialled")),
        Ok(_) | Err(_) => {}
    }
    let (reader, writer) = socket.into_split();
    greet(reader, writer, shared, GREETING_LIMIT).await
}

/// Greets an agent on any byte stream that only an agent can be at the other end of.
pub(super) async fn greet<R, W>(
    reader: R,
    writer: W,
    shared: &Shared,
    limit: Duration,
) -> Result<Greeted<R, W>, Refused>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    timeout(limit, exchange(reader, writer, shared, limit))
        .await
        .unwrap_or(Err(Refused::Peer("it did not greet in time")))
}

async fn exchange<R, W>(
    mut reader: R,
    mut writer: W,
    shared: &Shared,
    limit: Duration,
) -> Result<Greeted<R, W>, Refused>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut decoder = Decoder::default();
    let frame = loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => break frame,
            Ok(None) => {}
            Err(_) => return Err(Refused::Peer("its first bytes are no frame")),
        }
        fill(&mut reader, &mut decoder, limit)
            .await
            .map_err(|_| Refused::Peer("it went away before greeting"))?;
    };
    if frame.kind != FrameKind::Hello {
        return Err(Refused::Peer("its first frame is no greeting"));
    }
    let hello: Hello = serde_json::from_slice(&frame.payload)
        .map_err(|_| Refused::Peer("its greeting is not understood"))?;
    let version = accept(&hello, shared)?;
    let terms = &shared.terms;
    let welcome = Welcome {
        version,
        epoch: terms.epoch,
        tool_uid: terms.tool_uid,
        env: terms.env.clone(),
        warm_shells: terms.warm_shells,
    };
    let payload =
        serde_json::to_vec(&welcome).map_err(|_| Refused::Peer("our greeting does not serialise"))?;
    let mut buffer = BytesMut::new();
    encode(&mut buffer, FrameKind::Welcome, 0, &payload);
    writer.write_all(&buffer).await.map_err(|_| Refused::Peer("it went away while greeted"))?;
    Ok(Greeted { reader, writer, decoder, version })
}

/// Checks what the agent says of itself; the version to speak.
fn accept(hello: &Hello, shared: &Shared) -> Result<u32, Refused> {
    if hello.highest_epoch > shared.terms.epoch {
        return Err(Refused::Over(Closed::Fenced));
    }
    let version = hello.common_version().ok_or(Refused::Over(Closed::Version))?;
    let mut other = false;
    shared.boot_id.send_if_modified(|boot_id| match boot_id {
        Some(known) => {
            other = *known != hello.boot_id;
            false
        }
        None => {
            *boot_id = Some(hello.boot_id.clone());
            true
        }
    });
    if other {
        return Err(Refused::Over(Closed::JournalLost));
    }
    shared.agent_version.send_replace(Some(hello.agent_version.clone()));
    Ok(version)
}
