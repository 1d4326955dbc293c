//! File verbs: what they do, on threads that have the tool's rights and no others. No path is ever trusted: everything is
//! opened beneath its root, component by component or by the kernel's own rule.

mod arrange;
mod glob;
mod grep;
mod ignore;
mod list;
mod pattern;
pub(crate) mod pool;
mod read;
mod remove;
mod resolve;
mod search;
mod walk;
mod watch;
mod write;

use nix::errno::Errno;
use nix::sys::stat::{FileStat as Metadata, SFlag, fstat};
use protocol::{AgentError, EntryKind, ErrorCode, FileStat, FileVersion};

pub(crate) use arrange::{make_directory, move_entry};
pub(crate) use glob::glob;
pub(crate) use grep::grep;
pub(crate) use list::list;
pub(crate) use read::{OpenRead, ReadStep};
pub(crate) use remove::remove;
pub(crate) use watch::{Next, OpenWatch, Room, WatchStep};
pub(crate) use write::OpenWrite;

/// Facts of a path, links within the root followed.
pub(crate) fn stat(root: &str, path: &str) -> Result<FileStat, AgentError> {
    let root = resolve::Root::open(root)?;
    let fd = resolve::open(&root, path, nix::fcntl::OFlag::O_PATH)?;
    Ok(facts(&fstat(&fd).map_err(|errno| error(errno, path))?))
}

fn kind(metadata: &Metadata) -> EntryKind {
    match SFlag::from_bits_truncate(metadata.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => EntryKind::File,
        SFlag::S_IFDIR => EntryKind::Directory,
        SFlag::S_IFLNK => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}

fn facts(metadata: &Metadata) -> FileStat {
    FileStat {
        kind: kind(metadata),
        size_bytes: metadata.st_size.max(0) as u64,
        modified_ms: scaled(metadata.st_mtime, 1_000, metadata.st_mtime_nsec / 1_000_000),
        permissions: metadata.st_mode & 0o7777,
        version: version(metadata),
    }
}

/// A time in finer units. A program may have set one that does not fit.
fn scaled(seconds: i64, units: i64, rest: i64) -> i64 {
    seconds.saturating_mul(units).saturating_add(rest)
}

fn version(metadata: &Metadata) -> FileVersion {
    FileVersion {
        inode: metadata.st_ino,
        changed_ns: scaled(metadata.st_ctime, 1_000_000_000, metadata.st_ctime_nsec),
        size_bytes: metadata.st_size.max(0) as u64,
    }
}

fn refuse(code: ErrorCode, message: impl Into<String>) -> AgentError {
    AgentError { code, message: message.into() }
}

/// What the kernel refused, in the protocol's words.
fn error(errno: Errno, path: &str) -> AgentError {
    let code = match errno {
        Errno::ENOENT => ErrorCode::NotFound,
        Errno::EACCES | Errno::EPERM | Errno::EROFS => ErrorCode::PermissionDenied,
        Errno::EXDEV => ErrorCode::OutsideRoot,
        Errno::EISDIR => ErrorCode::IsDirectory,
        Errno::ENOTDIR => ErrorCode::NotDirectory,
        Errno::ENXIO | Errno::ENODEV | Errno::EOPNOTSUPP => ErrorCode::NotRegular,
        Errno::EEXIST => ErrorCode::Exists,
        Errno::ENOTEMPTY => ErrorCode::NotEmpty,
        Errno::ENOSPC | Errno::EDQUOT => ErrorCode::NoSpace,
        Errno::ELOOP | Errno::ENAMETOOLONG | Errno::EINVAL => ErrorCode::InvalidPath,
        Errno::EFBIG => ErrorCode::LimitExceeded,
        Errno::EAGAIN | Errno::ETXTBSY | Errno::EBUSY => ErrorCode::Busy,
        _ => ErrorCode::Io,
    };
    let shown: String = if path.is_empty() { ".".to_owned() } else { path.chars().take(200).collect() };
    refuse(code, format!("{shown}: {}", in_words(errno)))
}

/// What a model can act on, where the system's own words name what it cannot see.
fn in_words(errno: Errno) -> &'static str {
    match errno {
        Errno::EXDEV => "leads outside of the folders that tools may use, by way of a symbolic link or `..`",
        Errno::ELOOP => "symbolic links that lead in a circle",
        Errno::ENXIO | Errno::ENODEV | Errno::EOPNOTSUPP => "not a regular file",
        Errno::ETXTBSY => {
            "a program that runs at the moment; end it, or write another file and move it there"
        }
        Errno::EAGAIN | Errno::EBUSY => "in use at the moment; try again when what uses it is done",
        other => other.desc(),
    }
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_wrong_with_the_path() {
        let told = error(Errno::EXDEV, "link/passwd");
        assert_eq!(told.code, ErrorCode::OutsideRoot);
        assert!(told.message.starts_with("link/passwd: leads outside"), "{}", told.message);
        assert_eq!(error(Errno::EISDIR, "").message, ".: Is a directory");
        assert!(error(Errno::ELOOP, "a").message.contains("circle"));
        for errno in [Errno::EAGAIN, Errno::ETXTBSY, Errno::EBUSY] {
            assert_eq!(error(errno, "a").code, ErrorCode::Busy);
        }
    }

    #[test]
    fn a_time_that_does_not_fit_is_the_latest_or_earliest() {
        assert_eq!(scaled(1, 1_000, 5), 1_005);
        assert_eq!(scaled(i64::MAX, 1_000, 5), i64::MAX);
        assert_eq!(scaled(i64::MIN, 1_000, 5), i64::MIN + 5);
    }
}
