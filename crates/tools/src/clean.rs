//! Makes plain text of what a program wrote for a terminal: escape sequences, progress bars and control characters go. Pure, linear.

/// Longest OSC, DCS, SOS, PM or APC string that is taken for one. An unterminated one must not swallow all that follows.
const STRING_CHARS: usize = 16 * 1024;

/// What a screen would show: as [`plain`], and a line that is written over (`\r`) keeps only its last text.
pub(crate) fn screen(text: &str) -> String {
    Cleaner::new(CarriageReturn::Overwrites).run(text)
}

/// Without escape sequences and control characters; line ends become `\n`.
pub(crate) fn plain(text: &str) -> String {
    Cleaner::new(CarriageReturn::Dropped).run(text)
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
            '\r' => self.returned = self.carriage_return == CarriageReturn::Overwrites,
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
