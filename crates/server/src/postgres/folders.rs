//! Where a cluster lies: in a folder that its server's user can reach, closed to everybody else.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};

use super::account::Account;
use crate::place::short_hash;

/// Paths of unix sockets are limited to 107 bytes; the socket's own name takes this many.
const LONGEST_SOCKET_FOLDER: usize = 107 - "/.s.PGSQL.5432".len();

pub(super) fn home(folder: &Path, account: &Account) -> Result<PathBuf> {
    let parent = folder.parent().context("the cluster's folder needs a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let parent = parent.canonicalize()?;
    let name = folder.file_name().context("the cluster's folder needs a name")?;
    let mut home = parent.join(name);
    if !account.may_enter(&parent) {
        let elsewhere = PathBuf::from(format!("/var/lib/toolhost-{}", short_hash(&home)));
        if fs::symlink_metadata(&home).is_err() {
            std::os::unix::fs::symlink(&elsewhere, &home)
                .with_context(|| format!("cannot link {} to {}", home.display(), elsewhere.display()))?;
        }
        home = elsewhere;
    }
    private_folder(&home, account)?;
    Ok(home)
}

pub(super) fn sockets(home: &Path, account: &Account) -> Result<PathBuf> {
    let beside = home.join("run");
    let folder = if beside.as_os_str().len() <= LONGEST_SOCKET_FOLDER {
        beside
    } else {
        PathBuf::from(format!("/tmp/toolhost-postgres-{}", short_hash(home)))
    };
    private_folder(&folder, account)?;
    Ok(folder)
}

fn private_folder(path: &Path, account: &Account) -> Result<()> {
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.with_context(|| format!("cannot make {}", path.display()))?,
    }
    account.own(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot protect {}", path.display()))
}
