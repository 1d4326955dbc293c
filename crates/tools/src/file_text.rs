//! Bytes of a file as text for a model: what is text at all, and lines within a budget.

use domain::Code;

use crate::{ToolError, clean};

/// Width of a line's number and its tab.
const NUMBER_BYTES: usize = 7;

/// The bytes as text.
///
/// # Errors
/// When they are none.
pub(crate) fn text<'a>(tool: &str, shown_path: &str, bytes: &'a [u8]) -> Result<&'a str, ToolError> {
    let refused = |what: &str| {
        ToolError::new(Code::BinaryFile, format!("{tool}: `{}` is {what}", clean::one_line(shown_path)))
            .hint("Use bash (file, xxd, iconv, strings, python3) to look into it.")
    };
    // A text may begin with what looks like a magic number: the number only names what is no text.
    let kind = || kind_of(bytes).map(|kind| format!("{kind}, not text"));
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) => Err(refused(&kind().unwrap_or_else(|| "not text: it has NUL bytes".to_owned()))),
        Err(error) => {
            let at = error.valid_up_to();
            Err(refused(&kind().unwrap_or_else(|| format!("not UTF-8 text (byte {at} is not)"))))
        }
    }
}

fn kind_of(bytes: &[u8]) -> Option<&'static str> {
    const KINDS: &[(&[u8], &str)] = &[
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"GIF8", "a GIF image"),
        (b"%PDF-", "a PDF document"),
        (b"PK\x03\x04", "a zip archive (or an office document)"),
        (b"\x1f\x8b", "gzip data"),
        (b"\x7fELF", "an ELF executable"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\xff\xfe", "UTF-16 text"),
        (b"\xfe\xff", "UTF-16 text"),
    ];
    KINDS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, kind)| *kind)
}

/// Lines taken so far, within a budget.
pub(crate) struct Lines {
    pub(crate) content: String,
    pub(crate) lines: u64,
    /// The last line is not whole.
    pub(crate) cut: bool,
    bytes_left: usize,
    chars_left: usize,
}

impl Lines {
    pub(crate) fn new(budget: usize, max_chars: Option<u64>) -> Self {
        let chars_left = max_chars.and_then(|chars| usize::try_from(chars).ok()).unwrap_or(usize::MAX);
        Self { content: String::new(), lines: 0, cut: false, bytes_left: budget, chars_left }
    }

    /// Takes a line if it fits. The first line is cut rather than refused, so that there is always something.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        let (bytes, chars) = (line.len() + NUMBER_BYTES, line.chars().count());
        if bytes <= self.bytes_left && chars <= self.chars_left {
            self.content.push_str(line);
            self.lines += 1;
            self.bytes_left -= bytes;
            self.chars_left -= chars;
            return true;
        }
        if self.lines == 0 {
            let by_chars = line.char_indices().nth(self.chars_left).map_or(line.len(), |(at, _)| at);
            let by_bytes = line.floor_char_boundary(self.bytes_left.saturating_sub(NUMBER_BYTES));
            self.content.push_str(&line[..by_chars.min(by_bytes)]);
            self.lines = 1;
            self.cut = true;
        }
        false
    }

    /// The lines as `cat -n` shows them, without what would control a terminal.
    pub(crate) fn numbered(&self, first: u64) -> String {
        let mut text = String::with_capacity(self.content.len() + 8 * self.content.len() / 40);
        for (number, line) in (first..).zip(self.content.split_inclusive('\n')) {
            if !text.is_empty() {
                text.push('\n');
            }
            let line = clean::plain(line.strip_suffix('\n').unwrap_or(line));
            text.push_str(&format!("{number:>6}\t{line}"));
        }
        text
    }
}
