//! What `.gitignore` files leave out. The patterns are the tool's own text, so that matching is bounded: pattern length times
//! name length, whatever they say.

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

/// Fills one row of "the parts so far match the first n names" for each part.
fn matches_parts(parts: &[Vec<u8>], names: &[&[u8]]) -> bool {
    let mut row = vec![false; names.len() + 1];
    row[0] = true;
    for (index, part) in parts.iter().enumerate() {
        let mut next = vec![false; names.len() + 1];
        if part == b"**" {
            // At the end it means everything inside, and so at least one name.
            let least = usize::from(index + 1 == parts.len());
            let mut reached = false;
            for count in 0..=names.len() {
                reached |= count >= least && row[count - least];
                next[count] = reached;
            }
        } else {
            for (count, name) in names.iter().enumerate() {
                next[count + 1] = row[count] && matches_name(part, name);
            }
        }
        row = next;
    }
    row[names.len()]
}

/// One part against one name: `*`, `?`, `[…]` and `\`. Goes back to the latest star only, which is enough.
fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if n == name.len() {
            return pattern[p..].iter().all(|&b| b == b'*');
        }
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
            continue;
        }
        if let Some(next) = matches_byte(pattern, p, name[n]) {
            (p, n) = (next, n + 1);
            continue;
        }
        let Some((after, from)) = star else { return false };
        star = Some((after, from + 1));
        (p, n) = (after, from + 1);
    }
}

/// Where the pattern goes on when its element at `p` matches `byte`.
fn matches_byte(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => match set(pattern, p + 1, byte) {
            Some((true, next)) => Some(next),
            Some((false, _)) => None,
            None => (byte == b'[').then_some(p + 1),
        },
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    }
}

/// A set in brackets: whether it has the byte, and where it ends. `None` when it is never closed.
fn set(pattern: &[u8], mut p: usize, byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(p), Some(b'!' | b'^'));
    p += usize::from(negated);
    let first = p;
    let mut found = false;
    loop {
        let mut low = *pattern.get(p)?;
        if low == b']' && p > first {
            return Some((found != negated, p + 1));
        }
        if low == b'\\' {
            p += 1;
            low = *pattern.get(p)?;
        }
        let high = match (pattern.get(p + 1), pattern.get(p + 2)) {
            (Some(b'-'), Some(&high)) if high != b']' => {
                p += 2;
                high
            }
            _ => low,
        };
        found |= (low..=high).contains(&byte);
        p += 1;
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
