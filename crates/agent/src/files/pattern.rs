//! Patterns of names: `*`, `?`, `[…]`, `\`, `**`, and in a glob `{a,b}`. They are the tool's own text, so that matching is bounded:
//! pattern length times name length, whatever they say.

use protocol::{AgentError, ErrorCode};

use super::refuse;
use crate::limits;

/// A glob: the alternatives that its braces stand for.
#[derive(Debug)]
pub(super) struct Glob {
    alternatives: Vec<Alternative>,
}

#[derive(Debug)]
struct Alternative {
    /// The parts between slashes.
    parts: Vec<Vec<u8>>,
    /// Matches against the path, and not against any name below the directory.
    anchored: bool,
}

impl Glob {
    /// Reads a pattern.
    pub(super) fn parse(pattern: &str) -> Result<Self, AgentError> {
        let refused = |what: &str| refuse(ErrorCode::InvalidPattern, format!("the glob {what}"));
        if pattern.is_empty() || pattern.len() > limits::GLOB_BYTES {
            return Err(refused("is empty or too long"));
        }
        let mut alternatives = Vec::new();
        let mut open = vec![pattern.as_bytes().to_vec()];
        while let Some(pattern) = open.pop() {
            match braces(&pattern).map_err(refused)? {
                None => alternatives.push(alternative(&pattern)),
                Some((before, choices, after)) => {
                    open.extend(choices.into_iter().map(|choice| [before, choice, after].concat()));
                }
            }
            if open.len() + alternatives.len() > limits::GLOB_ALTERNATIVES {
                return Err(refused("stands for too many alternatives"));
            }
        }
        Ok(Self { alternatives })
    }

    /// Whether it matches a path beneath the directory.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let names: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
        self.alternatives.iter().any(|alternative| match alternative.parts.as_slice() {
            [part] if !alternative.anchored => names.last().is_some_and(|name| matches_name(part, name)),
            parts => matches_parts(parts, &names),
        })
    }

    /// Whether it can match a name that starts with a dot only by asking for the dot.
    pub(super) fn asks_for_hidden(&self) -> bool {
        self.alternatives.iter().flat_map(|alternative| &alternative.parts).any(|part| part.starts_with(b"."))
    }
}

fn alternative(pattern: &[u8]) -> Alternative {
    let mut parts: Vec<Vec<u8>> = pattern
        .split(|&b| b == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .collect();
    if parts.is_empty() {
        parts.push(b"**".to_vec());
    }
    let anchored = parts.len() > 1 || pattern.contains(&b'/') || parts[0] == b"**";
    Alternative { parts, anchored }
}

type Braces<'a> = Option<(&'a [u8], Vec<&'a [u8]>, &'a [u8])>;

/// The first brace expression: what stands before it, its choices, what stands after it.
fn braces(pattern: &[u8]) -> Result<Braces<'_>, &'static str> {
    let (mut depth, mut start, mut from, mut in_set) = (0_usize, 0, 0, false);
    let mut choices = Vec::new();
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            b'\\' => at += 1,
            b'[' if !in_set && closes(pattern, at) => in_set = true,
            b'[' if !in_set => return Err("has a `[` that is never closed; write `[[]` for the character"),
            b']' if in_set => in_set = false,
            b'{' if !in_set => {
                if depth == 0 {
                    (start, from) = (at, at + 1);
                }
                depth += 1;
            }
            b',' if !in_set && depth == 1 => {
                choices.push(&pattern[from..at]);
                from = at + 1;
            }
            b'}' if !in_set && depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    choices.push(&pattern[from..at]);
                    return Ok(Some((&pattern[..start], choices, &pattern[at + 1..])));
                }
            }
            _ => {}
        }
        at += 1;
    }
    if depth > 0 { Err("has a `{` that is never closed") } else { Ok(None) }
}

/// Whether the set that opens at `at` is closed; a `]` right after the opening is one of its characters.
fn closes(pattern: &[u8], at: usize) -> bool {
    let mut first = at + 1;
    if matches!(pattern.get(first), Some(b'!' | b'^')) {
        first += 1;
    }
    pattern.get(first + 1..).is_some_and(|rest| rest.contains(&b']'))
}

/// Fills one row of "the parts so far match the first n names" for each part.
pub(super) fn matches_parts(parts: &[Vec<u8>], names: &[&[u8]]) -> bool {
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
pub(super) fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
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
    fn globs_mean_what_shells_say() {
        for (pattern, path, is_match) in [
            ("*.rs", "main.rs", true),
            ("*.rs", "src/deep/main.rs", true),
            ("*.rs", "main.rst", false),
            ("src/*.rs", "src/main.rs", true),
            ("src/*.rs", "src/deep/main.rs", false),
            ("src/**/*.rs", "src/main.rs", true),
            ("src/**/*.rs", "src/a/b/main.rs", true),
            ("**/*.rs", "main.rs", true),
            ("**", "a/b", true),
            ("src/**", "src/a/b", true),
            ("src/**", "src", false),
            ("./main.rs", "main.rs", true),
            ("*.{ts,tsx}", "a/b.tsx", true),
            ("*.{ts,tsx}", "a/b.js", false),
            ("{src,test}/{a,b}.rs", "test/b.rs", true),
            ("{a,{b,c}d}", "cd", true),
            ("[a-c].txt", "b.txt", true),
            ("[!a-c].txt", "b.txt", false),
            ("[{]", "{", true),
            ("\\{a\\}", "{a}", true),
            ("a?c", "abc", true),
        ] {
            assert_eq!(
                Glob::parse(pattern).expect(pattern).matches(path.as_bytes()),
                is_match,
                "{pattern} {path}"
            );
        }
    }

    #[test]
    fn a_glob_that_cannot_be_read_is_refused() {
        for pattern in ["", "{a,b", "[abc", "a{b[c,d}", &"{a,b}".repeat(20), &"a".repeat(5_000)] {
            assert_eq!(
                Glob::parse(pattern).expect_err("malformed").code,
                ErrorCode::InvalidPattern,
                "{pattern}"
            );
        }
    }

    #[test]
    fn a_bomb_of_stars_costs_little() {
        let glob = Glob::parse(&"*a".repeat(200)).expect("a glob");
        assert!(!glob.matches(["a".repeat(254), "b".into()].concat().as_bytes()));
        let glob = Glob::parse(&"**/".repeat(300)).expect("a glob");
        assert!(glob.matches("a/".repeat(500).as_bytes()));
    }
}
