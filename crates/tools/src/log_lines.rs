//! Lines of a log whose streams write them in parts and between each other's, and of these the ones that match. Pure.
//!
//! # Design notes
//!
//! A read begins where the last one ended and knows nothing of it. So what came before is looked at too, as far as [`LINE_BYTES`], and a
//! line that began there is judged, and returned, whole once its end has come; until then it is left to the next read.
//!
//! Nothing is left out and nothing is judged twice: whether a line is left to the next read is decided by where it begins, and by
//! that alone the next read finds it again. A line that is longer is judged in parts, each where a read ends. Bytes that are no longer
//! kept end a line, as nobody knows what was there.

use domain::StreamName;
use domain::event::OutputPiece;
use regex::Regex;

/// How far before a read a line may begin that is judged whole.
pub(crate) const LINE_BYTES: u64 = 64 * 1024;

/// Takes the pieces of a log in order, from somewhere before a read to its end.
pub(crate) struct LogLines<'a> {
    filter: &'a Regex,
    /// Where the read begins.
    since: u64,
    /// Lines that begin further back are not known to begin anywhere.
    known_from: u64,
    /// Where the next piece begins, when nothing is missing.
    next: u64,
    open: [Open; 2],
    judged: bool,
    matching: Vec<OutputPiece>,
}

/// The line that a stream is at.
#[derive(Default)]
struct Open {
    /// The last byte that is not a part of it; `None` when that is too far back.
    after: Option<u64>,
    /// Offsets of its first byte, in the log and in the stream.
    first: Option<(u64, u64)>,
    text: Vec<u8>,
}

impl<'a> LogLines<'a> {
    /// Lines for a read that begins at `since`; the first piece is the one from the offset `from` on, if that is still kept.
    pub(crate) fn new(filter: &'a Regex, from: u64, since: u64) -> Self {
        let known_from = since.saturating_sub(LINE_BYTES);
        let open = || Open { after: (known_from == 0).then_some(0), ..Open::default() };
        Self {
            filter,
            since,
            known_from,
            next: from,
            open: [open(), open()],
            judged: false,
            matching: Vec::new(),
        }
    }

    /// The next piece; `text` makes of each part of it, in order, what is to be judged and returned.
    pub(crate) fn push(&mut self, piece: &OutputPiece, mut text: impl FnMut(&[u8]) -> Vec<u8>) {
        if piece.log_offset > self.next {
            self.interrupt(piece.log_offset);
        }
        let mut at = 0;
        for part in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
            self.part(piece, at, part, &text(part));
            at += part.len() as u64;
        }
        self.next = piece.log_offset + at;
    }

    /// More for the line that a stream is at.
    pub(crate) fn extend(&mut self, stream: StreamName, text: &str) {
        let next = self.next;
        let line = of(&mut self.open, stream);
        if !text.is_empty() {
            line.first.get_or_insert((next, 0));
            line.text.extend_from_slice(text.as_bytes());
        }
    }

    /// The lines that match, in the order of their beginnings, and whether any line was judged. The read ends at `end`, and
    /// the log too when it `is_over`.
    pub(crate) fn finish(mut self, end: u64, is_over: bool) -> (Vec<OutputPiece>, bool) {
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            let after = of(&mut self.open, stream).after;
            let is_found_again = after.is_some_and(|after| after >= end.saturating_sub(LINE_BYTES));
            if is_over || !is_found_again {
                self.judge(stream);
            }
        }
        self.matching.sort_by_key(|line| line.log_offset);
        (self.matching, self.judged)
    }

    fn part(&mut self, piece: &OutputPiece, at: u64, part: &[u8], text: &[u8]) {
        let (begin, last) = (piece.log_offset + at, piece.log_offset + at + part.len() as u64 - 1);
        let is_read = begin >= self.since;
        let line = of(&mut self.open, piece.stream);
        if is_read || line.after.is_some() {
            line.first.get_or_insert((begin, piece.offset + at));
            line.text.extend_from_slice(text);
        }
        if part.ends_with(b"\n") {
            if is_read {
                self.judge(piece.stream);
            }
            *of(&mut self.open, piece.stream) =
                Open { after: (last >= self.known_from).then_some(last), ..Open::default() };
        }
    }

    /// What comes before an offset is no longer kept.
    fn interrupt(&mut self, offset: u64) {
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            if offset >= self.since {
                self.judge(stream);
            }
            let after = offset.checked_sub(1).filter(|last| *last >= self.known_from);
            *of(&mut self.open, stream) = Open { after, ..Open::default() };
        }
    }

    fn judge(&mut self, stream: StreamName) {
        let Open { first, text, .. } = std::mem::take(of(&mut self.open, stream));
        let Some((log_offset, offset)) = first else { return };
        self.judged = true;
        if self.filter.is_match(String::from_utf8_lossy(&text).trim_end_matches(['\n', '\r'])) {
            self.matching.push(OutputPiece { log_offset, stream, offset, bytes: text });
        }
    }
}

fn of(open: &mut [Open; 2], stream: StreamName) -> &mut Open {
    let [stdout, stderr] = open;
    match stream {
        StreamName::Stdout => stdout,
        StreamName::Stderr => stderr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::StreamName::{Stderr, Stdout};
    use proptest::prelude::*;

    fn piece(log_offset: u64, stream: StreamName, bytes: &[u8]) -> OutputPiece {
        OutputPiece { log_offset, stream, offset: log_offset, bytes: bytes.to_vec() }
    }

    /// A log of these pieces, one after the other.
    fn log(parts: &[(StreamName, Vec<u8>)]) -> Vec<OutputPiece> {
        let mut at = 0;
        let whole = parts.iter().map(|(stream, bytes)| {
            let begin = at;
            at += bytes.len() as u64;
            piece(begin, *stream, bytes)
        });
        whole.collect()
    }

    /// What lies between two offsets.
    fn between(log: &[OutputPiece], from: u64, to: u64) -> Vec<OutputPiece> {
        let cut = |one: &OutputPiece| {
            let begin = from.clamp(one.log_offset, one.log_offset + one.bytes.len() as u64);
            let end = to.clamp(begin, one.log_offset + one.bytes.len() as u64);
            let range = (begin - one.log_offset) as usize..(end - one.log_offset) as usize;
            piece(begin, one.stream, &one.bytes[range])
        };
        log.iter().map(cut).filter(|one| !one.bytes.is_empty()).collect()
    }

    /// One read, as the tool makes it.
    fn read(filter: &Regex, log: &[OutputPiece], since: u64, end: u64, is_over: bool) -> Vec<(u64, Vec<u8>)> {
        let from = since.saturating_sub(LINE_BYTES);
        let mut lines = LogLines::new(filter, from, since);
        for one in between(log, from, since).iter().chain(&between(log, since, end)) {
            lines.push(one, <[u8]>::to_vec);
        }
        lines.finish(end, is_over).0.into_iter().map(|line| (line.log_offset, line.bytes)).collect()
    }

    #[test]
    fn lines_are_matched_one_by_one() {
        let filter = Regex::new("^err.*r$").expect("a regular expression");
        let found = read(&filter, &[piece(5, Stdout, b"ok\nerror\r\nerr\n")], 5, 19, false);
        assert_eq!(found, [(8, b"error\r\n".to_vec())]);
    }

    #[test]
    fn what_is_no_longer_kept_ends_a_line() {
        let filter = Regex::new("^(be|te)").expect("a regular expression");
        let log = [piece(0, Stdout, b"ok\nbegun"), piece(500, Stdout, b"its end\ntext\n")];
        assert_eq!(read(&filter, &log, 0, 513, true), [(3, b"begun".to_vec()), (508, b"text\n".to_vec())]);
        assert_eq!(read(&filter, &log, 500, 513, true)[1].1, b"text\n");
    }

    #[test]
    fn a_line_longer_than_is_looked_back_is_judged_in_parts() {
        let filter = Regex::new("needle").expect("a regular expression");
        let mut line = vec![b'x'; 3 * LINE_BYTES as usize];
        line.extend_from_slice(b"needle");
        line.extend(vec![b'y'; 3 * LINE_BYTES as usize]);
        line.push(b'\n');
        let log = [piece(0, Stdout, &line)];
        let (mut since, mut found) = (0, Vec::new());
        while since < line.len() as u64 {
            let end = (since + 10_000).min(line.len() as u64);
            found.extend(read(&filter, &log, since, end, false));
            since = end;
        }
        assert_eq!(
            found.len(),
            1,
            "{:?}",
            found.iter().map(|(at, text)| (at, text.len())).collect::<Vec<_>>()
        );
        assert!(found[0].1.len() < 80_000);
    }

    proptest! {
        /// Wherever a log is cut to be read, each line is judged once and whole.
        #[test]
        fn reads_of_any_size_find_the_same_lines(
            parts in prop::collection::vec((any::<bool>(), "[ab\n]{1,6}"), 1..20),
            step in 1u64..9,
        ) {
            let parts: Vec<_> = parts
                .into_iter()
                .map(|(is_err, text)| (if is_err { Stderr } else { Stdout }, text.into_bytes()))
                .collect();
            let log = log(&parts);
            let length: u64 = parts.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            let filter = Regex::new("^a.*b$|^$").expect("a regular expression");
            let mut expected = Vec::new();
            for stream in [Stdout, Stderr] {
                let mine = parts.iter().filter(|(of, _)| *of == stream);
                let text: Vec<u8> = mine.flat_map(|(_, bytes)| bytes.clone()).collect();
                let lines = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec);
                expected.extend(lines.filter(|line| filter.is_match(String::from_utf8_lossy(line).trim_end())));
            }
            let (mut since, mut found) = (0, Vec::new());
            while since < length {
                let end = (since + step).min(length);
                found.extend(read(&filter, &log, since, end, end == length).into_iter().map(|(_, line)| line));
                since = end;
            }
            expected.sort();
            found.sort();
            prop_assert_eq!(found, expected);
        }
    }
}
