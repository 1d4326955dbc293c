//! Writing a file: content goes into a temporary file beside its place and takes it by a rename, or not at all.
//!
//! # Design notes
//!
//! *No fsync.* A rename keeps readers from ever seeing half a file, which is the promise; what a crash of the host loses
//! is the workspace's last seconds, as for any program that runs in it.
//! *Appending adds in place*, so that a program that has the file open goes on writing to the same one; when the disk
//! fills half-way, the file is cut back to what it was.
//! *Everything here runs with the tool's rights*, the cleaning up as well: root without its capabilities may not enter a
//! tool's directory. Therefore an unfinished write is ended with [`OpenWrite::discard`] on such a thread.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat, renameat2};
use nix::sys::stat::{FileStat as Metadata, Mode, fchmod, fstat, fstatat};
use nix::unistd::{LinkatFlags, UnlinkatFlags, linkat, unlinkat};
use protocol::{AgentError, EntryKind, ErrorCode, FileWritten, WriteMode, WriteRequest};
use sha2::{Digest, Sha256};

use super::resolve::{Place, Root, place};
use super::{error, hex, kind, refuse, version};
use crate::kernel;

const NEW_FILE_MODE: u32 = 0o644;
const COPY_BYTES: usize = 64 * 1024;

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct OpenWrite {
    request: WriteRequest,
    place: Place,
    temporary: File,
    temporary_name: OsString,
    digest: Sha256,
    size: u64,
}

fn errno(failed: &io::Error) -> Errno {
    Errno::from_raw(failed.raw_os_error().unwrap_or(Errno::EIO as i32))
}

impl OpenWrite {
    /// Finds the place and opens the temporary file beside it.
    pub(crate) fn open(request: WriteRequest) -> Result<Box<Self>, AgentError> {
        let root = Root::open(&request.root)?;
        let place = place(&root, &request.path)?;
        let failed = |errno| error(errno, &request.path);
        let present = present(&place).map_err(failed)?;
        if present.is_some() && request.mode == WriteMode::CreateNew {
            return Err(failed(Errno::EEXIST));
        }
        let mut random = [0; 8];
        kernel::random(&mut random).map_err(failed)?;
        // Its name says to a watch whether it will take the place of something.
        let kind = if present.is_some() { "tmp" } else { "new" };
        let temporary_name = OsString::from(format!(".toolhost-{}.{kind}", hex(random)));
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o600);
        let temporary = openat(&place.directory, temporary_name.as_os_str(), flags, mode)
            .map(File::from)
            .map_err(failed)?;
        Ok(Box::new(Self { request, place, temporary, temporary_name, digest: Sha256::new(), size: 0 }))
    }

    /// Adds content. The temporary file is gone when it fails.
    pub(crate) fn add(mut self: Box<Self>, pieces: &[Bytes]) -> Result<Box<Self>, AgentError> {
        for piece in pieces {
            self.size += piece.len() as u64;
            self.digest.update(piece);
            if let Err(failed) = self.temporary.write_all(piece) {
                let error = error(errno(&failed), &self.request.path);
                self.discard();
                return Err(error);
            }
        }
        Ok(self)
    }

    /// Puts the content in its place.
    pub(crate) fn commit(mut self: Box<Self>) -> Result<FileWritten, AgentError> {
        let written = self.put_in_place();
        if written.is_err() {
            self.discard();
        }
        written
    }

    /// Leaves nothing behind.
    pub(crate) fn discard(self: Box<Self>) {
        let _ = unlinkat(&self.place.directory, self.temporary_name.as_os_str(), UnlinkatFlags::NoRemoveDir);
    }

    fn put_in_place(&mut self) -> Result<FileWritten, AgentError> {
        if self.size != self.request.size_bytes && !self.request.open_ended {
            let message = format!("{} bytes came of {} announced", self.size, self.request.size_bytes);
            return Err(refuse(ErrorCode::Conflict, message));
        }
        let path = self.request.path.clone();
        let failed = |errno| error(errno, &path);
        let present = present(&self.place).map_err(failed)?;
        if let Some(metadata) = &present {
            match kind(metadata) {
                EntryKind::File => {}
                EntryKind::Directory => return Err(failed(Errno::EISDIR)),
                EntryKind::Symlink | EntryKind::Other => {
                    return Err(refuse(ErrorCode::NotRegular, format!("{path}: not a regular file")));
                }
            }
        }
        if let Some(expected) = self.request.expected_version
            && present.as_ref().map(version) != Some(expected)
        {
            return Err(refuse(ErrorCode::Conflict, format!("{path}: it has changed")));
        }
        if let Some(expected) = &self.request.expected_sha256 {
            let found = match &present {
                Some(_) => self.digest_of_present().map_err(failed)?,
                None => return Err(refuse(ErrorCode::Conflict, format!("{path}: it does not exist"))),
            };
            // A program that writes meanwhile is seen here, but for the instant before the rename.
            let after = self::present(&self.place).map_err(failed)?;
            let is_same =
                after.map(|m| (m.st_ino, m.st_mtime_nsec)) == present.map(|m| (m.st_ino, m.st_mtime_nsec));
            if found != *expected || !is_same {
                let message = format!("{path}: its content has changed since it was read");
                return Err(refuse(ErrorCode::Conflict, message));
            }
        }
        match present {
            Some(metadata) if self.request.mode == WriteMode::Append => {
                self.append(&metadata).map_err(failed)
            }
            present => self.replace(present.as_ref()).map_err(failed),
        }
    }

    fn open_present(&self, flags: OFlag) -> nix::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let fd: OwnedFd = openat(&self.place.directory, self.place.name.as_os_str(), flags, Mode::empty())?;
        Ok(File::from(fd))
    }

    fn digest_of_present(&self) -> nix::Result<String> {
        digest(&mut self.open_present(OFlag::O_RDONLY)?)
    }

    /// The rename. A new file must not replace one that has appeared meanwhile when asked not to.
    fn replace(&mut self, present: Option<&Metadata>) -> nix::Result<FileWritten> {
        let kept = present.map(|metadata| metadata.st_mode & 0o777);
        let permissions = self.request.permissions.map(|bits| bits & 0o777).or(kept).unwrap_or(NEW_FILE_MODE);
        fchmod(&self.temporary, Mode::from_bits_truncate(permissions))?;
        let (directory, from, to) =
            (&self.place.directory, self.temporary_name.as_os_str(), self.place.name.as_os_str());
        // Closed before it has its name: a watch hears of the close too, and might tell of the file twice.
        let itself =
            openat(directory, from, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        if fstat(&itself)?.st_ino == fstat(&self.temporary)?.st_ino {
            self.temporary = File::from(itself);
        }
        if self.request.mode == WriteMode::CreateNew {
            match renameat2(directory, from, directory, to, RenameFlags::RENAME_NOREPLACE) {
                // Where the filesystem cannot do that, a hard link refuses an existing name as well.
                Err(Errno::EINVAL | Errno::ENOSYS) => {
                    linkat(directory, from, directory, to, LinkatFlags::empty())?;
                    unlinkat(directory, from, UnlinkatFlags::NoRemoveDir)?;
                }
                other => other?,
            }
        } else {
            renameat(directory, from, directory, to)?;
        }
        let sha256 = hex(self.digest.clone().finalize());
        // Taken after the rename, which changes it.
        let version = version(&fstat(&self.temporary)?);
        Ok(FileWritten { created: present.is_none(), size_bytes: self.size, sha256, permissions, version })
    }

    fn append(&mut self, present: &Metadata) -> nix::Result<FileWritten> {
        let mut file = self.open_present(OFlag::O_RDWR | OFlag::O_APPEND)?;
        let before = fstat(&file)?.st_size.max(0) as u64;
        let copied = self.copy_into(&mut file);
        if let Err(errno) = copied {
            let _ = file.set_len(before);
            return Err(errno);
        }
        let mut permissions = present.st_mode & 0o777;
        if let Some(wanted) = self.request.permissions {
            permissions = wanted & 0o777;
            fchmod(&file, Mode::from_bits_truncate(permissions))?;
        }
        let _ = unlinkat(&self.place.directory, self.temporary_name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        let sha256 = digest(&mut file)?;
        let version = version(&fstat(&file)?);
        Ok(FileWritten { created: false, size_bytes: version.size_bytes, sha256, permissions, version })
    }

    fn copy_into(&mut self, file: &mut File) -> nix::Result<()> {
        self.temporary.seek(SeekFrom::Start(0)).map_err(|failed| errno(&failed))?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            match self.temporary.read(&mut buffer).map_err(|failed| errno(&failed))? {
                0 => return Ok(()),
                length => file.write_all(&buffer[..length]).map_err(|failed| errno(&failed))?,
            }
        }
    }
}

/// What is in the place now, links not followed.
fn present(place: &Place) -> nix::Result<Option<Metadata>> {
    match fstatat(&place.directory, place.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

pub(super) fn digest(file: &mut File) -> nix::Result<String> {
    file.seek(SeekFrom::Start(0)).map_err(|failed| errno(&failed))?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match file.read(&mut buffer).map_err(|failed| errno(&failed))? {
            0 => return Ok(hex(digest.finalize())),
            length => digest.update(&buffer[..length]),
        }
    }
}
