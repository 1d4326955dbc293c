//! The end of a log that is over its limit: the last bytes wait in memory, and what falls out is counted.

use std::collections::VecDeque;

use bytes::Bytes;
use domain::StreamName;

use super::{index, utf8};

/// The last bytes of both streams, in the order in which they came.
#[derive(Debug)]
pub(super) struct Tail {
    limit: u64,
    pieces: VecDeque<(StreamName, Bytes)>,
    bytes: u64,
    dropped: [u64; 2],
    /// Dropped by a relay before this one: of which stream is not known.
    dropped_before: u64,
    /// Bytes at the start that were held for their character: their place in the agent's log is not just before the others.
    held_first: u64,
}

impl Tail {
    pub(super) fn new(limit: u64, dropped_before: u64, held_first: u64) -> Self {
        Self { limit, pieces: VecDeque::new(), bytes: 0, dropped: [0, 0], dropped_before, held_first }
    }

    pub(super) fn push(&mut self, stream: StreamName, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        self.pieces.push_back((stream, bytes));
        while self.bytes > self.limit {
            let over = self.bytes - self.limit;
            let Some((stream, first)) = self.pieces.front_mut() else { return };
            let length = over.min(first.len() as u64);
            drop(first.split_to(length as usize));
            self.dropped[index(*stream)] += length;
            self.bytes -= length;
            if first.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Offset of its first byte in the operation's log, once something was dropped and the offset is sure.
    pub(super) fn start(&self, received: u64) -> Option<u64> {
        let dropped = self.dropped[0] + self.dropped[1];
        let sure = self.dropped_before > 0 || dropped > 0 && dropped >= self.held_first;
        sure.then(|| received - self.bytes)
    }

    /// Whether [`Self::into_pieces`] needs the totals of the streams to say where they lie.
    pub(super) fn needs_totals(&self) -> bool {
        self.dropped_before > 0
    }

    /// Bytes dropped of each stream (by this relay), and the rest with no character split at its start.
    pub(super) fn into_pieces(mut self) -> ([u64; 2], Vec<(StreamName, Bytes)>) {
        let mut cut_before =
            [self.dropped[0] + self.dropped_before > 0, self.dropped[1] + self.dropped_before > 0];
        for (stream, bytes) in &mut self.pieces {
            let at = index(*stream);
            while cut_before[at] && bytes.first().copied().is_some_and(utf8::is_continuation) {
                drop(bytes.split_to(1));
                self.dropped[at] += 1;
            }
            cut_before[at] &= bytes.is_empty();
        }
        (self.dropped, self.pieces.into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect())
    }
}
