//! Finds lines in output that comes piece by piece: by a pattern, by number, or both. Time is linear in the output, memory is bounded. Pure.
//!
//! A line longer than [`LINE_BYTES`] is searched and shown by its beginning. Text is cleaned of control sequences first, as what a
//! model is shown; offsets are those of the raw bytes.

use std::collections::VecDeque;

use regex::{Regex, RegexBuilder};

use crate::clean;

/// Bytes of a line that are looked at.
pub const LINE_BYTES: usize = 16 * 1024;
/// Characters of a line that are shown.
pub const LINE_CHARS: usize = 2_000;
/// Longest pattern, in characters.
pub const PATTERN_CHARS: usize = 1_000;
/// Most lines around a match, on each side.
pub const CONTEXT_LINES: usize = 50;
/// Most memory of a compiled pattern, in bytes.
const PATTERN_BYTES: usize = 1 << 20;

/// What to find.
#[derive(Debug, Clone)]
pub struct Query {
    /// Lines that match this; all when there is none.
    pub pattern: Option<Regex>,
    /// Lines around each match.
    pub context: usize,
    /// First line, counted from 1.
    pub first_line: u64,
    /// Last line.
    pub last_line: u64,
    /// Most lines to give.
    pub max_lines: usize,
    /// Most bytes of text to give.
    pub max_bytes: usize,
}

/// Compiles a pattern of linear-time syntax.
///
/// # Errors
/// What is wrong with it, in words.
pub fn pattern(text: &str, ignore_case: bool) -> Result<Regex, String> {
    if text.is_empty() || text.chars().count() > PATTERN_CHARS {
        return Err(format!("must have 1 to {PATTERN_CHARS} characters"));
    }
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).case_insensitive(ignore_case);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "is too large a regular expression".to_owned(),
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("is not a regular expression: {last}")
        }
    })
}

/// A place in a stream: the start of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Offset of its first byte.
    pub offset: u64,
    /// Its number, counted from 1.
    pub line: u64,
}

impl Position {
    /// The first line.
    pub const START: Self = Self { offset: 0, line: 1 };
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Where it is.
    pub position: Position,
    /// Without its line end and control sequences.
    pub text: String,
    /// It is what was asked for, and not beside it.
    pub is_match: bool,
    /// Only its beginning is here.
    pub is_cut: bool,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// In order.
    pub lines: Vec<Line>,
    /// Where to go on; the line there has not been given.
    pub next: Position,
    /// The most that was asked for has been given.
    pub full: bool,
}

/// A search under way.
#[derive(Debug)]
pub struct Search {
    query: Query,
    lines: Vec<Line>,
    bytes: usize,
    before: VecDeque<Line>,
    after_left: usize,
    /// The line that is being gathered.
    current: Position,
    gathered: Vec<u8>,
    is_cut: bool,
    /// Offset of the next byte that is expected.
    expected: u64,
    stopped_at: Option<Position>,
}

impl Search {
    /// A search from the start of a line.
    #[must_use]
    pub fn new(query: Query, from: Position) -> Self {
        Self {
            query,
            lines: Vec::new(),
            bytes: 0,
            before: VecDeque::new(),
            after_left: 0,
            current: from,
            gathered: Vec::new(),
            is_cut: false,
            expected: from.offset,
            stopped_at: None,
        }
    }

    /// Takes the next bytes of the stream. An offset behind what was expected means that bytes in between are gone: what they
    /// cut off ends there, as if it were a line.
    pub fn feed(&mut self, offset: u64, bytes: &[u8]) {
        if offset > self.expected && !self.is_done() {
            if !self.gathered.is_empty() {
                self.end_line(offset);
            }
            self.current.offset = offset;
        }
        self.expected = offset + bytes.len() as u64;
        let mut at = offset;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.is_done() {
                return;
            }
            at += piece.len() as u64;
            let room = LINE_BYTES - self.gathered.len();
            self.is_cut |= piece.len() > room;
            self.gathered.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.end_line(at);
            }
        }
    }

    /// Whether nothing more can be found.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stopped_at.is_some() || self.current.line > self.query.last_line
    }

    /// What was found. `at_end`: the stream has no more bytes, so that a last line without line end is a line.
    #[must_use]
    pub fn finish(mut self, at_end: bool) -> Found {
        if at_end && !self.is_done() && !self.gathered.is_empty() {
            self.end_line(self.expected);
        }
        Found {
            full: self.stopped_at.is_some(),
            next: self.stopped_at.unwrap_or(self.current),
            lines: self.lines,
        }
    }

    /// The gathered line is whole; the next one starts at this offset.
    fn end_line(&mut self, next_offset: u64) {
        let position = self.current;
        let gathered = std::mem::take(&mut self.gathered);
        let is_cut = std::mem::take(&mut self.is_cut);
        self.current = Position { offset: next_offset, line: position.line + 1 };
        if position.line < self.query.first_line {
            return;
        }
        let text = clean::plain(String::from_utf8_lossy(&gathered).trim_end_matches(['\n', '\r']));
        let is_match = self.query.pattern.as_ref().is_none_or(|pattern| pattern.is_match(&text));
        let shown: String = text.chars().take(LINE_CHARS).collect();
        let is_cut = is_cut || shown.len() < text.len();
        let line = Line { position, text: shown, is_match, is_cut };
        if is_match {
            let mut before = std::mem::take(&mut self.before);
            before.push_back(line);
            let first = before.front().map_or(position, |line| line.position);
            if !before.into_iter().all(|line| self.give(line)) {
                self.stopped_at.get_or_insert(first);
            }
            self.after_left = self.query.context;
        } else if self.after_left > 0 {
            self.after_left -= 1;
            if !self.give(line) {
                self.stopped_at = Some(position);
            }
        } else if self.query.context > 0 {
            if self.before.len() == self.query.context {
                self.before.pop_front();
            }
            self.before.push_back(line);
        }
    }

    /// Gives a line, unless that would be too much. The first is always given, so that whoever asks on comes to an end.
    fn give(&mut self, line: Line) -> bool {
        let bytes = self.bytes + line.text.len();
        let full = self.lines.len() >= self.query.max_lines || bytes > self.query.max_bytes;
        if full && !self.lines.is_empty() {
            self.stopped_at.get_or_insert(line.position);
            return false;
        }
        self.bytes = bytes;
        self.lines.push(line);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn query(pattern_text: Option<&str>, context: usize) -> Query {
        Query {
            pattern: pattern_text.map(|text| pattern(text, false).expect("a pattern")),
            context,
            first_line: 1,
            last_line: u64::MAX,
            max_lines: 1_000,
            max_bytes: 1 << 20,
        }
    }

    fn numbers(found: &Found) -> Vec<(u64, bool)> {
        found.lines.iter().map(|line| (line.position.line, line.is_match)).collect()
    }

    fn run(query: Query, text: &str) -> Found {
        let mut search = Search::new(query, Position::START);
        search.feed(0, text.as_bytes());
        search.finish(true)
    }

    #[test]
    fn matches_come_with_their_neighbours_once() {
        let found = run(query(Some("x"), 1), "a\nb\nx1\nc\nd\ne\nx2\nx3\nf");
        let expected = [(2, false), (3, true), (4, false), (6, false), (7, true), (8, true), (9, false)];
        assert_eq!(numbers(&found), expected);
        assert_eq!(found.lines[1].position.offset, 4);
    }

    #[test]
    fn lines_are_taken_by_number() {
        let range = Query { first_line: 2, last_line: 3, ..query(None, 0) };
        let found = run(range, "a\nb\nc\nd\n");
        assert_eq!(numbers(&found), [(2, true), (3, true)]);
        assert_eq!((found.next, found.full), (Position { offset: 6, line: 4 }, false));
    }

    #[test]
    fn a_line_under_way_waits_unless_the_stream_is_over() {
        let mut search = Search::new(query(None, 0), Position::START);
        search.feed(0, b"a\nb");
        let found = search.finish(false);
        assert_eq!(numbers(&found), [(1, true)]);
        assert_eq!(found.next, Position { offset: 2, line: 2 });
    }

    #[test]
    fn a_line_without_end_costs_no_memory_and_is_cut() {
        let mut search = Search::new(query(Some("^y"), 0), Position::START);
        let piece = vec![b'y'; 1 << 20];
        for index in 0..50_u64 {
            search.feed(index << 20, &piece);
            assert!(search.gathered.len() <= LINE_BYTES);
        }
        let found = search.finish(true);
        assert!(found.lines[0].is_cut && found.lines[0].text.chars().count() == LINE_CHARS);
    }

    #[test]
    fn what_was_dropped_ends_a_line() {
        let mut search = Search::new(query(None, 0), Position::START);
        search.feed(0, b"a\nbe");
        search.feed(100, b"gin\nc\n");
        let found = search.finish(true);
        let texts: Vec<_> =
            found.lines.iter().map(|line| (line.text.as_str(), line.position.offset)).collect();
        assert_eq!(texts, [("a", 0), ("be", 2), ("gin", 100), ("c", 104)]);
    }

    #[test]
    fn control_sequences_are_neither_matched_nor_shown() {
        let found = run(query(Some("^red$"), 0), "\u{1b}[31mred\u{1b}[0m\r\n");
        assert_eq!(found.lines[0].text, "red");
    }

    #[test]
    fn patterns_that_cannot_be_used_are_told() {
        assert!(pattern("(", false).expect_err("unclosed").contains("unclosed"));
        assert!(pattern("(?:a{1000}){1000}", false).expect_err("too big").contains("too large"));
        assert!(pattern("", false).is_err());
    }

    proptest! {
        #[test]
        fn going_on_gives_every_match_once(
            text in "[abx\\n]{0,200}", cut in 0usize..200, context in 0usize..3, max_lines in 1usize..6
        ) {
            let whole = run(query(Some("x"), context), &text);
            let expected: Vec<u64> =
                whole.lines.iter().filter(|line| line.is_match).map(|line| line.position.line).collect();
            let (mut found, mut from) = (Vec::new(), Position::START);
            for _ in 0..1_000 {
                let limited = Query { max_lines: max_lines + 2 * context, ..query(Some("x"), context) };
                let mut search = Search::new(limited, from);
                let rest = &text.as_bytes()[from.offset as usize..];
                let (first, last) = rest.split_at(cut.min(rest.len()));
                search.feed(from.offset, first);
                search.feed(from.offset + first.len() as u64, last);
                let part = search.finish(true);
                for line in part.lines.iter().filter(|line| line.is_match) {
                    if !found.contains(&line.position.line) {
                        found.push(line.position.line);
                    }
                }
                if !part.full {
                    break;
                }
                prop_assert!(part.next.line > from.line || part.next == from);
                from = part.next;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
