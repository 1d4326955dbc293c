//! Finds the installed server: the newest of `/usr/lib/postgresql`, or what is on the PATH.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const DEBIAN: &str = "/usr/lib/postgresql";

/// The folder that holds `postgres` and `initdb`.
#[derive(Debug, Clone)]
pub(super) struct Binaries(PathBuf);

impl Binaries {
    /// The newest server, or the one of the version that made the data.
    pub(super) fn find(data: &Path) -> Result<Self> {
        let mut installed = installed();
        installed.sort_by_key(|(version, _)| *version);
        let Some(made_by) = fs::read_to_string(data.join("PG_VERSION")).ok() else {
            let newest = installed.pop().map(|(_, folder)| folder).or_else(on_path);
            return newest.map(Self).context(
                "no Postgres server is installed (hint: apt install postgresql-15, or set DATABASE_URL to one that runs)",
            );
        };
        let made_by = made_by.trim();
        let same = installed.into_iter().find(|(version, _)| version.to_string() == made_by);
        match same.map(|(_, folder)| folder).or_else(on_path) {
            Some(folder) => Ok(Self(folder)),
            None => bail!(
                "{} was made by Postgres {made_by}, which is not installed (hint: install it, or remove the folder to start anew)",
                data.display()
            ),
        }
    }

    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.0.join(program)
    }
}

fn installed() -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(DEBIAN) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let folder = entry.path().join("bin");
            complete(&folder).then_some((version, folder))
        })
        .collect()
}

fn on_path() -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).find(|folder| complete(folder))
}

fn complete(folder: &Path) -> bool {
    folder.join("postgres").exists() && folder.join("initdb").exists()
}
