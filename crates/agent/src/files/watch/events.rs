//! What the kernel says, turned into changes; and changes into what is told.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use nix::sys::inotify::{AddWatchFlags as Said, InotifyEvent};
use protocol::{ChangeKind, EntryKind, FileChange};

use super::look::{Found, look};
use super::{Nameless, OpenWatch, Pending, Stop, What};
use crate::files::{facts, kind};
use crate::limits;

/// Something of the agent's own, which is told when it takes its place: see `write` and `remove`.
fn is_own(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b".toolhost-") else { return false };
    let Some(dot) = rest.iter().position(|byte| *byte == b'.') else { return false };
    let (random, kind) = rest.split_at(dot);
    random.len() == 16
        && random.iter().all(u8::is_ascii_hexdigit)
        && matches!(kind, b".new" | b".tmp" | b".removed")
}

impl OpenWatch {
    /// One event, in its order.
    pub(super) fn take(&mut self, top: Option<&OwnedFd>, event: InotifyEvent) -> Result<(), Stop> {
        let (said, watch) = (event.mask, event.wd.as_raw());
        if said.contains(Said::IN_Q_OVERFLOW) {
            self.is_lost = true;
            return Ok(());
        }
        let Some(name) = event.name else {
            let is_over = Said::IN_DELETE_SELF | Said::IN_MOVE_SELF | Said::IN_UNMOUNT | Said::IN_IGNORED;
            self.is_gone |= watch == self.top.0 && said.intersects(is_over);
            if said.contains(Said::IN_IGNORED) {
                self.tree.remove(watch);
            }
            return Ok(());
        };
        let name = name.as_bytes();
        if !self.tree.knows(watch) {
            return Ok(());
        }
        if is_own(name) {
            if said.contains(Said::IN_MOVED_FROM) && !name.ends_with(b".removed") {
                let what = if name.ends_with(b".new") { What::Created } else { What::Modified };
                self.saving = Some((event.cookie, what));
            }
            return Ok(());
        }
        let is_directory = said.contains(Said::IN_ISDIR);
        let was_told = !said.intersects(Said::IN_MODIFY | Said::IN_CLOSE_WRITE | Said::IN_ATTRIB)
            && self.told.remove(&(watch, name.to_vec()));
        if said.contains(Said::IN_CREATE) {
            if !was_told {
                self.say(What::Created, watch, name, is_directory);
            }
            self.see(top, watch, name, is_directory)?;
        } else if said.contains(Said::IN_MOVED_TO) {
            self.arrived(top, event.cookie, watch, name, is_directory, was_told)?;
        } else if said.contains(Said::IN_MOVED_FROM) {
            let child = if is_directory { self.tree.child(watch, name) } else { None };
            let what = What::Leaving { cookie: event.cookie, since: Instant::now(), child };
            self.say(what, watch, name, is_directory);
        } else if said.contains(Said::IN_DELETE) {
            // The kernel ends its watch later, when nothing holds it any more; another one of the name may be there by then.
            if is_directory && let Some(child) = self.tree.child(watch, name) {
                self.leave(child);
            }
            self.say(What::Deleted, watch, name, is_directory);
        } else {
            self.say(What::Modified, watch, name, is_directory);
            // It may have been closed to the tool's user before.
            if said.contains(Said::IN_ATTRIB) && is_directory && self.tree.child(watch, name).is_none() {
                self.see(top, watch, name, is_directory)?;
            }
        }
        Ok(())
    }

    fn arrived(
        &mut self,
        top: Option<&OwnedFd>,
        cookie: u32,
        watch: i32,
        name: &[u8],
        is_directory: bool,
        was_told: bool,
    ) -> Result<(), Stop> {
        if let Some((own, what)) = self.saving.take() {
            if own == cookie {
                // It may have been found there already, as it was before or is now.
                self.say(if was_told { What::Modified } else { what }, watch, name, false);
                return Ok(());
            }
            self.saving = Some((own, what));
        }
        let Some(path) = self.named(watch, name) else { return Ok(()) };
        match self.changes.arrive(cookie, &path, watch, name) {
            Some(Some(moved)) => {
                // An empty directory may have been in its place.
                if let Some(replaced) = self.tree.child(watch, name).filter(|replaced| *replaced != moved) {
                    self.leave(replaced);
                }
                self.here = None;
                self.tree.put(moved, Some(watch), name)?;
                Ok(())
            }
            Some(None) => self.see(top, watch, name, is_directory),
            None => {
                if !was_told {
                    self.say(What::Created, watch, name, is_directory);
                } else if !is_directory {
                    self.say(What::Modified, watch, name, is_directory);
                }
                self.see(top, watch, name, is_directory)
            }
        }
    }

    /// The path of an entry as it is told. When the way to it does not end, everything is looked at anew.
    fn named(&mut self, watch: i32, name: &[u8]) -> Option<Vec<u8>> {
        match self.tree.path(watch, name) {
            Ok(path) => Some(path),
            Err(Nameless::Unknown) => None,
            Err(Nameless::Lost) => {
                self.is_lost = true;
                None
            }
        }
    }

    pub(super) fn say(&mut self, what: What, watch: i32, name: &[u8], is_directory: bool) {
        if let Some(path) = self.named(watch, name) {
            self.changes.push(Pending { what, path, watch, name: name.to_vec(), is_directory });
        }
    }

    /// A directory has appeared: it is watched, and looked into when its turn comes.
    fn see(
        &mut self,
        top: Option<&OwnedFd>,
        watch: i32,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), Stop> {
        let Some(top) = top.filter(|_| is_directory && self.request.recursive) else { return Ok(()) };
        if let Some(new) = self.add(top, watch, name)? {
            self.unseen.push_back(new);
        }
        Ok(())
    }

    /// What lies in a directory that is new was there before anybody watched it.
    pub(super) fn look_into(&mut self, top: Option<&OwnedFd>, watch: i32) -> Result<(), Stop> {
        let Some(top) = top else { return Ok(()) };
        let Found { entries, is_cut } = self.entries(top, watch);
        if is_cut {
            self.changes.push(Pending::overflow());
        }
        for (name, is_directory) in entries {
            if is_own(&name) {
                continue;
            }
            if is_directory && let Some(new) = self.add(top, watch, &name)? {
                self.unseen.push_back(new);
            }
            self.told.insert((watch, name.clone()));
            self.found.push_back((watch, name));
        }
        Ok(())
    }

    /// A directory has left: it and what is below are watched no more.
    pub(super) fn leave(&mut self, watch: i32) {
        self.here = None;
        for watch in self.tree.with_all_below(watch) {
            self.tree.remove(watch);
            self.forget(watch);
        }
    }

    /// A change as it is told, with what is there now.
    pub(super) fn describe(&mut self, top: Option<&OwnedFd>, pending: Pending) -> FileChange {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let present = match pending.what {
            What::Created | What::Modified | What::Moved { .. } => top
                .and_then(|top| self.directory(top, pending.watch))
                .and_then(|directory| look(directory, &pending.name)),
            What::Deleted | What::Leaving { .. } | What::Overflow => None,
        };
        let found = present.as_ref().map(kind);
        let size_bytes = match (found, &present) {
            (Some(EntryKind::File), Some(metadata)) => Some(facts(metadata).size_bytes),
            _ => None,
        };
        let mut from = None;
        let change = match &pending.what {
            What::Created => ChangeKind::Created,
            What::Modified => ChangeKind::Modified,
            What::Deleted | What::Leaving { .. } => ChangeKind::Deleted,
            What::Moved { from: path } => {
                from = Some(text(path));
                ChangeKind::Moved
            }
            What::Overflow => ChangeKind::Overflow,
        };
        let kind = found.or(pending.is_directory.then_some(EntryKind::Directory));
        FileChange { change, path: text(&pending.path), from, kind, size_bytes }
    }
}

/// Room that names found in a directory take.
pub(super) fn cost(name: &[u8]) -> usize {
    name.len() + 2 * size_of::<(i32, Vec<u8>)>()
}

/// Whether one more name can be told by itself.
pub(super) fn fits(bytes: usize) -> bool {
    bytes < limits::WATCH_NAME_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_our_own_is_known_by_its_name() {
        for name in [&b".toolhost-0123456789abcdef.tmp"[..], b".toolhost-0123456789abcdef.removed"] {
            assert!(is_own(name));
        }
        for name in [
            &b".toolhost-0123.tmp"[..],
            b".toolhost-0123456789abcdeg.tmp",
            b".toolhost-0123456789abcdef.txt",
            b"a",
        ] {
            assert!(!is_own(name));
        }
    }
}
