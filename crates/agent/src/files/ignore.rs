//! What `.gitignore` files leave out. The patterns are the tool's own text, so that matching is bounded: pattern length times
//! name length, whatever they say.

use super::pattern::{matches_name, matches_parts};

/// The rules of one `.gitignore`.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    /// The parts between slashes; `**` stands for any number of directories.
    parts: Vec<Vec<u8>>,
    /// Matches against the path from the folder of the file, and not against any name below it.
    anchored: bool,
    directories_only: bool,
    negated: bool,
}

/// What the rules of one file say of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ignored,
    Included,
    Silent,
}

impl Rules {
    /// Reads the patterns of a file; lines that are too long, or too many, are left out.
    pub(super) fn parse(text: &[u8]) -> Self {
        let lines = text.split(|&b| b == b'\n').filter_map(Rule::parse);
        Self { rules: lines.take(crate::limits::IGNORE_PATTERNS).collect() }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The last rule that matches decides. `path` is relative to the folder of the file.
    pub(super) fn verdict(&self, path: &[u8], is_directory: bool) -> Verdict {
        let names: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
        let decides = |rule: &&Rule| (is_directory || !rule.directories_only) && rule.matches(&names);
        match self.rules.iter().rev().find(decides) {
            Some(rule) if rule.negated => Verdict::Included,
            Some(_) => Verdict::Ignored,
            None => Verdict::Silent,
        }
    }
}

impl Rule {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        while let Some(rest) = line.strip_suffix(b" ").filter(|rest| !rest.ends_with(b"\\")) {
            line = rest;
        }
        if line.is_empty() || line.starts_with(b"#") || line.len() > crate::limits::IGNORE_PATTERN_BYTES {
            return None;
        }
        let (negated, line) = line.strip_prefix(b"!").map_or((false, line), |rest| (true, rest));
        let (directories_only, line) = line.strip_suffix(b"/").map_or((false, line), |rest| (true, rest));
        let (leading, line) = line.strip_prefix(b"/").map_or((false, line), |rest| (true, rest));
        if line.is_empty() {
            return None;
        }
        let parts: Vec<Vec<u8>> = line.split(|&b| b == b'/').map(<[u8]>::to_vec).collect();
        Some(Self { anchored: leading || parts.len() > 1, parts, directories_only, negated })
    }

    fn matches(&self, names: &[&[u8]]) -> bool {
        if self.anchored {
            return matches_parts(&self.parts, names);
        }
        names.last().is_some_and(|name| matches_name(&self.parts[0], name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_git_says() {
        let cases: [(&str, &str, bool, Verdict); 22] = [
            ("*.o", "a.o", false, Verdict::Ignored),
            ("*.o", "sub/a.o", false, Verdict::Ignored),
            ("*.o", "a.c", false, Verdict::Silent),
            ("/top", "top", false, Verdict::Ignored),
            ("/top", "sub/top", false, Verdict::Silent),
            ("build/", "build", true, Verdict::Ignored),
            ("build/", "build", false, Verdict::Silent),
            ("a/b", "a/b", false, Verdict::Ignored),
            ("a/b", "x/a/b", false, Verdict::Silent),
            ("**/b", "x/a/b", false, Verdict::Ignored),
            ("a/**/b", "a/b", false, Verdict::Ignored),
            ("a/**/b", "a/x/y/b", false, Verdict::Ignored),
            ("a/**", "a/x/y", false, Verdict::Ignored),
            ("a/**", "a", true, Verdict::Silent),
            ("*\n!keep", "keep", false, Verdict::Included),
            ("!keep\n*", "keep", false, Verdict::Ignored),
            ("[a-c]?[!x]", "bzy", false, Verdict::Ignored),
            ("[a-c]?[!x]", "bzx", false, Verdict::Silent),
            ("\\#hash", "#hash", false, Verdict::Ignored),
            ("# comment", "# comment", false, Verdict::Silent),
            ("trail  ", "trail", false, Verdict::Ignored),
            ("[", "[", false, Verdict::Ignored),
        ];
        for (text, path, is_directory, verdict) in cases {
            let rules = Rules::parse(text.as_bytes());
            assert_eq!(rules.verdict(path.as_bytes(), is_directory), verdict, "{text:?} on {path:?}");
        }
    }

    #[test]
    fn a_bomb_of_stars_costs_little() {
        let rules = Rules::parse("*a".repeat(200).as_bytes());
        assert_eq!(rules.verdict("a".repeat(255).as_bytes(), false), Verdict::Ignored);
        assert_eq!(rules.verdict(["a".repeat(254), "b".into()].concat().as_bytes(), false), Verdict::Silent);
    }
}
