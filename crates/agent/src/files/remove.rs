//! Removing a file or a tree. Every step goes by a name in a directory that is open, and no link is followed, so that whatever is
//! swapped meanwhile, nothing outside of the tree is touched.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use protocol::{AgentError, EntryKind, ErrorCode, RemoveRequest, RemoveTarget, Removed};

use super::resolve::{Place, Root, directory_itself, entry};
use super::write::digest;
use super::{error, hex, kind, refuse};
use crate::{kernel, limits};

/// Removes what the request names.
pub(crate) fn remove(request: &RemoveRequest) -> Result<Removed, AgentError> {
    let root = Root::open(&request.root)?;
    let place = entry(&root, &request.path)?;
    let failed = |errno| error(errno, &request.path);
    let metadata = fstatat(&place.directory, place.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
    let is_directory = kind(&metadata.map_err(failed)?) == EntryKind::Directory;
    match request.target {
        RemoveTarget::File if is_directory => Err(failed(Errno::EISDIR)),
        RemoveTarget::File => {
            if let Some(expected) = &request.expected_sha256 {
                expect(&place, expected, &request.path)?;
            }
            unlink(&place.directory, &place.name).map_err(failed)?;
            Ok(Removed { files: 1, directories: 0 })
        }
        RemoveTarget::EmptyDirectory | RemoveTarget::Tree if !is_directory => Err(failed(Errno::ENOTDIR)),
        RemoveTarget::EmptyDirectory => {
            // Some filesystems say so in this way.
            let failed = |errno| failed(if errno == Errno::EEXIST { Errno::ENOTEMPTY } else { errno });
            remove_empty(&place.directory, &place.name).map_err(failed)?;
            Ok(Removed { files: 0, directories: 1 })
        }
        RemoveTarget::Tree => {
            let mut tree = Tree { removed: Removed::default(), began: Instant::now() };
            tree.remove(&place).map_err(|errno| match errno {
                Errno::ETIME => refuse(
                    ErrorCode::LimitExceeded,
                    format!("{}: removing it takes too long; something may be writing to it", request.path),
                ),
                errno => failed(errno),
            })?;
            Ok(tree.removed)
        }
    }
}

fn expect(place: &Place, expected: &str, path: &str) -> Result<(), AgentError> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let fd = openat(&place.directory, place.name.as_os_str(), flags, Mode::empty());
    let fd = fd.map_err(|errno| error(errno, path))?;
    let is_file = fstat(&fd).is_ok_and(|metadata| kind(&metadata) == EntryKind::File);
    let found = if is_file {
        digest(&mut File::from(fd)).map_err(|errno| error(errno, path))?
    } else {
        String::new()
    };
    if found == expected {
        return Ok(());
    }
    Err(refuse(ErrorCode::Conflict, format!("{path}: its content is not what it was")))
}

fn unlink(directory: &OwnedFd, name: &OsStr) -> nix::Result<()> {
    unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)
}

fn remove_empty(directory: &OwnedFd, name: &OsStr) -> nix::Result<()> {
    unlinkat(directory, name, UnlinkatFlags::RemoveDir)
}

struct Tree {
    removed: Removed,
    began: Instant,
}

/// An open directory of the tree.
struct Level {
    fd: OwnedFd,
    /// Its name in the level above.
    name: OsString,
    /// Entries read and not yet removed.
    names: Vec<(OsString, Option<Type>)>,
}

impl Level {
    fn open(above: &OwnedFd, name: &OsStr) -> nix::Result<Self> {
        let fd = directory_itself(above.as_fd(), name, OFlag::O_RDONLY)?;
        Ok(Self { fd, name: name.to_owned(), names: Vec::new() })
    }

    /// Reads some names. None are left when it stays empty.
    fn fill(&mut self) -> nix::Result<()> {
        let mut directory = Dir::from_fd(self.fd.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)?)?;
        for entry in directory.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.names.push((OsStr::from_bytes(name).to_owned(), entry.file_type()));
            }
            if self.names.len() >= limits::REMOVE_BATCH {
                break;
            }
        }
        Ok(())
    }
}

impl Tree {
    fn remove(&mut self, place: &Place) -> nix::Result<()> {
        let mut levels = vec![Level::open(&place.directory, &place.name)?];
        while let Some(level) = levels.last_mut() {
            if self.began.elapsed() > limits::REMOVE_TIME {
                return Err(Errno::ETIME);
            }
            if level.names.is_empty() {
                level.fill()?;
            }
            let Some((name, hint)) = level.names.pop() else {
                let done = levels.pop().expect("the loop looked at it");
                let above = levels.last().map_or(&place.directory, |level| &level.fd);
                match remove_empty(above, &done.name) {
                    Ok(()) | Err(Errno::ENOENT) => self.removed.directories += 1,
                    // Something has been put there meanwhile.
                    Err(Errno::ENOTEMPTY | Errno::EEXIST) => levels.push(done),
                    Err(errno) => return Err(errno),
                }
                continue;
            };
            if let Some(below) = self.entry(level, &name, hint)? {
                if levels.len() < limits::REMOVE_DEPTH {
                    levels.push(below);
                } else {
                    move_up(&levels, &below)?;
                }
            }
        }
        Ok(())
    }

    /// Removes an entry; a directory is opened instead.
    fn entry(&mut self, level: &Level, name: &OsStr, hint: Option<Type>) -> nix::Result<Option<Level>> {
        let is_directory = match hint {
            Some(hint) => hint == Type::Directory,
            None => match fstatat(&level.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(metadata) => kind(&metadata) == EntryKind::Directory,
                Err(Errno::ENOENT) => return Ok(None),
                Err(errno) => return Err(errno),
            },
        };
        if is_directory {
            return match Level::open(&level.fd, name) {
                Ok(below) => Ok(Some(below)),
                // It has become something else, which the next round meets.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
                Err(errno) => Err(errno),
            };
        }
        match unlink(&level.fd, name) {
            Ok(()) => self.removed.files += 1,
            Err(Errno::ENOENT) => {}
            // A directory now: the next round sees it as one.
            Err(Errno::EISDIR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(None)
    }
}

/// A directory that lies too deep goes to the top of the tree, under a name of ours.
fn move_up(levels: &[Level], below: &Level) -> nix::Result<()> {
    let (Some(top), Some(here)) = (levels.first(), levels.last()) else { return Ok(()) };
    let mut random = [0; 8];
    kernel::random(&mut random)?;
    let name = OsString::from(format!(".toolhost-{}.removed", hex(random)));
    match renameat(&here.fd, below.name.as_os_str(), &top.fd, name.as_os_str()) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
