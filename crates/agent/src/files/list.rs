//! Listing a tree: level by level, so that what is cut off is the deepest, and bounded in every direction.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstat, fstatat};
use protocol::{AgentError, DirEntry, EntryKind, ListRequest, Listing};

use super::ignore::{Rules, Verdict};
use super::resolve::{self, Root};
use super::{facts, kind};
use crate::limits;

/// Folders that nobody means when they ask for what is not ignored.
const ALWAYS_IGNORED: [&[u8]; 2] = [b".git", b"node_modules"];

/// The `.gitignore` files from the root down to a folder, the deepest first.
struct Ignores {
    rules: Rules,
    /// The folder of the file, as a path from the root.
    folder: Vec<u8>,
    above: Option<Rc<Ignores>>,
}

/// A folder that waits to be listed.
struct Folder {
    /// From the listed directory; empty for that one itself.
    path: Vec<u8>,
    depth: u32,
    ignores: Option<Rc<Ignores>>,
}

struct Walker {
    root: Root,
    /// The listed directory, from the root.
    base: Vec<u8>,
    request: ListRequest,
    queue: VecDeque<Folder>,
    listing: Listing,
    path_bytes: usize,
    visited: u64,
}

/// Lists a directory.
pub(crate) fn list(mut request: ListRequest) -> Result<Listing, AgentError> {
    let root = Root::open(&request.root)?;
    request.limit = request.limit.min(limits::LIST_ENTRIES as u32);
    request.max_depth = request.max_depth.clamp(1, limits::LIST_DEPTH);
    let base = request.path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let base = base.collect::<Vec<_>>().join("/");
    let top = resolve::open(&root, &base, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let mut walker = Walker {
        root,
        base: base.into_bytes(),
        request,
        queue: VecDeque::new(),
        listing: Listing::default(),
        path_bytes: 0,
        visited: 0,
    };
    let ignores = walker.ignores_above();
    walker.queue.push_back(Folder { path: Vec::new(), depth: 1, ignores });
    let mut opened = Some(top);
    while let Some(folder) = walker.queue.pop_front() {
        // A folder that has gone or may not be entered is simply not looked into.
        if let Some(directory) = opened.take().or_else(|| walker.open(&folder.path)) {
            walker.visit(directory, &folder);
        }
    }
    let mut listing = walker.listing;
    listing.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    listing.truncated |= listing.total > listing.entries.len() as u64;
    Ok(listing)
}

/// Either may be empty, and then is no part of the path.
fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.is_empty() || name.is_empty() { b"" } else { b"/" };
    [folder, slash, name].concat()
}

impl Walker {
    fn open(&self, path: &[u8]) -> Option<OwnedFd> {
        let path = join(&self.base, path);
        // A name that is not UTF-8 cannot be asked for either; it is listed, and not looked into.
        let path = std::str::from_utf8(&path).ok()?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        resolve::open(&self.root, path, flags).ok()
    }

    /// The rules of the folders between the root and the listed directory.
    fn ignores_above(&self) -> Option<Rc<Ignores>> {
        if !self.request.respect_ignore || self.base.is_empty() {
            return None;
        }
        let mut ignores = None;
        let mut folder = Vec::new();
        for part in self.base.split(|&b| b == b'/') {
            let path = std::str::from_utf8(&folder).ok()?;
            if let Ok(directory) = resolve::open(&self.root, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
                ignores = with_rules_of(directory, &folder, ignores);
            }
            folder = join(&folder, part);
        }
        ignores
    }

    fn visit(&mut self, directory: OwnedFd, folder: &Folder) {
        let mut ignores = folder.ignores.clone();
        if self.request.respect_ignore
            && let Ok(copy) = directory.try_clone()
        {
            ignores = with_rules_of(copy, &join(&self.base, &folder.path), ignores);
        }
        let Ok(mut directory) = Dir::from_fd(directory) else { return };
        let mut names = Vec::new();
        let Ok(fd) = directory.as_fd().try_clone_to_owned() else { return };
        for entry in directory.iter().flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.visited += 1;
            if self.visited > limits::LIST_VISITED {
                self.listing.truncated = true;
                break;
            }
            names.push((name.to_vec(), entry.file_type()));
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (name, hint) in names {
            self.entry(&fd, folder, &ignores, &name, hint);
        }
    }

    fn entry(
        &mut self,
        fd: &OwnedFd,
        folder: &Folder,
        ignores: &Option<Rc<Ignores>>,
        name: &[u8],
        hint: Option<Type>,
    ) {
        if name.starts_with(b".") && !self.request.include_hidden {
            return;
        }
        let needs_stat = matches!(hint, Some(Type::File) | None);
        let metadata = needs_stat.then(|| fstatat(fd, name, AtFlags::AT_SYMLINK_NOFOLLOW));
        let (entry_kind, size_bytes) = match (hint, metadata) {
            (_, Some(Ok(metadata))) => (kind(&metadata), facts(&metadata).size_bytes),
            // Gone meanwhile.
            (_, Some(Err(_))) => return,
            (Some(Type::Directory), None) => (EntryKind::Directory, 0),
            (Some(Type::Symlink), None) => (EntryKind::Symlink, 0),
            (_, None) => (EntryKind::Other, 0),
        };
        let is_directory = entry_kind == EntryKind::Directory;
        let path = join(&folder.path, name);
        if self.request.respect_ignore
            && (ALWAYS_IGNORED.contains(&name) || is_ignored(ignores, &join(&self.base, &path), is_directory))
        {
            return;
        }
        self.listing.total += 1;
        if self.listing.entries.len() < self.request.limit as usize
            && self.path_bytes < limits::LIST_PATH_BYTES
        {
            let shown = String::from_utf8_lossy(&path).into_owned();
            self.path_bytes += shown.len();
            let size_bytes = if entry_kind == EntryKind::File { size_bytes } else { 0 };
            self.listing.entries.push(DirEntry { path: shown, kind: entry_kind, size_bytes });
        }
        if is_directory && folder.depth < self.request.max_depth {
            if self.queue.len() < limits::LIST_QUEUE && self.visited <= limits::LIST_VISITED {
                self.queue.push_back(Folder { path, depth: folder.depth + 1, ignores: ignores.clone() });
            } else {
                self.listing.truncated = true;
            }
        }
    }
}

fn with_rules_of(directory: OwnedFd, folder: &[u8], above: Option<Rc<Ignores>>) -> Option<Rc<Ignores>> {
    match read_rules(&directory) {
        Ok(rules) if !rules.is_empty() => Some(Rc::new(Ignores { rules, folder: folder.to_vec(), above })),
        Ok(_) | Err(_) => above,
    }
}

fn read_rules(directory: &OwnedFd) -> nix::Result<Rules> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let fd = openat(directory, ".gitignore", flags, Mode::empty())?;
    if kind(&fstat(&fd)?) != EntryKind::File {
        return Err(Errno::EINVAL);
    }
    let mut text = Vec::new();
    let read = File::from(fd).take(limits::IGNORE_BYTES as u64).read_to_end(&mut text);
    read.map_err(|_| Errno::EIO)?;
    Ok(Rules::parse(&text))
}

/// The deepest file that says anything decides.
fn is_ignored(ignores: &Option<Rc<Ignores>>, path: &[u8], is_directory: bool) -> bool {
    let mut next = ignores.as_ref();
    while let Some(ignores) = next {
        let relative = if ignores.folder.is_empty() {
            path
        } else {
            path.get(ignores.folder.len() + 1..).unwrap_or(path)
        };
        match ignores.rules.verdict(relative, is_directory) {
            Verdict::Ignored => return true,
            Verdict::Included => return false,
            Verdict::Silent => next = ignores.above.as_ref(),
        }
    }
    false
}
