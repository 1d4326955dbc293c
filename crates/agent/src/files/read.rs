//! Reading a regular file piece by piece, in constant memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use protocol::{AgentError, EntryKind, ErrorCode, FileRead, FileStat, ReadRequest};
use sha2::{Digest, Sha256};

use super::{error, facts, hex, refuse, resolve};
use crate::limits;

/// A file that is being read.
#[derive(Debug)]
pub(crate) struct OpenRead {
    file: File,
    path: String,
    stat: FileStat,
    offset: u64,
    left: u64,
    sent: u64,
    /// Only when the reading began at the start.
    digest: Option<Sha256>,
}

/// One piece.
#[derive(Debug)]
pub(crate) struct ReadStep {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    /// The last piece comes with the facts.
    pub(crate) end: Option<FileRead>,
}

impl OpenRead {
    /// Opens a regular file; a pipe, socket or device is refused without waiting for it.
    pub(crate) fn open(request: ReadRequest) -> Result<Box<Self>, AgentError> {
        let root = resolve::Root::open(&request.root)?;
        let fd = resolve::open(&root, &request.path, OFlag::O_RDONLY)?;
        let stat = facts(&fstat(&fd).map_err(|errno| error(errno, &request.path))?);
        match stat.kind {
            EntryKind::File => {}
            EntryKind::Directory => return Err(error(Errno::EISDIR, &request.path)),
            EntryKind::Symlink | EntryKind::Other => {
                let message = format!("{}: not a regular file", request.path);
                return Err(refuse(ErrorCode::NotRegular, message));
            }
        }
        Ok(Box::new(Self {
            file: File::from(fd),
            path: request.path,
            stat,
            offset: request.offset,
            left: request.max_bytes,
            sent: 0,
            digest: (request.offset == 0).then(Sha256::new),
        }))
    }

    /// Reads a memory file of the agent's own.
    pub(crate) fn of_memory(memory: File, max_bytes: u64) -> Result<Box<Self>, AgentError> {
        let path = "the report".to_owned();
        let stat = facts(&fstat(&memory).map_err(|errno| error(errno, &path))?);
        Ok(Box::new(Self { file: memory, path, stat, offset: 0, left: max_bytes, sent: 0, digest: None }))
    }

    /// Reads the next piece. The file comes back unless it was the last.
    pub(crate) fn step(mut self: Box<Self>) -> Result<(ReadStep, Option<Box<Self>>), AgentError> {
        let mut bytes = vec![0; self.left.min(limits::READ_PIECE_BYTES as u64) as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], self.offset + filled as u64) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(failed) if failed.kind() == std::io::ErrorKind::Interrupted => {}
                Err(failed) => {
                    return Err(error(Errno::from_raw(failed.raw_os_error().unwrap_or(0)), &self.path));
                }
            }
        }
        let at_end = filled < bytes.len();
        bytes.truncate(filled);
        if let Some(digest) = &mut self.digest {
            digest.update(&bytes);
        }
        let offset = self.offset;
        self.offset += filled as u64;
        self.sent += filled as u64;
        self.left -= filled as u64;
        if !at_end && self.left > 0 {
            return Ok((ReadStep { offset, bytes, end: None }, Some(self)));
        }
        // A file that ends exactly where the reading did was read whole as well.
        let whole = at_end || matches!(self.file.read_at(&mut [0; 1], self.offset), Ok(0));
        let sha256 = self.digest.take().filter(|_| whole).map(|digest| hex(digest.finalize()));
        let end = FileRead { sent_bytes: self.sent, stat: self.stat.clone(), sha256 };
        Ok((ReadStep { offset, bytes, end: Some(end) }, None))
    }
}
