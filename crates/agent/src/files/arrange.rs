//! Making directories and moving entries, by names in directories that are open.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, RenameFlags, renameat, renameat2};
use nix::sys::stat::fstatat;
use protocol::{AgentError, ErrorCode, MoveRequest};

use super::error;
use super::resolve::{Place, Root, directory, entry};

/// Makes a directory and those above it. False when it is there already.
pub(crate) fn make_directory(root: &str, path: &str) -> Result<bool, AgentError> {
    directory(&Root::open(root)?, path)
}

/// Gives an entry another name; of a link the link itself. Missing directories above the new name are made.
pub(crate) fn move_entry(request: &MoveRequest) -> Result<(), AgentError> {
    let root = Root::open(&request.root)?;
    let from = entry(&root, &request.path)?;
    let failed = |path: &str| {
        let path = path.to_owned();
        move |errno| error(errno, &path)
    };
    // What is not there is said before anything is made for it.
    fstatat(&from.directory, from.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
        .map_err(failed(&request.path))?;
    let to = request.to.trim_end_matches('/');
    if let Some((above, _)) = to.rsplit_once('/') {
        directory(&root, above).map_err(|refused| match refused.code {
            ErrorCode::Exists => error(Errno::ENOTDIR, above),
            _ => refused,
        })?;
    }
    let place = entry(&root, to)?;
    rename(&from, &place, request.replace).map_err(failed(&request.to))
}

fn rename(from: &Place, to: &Place, replace: bool) -> nix::Result<()> {
    let (from_name, to_name) = (from.name.as_os_str(), to.name.as_os_str());
    if replace {
        return renameat(&from.directory, from_name, &to.directory, to_name);
    }
    let flags = RenameFlags::RENAME_NOREPLACE;
    match renameat2(&from.directory, from_name, &to.directory, to_name, flags) {
        // Where the filesystem cannot do that, or the name lies in what is moved: the second says so again.
        Err(Errno::EINVAL | Errno::ENOSYS) => {
            match fstatat(&to.directory, to_name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EEXIST),
                Err(Errno::ENOENT) => renameat(&from.directory, from_name, &to.directory, to_name),
                Err(errno) => Err(errno),
            }
        }
        other => other,
    }
}
