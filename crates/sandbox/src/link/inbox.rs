//! What has come in on one stream and was not taken yet: bounded by the protocol's window, never by waiting.
//!
//! # Design notes
//!
//! The reader of a connection must never wait for one stream, or a slow consumer would block the others. It
//! need not: the agent sends at most a window beyond what was acknowledged. An agent that sends more breaks the
//! protocol and loses the connection, so that the bound holds whatever runs on the other side.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use protocol::{Output, Reply, StreamName};
use tokio::sync::Notify;

/// One thing that came in.
#[derive(Debug)]
pub(super) enum Item {
    Reply(Reply),
    Output(Output),
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The agent closed it.
    Closed,
    /// Its connection ended.
    Disconnected,
}

/// The agent sent more than the window allows.
#[derive(Debug)]
pub(super) struct Overflow;

/// Replies that may wait on one stream. No verb has more than two.
const REPLIES: usize = 16;
/// Waiting pieces up to this size are joined with their neighbour, so that a dribbling command does not cost an
/// item for each byte.
const JOIN_BYTES: usize = 4 * 1024;

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    replies: usize,
    bytes: u64,
    end: Option<End>,
}

#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Notify,
    limit_bytes: u64,
    /// Highest offset that the consumer has made durable.
    pub(super) acked: AtomicU64,
    /// An acknowledgement is on its way to the writer, which will take the newest value.
    pub(super) ack_queued: AtomicBool,
}

impl Inbox {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self {
            state: Mutex::new(State::default()),
            changed: Notify::new(),
            limit_bytes,
            acked: AtomicU64::new(0),
            ack_queued: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push_reply(&self, reply: Reply) -> Result<(), Overflow> {
        let mut state = self.state();
        if state.replies == REPLIES {
            return Err(Overflow);
        }
        state.replies += 1;
        state.items.push_back(Item::Reply(reply));
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    pub(super) fn push_output(&self, output: Output) -> Result<(), Overflow> {
        let mut state = self.state();
        let length = output.bytes.len() as u64;
        if state.bytes + length > self.limit_bytes {
            return Err(Overflow);
        }
        state.bytes += length;
        let joined = match state.items.back_mut() {
            Some(Item::Output(last)) => join(last, &output),
            Some(Item::Reply(_)) | None => false,
        };
        if !joined {
            state.items.push_back(Item::Output(output));
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Ends the stream. What came before can still be taken; the first end counts.
    pub(super) fn end(&self, end: End) {
        self.state().end.get_or_insert(end);
        self.changed.notify_one();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().end.is_some()
    }

    /// The next item, or how the stream ended. For one consumer at a time.
    pub(super) async fn next(&self) -> Result<Item, End> {
        loop {
            if let Some(result) = self.try_next() {
                return result;
            }
            self.changed.notified().await;
        }
    }

    /// The next item, or how the stream ended, if either has come.
    pub(super) fn try_next(&self) -> Option<Result<Item, End>> {
        let mut state = self.state();
        match state.items.pop_front() {
            Some(item) => {
                match &item {
                    Item::Output(output) => state.bytes -= output.bytes.len() as u64,
                    Item::Reply(_) => state.replies -= 1,
                }
                Some(Ok(item))
            }
            None => state.end.map(Err),
        }
    }

    /// Raises the acknowledged offset; true when the writer has to be told.
    pub(super) fn raise_ack(&self, offset: u64) -> bool {
        self.acked.fetch_max(offset, Ordering::AcqRel) < offset
            && !self.ack_queued.swap(true, Ordering::AcqRel)
    }

    /// The newest acknowledgement, for the writer.
    pub(super) fn take_ack(&self) -> u64 {
        self.ack_queued.store(false, Ordering::Release);
        self.acked.load(Ordering::Acquire)
    }
}

fn join(last: &mut Output, next: &Output) -> bool {
    let contiguous = last.stream == next.stream && last.offset + last.bytes.len() as u64 == next.offset;
    if !contiguous || last.bytes.len() + next.bytes.len() > JOIN_BYTES {
        return false;
    }
    let mut bytes = BytesMut::with_capacity(JOIN_BYTES);
    bytes.extend_from_slice(&last.bytes);
    bytes.extend_from_slice(&next.bytes);
    last.bytes = bytes.freeze();
    true
}

/// Output from the payload of a data frame; `None` for a channel that the agent must not use.
pub(super) fn output(offset: u64, channel: u8, bytes: Bytes) -> Option<Output> {
    Some(Output { offset, stream: StreamName::from_channel(channel)?, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, stream: StreamName, text: &'static [u8]) -> Output {
        Output { offset, stream, bytes: Bytes::from_static(text) }
    }

    #[tokio::test]
    async fn small_neighbours_are_joined_and_streams_kept_apart() {
        let inbox = Inbox::new(100);
        for output in [
            piece(0, StreamName::Stdout, b"a"),
            piece(1, StreamName::Stdout, b"b"),
            piece(2, StreamName::Stderr, b"c"),
        ] {
            inbox.push_output(output).expect("fits");
        }
        inbox.end(End::Closed);
        let mut seen = Vec::new();
        while let Ok(Item::Output(output)) = inbox.next().await {
            seen.push((output.offset, output.stream, output.bytes));
        }
        assert_eq!(
            seen,
            [
                (0, StreamName::Stdout, Bytes::from_static(b"ab")),
                (2, StreamName::Stderr, Bytes::from_static(b"c"))
            ]
        );
        assert_eq!(inbox.next().await.err(), Some(End::Closed));
    }

    #[test]
    fn more_than_the_window_is_refused_until_some_is_taken() {
        let inbox = Inbox::new(4);
        inbox.push_output(piece(0, StreamName::Stdout, b"1234")).expect("fits");
        assert!(inbox.push_output(piece(4, StreamName::Stdout, b"5")).is_err());
        assert!(inbox.try_next().is_some());
        assert!(inbox.push_output(piece(4, StreamName::Stdout, b"5")).is_ok());
    }

    #[test]
    fn acknowledgements_only_rise_and_are_queued_once() {
        let inbox = Inbox::new(4);
        assert!(inbox.raise_ack(10));
        assert!(!inbox.raise_ack(5));
        assert!(!inbox.raise_ack(20));
        assert_eq!(inbox.take_ack(), 20);
        assert!(inbox.raise_ack(21));
    }
}
