//! What pytest and unittest say at the end.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{Counts, NUMBER, add, names, number, regex};

static PYTEST: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?m)^=* ?((?:\d+ (?:subtests? )?[a-z]+(?:, )?)+) in [0-9.]+s(?: \([0-9:]+\))? ?=*$")
});
static PYTEST_NONE: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^=* ?no tests ran in "));
static PYTEST_NAME: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^(?:FAILED|ERROR) ([^\s\[]+(?:\[[^\]\n]*\])?)"));
static PYTEST_SUBTEST: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^SUBFAILED(.*?) ([^\s\[]+::[^\s\[]+(?:\[[^\]\n]*\])?)(?: - .*)?$"));
static UNITTEST: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^Ran (\d+) tests? in [0-9.]+s\n\n(OK|FAILED|NO TESTS RAN)(?: \((.*)\))?"));
static UNITTEST_PART: LazyLock<Regex> = LazyLock::new(|| regex(r"([a-z ]+)=(\d+)"));
static UNITTEST_NAME: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^(?:FAIL|ERROR): (.+)$"));
static UNITTEST_SUBTEST: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^(FAIL|ERROR): ([^(\n]+\([^)\n]*\)) .+$"));

pub(super) fn pytest(output: &str) -> Option<Counts> {
    let Some(summary) = PYTEST.captures_iter(output).last() else {
        return PYTEST_NONE.is_match(output).then(Counts::default);
    };
    let mut counts = Counts { failures: names(&PYTEST_NAME, output), ..Counts::default() };
    let mut told_apart = false;
    for part in NUMBER.captures_iter(&summary[1]) {
        let many = number(&part[1]);
        match &part[2] {
            "passed" | "xpassed" => counts.passed = counts.passed.saturating_add(many),
            "failed" => counts.failed = counts.failed.saturating_add(many),
            "subtest failed" | "subtests failed" => told_apart = true,
            "skipped" | "xfailed" => counts.skipped = counts.skipped.saturating_add(many),
            "error" | "errors" => counts.errors = counts.errors.saturating_add(many),
            _ => {}
        }
    }
    let told: BTreeSet<String> = PYTEST_NAME.captures_iter(output).map(|name| name[1].to_owned()).collect();
    let mut passed_in_spite = BTreeSet::new();
    for part in PYTEST_SUBTEST.captures_iter(output) {
        let (subtest, test) = (part[1].trim(), &part[2]);
        add(&mut counts.failures, test);
        add(&mut counts.failures, &format!("{test} {subtest}"));
        // Where they are not told apart, a subtest that failed is counted as a test beside the one that it is a part of,
        counts.failed = counts.failed.saturating_sub(u64::from(!told_apart));
        // and a test of unittest as passed, whatever its subtests did.
        if !told.contains(test) && passed_in_spite.insert(test.to_owned()) {
            counts.passed = counts.passed.saturating_sub(1);
        }
    }
    counts.failed = counts.failed.saturating_add(passed_in_spite.len() as u64);
    Some(counts.totalled())
}

pub(super) fn unittest(output: &str) -> Option<Counts> {
    let found = UNITTEST.captures_iter(output).last()?;
    let mut counts =
        Counts { total: number(&found[1]), failures: names(&UNITTEST_NAME, output), ..Counts::default() };
    for part in UNITTEST_PART.captures_iter(found.get(3).map_or("", |parts| parts.as_str())) {
        let many = number(&part[2]);
        match part[1].trim() {
            "failures" | "unexpected successes" => counts.failed = counts.failed.saturating_add(many),
            "errors" => counts.errors = counts.errors.saturating_add(many),
            "skipped" | "expected failures" => counts.skipped = counts.skipped.saturating_add(many),
            _ => {}
        }
    }
    counts.failed = counts.failed.saturating_sub(repeated(output, "FAIL"));
    counts.errors = counts.errors.saturating_sub(repeated(output, "ERROR"));
    counts.passed = counts
        .total
        .saturating_sub(counts.failed)
        .saturating_sub(counts.errors)
        .saturating_sub(counts.skipped);
    Some(counts)
}

/// Subtests that unittest counts beyond the first of each test.
fn repeated(output: &str, kind: &str) -> u64 {
    let (mut tests, mut subtests) = (BTreeSet::new(), 0);
    for part in UNITTEST_SUBTEST.captures_iter(output).filter(|part| &part[1] == kind) {
        subtests += 1;
        tests.insert(part.get(2).map(|test| test.as_str()));
    }
    subtests - tests.len() as u64
}
