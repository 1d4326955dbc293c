//! One connection of an agent: a reader and a writer that carry many streams. It knows no verbs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    AgentError, Decoder, ErrorCode, Frame, FrameKind, HEARTBEAT_INTERVAL_MS, MAX_FRAME_BYTES,
    OUTPUT_FRAME_BYTES, Reply, Request, SILENCE_LIMIT_MS, StreamId,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::inbox::{self, End, Inbox, Item};
use super::writer::{Control, Driven, Outgoing, write};
use crate::LinkError;

/// Requests and pieces of input that wait for the writer. Senders wait when it is full.
const OUTGOING: usize = 64;
/// Streams that may be open on one connection: calls, shells and file verbs of one session stay far below.
const STREAMS: usize = 1_024;
/// How often the agent is heard.
const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);
/// Free room asked for before each read.
const READ_BYTES: usize = 64 * 1024;

/// The sending half of one connection, and its open streams.
pub(crate) struct Connection {
    outgoing: mpsc::Sender<Outgoing>,
    control: mpsc::UnboundedSender<Control>,
    streams: Mutex<HashMap<StreamId, Arc<Inbox>>>,
    next_stream: AtomicU32,
    version: u32,
    closed: CancellationToken,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection on which this version of the protocol is spoken.
    pub(super) fn new(version: u32) -> (Arc<Self>, Driven) {
        let (outgoing, outgoing_receiver) = mpsc::channel(OUTGOING);
        let (control, control_receiver) = mpsc::unbounded_channel();
        let connection = Self {
            outgoing,
            control,
            streams: Mutex::default(),
            next_stream: AtomicU32::new(1),
            version,
            closed: CancellationToken::new(),
        };
        (Arc::new(connection), Driven { outgoing: outgoing_receiver, control: control_receiver })
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<StreamId, Arc<Inbox>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection and every stream on it.
    pub(super) fn close(&self) {
        self.closed.cancel();
        for (_, inbox) in self.streams().drain() {
            inbox.end(End::Disconnected);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Sends a request on a stream of its own, unless the agent is of a version that would not do just what it says.
    /// `limit_bytes` bounds the output that may wait to be taken.
    pub(super) async fn open(
        self: &Arc<Self>,
        request: &Request,
        limit_bytes: u64,
    ) -> Result<Stream, LinkError> {
        if request.needs() > self.version {
            return Err(LinkError::Agent(AgentError {
                code: ErrorCode::Unsupported,
                message:
                    "the sandbox was started by an earlier version of Toolhost, and its agent cannot do this"
                        .to_owned(),
            }));
        }
        let payload =
            serde_json::to_vec(request).map_err(|_| LinkError::Protocol("unserialisable request"))?;
        if payload.len() > MAX_FRAME_BYTES {
            return Err(LinkError::TooLarge);
        }
        let id = self.next_stream.fetch_add(2, Ordering::Relaxed);
        let inbox = Arc::new(Inbox::new(limit_bytes));
        {
            let mut streams = self.streams();
            if streams.len() >= STREAMS {
                return Err(LinkError::Agent(AgentError {
                    code: ErrorCode::LimitExceeded,
                    message: "too many operations of this sandbox are under way".to_owned(),
                }));
            }
            streams.insert(id, Arc::clone(&inbox));
        }
        let stream = Stream { id, inbox, connection: Arc::clone(self), settled: AtomicBool::new(false) };
        if self.is_closed() {
            return Err(LinkError::Disconnected);
        }
        self.send(Outgoing::Frame(FrameKind::Request, id, payload)).await?;
        Ok(stream)
    }

    async fn send(&self, outgoing: Outgoing) -> Result<(), LinkError> {
        tokio::select! {
            () = self.closed.cancelled() => Err(LinkError::Disconnected),
            sent = self.outgoing.send(outgoing) => sent.map_err(|_| LinkError::Disconnected),
        }
    }

    fn dispatch(&self, frame: Frame) -> Result<(), LinkError> {
        match frame.kind {
            FrameKind::Ping => Ok(()),
            FrameKind::Reply => {
                let reply = serde_json::from_slice(&frame.payload)
                    .map_err(|_| LinkError::Protocol("a reply that is not understood"))?;
                self.deliver(frame.stream, |inbox| inbox.push_reply(reply))
            }
            FrameKind::Data => {
                let (offset, channel, bytes) = protocol::decode_data(frame.payload)
                    .map_err(|_| LinkError::Protocol("a malformed data frame"))?;
                let output = inbox::output(offset, channel, bytes)
                    .ok_or(LinkError::Protocol("input from the agent"))?;
                self.deliver(frame.stream, |inbox| inbox.push_output(output))
            }
            FrameKind::Close => {
                let inbox = self.streams().remove(&frame.stream);
                if let Some(inbox) = inbox {
                    inbox.end(End::Closed);
                }
                Ok(())
            }
            FrameKind::Ack => Ok(()),
            FrameKind::Request => self.refuse(frame.stream),
            FrameKind::Hello | FrameKind::Welcome => Err(LinkError::Protocol("a second greeting")),
        }
    }

    fn deliver(
        &self,
        stream: StreamId,
        push: impl FnOnce(&Inbox) -> Result<(), inbox::Overflow>,
    ) -> Result<(), LinkError> {
        let inbox = self.streams().get(&stream).cloned();
        // A stream that is unknown was closed by us a moment ago.
        inbox.map_or(Ok(()), |inbox| {
            push(&inbox).map_err(|_| LinkError::Protocol("more output than the window"))
        })
    }

    /// No verb goes from agent to worker so far: answered, so that a newer agent can carry on.
    fn refuse(&self, stream: StreamId) -> Result<(), LinkError> {
        let error =
            AgentError { code: ErrorCode::Unsupported, message: "this worker takes no requests".to_owned() };
        let payload = serde_json::to_vec(&Reply::Error(error)).unwrap_or_default();
        // An agent that floods requests gets no answers rather than memory.
        let _ = self.outgoing.try_send(Outgoing::Frame(FrameKind::Reply, stream, payload));
        let _ = self.outgoing.try_send(Outgoing::Frame(FrameKind::Close, stream, Vec::new()));
        Ok(())
    }
}

/// One open stream. Dropping it tells the agent that nobody listens; an operation goes on in the agent.
#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    inbox: Arc<Inbox>,
    connection: Arc<Connection>,
    /// The agent owes nothing more on it and closes it by itself, or was told.
    settled: AtomicBool,
}

impl Stream {
    pub(super) async fn next(&self) -> Result<Item, End> {
        self.taken(self.inbox.next().await)
    }

    /// The next item, if it has come.
    pub(super) fn try_next(&self) -> Option<Result<Item, End>> {
        self.inbox.try_next().map(|item| self.taken(item))
    }

    fn taken(&self, item: Result<Item, End>) -> Result<Item, End> {
        if let Ok(Item::Reply(reply)) = &item
            && !matches!(reply, Reply::Attached(_) | Reply::Watching)
        {
            self.settled.store(true, Ordering::Relaxed);
        }
        item
    }

    pub(super) fn ack(&self, offset: u64) {
        if self.inbox.raise_ack(offset) {
            let _ = self.connection.control.send(Control::Ack(self.id, Arc::clone(&self.inbox)));
        }
    }

    /// Sends content in pieces that fit a frame, from this offset on.
    pub(super) async fn send_input(&self, mut offset: u64, mut content: Bytes) -> Result<(), LinkError> {
        while !content.is_empty() {
            let piece = content.split_to(content.len().min(OUTPUT_FRAME_BYTES));
            let length = piece.len() as u64;
            self.connection.send(Outgoing::Input(self.id, offset, piece)).await?;
            offset += length;
        }
        Ok(())
    }

    /// Says that all of an open-ended write has come.
    pub(super) async fn seal_input(&self, offset: u64) -> Result<(), LinkError> {
        self.connection.send(Outgoing::Input(self.id, offset, Bytes::new())).await
    }

    /// Tells the agent that no more input comes; its answer is still awaited.
    pub(super) async fn finish_input(&self) -> Result<(), LinkError> {
        self.settled.store(true, Ordering::Relaxed);
        self.connection.send(Outgoing::Frame(FrameKind::Close, self.id, Vec::new())).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.streams().remove(&self.id);
        if !self.settled.load(Ordering::Relaxed) && !self.inbox.has_ended() {
            // Behind what was sent on it before: a close that overtook its own request would leave a write open for ever.
            let close = Outgoing::Frame(FrameKind::Close, self.id, Vec::new());
            if let Err(TrySendError::Full(close)) = self.connection.outgoing.try_send(close) {
                let connection = Arc::clone(&self.connection);
                tokio::spawn(async move {
                    let _ = connection.send(close).await;
                });
            }
        }
    }
}

/// Carries frames until either side ends, the agent is silent for too long, or it breaks the protocol.
pub(super) async fn run(
    connection: &Arc<Connection>,
    driven: Driven,
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    decoder: Decoder,
) -> Result<(), LinkError> {
    let result = tokio::select! {
        () = connection.closed.cancelled() => Ok(()),
        result = read(connection, reader, decoder) => result,
        result = write(driven, writer) => result,
    };
    connection.close();
    result
}

async fn read(
    connection: &Connection,
    mut reader: impl AsyncRead + Unpin,
    mut decoder: Decoder,
) -> Result<(), LinkError> {
    loop {
        while let Some(frame) = decoder.next_frame().map_err(|_| LinkError::Protocol("a malformed frame"))? {
            connection.dispatch(frame)?;
        }
        fill(&mut reader, &mut decoder, Duration::from_millis(SILENCE_LIMIT_MS)).await?;
    }
}

/// Reads more bytes into the decoder. The limit is counted in heartbeats, and not as time: after a stand-still of the
/// whole host, which neither side is to blame for, the other has time to be heard.
pub(super) async fn fill(
    reader: &mut (impl AsyncRead + Unpin),
    decoder: &mut Decoder,
    limit: Duration,
) -> Result<(), LinkError> {
    decoder.buffer().reserve(READ_BYTES);
    let mut left = limit;
    while !left.is_zero() {
        let beat = left.min(HEARTBEAT);
        match timeout(beat, reader.read_buf(decoder.buffer())).await {
            Ok(Ok(length)) if length > 0 => return Ok(()),
            Ok(_) => return Err(LinkError::Disconnected),
            Err(_) => left -= beat,
        }
    }
    Err(LinkError::Disconnected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    const SILENCE: Duration = Duration::from_millis(SILENCE_LIMIT_MS);

    #[tokio::test(start_paused = true)]
    async fn a_stand_still_of_the_host_is_one_beat_and_no_silence() {
        let (mut agent, mut worker) = tokio::io::duplex(64);
        let mut decoder = Decoder::default();
        let (filled, ()) = tokio::join!(fill(&mut worker, &mut decoder, SILENCE), async {
            tokio::time::advance(10 * SILENCE).await;
            tokio::task::yield_now().await;
            agent.write_all(b"late").await.expect("writes");
        });
        assert!(filled.is_ok());
        assert_eq!(&decoder.buffer()[..], b"late");
        let filled = fill(&mut worker, &mut decoder, SILENCE).await;
        assert!(matches!(filled, Err(LinkError::Disconnected)));
    }
}
