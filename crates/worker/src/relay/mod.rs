//! From an operation's output to pieces of a log: gapless, no UTF-8 character split, bounded, resumable. No I/O.
//!
//! # Design notes
//!
//! *Two orders.* The agent's log has stdout and stderr in the order in which they were read, and a read may end
//! inside a character. The stored log may not split one, so the first bytes of a character wait (at most three a
//! stream) until its last byte comes; what the other stream wrote in between is stored before them. The stored log
//! is therefore a permutation of the agent's, of the same length.
//!
//! *Clean points.* At an offset before which nothing was held, both logs have the same bytes before it. Only such
//! offsets are acknowledged. So whoever resumes is sent bytes from a clean point on, knows from the stored log
//! how many of each stream lie before it, and skips what is stored, stream by stream.
//!
//! *The cap.* Beyond [`Limits::head_bytes`] a log keeps its last [`Limits::tail_bytes`] in memory, unacknowledged,
//! and writes them at the end; what falls out between is acknowledged and counted. A resumed relay that is sent an
//! offset beyond the stored log's end knows that it is there, and takes offsets from the totals at the exit.
//!
//! *A held character cannot stop the window.* When too much of the other stream came since, the held bytes are
//! stored as they are: a split character (of a program that pauses inside one for 128 KiB) instead of a deadlock.

mod capture;
mod position;
mod tail;
mod utf8;

use std::collections::VecDeque;

use bytes::Bytes;
use domain::StreamName;
use domain::event::OutputPiece;
use domain::limits;

pub(crate) use capture::Capture;
pub(crate) use position::{Limits, Position, Resume};
use tail::Tail;
pub(crate) use utf8::Utf8;

/// Unacknowledged bytes after which held bytes are stored although their character is not whole. Half of the
/// agent's window ([`protocol::OUTPUT_WINDOW_BYTES`] is 256 KiB).
const HOLD_BYTES: u64 = 128 * 1024;

/// The output is not what the agent's protocol promises: bytes are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("output of the sandbox has a hole: expected offset {expected}, got {got}")]
pub(crate) struct Hole {
    expected: u64,
    got: u64,
}

/// Turns one operation's output into pieces of one owner's log.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Where the operation's output begins in the owner's log.
    base: Position,
    limits: Limits,
    /// Offset of the operation up to which bytes have come.
    received: u64,
    /// Latest clean point, as an offset of the operation.
    clean: u64,
    /// End of the pieces so far.
    end: Position,
    /// Bytes of each stream that come again although they are stored.
    skip: [u64; 2],
    /// First bytes of a character, waiting for its last.
    held: [Vec<u8>; 2],
    /// Pieces that have not been taken yet.
    ready: Vec<OutputPiece>,
    ready_bytes: usize,
    /// Clean points that are not durable yet, as they were when pieces were taken.
    taken: VecDeque<u64>,
    /// Offset of the owner's log below which everything is committed.
    durable: u64,
    acknowledged: u64,
    tail: Option<Tail>,
}

impl Relay {
    /// A relay for an operation that starts now, whose output begins at `base` in the owner's log.
    pub(crate) fn new(base: Position, limits: Limits) -> Self {
        Self {
            base,
            limits,
            received: 0,
            clean: 0,
            end: base,
            skip: [0, 0],
            held: [Vec::new(), Vec::new()],
            ready: Vec::new(),
            ready_bytes: 0,
            taken: VecDeque::new(),
            durable: base.log,
            acknowledged: 0,
            tail: None,
        }
    }

    /// A relay for an operation part of whose output another relay has stored.
    pub(crate) fn resumed(base: Position, limits: Limits, resume: Resume) -> Self {
        let mut relay = Self::new(base, limits);
        relay.end = resume.stored;
        relay.durable = resume.stored.log;
        relay.acknowledged = resume.sent_from;
        relay.received = resume.sent_from;
        relay.clean = resume.sent_from;
        if base.log + resume.sent_from > resume.stored.log {
            relay.tail =
                Some(Tail::new(limits.tail_bytes, base.log + resume.sent_from - resume.stored.log, 0));
        } else {
            relay.skip = [
                resume.stored.stdout.saturating_sub(resume.before_sent.stdout),
                resume.stored.stderr.saturating_sub(resume.before_sent.stderr),
            ];
        }
        relay
    }

    /// Where the operation's output begins in the owner's log.
    pub(crate) fn base(&self) -> Position {
        self.base
    }

    /// Offset of the operation below which the agent need send nothing again.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Takes output of the operation. Returns what of it had not come before.
    ///
    /// # Errors
    /// When bytes are missing before it.
    pub(crate) fn push(&mut self, offset: u64, stream: StreamName, mut bytes: Bytes) -> Result<Bytes, Hole> {
        if offset > self.received {
            return Err(Hole { expected: self.received, got: offset });
        }
        let known = (self.received - offset).min(bytes.len() as u64);
        drop(bytes.split_to(known as usize));
        if bytes.is_empty() {
            return Ok(bytes);
        }
        self.received += bytes.len() as u64;
        let skip = &mut self.skip[index(stream)];
        let stored = (*skip).min(bytes.len() as u64);
        *skip -= stored;
        drop(bytes.split_to(stored as usize));
        self.store(stream, bytes.clone());
        if self.received - self.clean > HOLD_BYTES && self.tail.is_none() && self.skip == [0, 0] {
            self.release_held();
        }
        self.acknowledge_known();
        Ok(bytes)
    }

    /// Bytes that wait to be taken.
    pub(crate) fn ready_bytes(&self) -> usize {
        self.ready_bytes
    }

    /// Takes the pieces that are ready.
    pub(crate) fn take(&mut self) -> Vec<OutputPiece> {
        if !self.ready.is_empty() {
            self.taken.push_back(self.clean);
        }
        self.ready_bytes = 0;
        std::mem::take(&mut self.ready)
    }

    /// Everything of the owner's log below this offset is committed.
    pub(crate) fn made_durable(&mut self, log_offset: u64) {
        self.durable = self.durable.max(log_offset);
        while let Some(clean) =
            self.taken.front().copied().filter(|clean| self.base.log + clean <= self.durable)
        {
            self.acknowledged = self.acknowledged.max(clean);
            self.taken.pop_front();
        }
        self.acknowledge_known();
    }

    /// The operation has ended, with these totals of stdout and stderr where they are known. Makes the rest ready
    /// and returns the bytes that were dropped from the middle, by this relay or before.
    pub(crate) fn finish(&mut self, totals: Option<(u64, u64)>) -> u64 {
        let Some(tail) = self.tail.take() else {
            self.release_held();
            // What is stored may go beyond this operation, when the call had gone on to its next one.
            if let Some((stdout, stderr)) = totals {
                self.end = self.base.after(stdout, stderr);
            }
            return 0;
        };
        let unknown = tail.needs_totals();
        let (dropped, pieces) = tail.into_pieces();
        let mut kept = [0, 0];
        for (stream, bytes) in &pieces {
            kept[index(*stream)] += bytes.len() as u64;
        }
        let from = self.end.log;
        match totals {
            Some((stdout, stderr)) if unknown => {
                self.end.stdout = (self.base.stdout + stdout).saturating_sub(kept[0]);
                self.end.stderr = (self.base.stderr + stderr).saturating_sub(kept[1]);
                self.end.log = self.end.stdout + self.end.stderr;
            }
            // Where in its stream the tail lies cannot be known then, so it is dropped too.
            None if unknown => return self.received - (from - self.base.log),
            Some(_) | None => {
                self.end.advance(StreamName::Stdout, dropped[0]);
                self.end.advance(StreamName::Stderr, dropped[1]);
            }
        }
        let dropped = self.end.log - from;
        for (stream, bytes) in pieces {
            self.hold_and_append(stream, &bytes);
        }
        self.release_held();
        dropped
    }

    /// End of the log after [`Self::finish`]: where the owner's next operation begins.
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    fn store(&mut self, stream: StreamName, bytes: Bytes) {
        if bytes.is_empty() {
            self.note_clean_after(stream, false);
            return;
        }
        let held_bytes = self.held[0].len() + self.held[1].len();
        let would_end = self.end.log + (held_bytes + bytes.len()) as u64;
        if self.tail.is_none() && would_end > self.limits.head_bytes {
            self.start_tail();
        }
        if let Some(tail) = &mut self.tail {
            tail.push(stream, bytes);
            return;
        }
        let was_held = !self.held[index(stream)].is_empty();
        let released = self.hold_and_append(stream, &bytes);
        self.note_clean_after(stream, was_held && !released);
    }

    /// What was durable when it came, or fell out of the tail, need not come again either.
    fn acknowledge_known(&mut self) {
        if self.base.log + self.clean <= self.durable {
            self.acknowledged = self.acknowledged.max(self.clean);
        }
        if self.durable >= self.end.log
            && let Some(start) = self.tail.as_ref().and_then(|tail| tail.start(self.received))
        {
            self.acknowledged = self.acknowledged.max(start);
        }
    }

    fn start_tail(&mut self) {
        let held_bytes: u64 = self.held.iter().map(|held| held.len() as u64).sum();
        let mut tail = Tail::new(self.limits.tail_bytes, 0, held_bytes);
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            let held = std::mem::take(&mut self.held[index(stream)]);
            if !held.is_empty() {
                tail.push(stream, held.into());
            }
        }
        self.tail = Some(tail);
    }

    /// Appends what makes whole characters, keeps the rest. Whether the bytes that were held before are out.
    fn hold_and_append(&mut self, stream: StreamName, bytes: &[u8]) -> bool {
        let held = std::mem::take(&mut self.held[index(stream)]);
        if held.is_empty() {
            let whole = bytes.len() - utf8::incomplete_end(bytes);
            self.append(stream, &bytes[..whole]);
            self.held[index(stream)].extend_from_slice(&bytes[whole..]);
            return true;
        }
        let before = held.len();
        let mut joined = held;
        joined.extend_from_slice(bytes);
        let whole = joined.len() - utf8::incomplete_end(&joined);
        self.append(stream, &joined[..whole]);
        joined.drain(..whole);
        let released = whole >= before;
        self.held[index(stream)] = joined;
        released
    }

    fn release_held(&mut self) {
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            let held = std::mem::take(&mut self.held[index(stream)]);
            self.append(stream, &held);
        }
        if self.tail.is_none() && self.skip == [0, 0] {
            self.clean = self.received;
        }
    }

    fn note_clean_after(&mut self, stream: StreamName, still_held_from_before: bool) {
        let other = 1 - index(stream);
        if self.skip == [0, 0] && self.held[other].is_empty() && !still_held_from_before {
            self.clean = self.received - self.held[index(stream)].len() as u64;
        }
    }

    fn append(&mut self, stream: StreamName, mut bytes: &[u8]) {
        self.ready_bytes += bytes.len();
        while !bytes.is_empty() {
            let room = match self.ready.last() {
                Some(last) if last.stream == stream && end_of(last) == self.end.log => {
                    limits::OUTPUT_EVENT_BYTES - last.bytes.len()
                }
                Some(_) | None => 0,
            };
            let length = utf8::whole_prefix(bytes, room);
            let piece = match self.ready.last_mut() {
                Some(last) if length > 0 => last,
                Some(_) | None => {
                    self.ready.push(OutputPiece {
                        log_offset: self.end.log,
                        stream,
                        offset: self.end.of(stream),
                        bytes: Vec::new(),
                    });
                    self.ready.last_mut().expect("a piece was just pushed")
                }
            };
            let length =
                if length > 0 { length } else { utf8::whole_prefix(bytes, limits::OUTPUT_EVENT_BYTES) };
            piece.bytes.extend_from_slice(&bytes[..length]);
            self.end.advance(stream, length as u64);
            bytes = &bytes[length..];
        }
    }
}

fn end_of(piece: &OutputPiece) -> u64 {
    piece.log_offset + piece.bytes.len() as u64
}

fn index(stream: StreamName) -> usize {
    match stream {
        StreamName::Stdout => 0,
        StreamName::Stderr => 1,
    }
}

#[cfg(test)]
mod tests;
