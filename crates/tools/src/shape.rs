//! Shapes output for a model: a budget in bytes, head and tail kept, stderr kept, terminal noise gone. Pure.
//!
//! The full output stays in the call's log, as raw bytes; nothing here can lose it.

use domain::CallId;
use domain::event::StreamName;

use crate::clean;
use crate::port::Captured;

/// Output as a model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shaped {
    /// The text: within the budget, but for a note of at most [`NOTE_BYTES`] for each stream and the label of stderr.
    pub(crate) text: String,
    /// Bytes of `text` that are output.
    pub(crate) shown_bytes: u64,
    /// Something was left out.
    pub(crate) truncated: bool,
}

/// Longest note about what was left out, in bytes.
#[cfg(test)]
pub(crate) const NOTE_BYTES: usize = 200;

/// Line before stderr.
pub(crate) const STDERR_LABEL: &str = "[stderr]\n";

/// Where the rest can be read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rest {
    /// In the log of a call.
    Call(CallId),
    /// Not told here.
    Elsewhere,
}

/// Both streams of a command, shaped for a model.
pub(crate) fn command(stdout: &Captured, stderr: &Captured, budget_bytes: u64, rest: Rest) -> Shaped {
    let budget = usize::try_from(budget_bytes).unwrap_or(usize::MAX);
    let (stdout, stderr) = (Text::cleaned(stdout), Text::cleaned(stderr));
    // Errors are worth more than output: stderr gets a third when both are too long.
    let for_stderr = stderr.need().min((budget / 3).max(budget.saturating_sub(stdout.need())));
    let stderr = stderr.fit(for_stderr, StreamName::Stderr, rest);
    let stdout = stdout.fit(budget - for_stderr, StreamName::Stdout, rest);
    let shown_bytes = stdout.shown_bytes + stderr.shown_bytes;
    let truncated = stdout.truncated || stderr.truncated;
    let mut text = stdout.text;
    if !stderr.text.trim().is_empty() {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(STDERR_LABEL);
        text.push_str(&stderr.text);
    }
    text.truncate(text.trim_end_matches('\n').len());
    Shaped { text, shown_bytes, truncated }
}

/// What a call that still runs has written so far, for a model. Of each stream the end is enough.
#[must_use]
pub fn so_far(stdout: &Captured, stderr: &Captured, budget_bytes: u64, call_id: CallId) -> String {
    command(stdout, stderr, budget_bytes, Rest::Call(call_id)).text
}

/// One stream as text for programs: nothing is cleaned, but what is not UTF-8 (or NUL, which the database refuses) is replaced.
pub(crate) fn raw(captured: &Captured, budget_bytes: u64, stream: StreamName, rest: Rest) -> Shaped {
    Text::raw(captured).fit(usize::try_from(budget_bytes).unwrap_or(usize::MAX), stream, rest)
}

/// The same without escape sequences and control characters of terminals.
pub(crate) fn stripped(captured: &Captured, budget_bytes: u64, stream: StreamName, rest: Rest) -> Shaped {
    let text = Text::stripped(captured);
    text.fit(usize::try_from(budget_bytes).unwrap_or(usize::MAX), stream, rest)
}

/// Any text, shortened to a budget with head and tail kept.
pub(crate) fn text(text: &str, budget_bytes: u64) -> Shaped {
    let whole = Text { head: text.to_owned(), tail: String::new(), gap_bytes: 0 };
    whole.fit(usize::try_from(budget_bytes).unwrap_or(usize::MAX), StreamName::Stdout, Rest::Elsewhere)
}

/// A stream as text: all of it in `head`, or head and tail with a gap.
struct Text {
    head: String,
    tail: String,
    gap_bytes: u64,
}

impl Text {
    fn cleaned(captured: &Captured) -> Self {
        Self::of(captured, clean::screen)
    }

    fn raw(captured: &Captured) -> Self {
        Self::of(captured, |text| text.replace('\0', "\u{fffd}"))
    }

    fn stripped(captured: &Captured) -> Self {
        let mut text = Self::of(captured, clean::stripped);
        // What follows the gap may begin inside a sequence, whose rest would be taken for text.
        if let Some(newline) = text.tail.find('\n').filter(|at| *at < 1_024) {
            text.gap_bytes += newline as u64 + 1;
            text.tail.drain(..=newline);
        }
        text
    }

    fn of(captured: &Captured, shape: impl Fn(&str) -> String) -> Self {
        let kept = captured.head.len() as u64 + captured.tail.len() as u64;
        let gap_bytes = captured.total_bytes.saturating_sub(kept);
        if gap_bytes == 0 {
            let whole = [captured.head.as_slice(), captured.tail.as_slice()].concat();
            return Self { head: shape(&String::from_utf8_lossy(&whole)), tail: String::new(), gap_bytes };
        }
        let (head, head_cut) = clean::without_cut_end(&captured.head);
        let (tail, tail_cut) = clean::without_cut_start(&captured.tail);
        Self {
            head: shape(&String::from_utf8_lossy(head)),
            tail: shape(&String::from_utf8_lossy(tail)),
            gap_bytes: gap_bytes + head_cut + tail_cut,
        }
    }

    /// Bytes that it would like to have.
    fn need(&self) -> usize {
        if self.gap_bytes == 0 { self.head.len() } else { usize::MAX }
    }

    fn fit(self, budget: usize, stream: StreamName, rest: Rest) -> Shaped {
        if self.gap_bytes == 0 && self.head.len() <= budget {
            return Shaped { shown_bytes: self.head.len() as u64, text: self.head, truncated: false };
        }
        let (head, tail) = if self.gap_bytes == 0 {
            let (head_budget, tail_budget) = split(budget, usize::MAX, usize::MAX);
            (head_of(&self.head, head_budget), tail_of(&self.head, tail_budget))
        } else {
            let (head_budget, tail_budget) = split(budget, self.head.len(), self.tail.len());
            (head_of(&self.head, head_budget), tail_of(&self.tail, tail_budget))
        };
        let shown = head.len() + tail.len();
        let left_out = self.gap_bytes + (self.head.len() + self.tail.len() - shown) as u64;
        let mut text = String::with_capacity(shown + 200);
        text.push_str(head);
        if !head.is_empty() && !head.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&note(left_out, stream, rest));
        text.push_str(tail);
        Shaped { text, shown_bytes: shown as u64, truncated: true }
    }
}

/// Shares a budget: the tail gets more, as errors and summaries come last; what one side does not need goes to the other.
fn split(budget: usize, head_need: usize, tail_need: usize) -> (usize, usize) {
    let head = budget * 2 / 5;
    let tail = budget - head;
    if head_need < head {
        (head_need, (budget - head_need).min(tail_need))
    } else if tail_need < tail {
        ((budget - tail_need).min(head_need), tail_need)
    } else {
        (head, tail)
    }
}

/// At most so many bytes from the start; ends with a line when that costs at most a quarter.
fn head_of(text: &str, budget: usize) -> &str {
    let cut = &text[..text.floor_char_boundary(budget)];
    match cut.rfind('\n') {
        Some(newline) if newline >= cut.len() * 3 / 4 => &cut[..=newline],
        _ => cut,
    }
}

/// At most so many bytes from the end; starts with a line when that costs at most a quarter.
fn tail_of(text: &str, budget: usize) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(budget));
    let cut = &text[start..];
    match cut.find('\n') {
        Some(newline) if newline < cut.len() / 4 => &cut[newline + 1..],
        _ => cut,
    }
}

fn note(left_out: u64, stream: StreamName, rest: Rest) -> String {
    let stream = stream.as_str();
    match rest {
        Rest::Call(id) => format!(
            "[… {left_out} bytes of {stream} left out; read_output finds lines in it (call_id {id}, stream {stream}) …]\n"
        ),
        Rest::Elsewhere => format!("[… {left_out} bytes left out …]\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn whole(bytes: &[u8]) -> Captured {
        Captured { head: bytes.to_vec(), tail: Vec::new(), total_bytes: bytes.len() as u64 }
    }

    fn rest() -> Rest {
        Rest::Call(CallId::from_uuid(Uuid::from_u128(1)))
    }

    #[test]
    fn short_output_is_shown_as_it_is() {
        let shaped = command(&whole(b"one\ntwo\n"), &whole(b""), 1_000, rest());
        assert_eq!(shaped.text, "one\ntwo");
        assert!(!shaped.truncated);
    }

    #[test]
    fn stderr_is_labelled_and_survives_a_flood_of_stdout() {
        let shaped = command(&whole(&b"x\n".repeat(50_000)), &whole(b"it broke\n"), 1_000, rest());
        assert!(shaped.text.ends_with("[stderr]\nit broke"), "{}", shaped.text);
        assert!(
            shaped.text.contains("bytes of stdout left out; read_output finds lines in it (call_id call_")
        );
        assert!(shaped.truncated);
    }

    #[test]
    fn the_gap_of_the_port_is_counted() {
        let captured =
            Captured { head: b"begin\n".to_vec(), tail: b"end\n".to_vec(), total_bytes: 1_000_010 };
        let shaped = command(&captured, &whole(b""), 1_000, rest());
        assert!(shaped.text.starts_with("begin\n[… 1000000 bytes of stdout"), "{}", shaped.text);
        assert!(shaped.text.ends_with("end"));
    }

    #[test]
    fn characters_cut_at_the_gap_are_left_out_whole() {
        let euro = "€".as_bytes();
        let captured = Captured { head: euro[..2].to_vec(), tail: euro[1..].to_vec(), total_bytes: 100 };
        assert!(!command(&captured, &whole(b""), 50, rest()).text.contains('\u{fffd}'));
    }

    fn captured() -> impl Strategy<Value = Captured> {
        let bytes = || {
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                "[a-zé€\\n\\r\u{1b}\\[0-9m]{0,300}".prop_map(String::into_bytes),
            ]
        };
        (bytes(), bytes(), 0u64..5).prop_map(|(head, tail, gap)| {
            let total_bytes = (head.len() + tail.len()) as u64 + gap * 1_000;
            Captured { head, tail, total_bytes }
        })
    }

    proptest! {
        #[test]
        fn never_over_budget_but_for_the_notes(out in captured(), err in captured(), budget in 0u64..400) {
            let shaped = command(&out, &err, budget, rest());
            prop_assert!(shaped.shown_bytes <= budget);
            prop_assert!(shaped.text.len() as u64 <= budget + (2 * NOTE_BYTES + STDERR_LABEL.len()) as u64);
        }

        #[test]
        fn the_tail_is_kept(lines in prop::collection::vec("[a-zé]{0,20}", 1..200), budget in 120u64..2_000) {
            let text = lines.join("\n") + "\nthe last line";
            let shaped = command(&whole(text.as_bytes()), &whole(b""), budget, rest());
            prop_assert!(shaped.text.ends_with("the last line"));
        }

        #[test]
        fn valid_text_stays_valid(text in "[a-zé€𝄞\\n]{0,400}", budget in 0u64..300) {
            let shaped = command(&whole(text.as_bytes()), &whole(b""), budget, rest());
            prop_assert!(!shaped.text.contains(char::REPLACEMENT_CHARACTER));
        }
    }
}
