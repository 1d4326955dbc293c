//! Walking a tree: level by level, so that what is cut off is the deepest, and bounded in every direction.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat as Metadata, Mode, fstat, fstatat};
use protocol::{AgentError, EntryKind};

use super::ignore::{Rules, Verdict};
use super::kind;
use super::resolve::{self, Root};
use crate::limits;

/// Folders that nobody means when they ask for what is not ignored.
const ALWAYS_IGNORED: [&[u8]; 2] = [b".git", b"node_modules"];

/// Where to walk, and what to leave out.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    /// `/workspace` or `/tmp`.
    pub(super) root: String,
    /// Beneath the root.
    pub(super) path: String,
    /// 1 is the directory alone.
    pub(super) max_depth: u32,
    pub(super) include_hidden: bool,
    pub(super) respect_ignore: bool,
}

/// An entry that is not left out.
pub(super) struct Entry<'a> {
    /// The directory that it is in.
    pub(super) directory: &'a OwnedFd,
    /// Its name there.
    pub(super) name: &'a [u8],
    /// From the directory where the walk began.
    pub(super) path: &'a [u8],
    pub(super) kind: EntryKind,
    /// Known where the kernel had to be asked anyway: for regular files always.
    pub(super) metadata: Option<Metadata>,
}

/// The `.gitignore` files from the root down to a folder, the deepest first.
struct Ignores {
    rules: Rules,
    /// The folder of the file, as a path from the root.
    folder: Vec<u8>,
    above: Option<Rc<Ignores>>,
}

/// A folder that waits to be walked.
struct Folder {
    /// From the directory where the walk began; empty for that one itself.
    path: Vec<u8>,
    depth: u32,
    ignores: Option<Rc<Ignores>>,
}

struct Walker<'a> {
    root: Root,
    /// The directory where the walk began, from the root.
    base: Vec<u8>,
    scope: &'a Scope,
    queue: VecDeque<Folder>,
    visited: u64,
    /// Not everything was seen.
    cut: bool,
}

/// Shows every entry of the tree to `see`, until that breaks. Returns whether a limit hid some of it.
pub(super) fn walk(
    scope: &Scope,
    mut see: impl FnMut(Entry<'_>) -> ControlFlow<()>,
) -> Result<bool, AgentError> {
    let root = Root::open(&scope.root)?;
    let base = scope.path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let base = base.collect::<Vec<_>>().join("/");
    let top = resolve::open(&root, &base, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let mut walker =
        Walker { root, base: base.into_bytes(), scope, queue: VecDeque::new(), visited: 0, cut: false };
    let ignores = walker.ignores_above();
    walker.queue.push_back(Folder { path: Vec::new(), depth: 1, ignores });
    let mut opened = Some(top);
    while let Some(folder) = walker.queue.pop_front() {
        // A folder that has gone or may not be entered is simply not looked into.
        if let Some(directory) = opened.take().or_else(|| walker.open(&folder.path))
            && walker.visit(directory, &folder, &mut see).is_break()
        {
            break;
        }
    }
    Ok(walker.cut)
}

/// Either may be empty, and then is no part of the path.
fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.is_empty() || name.is_empty() { b"" } else { b"/" };
    [folder, slash, name].concat()
}

impl Walker<'_> {
    fn open(&self, path: &[u8]) -> Option<OwnedFd> {
        let path = join(&self.base, path);
        // A name that is not UTF-8 cannot be asked for either; it is listed, and not looked into.
        let path = std::str::from_utf8(&path).ok()?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        resolve::open(&self.root, path, flags).ok()
    }

    /// The rules of the folders between the root and the directory where the walk begins.
    fn ignores_above(&self) -> Option<Rc<Ignores>> {
        if !self.scope.respect_ignore || self.base.is_empty() {
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

    fn visit(
        &mut self,
        directory: OwnedFd,
        folder: &Folder,
        see: &mut impl FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut ignores = folder.ignores.clone();
        if self.scope.respect_ignore
            && let Ok(copy) = directory.try_clone()
        {
            ignores = with_rules_of(copy, &join(&self.base, &folder.path), ignores);
        }
        let Ok(mut directory) = Dir::from_fd(directory) else { return ControlFlow::Continue(()) };
        let mut names = Vec::new();
        let Ok(fd) = directory.as_fd().try_clone_to_owned() else { return ControlFlow::Continue(()) };
        for entry in directory.iter().flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.visited += 1;
            if self.visited > limits::LIST_VISITED {
                self.cut = true;
                break;
            }
            names.push((name.to_vec(), entry.file_type()));
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (name, hint) in names {
            self.entry(&fd, folder, &ignores, &name, hint, see)?;
        }
        ControlFlow::Continue(())
    }

    fn entry(
        &mut self,
        directory: &OwnedFd,
        folder: &Folder,
        ignores: &Option<Rc<Ignores>>,
        name: &[u8],
        hint: Option<Type>,
        see: &mut impl FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if name.starts_with(b".") && !self.scope.include_hidden {
            return ControlFlow::Continue(());
        }
        let needs_stat = matches!(hint, Some(Type::File) | None);
        let metadata = needs_stat.then(|| fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW));
        let (kind, metadata) = match (hint, metadata) {
            (_, Some(Ok(metadata))) => (kind(&metadata), Some(metadata)),
            // Gone meanwhile.
            (_, Some(Err(_))) => return ControlFlow::Continue(()),
            (Some(Type::Directory), None) => (EntryKind::Directory, None),
            (Some(Type::Symlink), None) => (EntryKind::Symlink, None),
            (_, None) => (EntryKind::Other, None),
        };
        let is_directory = kind == EntryKind::Directory;
        let path = join(&folder.path, name);
        if self.scope.respect_ignore
            && (ALWAYS_IGNORED.contains(&name) || is_ignored(ignores, &join(&self.base, &path), is_directory))
        {
            return ControlFlow::Continue(());
        }
        see(Entry { directory, name, path: &path, kind, metadata })?;
        if is_directory && folder.depth < self.scope.max_depth {
            if self.queue.len() < limits::LIST_QUEUE && self.visited <= limits::LIST_VISITED {
                self.queue.push_back(Folder { path, depth: folder.depth + 1, ignores: ignores.clone() });
            } else {
                self.cut = true;
            }
        }
        ControlFlow::Continue(())
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
