//! Head and tail of one stream, within a budget: what a tool gets to see of output of any length.

use std::collections::VecDeque;

use tools::port::Captured;

/// Keeps the first and the last bytes of a stream.
#[derive(Debug)]
pub(crate) struct Capture {
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Keeps at most `limit` bytes from the start and as many from the end.
    pub(crate) fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { limit, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// Goes on where another worker stopped: what is stored of the stream's start and end, and its length.
    pub(crate) fn resumed(limit: u64, stored_head: &[u8], stored_tail: &[u8], total: u64) -> Self {
        let mut capture = Self::new(limit);
        capture.head.extend_from_slice(&stored_head[..stored_head.len().min(capture.limit)]);
        let beyond_head = total - (capture.head.len() as u64).min(total);
        let tail = &stored_tail[stored_tail.len() - stored_tail.len().min(capture.limit)..];
        let fresh = tail.len().min(usize::try_from(beyond_head).unwrap_or(usize::MAX));
        capture.tail.extend(&tail[tail.len() - fresh..]);
        capture.total = total;
        capture
    }

    /// The stream goes on with these bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = if self.tail.is_empty() { self.limit - self.head.len() } else { 0 };
        let (to_head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(to_head);
        let last = &rest[rest.len() - rest.len().min(self.limit)..];
        let over = (self.tail.len() + last.len()).saturating_sub(self.limit);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend(last);
    }

    /// So many bytes of the stream were written that never came here, just before the present end of the tail.
    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = self.total.max(total);
    }

    /// What was kept.
    pub(crate) fn captured(&self) -> Captured {
        Captured {
            head: self.head.clone(),
            tail: self.tail.iter().copied().collect(),
            total_bytes: self.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn head_and_tail_are_those_of_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..12),
            limit in 1usize..40,
        ) {
            let whole: Vec<u8> = pieces.concat();
            let mut capture = Capture::new(limit as u64);
            for piece in &pieces {
                capture.push(piece);
            }
            let captured = capture.captured();
            prop_assert_eq!(captured.total_bytes, whole.len() as u64);
            prop_assert_eq!(&captured.head[..], &whole[..whole.len().min(limit)]);
            let rest = &whole[whole.len().min(limit)..];
            prop_assert_eq!(&captured.tail[..], &rest[rest.len() - rest.len().min(limit)..]);
        }

        #[test]
        fn a_resumed_capture_is_the_same(
            before in prop::collection::vec(any::<u8>(), 0..60),
            after in prop::collection::vec(any::<u8>(), 0..60),
            limit in 1usize..40,
        ) {
            let mut through = Capture::new(limit as u64);
            through.push(&before);
            through.push(&after);
            let head = &before[..before.len().min(limit)];
            let tail = &before[before.len() - before.len().min(limit)..];
            let mut resumed = Capture::resumed(limit as u64, head, tail, before.len() as u64);
            resumed.push(&after);
            prop_assert_eq!(resumed.captured(), through.captured());
        }
    }
}
