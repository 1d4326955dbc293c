//! Edits of text: exact, literal, all or none. Pure.
//!
//! # Design notes
//!
//! *Line ends.* A model writes `\n`. Where the text to replace is not in the file as given and the file has `\r\n`, it is
//! looked for with those; what replaces it gets the file's own line ends, so that an edit never mixes them. Nothing
//! else is ever changed: no tab, no mark at the start, no newline at the end.

use std::borrow::Cow;

use domain::Code;
use serde_json::json;

use crate::ToolError;

/// Matches that an error lists.
const SHOWN_MATCHES: usize = 20;
/// Matches after which counting stops.
const COUNTED_MATCHES: usize = 1_000;

/// One replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The text to replace; not empty.
    pub(crate) old: String,
    /// What to put in its place, literally.
    pub(crate) new: String,
    /// All occurrences, rather than the only one.
    pub(crate) all: bool,
}

/// Applies edits one after the other. Returns the new text and how many places were replaced.
///
/// # Errors
/// `no_match` and `multiple_matches`, naming the edit and the lines; nothing has happened then.
pub(crate) fn apply(tool: &str, text: &str, edits: &[Edit]) -> Result<(String, u64), ToolError> {
    let mut text = text.to_owned();
    let mut replaced = 0;
    for (index, edit) in edits.iter().enumerate() {
        let which = match edits.len() {
            1 => String::new(),
            count => format!(" of edit {} (of {count}; no edit was made)", index + 1),
        };
        let (next, places) =
            one(&text, edit).map_err(|unfit| unfit.error(tool, &which, index, &text, edit))?;
        text = next;
        replaced += places;
    }
    Ok((text, replaced))
}

/// Why an edit does not fit.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    Missing,
    /// Byte offsets, at most [`COUNTED_MATCHES`].
    Several(Vec<usize>),
}

fn one(text: &str, edit: &Edit) -> Result<(String, u64), Unfit> {
    let has_crlf = text.contains("\r\n");
    let mut old = Cow::Borrowed(edit.old.as_str());
    if has_crlf && !text.contains(old.as_ref()) {
        old = with_crlf(&edit.old);
    }
    let new = if only_crlf(text) || matches!(old, Cow::Owned(_)) {
        with_crlf(&edit.new)
    } else {
        Cow::Borrowed(edit.new.as_str())
    };
    if edit.all {
        let places = text.matches(old.as_ref()).count() as u64;
        return if places == 0 {
            Err(Unfit::Missing)
        } else {
            Ok((text.replace(old.as_ref(), &new), places))
        };
    }
    match occurrences(text, &old).as_slice() {
        [] => Err(Unfit::Missing),
        [at] => Ok(([&text[..*at], &new, &text[at + old.len()..]].concat(), 1)),
        several => Err(Unfit::Several(several.to_vec())),
    }
}

/// Where `old` begins in `text`. Places that overlap count as well: which of them is meant is just as uncertain.
fn occurrences(text: &str, old: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(old)) {
        found.push(from + at);
        if found.len() == COUNTED_MATCHES {
            break;
        }
        let step = old.chars().next().map_or(1, char::len_utf8);
        from += at + step;
    }
    found
}

/// With `\r\n` for every `\n` that stands alone.
fn with_crlf(text: &str) -> Cow<'_, str> {
    if !text.contains('\n') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("\r\n", "\n").replace('\n', "\r\n"))
}

/// Every line ends in `\r\n`, and there is one.
fn only_crlf(text: &str) -> bool {
    let ends = text.matches('\n').count();
    ends > 0 && ends == text.matches("\r\n").count()
}

impl Unfit {
    fn error(&self, tool: &str, which: &str, index: usize, text: &str, edit: &Edit) -> ToolError {
        match self {
            Self::Missing => {
                let mut message = format!("{tool}: old_string{which} is not in the file");
                let mut hint =
                    "Read the file and copy the text exactly, white space and indentation included."
                        .to_owned();
                if let Some(line) = but_for_space(text, &edit.old) {
                    message.push_str(&format!("; line {line} differs from it in white space only"));
                } else if looks_numbered(&edit.old) {
                    hint = "Leave out the line numbers and the tab after them, which read_file shows."
                        .to_owned();
                }
                ToolError::new(Code::NoMatch, message).hint(hint).details(json!({"edit": index}))
            }
            Self::Several(places) => {
                let mut lines: Vec<u64> =
                    places.iter().take(SHOWN_MATCHES).map(|at| line_of(text, *at)).collect();
                lines.dedup();
                let shown: Vec<String> = lines.iter().map(u64::to_string).collect();
                let (count, more) = match places.len() {
                    COUNTED_MATCHES => (format!("{COUNTED_MATCHES} or more"), ", …"),
                    count if count > SHOWN_MATCHES => (count.to_string(), ", …"),
                    count => (count.to_string(), ""),
                };
                let lines_word = if shown.len() == 1 { "line" } else { "lines" };
                let message = format!(
                    "{tool}: old_string{which} appears {count} times ({lines_word} {}{more}); add context or set replace_all",
                    shown.join(", ")
                );
                ToolError::new(Code::MultipleMatches, message)
                    .details(json!({"edit": index, "matches": places.len(), "lines": lines}))
            }
        }
    }
}

/// The number of the line that a byte lies in, counted from 1.
fn line_of(text: &str, at: usize) -> u64 {
    text[..at].matches('\n').count() as u64 + 1
}

/// The first line where `old` would be, were it not for white space at the ends of its lines.
fn but_for_space(text: &str, old: &str) -> Option<u64> {
    let wanted: Vec<&str> = old.trim().lines().map(str::trim).collect();
    let first = *wanted.first().filter(|first| !first.is_empty())?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let found = lines.windows(wanted.len()).position(|window| window[0] == first && window == wanted)?;
    Some(found as u64 + 1)
}

/// Its lines begin with numbers and tabs, as `read_file` shows them.
fn looks_numbered(old: &str) -> bool {
    old.lines().all(|line| {
        let rest = line.trim_start();
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && rest[digits..].starts_with('\t')
    })
}

/// Puts text after a line (0 for the start), with the file's own line ends.
///
/// # Errors
/// The number of lines, when the file has fewer.
pub(crate) fn insert(text: &str, after_line: u64, new: &str) -> Result<String, u64> {
    let new = if only_crlf(text) { with_crlf(new) } else { Cow::Borrowed(new) };
    let end = if only_crlf(text) { "\r\n" } else { "\n" };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let at = usize::try_from(after_line).ok().filter(|at| *at <= lines.len()).ok_or(lines.len() as u64)?;
    let (before, after) = (lines[..at].concat(), lines[at..].concat());
    // What was one line stays one: the new text begins on a line of its own and leaves what follows on its own.
    let opens = if before.is_empty() || before.ends_with('\n') { "" } else { end };
    let closes = if new.ends_with('\n') || (after.is_empty() && !text.ends_with('\n')) { "" } else { end };
    Ok([before.as_str(), opens, &new, closes, &after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edit(old: &str, new: &str) -> Edit {
        Edit { old: old.to_owned(), new: new.to_owned(), all: false }
    }

    fn changed(text: &str, edits: &[Edit]) -> String {
        apply("edit_file", text, edits).expect("fits").0
    }

    #[test]
    fn text_is_replaced_literally() {
        assert_eq!(changed("a $b c", &[edit("$b", "$& $1 \\0")]), "a $& $1 \\0 c");
        assert_eq!(changed("\u{feff}a\tb", &[edit("b", "c")]), "\u{feff}a\tc");
        assert_eq!(changed("a", &[edit("a", "")]), "");
    }

    #[test]
    fn edits_follow_each_other() {
        assert_eq!(changed("one", &[edit("one", "two"), edit("two", "three")]), "three");
        let error = apply("edit_file", "one", &[edit("one", "two"), edit("one", "x")]).expect_err("gone");
        assert_eq!(error.code, Code::NoMatch);
        assert!(error.message.contains("edit 2 (of 2; no edit was made)"), "{}", error.message);
    }

    #[test]
    fn line_ends_stay_those_of_the_file() {
        assert_eq!(changed("a\r\nb\r\nc", &[edit("a\nb", "x\ny")]), "x\r\ny\r\nc");
        assert_eq!(changed("a\r\nb\r\n", &[edit("b", "x\ny")]), "a\r\nx\r\ny\r\n");
        assert_eq!(changed("a\r\nb\nc", &[edit("b", "x\ny")]), "a\r\nx\ny\nc");
        assert_eq!(changed("a\nb", &[edit("b", "x\r\ny")]), "a\nx\r\ny");
    }

    #[test]
    fn what_is_not_unique_is_refused_with_its_lines() {
        let error = apply("edit_file", "x\ny\nx\n\nx", &[edit("x", "z")]).expect_err("three");
        assert_eq!(error.code, Code::MultipleMatches);
        assert_eq!(
            error.message,
            "edit_file: old_string appears 3 times (lines 1, 3, 5); add context or set replace_all"
        );
        let overlapping = apply("edit_file", "aaa", &[edit("aa", "b")]).expect_err("two");
        assert_eq!(overlapping.code, Code::MultipleMatches);
        let all = Edit { all: true, ..edit("x", "z") };
        assert_eq!(apply("edit_file", "x\ny\nx", &[all]).expect("fits"), ("z\ny\nz".to_owned(), 2));
    }

    #[test]
    fn what_is_missing_is_refused_with_a_clue() {
        let near =
            apply("edit_file", "a\n    if x:\n        y\n", &[edit("if x:\n    y", "z")]).expect_err("near");
        assert!(near.message.contains("line 2 differs from it in white space only"), "{}", near.message);
        let numbered =
            apply("edit_file", "a\nb\n", &[edit("     1\ta\n     2\tb", "z")]).expect_err("numbered");
        assert!(numbered.hint.is_some_and(|hint| hint.contains("line numbers")));
    }

    #[test]
    fn lines_are_inserted_as_lines() {
        assert_eq!(insert("a\nb\n", 0, "x"), Ok("x\na\nb\n".to_owned()));
        assert_eq!(insert("a\nb\n", 1, "x\n"), Ok("a\nx\nb\n".to_owned()));
        assert_eq!(insert("a\nb", 2, "x"), Ok("a\nb\nx".to_owned()));
        assert_eq!(insert("a\r\nb\r\n", 2, "x\ny"), Ok("a\r\nb\r\nx\r\ny\r\n".to_owned()));
        assert_eq!(insert("", 0, "x"), Ok("x".to_owned()));
        assert_eq!(insert("a\nb\n", 3, "x"), Err(2));
    }

    proptest! {
        #[test]
        fn only_the_one_place_changes(before in "[a-d\n\r\t]{0,20}", after in "[a-d\n\r\t]{0,20}", new in "[a-d$&\\\\]{0,8}") {
            let text = format!("{before}UNIQUE{after}");
            prop_assert_eq!(changed(&text, &[edit("UNIQUE", &new)]), format!("{before}{new}{after}"));
        }

        #[test]
        fn an_edit_and_its_reverse_restore_the_text(text in "[ab\n]{0,30}", at in 0..30_usize) {
            let at = at.min(text.len());
            let marked = format!("{}<old>{}", &text[..at], &text[at..]);
            let there = changed(&marked, &[edit("<old>", "<new>")]);
            prop_assert_eq!(changed(&there, &[edit("<new>", "<old>")]), marked);
        }

        #[test]
        fn nothing_panics(text in any::<String>(), old in ".{1,5}", new in any::<String>(), line in 0..5_u64) {
            for all in [false, true] {
                let edit = Edit { old: old.clone(), new: new.clone(), all };
                let _ = apply("edit_file", &text, &[edit]);
            }
            let _ = insert(&text, line, &new);
        }
    }
}
