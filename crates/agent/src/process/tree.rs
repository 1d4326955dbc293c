//! The process tree below a supervisor, as `/proc` shows it. Reads and signals; never forks, so that it works when the
//! sandbox has no process left to give.
//!
//! # Design notes
//!
//! *Signals go to process numbers.* A number read from `/proc` could in theory be reused before the signal is sent. The
//! kernel hands numbers out in a circle, so that within the milliseconds of one round all 32,768 would have to be
//! used up; a pidfd for each would cost two more calls and does not exist on an old gVisor.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One line of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    parent: i32,
    pid: i32,
    session: i32,
    zombie: bool,
    /// Time that it took, and that what it has waited for took.
    own_ticks: u64,
    reaped_ticks: u64,
}

/// What the kernel tells of time in `/proc` (`USER_HZ`), on every architecture that we build for.
const TICKS_PER_S: u64 = 100;

fn read_process(pid: i32) -> Option<Process> {
    let mut buffer = [0; 512];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut buffer).ok()?;
    parse_stat(pid, &buffer[..length])
}

/// The name in parentheses is the tool's to choose, so the fields are counted from its last closing parenthesis.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let end_of_name = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let mut ticks = fields.skip(7).map(|field| field.parse::<u64>().unwrap_or(0));
    let mut two = || ticks.next().unwrap_or(0) + ticks.next().unwrap_or(0);
    let (own_ticks, reaped_ticks) = (two(), two());
    Some(Process { parent, pid, session, zombie: state == "Z" || state == "X", own_ticks, reaped_ticks })
}

fn table() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut processes: Vec<Process> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(read_process)
        .collect();
    processes.sort_unstable();
    processes
}

/// Every living descendant of `root`, nearest first. Zombies are walked through and left out: they hold nothing.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    below(&table(), vec![root])
}

/// User and system time of the tree below each of these, in milliseconds, as their own children's time will be in the end. Zombies count:
/// nobody has waited for them yet.
pub(crate) fn cpu_ms_below(roots: &[i32]) -> Vec<u64> {
    let table = if roots.is_empty() { Vec::new() } else { table() };
    let of_tree = |root: &i32| {
        let reaped = table.iter().find(|process| process.pid == *root).map_or(0, |root| root.reaped_ticks);
        let tree = walk(&table, vec![*root]);
        let ticks: u64 = tree.iter().map(|process| process.own_ticks + process.reaped_ticks).sum();
        (reaped + ticks) * 1_000 / TICKS_PER_S
    };
    roots.iter().map(of_tree).collect()
}

/// Every living process of an operation where orphans are not handed to its supervisor: what is below `root`, and the
/// orphans that are still in the command's session, with what is below them.
pub(crate) fn descendants_and_session(root: i32, session: i32) -> Vec<i32> {
    let table = table();
    let mut living = below(&table, vec![root]);
    let members = table.iter().filter(|p| p.session == session && !p.zombie && !living.contains(&p.pid));
    let orphans: Vec<i32> = members.map(|p| p.pid).collect();
    living.extend(&orphans);
    living.extend(below(&table, orphans));
    living.sort_unstable();
    living.dedup();
    living
}

/// Living processes below `root` that belong to none of the supervisors: those of a supervisor that died.
pub(crate) fn strays(root: i32, supervisors: &HashSet<i32>) -> Vec<i32> {
    let table = table();
    let first = table.partition_point(|p| p.parent < root);
    let children = table[first..].iter().take_while(|p| p.parent == root);
    let orphans = children.filter(|p| !p.zombie && !supervisors.contains(&p.pid));
    let roots: Vec<i32> = orphans.map(|p| p.pid).collect();
    let mut strays = roots.clone();
    strays.extend(below(&table, roots));
    strays
}

fn below(table: &[Process], found: Vec<i32>) -> Vec<i32> {
    walk(table, found).iter().filter(|process| !process.zombie).map(|process| process.pid).collect()
}

fn walk(table: &[Process], mut found: Vec<i32>) -> Vec<Process> {
    let mut tree = Vec::new();
    let mut next = 0;
    // The table is no snapshot: a number that moved while it was read must not make a circle endless.
    while next < found.len() && found.len() <= 2 * table.len() + 1 {
        let parent = found[next];
        next += 1;
        let first = table.partition_point(|p| p.parent < parent);
        for process in table[first..].iter().take_while(|p| p.parent == parent) {
            found.push(process.pid);
            tree.push(*process);
        }
    }
    tree
}

/// Sends a signal to each; one that is gone needs none.
pub(crate) fn signal_all(pids: &[i32], signal: Signal) {
    for &pid in pids {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Processes that belong to `uid` (those that have executed a program).
pub(crate) fn count_of(uid: u32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let owned = entries.filter_map(Result::ok).filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.parse::<i32>().is_ok())
            && entry.metadata().is_ok_and(|metadata| metadata.uid() == uid)
    });
    owned.count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let process = parse_stat(7, b"7 (a) S 1) Z 42 8 7 0 -1 4 1 2 3 4 30 12 500 7 20 0").expect("parses");
        let expected =
            Process { parent: 42, pid: 7, session: 7, zombie: true, own_ticks: 42, reaped_ticks: 507 };
        assert_eq!(process, expected);
        // Whoever tells no times.
        let process = parse_stat(7, b"7 (a) S 42 8 7 0").expect("parses");
        assert_eq!((process.own_ticks, process.reaped_ticks), (0, 0));
    }

    #[test]
    fn finds_a_child_of_this_process() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("spawns");
        let found = descendants(std::process::id() as i32);
        child.kill().expect("kills");
        child.wait().expect("reaps");
        assert!(found.contains(&(child.id() as i32)));
    }
}
