//! The output log of one operation: both streams in arrival order under one offset, from the first byte that the worker
//! has not made durable.

use std::collections::VecDeque;

use protocol::{OUTPUT_FRAME_BYTES, OUTPUT_WINDOW_BYTES, StreamName};

use crate::limits;

/// Bytes of one stream in a row.
#[derive(Debug)]
struct Run {
    stream: StreamName,
    length: usize,
}

/// Output that is not yet durable elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Offset of the first byte kept.
    start: u64,
    bytes: VecDeque<u8>,
    runs: VecDeque<Run>,
    /// Bytes kept that have been sent on the present stream.
    sent: usize,
    /// The run that the next unsent byte is in, and how far into it.
    cursor: (usize, usize),
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl Log {
    /// Offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Bytes kept.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes ever written, to stdout and to stderr.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.stdout_bytes, self.stderr_bytes)
    }

    /// Whether everything has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// How much may be added now.
    pub(crate) fn room(&self) -> usize {
        if self.runs.len() >= limits::LOG_RUNS {
            return 0;
        }
        (OUTPUT_WINDOW_BYTES as usize).saturating_sub(self.bytes.len())
    }

    /// Adds output.
    pub(crate) fn append(&mut self, stream: StreamName, content: &[u8]) {
        if content.is_empty() {
            return;
        }
        match stream {
            StreamName::Stdout => self.stdout_bytes += content.len() as u64,
            StreamName::Stderr => self.stderr_bytes += content.len() as u64,
        }
        match self.runs.back_mut() {
            Some(run) if run.stream == stream => run.length += content.len(),
            _ => self.runs.push_back(Run { stream, length: content.len() }),
        }
        self.bytes.extend(content);
    }

    /// Forgets everything below `offset`: it is durable.
    pub(crate) fn acknowledge(&mut self, offset: u64) {
        let mut count = offset.saturating_sub(self.start).min(self.bytes.len() as u64) as usize;
        self.start += count as u64;
        self.bytes.drain(..count);
        let unsent = count.saturating_sub(self.sent);
        self.advance(unsent);
        self.sent -= count;
        while count > 0 {
            let Some(run) = self.runs.front_mut() else { break };
            if run.length > count {
                run.length -= count;
                if self.cursor.0 == 0 {
                    self.cursor.1 -= count;
                }
                break;
            }
            count -= run.length;
            self.runs.pop_front();
            self.cursor = if self.cursor.0 == 0 { (0, 0) } else { (self.cursor.0 - 1, self.cursor.1) };
        }
        if self.bytes.is_empty() {
            self.bytes = VecDeque::new();
            self.cursor = (0, 0);
        }
    }

    /// Sends from the first kept byte again, on a new stream. Returns its offset.
    pub(crate) fn rewind(&mut self) -> u64 {
        self.sent = 0;
        self.cursor = (0, 0);
        self.start
    }

    /// The next piece to send, if any: its offset, stream and bytes. It counts as sent once [`Self::advance`] says so.
    pub(crate) fn next_piece(&mut self) -> Option<(u64, StreamName, &[u8])> {
        if self.is_sent() {
            return None;
        }
        while self.cursor.1 == self.runs[self.cursor.0].length {
            self.cursor = (self.cursor.0 + 1, 0);
        }
        let run = &self.runs[self.cursor.0];
        let length = (run.length - self.cursor.1).min(OUTPUT_FRAME_BYTES);
        let (front, back) = self.bytes.as_slices();
        let piece = match self.sent.checked_sub(front.len()) {
            Some(into_back) => &back[into_back..],
            None => &front[self.sent..],
        };
        Some((self.start + self.sent as u64, run.stream, &piece[..length.min(piece.len())]))
    }

    /// Counts bytes as sent.
    pub(crate) fn advance(&mut self, mut count: usize) {
        self.sent += count;
        while count > 0 {
            let left = self.runs[self.cursor.0].length - self.cursor.1;
            if count <= left {
                self.cursor.1 += count;
                return;
            }
            count -= left;
            self.cursor = (self.cursor.0 + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StreamName::{Stderr, Stdout};

    fn drain(log: &mut Log) -> Vec<(u64, StreamName, Vec<u8>)> {
        let mut pieces = Vec::new();
        while let Some((offset, stream, bytes)) = log.next_piece() {
            let bytes = bytes.to_vec();
            log.advance(bytes.len());
            pieces.push((offset, stream, bytes));
        }
        pieces
    }

    #[test]
    fn keeps_order_and_offsets_over_acknowledgements_and_rewinds() {
        let mut log = Log::default();
        log.append(Stdout, b"ab");
        log.append(Stderr, b"cd");
        assert_eq!(drain(&mut log), [(0, Stdout, b"ab".to_vec()), (2, Stderr, b"cd".to_vec())]);
        log.append(Stderr, b"e");
        log.acknowledge(3);
        assert_eq!(drain(&mut log), [(4, Stderr, b"e".to_vec())]);
        assert_eq!(log.rewind(), 3);
        log.append(Stdout, b"f");
        assert_eq!(drain(&mut log), [(3, Stderr, b"de".to_vec()), (5, Stdout, b"f".to_vec())]);
        log.acknowledge(100);
        assert_eq!((log.end(), log.len(), log.totals()), (6, 0, (3, 3)));
        log.append(Stdout, b"g");
        assert_eq!(drain(&mut log), [(6, Stdout, b"g".to_vec())]);
    }

    #[test]
    fn an_acknowledgement_may_pass_what_was_sent() {
        let mut log = Log::default();
        log.append(Stdout, b"abc");
        log.append(Stderr, b"def");
        log.acknowledge(4);
        assert_eq!(drain(&mut log), [(4, Stderr, b"ef".to_vec())]);
    }

    #[test]
    fn single_bytes_on_alternating_streams_are_bounded() {
        let mut log = Log::default();
        while log.room() > 0 {
            let stream = if log.len() % 2 == 0 { Stdout } else { Stderr };
            log.append(stream, b"x");
        }
        assert_eq!(log.len(), limits::LOG_RUNS);
    }

    #[test]
    fn every_cut_of_sends_and_acknowledgements_gives_the_same_bytes() {
        let mut state = 12_345_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut log = Log::default();
        let (mut written, mut received) = (Vec::new(), Vec::new());
        for round in 0..5_000_u64 {
            let stream = if random(2) == 0 { Stdout } else { Stderr };
            let content = vec![round as u8; random(9) as usize];
            written.extend(content.iter().map(|&byte| (stream, byte)));
            log.append(stream, &content);
            if random(3) == 0
                && let Some((offset, stream, bytes)) = log.next_piece()
            {
                let take = 1 + random(bytes.len() as u64) as usize;
                received.truncate(offset as usize);
                received.extend(bytes[..take].iter().map(|&byte| (stream, byte)));
                log.advance(take);
            }
            if random(4) == 0 {
                log.acknowledge(random(received.len() as u64 + 1));
            }
            if random(50) == 0 {
                received.truncate(log.rewind() as usize);
            }
        }
        for (offset, stream, bytes) in drain(&mut log) {
            received.truncate(offset as usize);
            received.extend(bytes.iter().map(|&byte| (stream, byte)));
        }
        assert_eq!(received, written);
    }
}
