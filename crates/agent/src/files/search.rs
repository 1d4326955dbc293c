//! Searching one file: line by line in constant memory, or whole where matches may span lines.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;

use protocol::{AgentError, ErrorCode, GrepLine};
use regex::bytes::{Regex, RegexBuilder};

use super::refuse;
use crate::limits;

/// A compiled pattern.
pub(super) struct Matcher {
    regex: Regex,
    /// Where no line of a piece can match, the piece as a whole does not either: true for patterns that do not
    /// speak of where a text begins and ends.
    skips_pieces: bool,
}

/// What became of the search of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Searched {
    /// To its end, or as far as was wanted.
    Done,
    /// It is not text.
    Binary,
    /// It is too large to be held in memory.
    Large,
}

impl Matcher {
    pub(super) fn new(pattern: &str, ignore_case: bool, multiline: bool) -> Result<Self, AgentError> {
        let invalid = |message: String| refuse(ErrorCode::InvalidPattern, message);
        if pattern.len() > limits::REGEX_BYTES {
            return Err(invalid("the regular expression is too long".to_owned()));
        }
        let regex = RegexBuilder::new(pattern)
            .case_insensitive(ignore_case)
            .multi_line(true)
            .dot_matches_new_line(multiline)
            .size_limit(limits::REGEX_SIZE_BYTES)
            .dfa_size_limit(limits::REGEX_SIZE_BYTES)
            .nest_limit(limits::REGEX_DEPTH)
            .build()
            .map_err(|error| invalid(format!("the regular expression is not valid: {error}")))?;
        let skips_pieces = !["(?", "\\A", "\\z", "\\r", "$"].iter().any(|part| pattern.contains(part));
        Ok(Self { regex, skips_pieces })
    }

    /// Shows every line, and whether it matches, until `see` breaks or `goes_on` says no.
    pub(super) fn search(
        &self,
        file: &mut File,
        multiline: bool,
        see: &mut impl FnMut(u64, &[u8], bool) -> ControlFlow<()>,
        goes_on: &mut impl FnMut() -> bool,
    ) -> io::Result<Searched> {
        if multiline {
            return self.search_whole(file, see, goes_on);
        }
        let mut buffer = Vec::with_capacity(limits::GREP_PIECE_BYTES * 2);
        let (mut number, mut is_first) = (1, true);
        loop {
            let before = buffer.len();
            let read = (&mut *file).take(limits::GREP_PIECE_BYTES as u64).read_to_end(&mut buffer)?;
            if std::mem::take(&mut is_first) && buffer.contains(&0) {
                return Ok(Searched::Binary);
            }
            let at_end = read < limits::GREP_PIECE_BYTES;
            let whole = buffer[before..].iter().rposition(|&b| b == b'\n').map(|at| before + at + 1);
            // A line that is longer than a piece is taken as it comes.
            let taken = match whole {
                _ if at_end => buffer.len(),
                Some(end) => end,
                None if buffer.len() >= limits::GREP_PIECE_BYTES => buffer.len(),
                None => 0,
            };
            if self.piece(&buffer[..taken], &mut number, see).is_break() || at_end || !goes_on() {
                return Ok(Searched::Done);
            }
            buffer.drain(..taken);
        }
    }

    fn piece(
        &self,
        piece: &[u8],
        number: &mut u64,
        see: &mut impl FnMut(u64, &[u8], bool) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let may_match = !self.skips_pieces || self.regex.is_match(piece);
        for line in piece.split_inclusive(|&b| b == b'\n') {
            let (text, ends) = without_end(line);
            see(*number, text, may_match && self.regex.is_match(text))?;
            *number += u64::from(ends);
        }
        ControlFlow::Continue(())
    }

    fn search_whole(
        &self,
        file: &mut File,
        see: &mut impl FnMut(u64, &[u8], bool) -> ControlFlow<()>,
        goes_on: &mut impl FnMut() -> bool,
    ) -> io::Result<Searched> {
        let mut content = Vec::new();
        file.take(limits::GREP_MULTILINE_BYTES as u64 + 1).read_to_end(&mut content)?;
        if content[..content.len().min(limits::GREP_PIECE_BYTES)].contains(&0) {
            return Ok(Searched::Binary);
        }
        if content.len() > limits::GREP_MULTILINE_BYTES {
            return Ok(Searched::Large);
        }
        let mut found = self.regex.find_iter(&content);
        let mut next = found.next();
        let mut start = 0;
        for (number, line) in (1..).zip(content.split_inclusive(|&b| b == b'\n')) {
            let end = start + line.len();
            // Matches that end before this line are behind us; an empty one at its start belongs to it.
            while next.is_some_and(|next| next.end() <= start && next.start() < start) {
                if !goes_on() {
                    return Ok(Searched::Done);
                }
                next = found.next();
            }
            let is_match = next.is_some_and(|next| next.start() < end);
            if see(number, without_end(line).0, is_match).is_break() {
                return Ok(Searched::Done);
            }
            // Those within this line decide nothing more.
            while next.is_some_and(|next| next.end() <= end && next.start() < end) {
                if !goes_on() {
                    return Ok(Searched::Done);
                }
                next = found.next();
            }
            start = end;
        }
        Ok(Searched::Done)
    }
}

fn without_end(line: &[u8]) -> (&[u8], bool) {
    match line.strip_suffix(b"\n") {
        Some(line) => (line.strip_suffix(b"\r").unwrap_or(line), true),
        None => (line, false),
    }
}

/// Lines around the matches of one file.
#[derive(Debug)]
pub(super) struct Around {
    before: VecDeque<GrepLine>,
    most_before: usize,
    after: u32,
    left_after: u32,
}

impl Around {
    pub(super) fn new(before: u32, after: u32) -> Self {
        let most_before = before.min(limits::GREP_CONTEXT) as usize;
        Self { before: VecDeque::new(), most_before, after: after.min(limits::GREP_CONTEXT), left_after: 0 }
    }

    /// The lines to show for a line that matches: those kept from before it, and itself.
    pub(super) fn matched(&mut self, number: u64, text: &[u8]) -> impl Iterator<Item = GrepLine> + '_ {
        self.left_after = self.after;
        self.before.drain(..).chain(std::iter::once(line(number, text, true)))
    }

    /// The line, if it stands after a match; else it is kept for one that may follow.
    pub(super) fn other(&mut self, number: u64, text: &[u8]) -> Option<GrepLine> {
        if self.left_after > 0 {
            self.left_after -= 1;
            return Some(line(number, text, false));
        }
        if self.most_before > 0 {
            if self.before.len() == self.most_before {
                self.before.pop_front();
            }
            self.before.push_back(line(number, text, false));
        }
        None
    }
}

fn line(number: u64, text: &[u8], is_match: bool) -> GrepLine {
    let is_cut = text.len() > limits::GREP_LINE_BYTES;
    let shown = String::from_utf8_lossy(&text[..text.len().min(limits::GREP_LINE_BYTES)]);
    GrepLine { number, text: shown.into_owned(), is_match, is_cut }
}
