//! What linters say, line by line: `path:line:column: text`, which most of them can write, and the form of eslint, in which a
//! file's name stands above its findings. Pure.

use std::sync::LazyLock;

use regex::Regex;
use schemars::JsonSchema;
use serde::Serialize;

/// Findings that a result lists.
const LISTED: usize = 100;
/// Longest text of one, in characters.
const MESSAGE_CHARS: usize = 500;

/// One finding.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Finding {
    /// The file, as the linter names it.
    path: String,
    /// The line.
    line: u32,
    /// The column, when it is told.
    column: Option<u32>,
    /// The rule, when it is told.
    rule: Option<String>,
    /// What is wrong.
    message: String,
}

static LINE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^([^\s:][^:\n]*):(\d+):(?:(\d+):)? +(.+)$").expect("a fixed pattern"));
static CODE_FIRST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^([A-Z]{1,5}\d{1,5}|invalid-syntax):? +(?:\[\*\] +)?(.+)$").expect("a fixed pattern")
});
static RULE_LAST: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(.+) \[(?:Error|Warning)/([^\]]+)\]$").expect("a fixed pattern"));

static BELOW_ITS_FILE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^ +(\d+):(\d+) +(?:error|warning) +(.+?)(?: {2,}(@?[a-z][a-zA-Z0-9@/_-]*))?$")
        .expect("a fixed pattern")
});

/// How many there are, and the first of them.
pub(crate) fn parse(output: &str) -> (u64, Vec<Finding>) {
    let (mut total, mut listed, mut file) = (0, Vec::new(), "");
    for line in output.lines() {
        let found = if let Some(parts) = LINE.captures(line) {
            finding(&parts)
        } else if let Some(parts) = BELOW_ITS_FILE.captures(line).filter(|_| !file.is_empty()) {
            below(file, &parts)
        } else {
            file = if line.starts_with(' ') { "" } else { line };
            None
        };
        if let Some(found) = found {
            total += 1;
            if listed.len() < LISTED {
                listed.push(found);
            }
        }
    }
    (total, listed)
}

fn below(file: &str, parts: &regex::Captures<'_>) -> Option<Finding> {
    Some(Finding {
        path: file.to_owned(),
        line: parts[1].parse().ok()?,
        column: parts[2].parse().ok(),
        rule: parts.get(4).map(|rule| rule.as_str().to_owned()),
        message: parts[3].chars().take(MESSAGE_CHARS).collect(),
    })
}

fn finding(line: &regex::Captures<'_>) -> Option<Finding> {
    let text = line.get(4)?.as_str().trim();
    let (rule, message) = if let Some(found) = CODE_FIRST.captures(text) {
        (Some(found[1].to_owned()), found[2].to_owned())
    } else if let Some(found) = RULE_LAST.captures(text) {
        (Some(found[2].to_owned()), found[1].to_owned())
    } else {
        (None, text.to_owned())
    };
    Some(Finding {
        path: line[1].to_owned(),
        line: line[2].parse().ok()?,
        column: line.get(3).and_then(|column| column.as_str().parse().ok()),
        rule,
        message: message.chars().take(MESSAGE_CHARS).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linters_say_is_read() {
        let output = "a.py:1:8: F401 [*] `os` imported but unused\npkg/b.py:3:1: E302 expected 2 blank lines\n\
            /workspace/c.js:2:5: Unexpected var. [Error/no-var]\nd.py:1: error: no\nFound 2 errors.\n2 problems\n";
        let (total, findings) = parse(output);
        assert_eq!(total, 4, "{findings:?}");
        assert_eq!(
            findings[0],
            Finding {
                path: "a.py".to_owned(),
                line: 1,
                column: Some(8),
                rule: Some("F401".to_owned()),
                message: "`os` imported but unused".to_owned()
            }
        );
        assert_eq!(findings[2].rule.as_deref(), Some("no-var"));
        assert_eq!((findings[3].column, findings[3].message.as_str()), (None, "error: no"));
        assert_eq!(parse("All checks passed!\n"), (0, Vec::new()));
    }

    #[test]
    fn findings_below_the_name_of_their_file_are_read() {
        let output = "\n/workspace/c.js\n  2:5   error    Unexpected var, use let or const  no-var\n  10:1  warning  Odd  @a/b-c\n\n\
            d.ts\n  1:7  error  Parsing error: Unexpected token =\n\n\u{2716} 3 problems (2 errors, 1 warning)\n\n  1:1  error  of no file\n";
        let (total, findings) = parse(output);
        let seen: Vec<_> = findings
            .iter()
            .map(|one| (one.path.as_str(), one.line, one.column, one.rule.as_deref(), one.message.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("/workspace/c.js", 2, Some(5), Some("no-var"), "Unexpected var, use let or const"),
                ("/workspace/c.js", 10, Some(1), Some("@a/b-c"), "Odd"),
                ("d.ts", 1, Some(7), None, "Parsing error: Unexpected token ="),
            ]
        );
        assert_eq!(total, 3);
    }
}
