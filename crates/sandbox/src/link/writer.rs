//! The writing half of a connection: gathers what waits into one write, acknowledgements first.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use protocol::{FrameKind, HEARTBEAT_INTERVAL_MS, StreamId, encode, encode_data};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::inbox::Inbox;
use crate::LinkError;

/// Bytes gathered into one write.
const WRITE_BYTES: usize = 256 * 1024;
/// Time that an agent may leave a write waiting before the connection is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Sent in order; senders wait for room.
pub(super) enum Outgoing {
    Frame(FrameKind, StreamId, Vec<u8>),
    Input(StreamId, u64, Bytes),
}

/// Sent without waiting, at most one of each kind per stream at a time, so that the queue needs no bound.
pub(super) enum Control {
    Ack(StreamId, Arc<Inbox>),
}

/// The receiving ends that [`write()`] drives.
pub(super) struct Driven {
    pub(super) outgoing: mpsc::Receiver<Outgoing>,
    pub(super) control: mpsc::UnboundedReceiver<Control>,
}

/// Sends what waits, and a heartbeat every second.
pub(super) async fn write(driven: Driven, mut writer: impl AsyncWrite + Unpin) -> Result<(), LinkError> {
    let Driven { mut outgoing, mut control } = driven;
    let mut heartbeat = interval(Duration::from_millis(HEARTBEAT_INTERVAL_MS));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut buffer = BytesMut::new();
    loop {
        tokio::select! {
            biased;
            Some(next) = control.recv() => encode_control(&mut buffer, next),
            _ = heartbeat.tick() => encode(&mut buffer, FrameKind::Ping, 0, &[]),
            Some(next) = outgoing.recv() => encode_outgoing(&mut buffer, next),
            else => return Ok(()),
        }
        while buffer.len() < WRITE_BYTES {
            if let Ok(next) = control.try_recv() {
                encode_control(&mut buffer, next);
            } else if let Ok(next) = outgoing.try_recv() {
                encode_outgoing(&mut buffer, next);
            } else {
                break;
            }
        }
        match timeout(WRITE_LIMIT, writer.write_all(&buffer)).await {
            Ok(Ok(())) => buffer.clear(),
            Ok(Err(_)) | Err(_) => return Err(LinkError::Disconnected),
        }
    }
}

fn encode_outgoing(buffer: &mut BytesMut, outgoing: Outgoing) {
    match outgoing {
        Outgoing::Frame(kind, stream, payload) => encode(buffer, kind, stream, &payload),
        Outgoing::Input(stream, offset, bytes) => encode_data(buffer, stream, offset, 0, &bytes),
    }
}

fn encode_control(buffer: &mut BytesMut, control: Control) {
    match control {
        Control::Ack(stream, inbox) => {
            let mut payload = [0; 8];
            (&mut payload[..]).put_u64(inbox.take_ack());
            encode(buffer, FrameKind::Ack, stream, &payload);
        }
    }
}
