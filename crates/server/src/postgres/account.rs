//! The operating-system user that the server runs as: ourselves, or `postgres` when we are root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use nix::unistd::{Uid, User, chown};
use tokio::process::Command;

/// Who runs the server.
#[derive(Debug, Clone)]
pub(super) enum Account {
    Ourselves,
    Other(User),
}

impl Account {
    pub(super) fn for_server() -> Result<Self> {
        if !Uid::effective().is_root() {
            return Ok(Self::Ourselves);
        }
        let user = User::from_name("postgres").context("cannot look up the user `postgres`")?;
        user.map(Self::Other).context(
            "postgres refuses to run as root and there is no user `postgres`; install the package postgresql-15 or set DATABASE_URL",
        )
    }

    pub(super) fn apply(&self, command: &mut Command) {
        if let Self::Other(user) = self {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
    }

    pub(super) fn own(&self, path: &Path) -> Result<()> {
        match self {
            Self::Ourselves => Ok(()),
            Self::Other(user) => chown(path, Some(user.uid), Some(user.gid))
                .with_context(|| format!("cannot give {} to the user {}", path.display(), user.name)),
        }
    }

    /// Whether this user may pass through the folder and everything above it.
    pub(super) fn may_enter(&self, folder: &Path) -> bool {
        match self {
            Self::Ourselves => true,
            Self::Other(user) => folder.ancestors().all(|folder| {
                fs::metadata(folder).is_ok_and(|facts| {
                    let bit = if facts.uid() == user.uid.as_raw() {
                        0o100
                    } else if facts.gid() == user.gid.as_raw() {
                        0o010
                    } else {
                        0o001
                    };
                    facts.mode() & bit != 0
                })
            }),
        }
    }
}
