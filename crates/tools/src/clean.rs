//! Makes plain text of what a program wrote for a terminal: escape sequences, progress bars and control characters go. Pure, linear.

/// Longest OSC, DCS, SOS, PM or APC string that is taken for one. An unterminated one must not swallow all that follows.
const STRING_CHARS: usize = 16 * 1024;
/// Bytes before a place in a stream that say whether it lies inside a sequence.
pub(crate) const SEQUENCE_BYTES: u64 = 4 * STRING_CHARS as u64;

/// What a screen would show: as [`plain`], and a line that is written over (`\r`) keeps only its last text.
pub(crate) fn screen(text: &str) -> String {
    Cleaner::new(CarriageReturn::Overwrites).run(text)
}

/// Without escape sequences and control characters; line ends become `\n`.
pub(crate) fn plain(text: &str) -> String {
    Cleaner::new(CarriageReturn::Dropped).run(text)
}

/// Without escape sequences and control characters but tabs, line ends and returns, which programs may want.
pub(crate) fn stripped(text: &str) -> String {
    Cleaner::new(CarriageReturn::Kept).run(text)
}

/// [`stripped`] for bytes that come in pieces: sequences and characters that are cut between two pieces are one all the same.
pub(crate) struct Stripper {
    cleaner: Cleaner,
    state: State,
    /// The beginning of a character.
    cut: Vec<u8>,
}

impl Stripper {
    pub(crate) fn new() -> Self {
        Self { cleaner: Cleaner::new(CarriageReturn::Kept), state: State::Text, cut: Vec::new() }
    }

    /// The text that these bytes bring. What may be a sequence, or a character, that has not ended waits for the next piece.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.cut);
        all.extend_from_slice(bytes);
        let (whole, _) = without_cut_end(&all);
        self.cut = all[whole.len()..].to_vec();
        for c in String::from_utf8_lossy(whole).chars() {
            self.state = self.cleaner.step(std::mem::replace(&mut self.state, State::Text), c);
        }
        std::mem::take(&mut self.cleaner.out)
    }

    /// What is left when nothing more comes.
    pub(crate) fn finish(mut self) -> String {
        if let State::String { held, .. } = self.state {
            self.cleaner.give_back(&held);
        }
        self.cleaner.out.push_str(&String::from_utf8_lossy(&self.cut));
        self.cleaner.out
    }
}

/// A name on one line: control characters are written as escapes.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
        line
    })
}

/// Leaves out a character that is cut at the end; returns the bytes left out too.
pub(crate) fn without_cut_end(bytes: &[u8]) -> (&[u8], u64) {
    let longest = bytes.len().min(3);
    for back in 1..=longest {
        let at = bytes.len() - back;
        let needed = match bytes[at] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => break,
        };
        if needed > back {
            return (&bytes[..at], back as u64);
        }
        break;
    }
    (bytes, 0)
}

/// Leaves out the rest of a character that is cut at the start; returns the bytes left out too.
pub(crate) fn without_cut_start(bytes: &[u8]) -> (&[u8], u64) {
    let rest = bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xbf)).count();
    (&bytes[rest..], rest as u64)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CarriageReturn {
    Overwrites,
    Dropped,
    Kept,
}

enum State {
    Text,
    /// After ESC.
    Escape,
    /// Inside ESC [ …
    Control,
    /// Inside a string that ends with BEL or ESC \; what it held so far.
    String {
        held: String,
        chars: usize,
        escaped: bool,
    },
}

struct Cleaner {
    carriage_return: CarriageReturn,
    out: String,
    /// Start of the current line in `out`.
    line: usize,
    /// A `\r` was seen and nothing has been written since.
    returned: bool,
}

impl Cleaner {
    fn new(carriage_return: CarriageReturn) -> Self {
        Self { carriage_return, out: String::new(), line: 0, returned: false }
    }

    fn run(mut self, text: &str) -> String {
        self.out.reserve(text.len());
        let mut state = State::Text;
        for c in text.chars() {
            state = self.step(state, c);
        }
        if let State::String { held, .. } = state {
            self.give_back(&held);
        }
        self.out
    }

    fn step(&mut self, state: State, c: char) -> State {
        match state {
            State::Text => self.text(c),
            State::Escape => match c {
                '[' => State::Control,
                ']' | 'P' | 'X' | '^' | '_' => {
                    State::String { held: String::new(), chars: 0, escaped: false }
                }
                // Intermediate bytes, as in the choice of a character set: the final one follows.
                ' '..='/' => State::Escape,
                '\u{1b}' => State::Escape,
                '\n' | '\r' => self.text(c),
                _ => State::Text,
            },
            State::Control => match c {
                ' '..='?' => State::Control,
                '\u{1b}' => State::Escape,
                '@'..='~' => State::Text,
                // Not a sequence after all.
                _ => self.text(c),
            },
            State::String { held, chars, escaped } => self.string(held, chars, escaped, c),
        }
    }

    fn string(&mut self, mut held: String, chars: usize, escaped: bool, c: char) -> State {
        if matches!(c, '\u{7}' | '\u{9c}') || (escaped && c == '\\') {
            return State::Text;
        }
        held.push(c);
        if chars + 1 >= STRING_CHARS {
            self.give_back(&held);
            return State::Text;
        }
        State::String { held, chars: chars + 1, escaped: c == '\u{1b}' }
    }

    /// What looked like the start of a string and never ended is shown, but not read as sequences again.
    fn give_back(&mut self, held: &str) {
        for c in held.chars().filter(|c| *c != '\u{1b}') {
            self.text(c);
        }
    }

    fn text(&mut self, c: char) -> State {
        match c {
            '\u{1b}' => return State::Escape,
            '\u{9b}' => return State::Control,
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => {
                return State::String { held: String::new(), chars: 0, escaped: false };
            }
            '\n' => {
                self.out.push('\n');
                self.line = self.out.len();
                self.returned = false;
            }
            '\r' => match self.carriage_return {
                CarriageReturn::Overwrites => self.returned = true,
                CarriageReturn::Dropped => {}
                CarriageReturn::Kept => self.out.push('\r'),
            },
            '\u{8}' => {
                if self.carriage_return == CarriageReturn::Overwrites && self.out.len() > self.line {
                    self.out.pop();
                }
            }
            '\t' => self.write('\t'),
            c if c.is_control() => {}
            c => self.write(c),
        }
        State::Text
    }

    fn write(&mut self, c: char) {
        if self.returned {
            self.out.truncate(self.line);
            self.returned = false;
        }
        self.out.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_screen_is_made_plain() {
        for (written, shown) in [
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}Pq#0;2;0\u{1b}\\after", "after"),
            ("\u{9b}31mred", "red"),
            ("\u{1b}(Bplain", "plain"),
            ("10%\r50%\r100%\ndone", "100%\ndone"),
            ("windows\r\nends\r\n", "windows\nends\n"),
            ("last\r", "last"),
            ("bo\u{8}\u{8}ld", "ld"),
            ("bell\u{7} nul\0 del\u{7f}", "bell nul del"),
            ("tab\tstays", "tab\tstays"),
            ("\u{1b}]52;c;never closed\nnext line", "52;c;never closed\nnext line"),
            ("\u{1b}[31\nbroken", "\nbroken"),
        ] {
            assert_eq!(screen(written), shown, "{written:?}");
        }
    }

    #[test]
    fn a_files_lines_are_not_folded() {
        assert_eq!(plain("a\r\nb\rc"), "a\nbc");
    }

    #[test]
    fn what_is_stripped_keeps_its_returns() {
        assert_eq!(stripped("\u{1b}[2K10%\r20%\r\n\u{8}\ttab\u{7}"), "10%\r20%\r\n\ttab");
    }

    #[test]
    fn names_stay_on_one_line() {
        assert_eq!(one_line("a\nb\u{1b}[1m"), "a\\nb\\u{1b}[1m");
    }

    proptest! {
        #[test]
        fn nothing_that_controls_a_terminal_is_left(text in "[\u{0}-\u{a0}a-c;\\[\\]€]{0,200}") {
            for cleaned in [screen(&text), plain(&text)] {
                prop_assert!(cleaned.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'));
                prop_assert!(cleaned.len() <= text.len());
            }
        }

        #[test]
        fn where_a_stream_is_cut_does_not_matter(text in "[\u{0}-\u{a0}a-c;\\[\\]P€]{0,60}", cuts in prop::collection::vec(0usize..180, 0..6)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut stripper = Stripper::new();
            let mut came: String = cuts.windows(2).map(|cut| stripper.push(&bytes[cut[0]..cut[1]])).collect();
            came.push_str(&stripper.finish());
            prop_assert_eq!(came, stripped(&text));
        }

        #[test]
        fn cut_characters_are_found(text in "[aé€𝄞]{0,20}", from in 0usize..40, to in 0usize..40) {
            let bytes = text.as_bytes();
            let (from, to) = (from.min(bytes.len()), to.min(bytes.len()));
            let (from, to) = (from.min(to), from.max(to));
            let (rest, _) = without_cut_start(&bytes[from..to]);
            let (rest, _) = without_cut_end(rest);
            prop_assert!(std::str::from_utf8(rest).is_ok());
        }
    }
}
