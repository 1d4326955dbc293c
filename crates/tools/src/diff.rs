//! What an edit changed, for a model: a unified diff, and the new lines with their neighbours.

use std::time::Duration;

use similar::{Algorithm, TextDiff};

use crate::clean;

/// Lines shown around a change.
const AROUND: usize = 4;
/// Longest diff and snippet, in bytes.
const BYTES: usize = 40_000;
/// How long the shortest diff is looked for; after that it is only a diff.
const PATIENCE: Duration = Duration::from_millis(200);

/// A change as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Unified, with three lines of context; cut when it is too long.
    pub(crate) diff: String,
    /// The new lines with their numbers, and four before and after each change; cut when it is too long.
    pub(crate) snippet: String,
}

/// Shows what became of a text.
pub(crate) fn show(path: &str, before: &str, after: &str) -> Shown {
    let diff = TextDiff::configure().algorithm(Algorithm::Myers).timeout(PATIENCE).diff_lines(before, after);
    let name = clean::one_line(path);
    let unified = diff.unified_diff().header(&format!("a{name}"), &format!("b{name}")).to_string();
    let lines: Vec<&str> = after.split_inclusive('\n').collect();
    let mut snippet = String::new();
    for group in diff.grouped_ops(AROUND) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let (start, end) = (first.new_range().start, last.new_range().end.min(lines.len()));
        if !snippet.is_empty() {
            snippet.push_str("   ...\n");
        }
        for (number, line) in (start + 1..).zip(&lines[start.min(end)..end]) {
            snippet
                .push_str(&format!("{number:>6}\t{}\n", clean::plain(line.trim_end_matches(['\n', '\r']))));
        }
        if snippet.len() > BYTES {
            break;
        }
    }
    snippet.truncate(snippet.trim_end_matches('\n').len());
    Shown { diff: cut(unified), snippet: cut(snippet) }
}

fn cut(mut text: String) -> String {
    if text.len() > BYTES {
        let at = text.floor_char_boundary(BYTES);
        let at = text[..at].rfind('\n').map_or(at, |newline| newline + 1);
        text.truncate(at);
        text.push_str("[the rest is not shown]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_its_neighbours() {
        let before: String = (1..=40).map(|line| format!("line {line}\n")).collect();
        let after = before.replace("line 10\n", "line ten\nand more\n").replace("line 30\n", "");
        let shown = show("/workspace/a", &before, &after);
        assert!(
            shown.diff.starts_with("--- a/workspace/a\n+++ b/workspace/a\n@@ -7,7 +7,8 @@\n line 7\n"),
            "{}",
            shown.diff
        );
        assert!(shown.diff.contains("\n-line 10\n+line ten\n+and more\n"), "{}", shown.diff);
        let numbers: Vec<&str> =
            shown.snippet.lines().map(|line| line.split('\t').next().unwrap_or("").trim()).collect();
        assert_eq!(numbers[..10], ["6", "7", "8", "9", "10", "11", "12", "13", "14", "15"]);
        assert_eq!(numbers[10..], ["...", "27", "28", "29", "30", "31", "32", "33", "34"]);
    }

    #[test]
    fn a_large_change_is_cut() {
        let (before, after) = ("a\n".repeat(200_000), "b\n".repeat(200_000));
        let shown = show("/workspace/a", &before, &after);
        assert!(shown.diff.len() < BYTES + 100 && shown.diff.ends_with("not shown]"));
        assert!(shown.snippet.len() < BYTES + 100);
    }
}
