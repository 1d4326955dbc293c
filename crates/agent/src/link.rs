//! One connection to a worker: framing, heartbeats and what waits to be written. It knows no operation.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use protocol::{
    AgentError, Decoder, Frame, FrameKind, HEARTBEAT_INTERVAL_MS, MAX_FRAME_BYTES, OLDEST_VERSION, Reply,
    SILENCE_LIMIT_MS, StreamId,
};

const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);
/// So many heartbeats without a byte are silence. They are counted, and not the time: after a stand-still of the whole
/// host, which neither side is to blame for, both have time to be heard.
const SILENT_BEATS: u64 = SILENCE_LIMIT_MS / HEARTBEAT_INTERVAL_MS;
/// Capacity beyond which a buffer that has become empty is given back.
const KEPT_BYTES: usize = 512 * 1024;

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    decoder: Decoder,
    out: BytesMut,
    silent_beats: u64,
    next_look: Instant,
    next_ping: Instant,
    /// The ownership epoch, once the worker has said it.
    pub(crate) epoch: Option<u64>,
    /// The version of the protocol that is spoken, once the worker has said it.
    pub(crate) version: u32,
    /// The event loop waits for the socket to become writable.
    pub(crate) wants_write: bool,
    /// The event loop does not read for now.
    pub(crate) paused: bool,
}

impl Link {
    /// Dials the worker; it fails at once when nobody listens.
    pub(crate) fn dial(path: &Path) -> nix::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        let now = Instant::now();
        Ok(Self {
            socket,
            decoder: Decoder::default(),
            out: BytesMut::new(),
            silent_beats: 0,
            next_look: now + HEARTBEAT,
            next_ping: now + HEARTBEAT,
            epoch: None,
            version: OLDEST_VERSION,
            wants_write: false,
            paused: false,
        })
    }

    /// Reads what has come into the decoder. `false` when the worker has closed.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> nix::Result<bool> {
        match nix::unistd::read(&self.socket, scratch) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.heard(Instant::now());
                self.decoder.buffer().extend_from_slice(&scratch[..length]);
                Ok(true)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// The next whole frame.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, protocol::DecodeError> {
        let frame = self.decoder.next_frame()?;
        let buffer = self.decoder.buffer();
        if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
            *buffer = BytesMut::new();
        }
        Ok(frame)
    }

    /// Queues a frame.
    pub(crate) fn send(&mut self, kind: FrameKind, stream: StreamId, payload: &[u8]) {
        protocol::encode(&mut self.out, kind, stream, payload);
    }

    /// Queues a message of the connection itself or of a stream.
    pub(crate) fn send_json(&mut self, kind: FrameKind, stream: StreamId, message: &impl serde::Serialize) {
        let payload = serde_json::to_vec(message).unwrap_or_default();
        if payload.len() <= MAX_FRAME_BYTES {
            return self.send(kind, stream, &payload);
        }
        let error = AgentError {
            code: protocol::ErrorCode::LimitExceeded,
            message: "the answer does not fit a frame; ask for less".to_owned(),
        };
        let payload = serde_json::to_vec(&Reply::Error(error)).unwrap_or_default();
        self.send(kind, stream, &payload);
    }

    /// Queues bytes of a stream.
    pub(crate) fn send_data(&mut self, stream: StreamId, offset: u64, channel: u8, content: &[u8]) {
        protocol::encode_data(&mut self.out, stream, offset, channel, content);
    }

    /// Bytes that wait to be written.
    pub(crate) fn backlog(&self) -> usize {
        self.out.len()
    }

    /// Writes what the socket takes.
    pub(crate) fn flush(&mut self) -> nix::Result<()> {
        while !self.out.is_empty() {
            match nix::unistd::write(&self.socket, &self.out) {
                Ok(written) => self.out.advance(written),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        if self.out.is_empty() && self.out.capacity() > KEPT_BYTES {
            self.out = BytesMut::new();
        }
        Ok(())
    }

    /// Sends a heartbeat when it is time. An error when the worker has been silent for too long.
    pub(crate) fn beat(&mut self, now: Instant) -> io::Result<()> {
        if self.paused {
            self.heard(now);
        }
        if now >= self.next_look {
            self.silent_beats += 1;
            self.next_look = now + HEARTBEAT;
        }
        if self.silent_beats >= SILENT_BEATS {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if now >= self.next_ping && self.epoch.is_some() {
            self.send(FrameKind::Ping, 0, &[]);
            self.next_ping = now + HEARTBEAT;
        }
        Ok(())
    }

    /// When [`Self::beat`] has something to do next.
    pub(crate) fn next_beat(&self) -> Instant {
        if self.epoch.is_some() { self.next_ping.min(self.next_look) } else { self.next_look }
    }

    fn heard(&mut self, now: Instant) {
        self.silent_beats = 0;
        self.next_look = now + HEARTBEAT;
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_stand_still_of_the_host_is_one_beat_and_no_silence() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("worker");
        let _listener = UnixListener::bind(&path).expect("listens");
        let mut link = Link::dial(&path).expect("dials");
        let mut now = Instant::now() + 100 * HEARTBEAT;
        for _ in 1..SILENT_BEATS {
            link.beat(now).expect("it is heard or not by the next beat");
            now = link.next_beat();
        }
        link.beat(now).expect_err("silence");
    }
}
