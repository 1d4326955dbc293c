//! Where an attack comes out otherwise on gVisor, as Debian 12 has it (a release of 2022), and why nothing is lost by it.
//!
//! The list is exact: what is on it has to be seen on `runsc`, and what is not must not be, so that it shrinks when a newer release holds more.
//! Only what a race in there decides need not be seen.
//! `docs/attacks.md` shows it, and a test compares.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use tests::host::runtime;

/// How surely something is seen there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Always,
    /// When what is tried is quick enough.
    AtTimes,
}
use Seen::{Always, AtTimes};

/// Test, what it sees there and nowhere else, how surely, and why that is so.
const DIFFERENCES: &[(&str, &str, Seen, &str)] = &[
    (
        "a_fork_bomb_ends_with_its_call",
        "lost",
        AtTimes,
        "the sandbox's processes are those of one program of the host, and a command that takes all of them ends it; the session goes on in a new one",
    ),
    (
        "a_held_pipe_does_not_hold_the_call",
        "untold",
        Always,
        "there are no child subreapers: what left both its parent and its session is ended once the sandbox is idle, and its call cannot say so",
    ),
    (
        "a_memory_bomb_ends_with_its_call",
        "lost",
        Always,
        "the sandbox's memory is that of one program of the host, and a command that takes all of it ends it; the session goes on in a new one over its files",
    ),
    (
        "changes_of_files_are_told_by_any_process",
        "whole",
        Always,
        "what a watch has not been told yet is kept without a limit, in the sandbox's own memory: a flood is told whole, and no loss is to be said",
    ),
    (
        "from_inside_nothing_else_can_be_reached",
        "environ",
        Always,
        "the agent's environment can be read, and there is nothing in it",
    ),
    (
        "from_inside_nothing_else_can_be_reached",
        "seccomp",
        Always,
        "that kernel does not show a filter; what ours refuses is refused by it or done in the sandbox's own kernel",
    ),
    (
        "from_inside_nothing_else_can_be_reached",
        "userns",
        Always,
        "a user namespace is one of the sandbox's own kernel, and reaches nothing of the host",
    ),
    (
        "what_a_tool_leaves_behind_does_not_change_what_runs_next",
        "descriptors",
        Always,
        "the agent's pipes and memory files can be opened; they are those of calls of the same session, which share a user anyway, and its sockets cannot be",
    ),
    (
        "what_a_tool_leaves_behind_does_not_change_what_runs_next",
        "environ",
        Always,
        "the agent's environment can be read, and there is nothing in it",
    ),
    (
        "what_a_tool_leaves_behind_does_not_change_what_runs_next",
        "maps",
        Always,
        "where the agent's memory lies can be read, and not what is in it",
    ),
];

/// Whether what was seen is what this runtime is known for: nothing at all on `runc`.
pub(crate) fn check<'a>(test: &str, seen: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let seen: BTreeSet<&str> = seen.into_iter().collect();
    let known: Vec<(&str, Seen)> = match runtime().as_str() {
        "runsc" => {
            DIFFERENCES.iter().filter(|(of, ..)| *of == test).map(|(_, what, how, _)| (*what, *how)).collect()
        }
        _ => Vec::new(),
    };
    let is_known = seen.iter().all(|seen| known.iter().any(|(what, _)| what == seen));
    let is_seen = known.iter().all(|(what, how)| *how == AtTimes || seen.contains(what));
    ensure!(is_known && is_seen, "{test} on {}: {seen:?} is seen, {known:?} is known", runtime());
    Ok(())
}

/// What a script said is open.
pub(crate) fn open(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter_map(|line| line.strip_prefix("OPEN "))
}

#[test]
fn the_page_of_attacks_says_what_differs_on_gvisor() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/attacks.md")).expect("the page");
    let shown: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("* ")).collect();
    let known: Vec<String> =
        DIFFERENCES.iter().map(|(test, what, _, why)| format!("`{test}`, *{what}*: {why}.")).collect();
    assert_eq!(shown, known);
}
