//! Shares of one answer: requests with several calls are answered within [`limits::ANSWER_BYTES`], whatever their calls returned.
//!
//! # Design notes
//!
//! A result may have megabytes, and one request a hundred of them; all lie in memory until the client has taken the last byte. So each
//! part of an answer has the same share, whoever ends first, and what is longer is shortened and says so. Calls that are made here get a
//! budget that fits; calls that were made before may have had a larger one. The whole result stays where it is: in `GET /v1/calls/{call_id}`.

use domain::{CallId, limits};
use serde::Serialize;

/// Bytes of JSON that each of so many parts of an answer may have.
pub(crate) fn share(parts: usize) -> usize {
    limits::ANSWER_BYTES / parts.max(1)
}

/// The budget of text for a call whose result has this share: half of it, as text grows when it is written as JSON.
pub(crate) fn budget(asked: Option<u64>, share: usize) -> u64 {
    asked.unwrap_or(limits::OUTPUT_BUDGET_BYTES_DEFAULT).min(share as u64 / 2)
}

/// Where all of it is.
pub(crate) fn whole(call_id: Option<CallId>) -> String {
    match call_id {
        Some(id) => format!(
            "the results of one request share {} bytes; GET /v1/calls/{id} has all of it",
            limits::ANSWER_BYTES
        ),
        None => format!("the results of one request share {} bytes", limits::ANSWER_BYTES),
    }
}

/// Bytes of a value as JSON.
pub(crate) fn json_bytes(value: &impl Serialize) -> usize {
    let mut count = Count(0);
    // Nothing that is answered fails to be JSON; what did would not fit.
    serde_json::to_writer(&mut count, value).map_or(usize::MAX, |()| count.0)
}

/// A text that has at most so many bytes as JSON: all of it, or its head and its tail with a note between them.
pub(crate) fn fit(text: String, bytes: usize, call_id: Option<CallId>) -> String {
    if text_bytes(&text) <= bytes {
        return text;
    }
    let note = |left_out: usize| format!("\n[{left_out} bytes are left out here: {}]\n", whole(call_id));
    let room = bytes.saturating_sub(text_bytes(&note(text.len())));
    let head = start(text.chars(), room / 2);
    let tail = start(text[head..].chars().rev(), room / 2);
    let left_out = text.len() - head - tail;
    format!("{}{}{}", &text[..head], note(left_out), &text[text.len() - tail..])
}

/// Bytes of a text within a JSON document, its quotes included.
pub(crate) fn text_bytes(text: &str) -> usize {
    2 + text.chars().map(written).sum::<usize>()
}

/// Bytes of the longest start that takes at most so much room.
fn start(characters: impl Iterator<Item = char>, room: usize) -> usize {
    let (mut taken, mut length) = (0, 0);
    for character in characters {
        taken += written(character);
        if taken > room {
            break;
        }
        length += character.len_utf8();
    }
    length
}

fn written(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        control if control < ' ' => 6,
        other => other.len_utf8(),
    }
}

struct Count(usize);

impl std::io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn texts_are_measured_as_they_are_written(text in any::<String>()) {
            prop_assert_eq!(text_bytes(&text), serde_json::to_string(&text).expect("JSON").len());
            prop_assert_eq!(json_bytes(&text), text_bytes(&text));
        }

        #[test]
        fn what_does_not_fit_keeps_head_and_tail(text in "[a\u{1}\"é\u{1f4a5}]{400,900}", bytes in 250..2_000_usize) {
            let fitted = fit(text.clone(), bytes, None);
            prop_assert!(text_bytes(&fitted) <= bytes);
            match fitted.split_once("\n[") {
                None => prop_assert_eq!(fitted, text),
                Some((head, rest)) => {
                    let tail = rest.split_once("]\n").expect("a note").1;
                    prop_assert!(text.starts_with(head) && text.ends_with(tail));
                    prop_assert!(rest.starts_with(&(text.len() - head.len() - tail.len()).to_string()));
                }
            }
        }
    }
}
