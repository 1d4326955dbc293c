//! From a path beneath a root to an open descriptor, without ever leaving the root.
//!
//! # Design notes
//!
//! *The kernel first, then a walk.* `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)` answers most paths in one call.
//! Where it does not exist (an old gVisor), and where it refuses an absolute link (which may well point back into the
//! root), a walk decides: one component after another, each opened with `O_NOFOLLOW`, links expanded by us, and `..`
//! answered from the stack of directories that were passed and never by the kernel. However the tree is swapped
//! meanwhile, each step goes from a directory beneath the root to one of its own entries.
//! *Writes always walk*, as they create what is missing on the way.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use protocol::{AgentError, ErrorCode};

use super::{error, refuse};
use crate::limits;

/// The folders that files may be reached in.
const ROOTS: [&str; 2] = [protocol::WORKSPACE_DIR, "/tmp"];
const DIRECTORY_MODE: Mode = Mode::from_bits_truncate(0o755);

/// An open root.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    /// Its absolute path, for links that are absolute and still point into it.
    prefix: OsString,
}

impl Root {
    /// Opens one of the allowed roots by name.
    pub(super) fn open(name: &str) -> Result<Self, AgentError> {
        if !ROOTS.contains(&name) {
            return Err(refuse(ErrorCode::OutsideRoot, "files are reached in /workspace and /tmp only"));
        }
        Self::at(OsStr::new(name)).map_err(|errno| error(errno, name))
    }

    fn at(path: &OsStr) -> nix::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty())?;
        Ok(Self { fd, prefix: path.to_owned() })
    }
}

/// A directory, and the name in it that a path ends in. The name is no link.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) directory: OwnedFd,
    pub(super) name: OsString,
}

fn check(path: &str) -> Result<(), AgentError> {
    if path.starts_with('/') {
        return Err(refuse(ErrorCode::OutsideRoot, "the path must be relative to its root"));
    }
    if path.contains('\0') || path.len() >= limits::PATH_BYTES {
        return Err(refuse(ErrorCode::InvalidPath, "the path contains a NUL or is too long"));
    }
    Ok(())
}

/// Opens what is at `path`, links within the root followed. A pipe or device is opened without waiting for anything.
pub(super) fn open(root: &Root, path: &str, flags: OFlag) -> Result<OwnedFd, AgentError> {
    check(path)?;
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = match by_kernel(root, path, flags) {
        Err(Errno::ENOSYS | Errno::EXDEV | Errno::EAGAIN | Errno::EPERM) => by_walk(root, path, flags),
        other => other,
    };
    opened.map_err(|errno| error(errno, path))
}

fn by_kernel(root: &Root, path: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    // O_PATH takes few other flags, and openat2 refuses what open ignores.
    let flags = if flags.contains(OFlag::O_PATH) {
        flags & (OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW)
    } else {
        flags
    };
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let path = if path.is_empty() { "." } else { path };
    openat2(&root.fd, path, OpenHow::new().flags(flags).resolve(resolve))
}

fn by_walk(root: &Root, path: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    let mut walk = Walk::new(root, path, Missing::Refuse);
    match walk.find_last()? {
        Last::Directory => openat(walk.here(), ".", flags & !OFlag::O_NOFOLLOW, Mode::empty()),
        Last::Name(name) if flags.contains(OFlag::O_DIRECTORY) => directory_itself(walk.here(), &name, flags),
        Last::Name(name) => openat(walk.here(), name.as_os_str(), flags | OFlag::O_NOFOLLOW, Mode::empty()),
    }
}

/// Opens a directory by its name in another one; a link there is refused, not followed.
///
/// `O_DIRECTORY | O_NOFOLLOW` would say the same, but an old gVisor follows a link at the end when it is asked for a directory.
/// It follows none with `O_PATH`.
pub(super) fn directory_itself(at: BorrowedFd<'_>, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(at, name, how) {
        Err(Errno::ENOSYS | Errno::EPERM) => directory_by_steps(at, name, flags),
        other => other,
    }
}

fn directory_by_steps(at: BorrowedFd<'_>, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let itself = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let entry = openat(at, name, itself, Mode::empty())?;
    openat(&entry, ".", flags & !OFlag::O_NOFOLLOW, Mode::empty())
}

/// Where `path` is to be written: missing directories are created, a link at its end is followed within the root.
pub(super) fn place(root: &Root, path: &str) -> Result<Place, AgentError> {
    check(path)?;
    if path.is_empty() || path.ends_with('/') {
        return Err(refuse(ErrorCode::IsDirectory, "the path names a directory"));
    }
    let mut walk = Walk::new(root, path, Missing::Create);
    match walk.find_last().map_err(|errno| error(errno, path))? {
        Last::Directory => Err(error(Errno::EISDIR, path)),
        Last::Name(name) => {
            let directory = walk.here().try_clone_to_owned();
            Ok(Place { directory: directory.map_err(|_| error(Errno::EMFILE, path))?, name })
        }
    }
}

/// Makes `path` a directory, with those above it; links are followed within the root. False when it was there.
pub(super) fn directory(root: &Root, path: &str) -> Result<bool, AgentError> {
    check(path)?;
    let mut walk = Walk::new(root, path, Missing::Create);
    match walk.find_last().map_err(|errno| error(errno, path))? {
        Last::Directory => Ok(false),
        Last::Name(name) => match mkdirat(walk.here(), name.as_os_str(), DIRECTORY_MODE) {
            Ok(()) => Ok(true),
            Err(errno) => Err(error(errno, path)),
        },
    }
}

/// The entry that `path` names itself: nothing is created, and a link at its end is not followed.
pub(super) fn entry(root: &Root, path: &str) -> Result<Place, AgentError> {
    check(path)?;
    let path = path.trim_end_matches('/');
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    if matches!(name, "" | "." | "..") {
        return Err(refuse(ErrorCode::InvalidPath, "the path names no entry of a directory"));
    }
    let mut walk = Walk::new(root, parent, Missing::Refuse);
    match walk.find_last().map_err(|errno| error(errno, path))? {
        Last::Directory => {
            let directory = walk.here().try_clone_to_owned();
            Ok(Place { directory: directory.map_err(|_| error(Errno::EMFILE, path))?, name: name.into() })
        }
        // It is not there, or it is no directory.
        Last::Name(last) => {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let found = openat(walk.here(), last.as_os_str(), flags, Mode::empty());
            Err(error(found.err().unwrap_or(Errno::ENOTDIR), path))
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Create,
    Refuse,
}

/// What a walk ends in.
enum Last {
    /// The directory that the walk is in.
    Directory,
    /// This name in it, which is no directory and no link, or is not there.
    Name(OsString),
}

struct Walk<'a> {
    root: &'a Root,
    /// The directories passed, the present one last; empty at the root.
    passed: Vec<OwnedFd>,
    /// Components still to go, the next one last.
    ahead: Vec<OsString>,
    links: usize,
    missing: Missing,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Root, path: &str, missing: Missing) -> Self {
        let mut walk = Self { root, passed: Vec::new(), ahead: Vec::new(), links: 0, missing };
        walk.push(path.as_bytes());
        walk
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.passed.last().map_or(self.root.fd.as_fd(), AsFd::as_fd)
    }

    fn push(&mut self, path: &[u8]) {
        let components = path.rsplit(|&b| b == b'/').filter(|c| !c.is_empty() && *c != b".");
        self.ahead.extend(components.map(|c| OsStr::from_bytes(c).to_owned()));
    }

    fn find_last(&mut self) -> nix::Result<Last> {
        while let Some(name) = self.ahead.pop() {
            if name == ".." {
                self.passed.pop().ok_or(Errno::EXDEV)?;
                continue;
            }
            let is_last = self.ahead.is_empty();
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let entry = match openat(self.here(), name.as_os_str(), flags, Mode::empty()) {
                Err(Errno::ENOENT) if is_last => return Ok(Last::Name(name)),
                Err(Errno::ENOENT) if self.missing == Missing::Create => {
                    match mkdirat(self.here(), name.as_os_str(), DIRECTORY_MODE) {
                        Ok(()) | Err(Errno::EEXIST) => {}
                        Err(errno) => return Err(errno),
                    }
                    openat(self.here(), name.as_os_str(), flags, Mode::empty())?
                }
                other => other?,
            };
            match SFlag::from_bits_truncate(fstat(&entry)?.st_mode) & SFlag::S_IFMT {
                SFlag::S_IFDIR if self.passed.len() >= limits::WALK_DEPTH => return Err(Errno::ENAMETOOLONG),
                SFlag::S_IFDIR => self.passed.push(entry),
                SFlag::S_IFLNK => self.follow(&entry)?,
                _ if is_last => return Ok(Last::Name(name)),
                _ => return Err(Errno::ENOTDIR),
            }
        }
        Ok(Last::Directory)
    }

    /// Goes on where a link points, if that is beneath the root.
    fn follow(&mut self, link: &OwnedFd) -> nix::Result<()> {
        self.links += 1;
        if self.links > limits::LINKS {
            return Err(Errno::ELOOP);
        }
        let target = readlinkat(link, "")?.into_vec();
        let Some(absolute) = target.strip_prefix(b"/") else {
            self.push(&target);
            return Ok(());
        };
        let prefix = self.root.prefix.as_bytes();
        let inside = absolute.strip_prefix(&prefix[1..]).filter(|rest| rest.is_empty() || rest[0] == b'/');
        let rest = inside.ok_or(Errno::EXDEV)?.to_vec();
        self.passed.clear();
        self.push(&rest);
        Ok(())
    }
}

#[cfg(test)]
mod race;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// What both ways must say of each path in the same tree.
    const CASES: [(&str, Result<&str, Errno>); 21] = [
        ("file", Ok("file")),
        ("sub/file", Ok("sub/file")),
        ("./sub//../file", Ok("file")),
        ("sub/deeper/../../file", Ok("file")),
        ("to-file", Ok("file")),
        ("sub/up", Ok("file")),
        ("to-sub/file", Ok("sub/file")),
        ("chain", Ok("file")),
        ("absolute-inside", Ok("file")),
        ("", Ok("")),
        ("sub", Ok("sub")),
        ("..", Err(Errno::EXDEV)),
        ("sub/../../etc", Err(Errno::EXDEV)),
        ("escape", Err(Errno::EXDEV)),
        ("absolute", Err(Errno::EXDEV)),
        ("absolute-dir/passwd", Err(Errno::EXDEV)),
        ("beside", Err(Errno::EXDEV)),
        ("circle", Err(Errno::ELOOP)),
        ("missing", Err(Errno::ENOENT)),
        ("file/below", Err(Errno::ENOTDIR)),
        ("dangling", Err(Errno::ENOENT)),
    ];

    pub(super) fn tree() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("sub/deeper")).expect("directories");
        std::fs::create_dir(folder.path().join("root-beside")).expect("a sibling with the same prefix");
        for file in ["file", "sub/file"] {
            std::fs::write(root.join(file), file).expect("a file");
        }
        let links = [
            ("to-file", "file"),
            ("sub/up", "../file"),
            ("to-sub", "sub"),
            ("chain", "to-file"),
            ("escape", "../root-beside"),
            ("absolute", "/etc/passwd"),
            ("absolute-dir", "/etc"),
            ("circle", "circle"),
            ("dangling", "nothing"),
        ];
        for (name, target) in links {
            symlink(target, root.join(name)).expect("a link");
        }
        symlink(root.join("file"), root.join("absolute-inside")).expect("a link");
        symlink(folder.path().join("root-beside"), root.join("beside")).expect("a link");
        let opened = Root::at(root.as_os_str()).expect("the root");
        (folder, opened)
    }

    fn identity(fd: nix::Result<OwnedFd>) -> Result<u64, Errno> {
        fstat(fd?).map(|metadata| metadata.st_ino)
    }

    fn expected(folder: &tempfile::TempDir, case: Result<&str, Errno>) -> Result<u64, Errno> {
        use std::os::unix::fs::MetadataExt;
        case.map(|path| std::fs::metadata(folder.path().join("root").join(path)).expect("exists").ino())
    }

    #[test]
    fn the_walk_stays_beneath_the_root() {
        let (folder, root) = tree();
        for (path, outcome) in CASES {
            let found = identity(by_walk(&root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK));
            assert_eq!(found, expected(&folder, outcome), "{path:?}");
        }
    }

    #[test]
    fn the_kernel_agrees_but_for_absolute_links() {
        let (folder, root) = tree();
        for (path, outcome) in CASES {
            let outcome = if path == "absolute-inside" { Err(Errno::EXDEV) } else { outcome };
            let found = identity(by_kernel(&root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK));
            assert_eq!(found, expected(&folder, outcome), "{path:?}");
        }
    }

    #[test]
    fn a_directory_by_its_name_is_never_what_a_link_points_to() {
        let (folder, root) = tree();
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        for way in [directory_itself, directory_by_steps] {
            let open =
                |name: &str| identity(way(root.fd.as_fd(), OsStr::new(name), flags | OFlag::O_DIRECTORY));
            assert_eq!(open("sub"), expected(&folder, Ok("sub")));
            assert_eq!(open("missing"), Err(Errno::ENOENT));
            for name in ["to-sub", "escape", "absolute-dir", "file"] {
                let refused = open(name).expect_err(name);
                assert!(matches!(refused, Errno::ENOTDIR | Errno::ELOOP), "{name}: {refused}");
            }
        }
    }

    #[test]
    fn magic_links_are_not_followed() {
        let root = Root::at(OsStr::new("/proc/self")).expect("the root");
        for way in [by_kernel, by_walk] {
            assert!(way(&root, "root/etc", OFlag::O_RDONLY).is_err());
            assert!(way(&root, "fd/0", OFlag::O_RDONLY).is_err());
        }
    }

    #[test]
    fn placing_creates_parents_beneath_the_root_only() {
        let (folder, root) = tree();
        let placed = place(&root, "new/below/name").expect("a place");
        assert_eq!(placed.name, "name");
        assert!(folder.path().join("root/new/below").is_dir());
        let through = place(&root, "absolute-dir/new/name").expect_err("leaves the root");
        assert_eq!(through.code, ErrorCode::OutsideRoot);
        assert_eq!(place(&root, "to-file").expect("a place").name, "file");
        assert_eq!(place(&root, "sub").expect_err("a directory").code, ErrorCode::IsDirectory);
    }
}
