//! Finding files by name, in memory that depends on what is asked for and not on the tree.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;
use protocol::{AgentError, EntryKind, GlobEntry, GlobRequest, GlobSort, Globbed};

use super::facts;
use super::pattern::Glob;
use super::walk::{Scope, walk};
use crate::limits;

/// Finds what matches, until somebody raises `stop`.
pub(crate) fn glob(request: GlobRequest, stop: &AtomicBool) -> Result<Globbed, AgentError> {
    let glob = Glob::parse(&request.pattern)?;
    let limit = (request.limit as usize).clamp(1, limits::LIST_ENTRIES);
    let scope = Scope {
        root: request.root,
        path: request.path,
        max_depth: limits::LIST_DEPTH,
        include_hidden: request.include_hidden || glob.asks_for_hidden(),
        respect_ignore: request.respect_ignore,
    };
    let mut found = Globbed::default();
    let cut = walk(&scope, |entry| {
        if stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if entry.kind == EntryKind::Directory || !glob.matches(entry.path) {
            return ControlFlow::Continue(());
        }
        let known = entry.metadata;
        let stat = || fstatat(entry.directory, entry.name, AtFlags::AT_SYMLINK_NOFOLLOW).ok();
        let Some(facts) = known.or_else(stat).map(|metadata| facts(&metadata)) else {
            return ControlFlow::Continue(());
        };
        found.total += 1;
        let path = String::from_utf8_lossy(entry.path).into_owned();
        found.entries.push(GlobEntry {
            path,
            kind: facts.kind,
            size_bytes: facts.size_bytes,
            modified_ms: facts.modified_ms,
        });
        // Twice as many, so that sorting costs little for each.
        if found.entries.len() >= limit * 2 {
            keep_first(&mut found.entries, request.sort, limit);
        }
        ControlFlow::Continue(())
    })?;
    keep_first(&mut found.entries, request.sort, limit);
    found.truncated = cut || found.total > found.entries.len() as u64;
    Ok(found)
}

fn keep_first(entries: &mut Vec<GlobEntry>, sort: GlobSort, limit: usize) {
    match sort {
        GlobSort::Modified => entries
            .sort_unstable_by(|a, b| b.modified_ms.cmp(&a.modified_ms).then_with(|| a.path.cmp(&b.path))),
        GlobSort::Path => entries.sort_unstable_by(|a, b| a.path.cmp(&b.path)),
    }
    entries.truncate(limit);
    let mut path_bytes = 0;
    let fitting = entries.iter().take_while(|entry| {
        path_bytes += entry.path.len();
        path_bytes <= limits::LIST_PATH_BYTES
    });
    let fitting = fitting.count();
    entries.truncate(fitting);
}
