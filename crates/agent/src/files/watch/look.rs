//! What lies in a watched directory, and watching it: everything here opens directories, name by name and without links.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::inotify::{AddWatchFlags, WatchDescriptor};
use nix::sys::stat::{FileStat as Metadata, Mode, fstat, fstatat};
use protocol::{AgentError, EntryKind, ErrorCode};

use super::events;
use super::tree::Full;
use super::{OpenWatch, Stop};
use crate::files::resolve::{self, Root};
use crate::files::{error, kind, refuse};
use crate::{kernel, limits};

/// What lies in a directory.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) entries: Vec<(Vec<u8>, bool)>,
    /// There is more than is told by name.
    pub(super) is_cut: bool,
}

impl OpenWatch {
    pub(super) fn find(&self) -> Result<OwnedFd, AgentError> {
        let root = Root::open(&self.request.root)?;
        resolve::open(&root, &self.request.path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    pub(super) fn is_top(&self, found: &OwnedFd) -> bool {
        fstat(found).is_ok_and(|metadata| (metadata.st_dev, metadata.st_ino) == (self.top.1, self.top.2))
    }

    pub(super) fn listen_to(&self, directory: &OwnedFd) -> nix::Result<i32> {
        let mask = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR
            // A file that has no name any more is nobody's.
            | AddWatchFlags::from_bits_retain(nix::libc::IN_EXCL_UNLINK);
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        self.inotify.add_watch(path.as_str(), mask).map(WatchDescriptor::as_raw)
    }

    /// Watches a directory in another one that is watched. `None` when it is watched already, or cannot be: it has gone, or is closed to the
    /// tool's user.
    pub(super) fn add(&mut self, top: &OwnedFd, above: i32, name: &[u8]) -> Result<Option<i32>, Stop> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Some(directory) = self.directory(top, above) else { return Ok(None) };
        let Ok(below) = openat(directory, name, flags, Mode::empty()) else { return Ok(None) };
        if self.tree.way(above).is_ok_and(|way| way.len() >= limits::WATCH_DEPTH) {
            return Err(Stop::TooMuch("the directories lie too deep to be watched; watch a part of them"));
        }
        let watch = match self.listen_to(&below) {
            Ok(watch) => watch,
            Err(Errno::ENOSPC | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => return Err(Full.into()),
            Err(_) => return Ok(None),
        };
        let is_new = !self.tree.knows(watch);
        // It may have left and come back by ways of which only the halves were seen.
        self.changes.keep(watch);
        self.tree.put(watch, Some(above), name)?;
        Ok(is_new.then_some(watch))
    }

    /// A directory that is watched, opened again; what was opened last is kept.
    pub(super) fn directory(&mut self, top: &OwnedFd, watch: i32) -> Option<&OwnedFd> {
        if self.here.as_ref().is_none_or(|(here, _)| *here != watch) {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let mut at = top.try_clone().ok()?;
            for name in self.tree.way(watch).ok()? {
                at = openat(&at, name, flags, Mode::empty()).ok()?;
            }
            self.here = Some((watch, at));
        }
        self.here.as_ref().map(|(_, directory)| directory)
    }

    /// Names in a directory, and which of them are directories. Those are needed in any case: they have a limit of their own.
    pub(super) fn entries(&mut self, top: &OwnedFd, watch: i32) -> Found {
        let mut found = Found::default();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Some(directory) = self.directory(top, watch) else { return found };
        let Ok(opened) = openat(directory, ".", flags, Mode::empty()) else { return found };
        let Ok(mut listing) = Dir::from_fd(opened) else { return found };
        let mut bytes = 0;
        for entry in listing.iter().flatten() {
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let is_directory = match entry.file_type() {
                Some(kind) => kind == Type::Directory,
                None => look(directory, name).is_some_and(|it| kind(&it) == EntryKind::Directory),
            };
            if (is_directory && bytes < limits::WATCH_BYTES) || events::fits(bytes) {
                bytes += events::cost(name);
                found.entries.push((name.to_vec(), is_directory));
            } else {
                found.is_cut = true;
            }
        }
        found
    }

    pub(super) fn forget(&self, watch: i32) {
        // The kernel has forgotten most of them by itself.
        let _ = kernel::forget_watch(&*self.inotify, watch);
    }
}

pub(super) fn look(directory: &OwnedFd, name: &[u8]) -> Option<Metadata> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()
}

/// Why a directory cannot be watched.
pub(super) fn unable(errno: Errno, path: &str) -> AgentError {
    match errno {
        Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC | Errno::ENOMEM => {
            refuse(ErrorCode::LimitExceeded, "the sandbox's user has as many watches as it may")
        }
        Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP => {
            refuse(ErrorCode::Conflict, "the runtime of this sandbox does not tell of changes")
        }
        errno => error(errno, path),
    }
}
