//! Where `toolhost dev` keeps its state: the folder `.toolhost`, what lies in it, and the lock that one process holds.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rand::distr::{Alphanumeric, SampleString};

/// A folder of state, held by this process until it ends.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
    // Released by the kernel however we end.
    _lock: File,
}

impl Place {
    /// Takes the folder, making it where it is missing.
    ///
    /// # Errors
    /// When another process holds it, or it cannot be made.
    pub fn take(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
        let path = folder.join("dev.lock");
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                drop(lock.read_to_string(&mut holder));
                bail!(
                    "another `toolhost dev` (pid {}) uses {} (hint: stop it, or give this one --state-dir)",
                    holder.trim(),
                    folder.display()
                );
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())?;
        Ok(Self { folder, _lock: lock })
    }

    /// A path in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A name for what this folder's installation leaves outside of it (containers, sockets).
    #[must_use]
    pub fn installation(&self) -> String {
        format!("dev-{}", short_hash(&self.folder))
    }

    /// A secret that is made once and kept.
    ///
    /// # Errors
    /// When it can be neither read nor written.
    pub fn secret(&self, name: &str) -> Result<String> {
        if let Some(kept) = self.read(name)? {
            return Ok(kept);
        }
        let made = Alphanumeric.sample_string(&mut rand::rng(), 48);
        self.write_private(name, &made)?;
        Ok(made)
    }

    /// A small text kept here, if there is one.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<String>> {
        let path = self.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Forgets a small text, if there is one.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn forget(&self, name: &str) -> Result<()> {
        let path = self.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Keeps a small text that only this user may read.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_private(&self, name: &str, text: &str) -> Result<()> {
        let path = self.join(name);
        let new = self.join(&format!("{name}.new"));
        drop(fs::remove_file(&new));
        OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| writeln!(file, "{text}"))
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Eight characters that tell one path from another (FNV-1a: stable over versions, and no secret).
#[must_use]
pub fn short_hash(path: &Path) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in path.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{:08x}", (hash >> 32) as u32 ^ hash as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn one_process_holds_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let held = Place::take(folder.path()).expect("is free");
        let error = Place::take(folder.path()).expect_err("is held").to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(held);
        Place::take(folder.path()).expect("is free again");
    }

    #[test]
    fn secrets_are_made_once_and_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::take(folder.path()).expect("is free");
        let first = place.secret("pepper").expect("is made");
        assert_eq!(place.secret("pepper").expect("is read"), first);
        let mode = fs::metadata(place.join("pepper")).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
