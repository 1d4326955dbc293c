//! The relay: what the engine runs in a sandbox whose runtime cannot share a unix socket with the host. It stands in
//! for the worker's socket and carries bytes between it and its own standard streams. It reads nothing of them.
//!
//! # Design notes
//!
//! *It listens, the daemon dials.* So the daemon knows one way only: a socket that appears in its folder is a worker
//! that takes over, whoever put it there. The folder is a tmpfs that only root may enter.
//!
//! *One connection, then the end.* When either side closes, the relay ends, and with it the stream that the worker
//! reads: both ends notice as they would on a socket. The worker asks the engine for another.

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes carried at once in each direction.
const BUFFER_BYTES: usize = 64 * 1024;

/// Serves one connection of the daemon.
pub(crate) fn run(path: &Path) -> io::Result<()> {
    let listener = listen(path)?;
    let Some(socket) = accept(&listener)? else { return Ok(()) };
    let (to_worker, from_worker) = (socket.try_clone()?, socket);
    // The process ends with whichever direction ends first: nothing on the wire outlives its connection.
    std::thread::Builder::new()
        .stack_size(BUFFER_BYTES * 4)
        .spawn(move || {
            let carried = carry(io::stdin().lock(), from_worker);
            std::process::exit(i32::from(carried.is_err()));
        })
        .map(drop)?;
    carry(to_worker, io::stdout().lock())
}

/// Puts a socket in place of the one before in one step: a dial meets either a listener or nothing.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let unfinished = path.with_extension(std::process::id().to_string());
    let listener = UnixListener::bind(&unfinished)?;
    std::fs::set_permissions(&unfinished, Permissions::from_mode(0o600))?;
    std::fs::rename(&unfinished, path)?;
    Ok(listener)
}

/// The daemon's connection; `None` when the worker goes away before.
fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    let stdin = io::stdin();
    let mut ready = [
        PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        // Nothing comes before the daemon has spoken: only the end does.
        PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
    ];
    loop {
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if ready[0].any() == Some(true) {
            return listener.accept().map(|(socket, _)| Some(socket));
        }
        if ready[1].any() == Some(true) {
            return Ok(None);
        }
    }
}

fn carry(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..length])?;
        to.flush()?;
    }
}
