//! What node, jest, vitest and mocha say at the end.

use std::sync::LazyLock;

use regex::Regex;

use super::{Counts, NUMBER, add, names, number, regex};

static TAP: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^(?:#|ℹ) (tests|pass|fail|skipped|todo|cancelled) (\d+)$"));
static TAP_NAME: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^ *not ok \d+ - (.+)$"));
static SPEC_NAME: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^ *✖ (.+) \([0-9.]+ms\)(?: #.*)?$"));
static JEST: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^Tests: +(.*\d+ total)"));
static JEST_NAME: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^ +● (.+ › .+)$"));
static VITEST: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^ *(Test Files|Tests) {2}((?:\d+ [a-z]+(?: \| )?)+ \(\d+\)|no tests)$"));
static VITEST_NAME: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^ *FAIL {2}(.+ > .+|\S+(?: \[ .+ \])?)$"));
static MOCHA: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^ +(\d+) (passing|failing|pending)\b"));

pub(super) fn node(output: &str) -> Option<Counts> {
    let mut counts = Counts { failures: names(&TAP_NAME, output), ..Counts::default() };
    for name in names(&SPEC_NAME, output) {
        add(&mut counts.failures, &name);
    }
    let mut found = false;
    for part in TAP.captures_iter(output) {
        found = true;
        let many = number(&part[2]);
        match &part[1] {
            "pass" => counts.passed = counts.passed.saturating_add(many),
            "fail" => counts.failed = counts.failed.saturating_add(many),
            "cancelled" => counts.errors = counts.errors.saturating_add(many),
            "skipped" | "todo" => counts.skipped = counts.skipped.saturating_add(many),
            _ => {}
        }
    }
    found.then(|| counts.totalled())
}

pub(super) fn jest(output: &str) -> Option<Counts> {
    let summary = JEST.captures_iter(output).last()?;
    let mut counts = Counts { failures: names(&JEST_NAME, output), ..Counts::default() };
    for part in NUMBER.captures_iter(&summary[1]) {
        let many = number(&part[1]);
        match &part[2] {
            "passed" => counts.passed = counts.passed.saturating_add(many),
            "failed" => counts.failed = counts.failed.saturating_add(many),
            "skipped" | "todo" => counts.skipped = counts.skipped.saturating_add(many),
            _ => {}
        }
    }
    Some(counts.totalled())
}

pub(super) fn vitest(output: &str) -> Option<Counts> {
    let mut counts = Counts { failures: names(&VITEST_NAME, output), ..Counts::default() };
    let (mut found, mut failed_files) = (false, 0);
    for line in VITEST.captures_iter(output) {
        let is_files = &line[1] == "Test Files";
        found |= !is_files;
        for part in NUMBER.captures_iter(&line[2]) {
            let many = number(&part[1]);
            match (&part[2], is_files) {
                ("failed", true) => failed_files = many,
                (_, true) => {}
                ("passed", false) => counts.passed = counts.passed.saturating_add(many),
                ("failed", false) => counts.failed = counts.failed.saturating_add(many),
                ("skipped" | "todo", false) => counts.skipped = counts.skipped.saturating_add(many),
                (_, false) => {}
            }
        }
    }
    // A file that could not be loaded has no tests to count.
    if counts.failed == 0 {
        counts.errors = failed_files;
    }
    found.then(|| counts.totalled())
}

pub(super) fn mocha(output: &str) -> Option<Counts> {
    let mut counts = Counts::default();
    let mut found = false;
    for part in MOCHA.captures_iter(output) {
        found = true;
        let many = number(&part[1]);
        match &part[2] {
            "passing" => counts.passed = counts.passed.saturating_add(many),
            "failing" => counts.failed = counts.failed.saturating_add(many),
            _ => counts.skipped = counts.skipped.saturating_add(many),
        }
    }
    found.then(|| counts.totalled())
}
