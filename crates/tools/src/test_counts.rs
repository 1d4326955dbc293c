//! What test runners say at the end: pytest, unittest, node (TAP and spec), cargo, go, jest, vitest, mocha. Pure.
//!
//! A test counts once, whatever its subtests did: they are parts of it, and only their names are told.

mod javascript;
mod python;

use std::sync::LazyLock;

use regex::Regex;
use schemars::JsonSchema;
use serde::Serialize;

/// Names that a result lists.
const LISTED: usize = 100;
/// Longest name, in characters.
const NAME_CHARS: usize = 300;

/// How many.
#[derive(Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Counts {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that were skipped, or are expected to fail.
    pub(crate) skipped: u64,
    /// Tests or files that could not be run.
    pub(crate) errors: u64,
    /// All of them.
    pub(crate) total: u64,
    /// Names of those that failed or could not be run, subtests among them.
    pub(crate) failures: Vec<String>,
}

impl Counts {
    /// For a model.
    pub(crate) fn in_words(&self) -> String {
        let Self { passed, failed, skipped, errors, total, .. } = self;
        format!("{passed} passed, {failed} failed, {skipped} skipped, {errors} errors, {total} in all")
    }

    fn totalled(mut self) -> Self {
        let parts = [self.passed, self.failed, self.skipped, self.errors];
        self.total = parts.into_iter().fold(0, u64::saturating_add);
        self
    }
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a fixed pattern")
}

static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"(\d+) ((?:subtests? )?[a-z]+)"));
static CARGO: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;"));
static CARGO_NAME: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^test (.+) \.\.\. FAILED$"));
static GO: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^ *--- (PASS|FAIL|SKIP): (\S+)"));
static GO_ERROR: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^FAIL\t(\S+) \[(?:build|setup) failed\]"));
/// The counts, when the output has some.
pub(crate) fn parse(output: &str) -> Option<Counts> {
    [
        python::pytest,
        python::unittest,
        cargo,
        javascript::jest,
        javascript::vitest,
        javascript::node,
        javascript::mocha,
        go,
    ]
    .into_iter()
    .find_map(|runner| runner(output))
}

fn names(pattern: &Regex, output: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for found in pattern.captures_iter(output) {
        add(&mut names, &found[1]);
    }
    names
}

fn add(names: &mut Vec<String>, name: &str) {
    let name: String = name.trim().chars().take(NAME_CHARS).collect();
    if names.len() < LISTED && !names.contains(&name) {
        names.push(name);
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(u64::MAX)
}

fn cargo(output: &str) -> Option<Counts> {
    let mut counts = Counts { failures: names(&CARGO_NAME, output), ..Counts::default() };
    let mut found = false;
    for part in CARGO.captures_iter(output) {
        found = true;
        counts.passed = counts.passed.saturating_add(number(&part[1]));
        counts.failed = counts.failed.saturating_add(number(&part[2]));
        counts.skipped = counts.skipped.saturating_add(number(&part[3]));
    }
    found.then(|| counts.totalled())
}

fn go(output: &str) -> Option<Counts> {
    let mut counts = Counts::default();
    for part in GO.captures_iter(output) {
        match &part[1] {
            "PASS" => counts.passed = counts.passed.saturating_add(1),
            "SKIP" => counts.skipped = counts.skipped.saturating_add(1),
            _ => {
                counts.failed = counts.failed.saturating_add(1);
                if counts.failures.len() < LISTED {
                    counts.failures.push(part[2].to_owned());
                }
            }
        }
    }
    for broken in names(&GO_ERROR, output) {
        counts.errors = counts.errors.saturating_add(1);
        counts.failures.push(broken);
    }
    let counts = counts.totalled();
    (counts.total > 0).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(output: &str) -> Option<([u64; 5], Vec<String>)> {
        parse(output).map(|c| ([c.passed, c.failed, c.skipped, c.errors, c.total], c.failures))
    }

    #[test]
    fn the_runners_are_understood() {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (output, numbers, failures) in [
            (
                "FAILED test_a.py::test_x[a b] - assert 1\nERROR test_b.py\n1 failed, 2 passed, 1 skipped, 1 error in 0.12s\n",
                [2, 1, 1, 1, 5],
                own(&["test_a.py::test_x[a b]", "test_b.py"]),
            ),
            (
                "SUBFAILED[custom message] (i=1) test_a.py::T::test_x - assert (1 % 2) == 0\nSUBFAILED(i=3) test_a.py::T::test_x - no\n\
                 FAILED test_a.py::T::test_x - contains 2 failed subtests\n1 failed, 2 passed, 2 subtests failed, 3 subtests passed in 0.12s\n",
                [2, 1, 0, 0, 3],
                own(&[
                    "test_a.py::T::test_x",
                    "test_a.py::T::test_x [custom message] (i=1)",
                    "test_a.py::T::test_x (i=3)",
                ]),
            ),
            // The same as others count it, and a test of unittest.
            (
                "SUBFAILED(i=1) test_a.py::test_x - no\nSUBFAILED(i=3) test_a.py::test_x - no\n\
                 FAILED test_a.py::test_x - contains 2 failed subtests\n3 failed, 3 subtests passed in 0.12s\n",
                [0, 1, 0, 0, 1],
                own(&["test_a.py::test_x", "test_a.py::test_x (i=1)", "test_a.py::test_x (i=3)"]),
            ),
            (
                "SUBFAILED(i=1) test_s.py::T::test_x - AssertionError: 1 != 0\nSUBFAILED(i=3) test_s.py::T::test_x - no\n\
                 2 failed, 2 passed, 5 subtests passed in 0.11s\n",
                [1, 1, 0, 0, 2],
                own(&["test_s.py::T::test_x", "test_s.py::T::test_x (i=1)", "test_s.py::T::test_x (i=3)"]),
            ),
            ("2 passed, 3 subtests passed in 0.1s\n", [2, 0, 0, 0, 2], own(&[])),
            ("===== 3 passed, 1 warning in 61.20s (0:01:01) =====\n", [3, 0, 0, 0, 3], own(&[])),
            ("no tests ran in 0.01s\n", [0, 0, 0, 0, 0], own(&[])),
            (
                "FAIL: test_x (t.T.test_x)\nRan 4 tests in 0.001s\n\nFAILED (failures=1, errors=1, skipped=1)\n",
                [1, 1, 1, 1, 4],
                own(&["test_x (t.T.test_x)"]),
            ),
            (
                "FAIL: test_x (t.T.test_x) (i=1)\nFAIL: test_x (t.T.test_x) [odd] (i=3)\nERROR: test_y (t.T.test_y)\n\
                 Ran 3 tests in 0.001s\n\nFAILED (failures=2, errors=1)\n",
                [1, 1, 0, 1, 3],
                own(&["test_x (t.T.test_x) (i=1)", "test_x (t.T.test_x) [odd] (i=3)", "test_y (t.T.test_y)"]),
            ),
            ("Ran 2 tests in 0.001s\n\nOK\n", [2, 0, 0, 0, 2], own(&[])),
            (
                "not ok 2 - adds\n# tests 3\n# pass 1\n# fail 1\n# cancelled 0\n# skipped 1\n# todo 0\n",
                [1, 1, 1, 0, 3],
                own(&["adds"]),
            ),
            (
                "▶ sums\n  ✖ adds (1.2ms)\n✖ sums (2ms)\nℹ tests 2\nℹ pass 1\nℹ fail 1\n\n✖ failing tests:\n\ntest at a.js:1:1\n✖ adds (1.2ms)\n",
                [1, 1, 0, 0, 2],
                own(&["adds", "sums"]),
            ),
            (
                "test a::b ... FAILED\ntest result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out\n\
                 test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
                [4, 1, 2, 0, 7],
                own(&["a::b"]),
            ),
            (
                "--- PASS: TestA (0.00s)\n    --- FAIL: TestB/x (0.00s)\nFAIL\texample.com/c [build failed]\n",
                [1, 1, 0, 1, 3],
                own(&["TestB/x", "example.com/c"]),
            ),
            (
                "  ● sum › adds\nTests:       1 failed, 2 passed, 3 total\n",
                [2, 1, 0, 0, 3],
                own(&["sum › adds"]),
            ),
            (
                " FAIL  src/a.test.ts > sum > adds\n FAIL  src/b.test.ts [ src/b.test.ts ]\n Test Files  2 failed | 1 passed (3)\n      \
                 Tests  1 failed | 2 passed | 1 skipped | 1 todo (5)\n   Duration  18ms\n",
                [2, 1, 2, 0, 5],
                own(&["src/a.test.ts > sum > adds", "src/b.test.ts [ src/b.test.ts ]"]),
            ),
            (
                " FAIL  b.test.ts [ b.test.ts ]\n Test Files  1 failed (1)\n      Tests  no tests\n",
                [0, 0, 0, 1, 1],
                own(&["b.test.ts [ b.test.ts ]"]),
            ),
            ("  3 passing (5ms)\n  1 failing\n", [3, 1, 0, 0, 4], own(&[])),
        ] {
            assert_eq!(counted(output), Some((numbers, failures)), "{output}");
        }
        assert_eq!(counted("nothing of that\n"), None);
    }

    #[test]
    fn figures_that_code_makes_up_do_not_overflow() {
        let huge = "99999999999999999999999";
        for output in [
            format!("{huge} failed, {huge} passed, {huge} skipped, 1 error in 0.12s\n"),
            format!(
                "Ran {huge} tests in 0.001s\n\nFAILED (failures={huge}, errors={huge}, skipped={huge})\n"
            ),
            format!("# pass {huge}\n# fail {huge}\n# cancelled {huge}\n# todo {huge}\n"),
            format!("test result: FAILED. {huge} passed; {huge} failed; {huge} ignored; 0 measured;\n")
                .repeat(2),
            format!("Tests:       {huge} failed, {huge} passed, {huge} todo, 3 total\n"),
            format!(
                " Test Files  {huge} failed (3)\n      Tests  {huge} failed | {huge} passed | {huge} todo (3)\n"
            ),
            format!("  {huge} passing (5ms)\n  {huge} failing\n  {huge} pending\n"),
        ] {
            let counts = parse(&output).expect("it has the form of a summary");
            assert_eq!((counts.failed, counts.total), (u64::MAX, u64::MAX), "{output}");
        }
    }
}
