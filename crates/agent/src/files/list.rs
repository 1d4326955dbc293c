//! Listing a tree.

use std::ops::ControlFlow;

use protocol::{AgentError, DirEntry, EntryKind, ListRequest, Listing};

use super::facts;
use super::walk::{Scope, walk};
use crate::limits;

/// Lists a directory.
pub(crate) fn list(request: ListRequest) -> Result<Listing, AgentError> {
    let limit = request.limit.min(limits::LIST_ENTRIES as u32) as usize;
    let scope = Scope {
        root: request.root,
        path: request.path,
        max_depth: request.max_depth.clamp(1, limits::LIST_DEPTH),
        include_hidden: request.include_hidden,
        respect_ignore: request.respect_ignore,
    };
    let mut listing = Listing::default();
    let mut path_bytes = 0;
    let cut = walk(&scope, |entry| {
        listing.total += 1;
        if listing.entries.len() < limit && path_bytes < limits::LIST_PATH_BYTES {
            let path = String::from_utf8_lossy(entry.path).into_owned();
            path_bytes += path.len();
            let size_bytes = match (entry.kind, &entry.metadata) {
                (EntryKind::File, Some(metadata)) => facts(metadata).size_bytes,
                _ => 0,
            };
            listing.entries.push(DirEntry { path, kind: entry.kind, size_bytes });
        }
        ControlFlow::Continue(())
    })?;
    listing.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    listing.truncated = cut || listing.total > listing.entries.len() as u64;
    Ok(listing)
}
