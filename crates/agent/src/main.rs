//! The agent: a static daemon inside every sandbox, pid 1 and root there, that does what the worker asks over one socket and
//! owns every process and file access of the sandbox. It must never run a tool's code with its own rights, nor show a
//! tool a secret.

mod cgroup;
mod daemon;
mod files;
mod journal;
mod kernel;
mod limits;
mod link;
mod log;
mod operation;
mod process;
mod relay;
mod warm;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let is_init = std::process::id() == 1;
    let socket = Path::new(protocol::LINK_DIR).join(protocol::LINK_SOCKET);
    let (link, newest_version) = match &arguments[..] {
        [] => (socket, protocol::VERSION),
        // An operator rehearses an upgrade: what is spoken with the agents of the version before.
        [option, version] if option == "--protocol" => (socket, speakable(version)),
        // Asked for by the worker through the engine, beside the daemon.
        [mode] if mode == "relay" && !is_init => relay(),
        // Only for trying it outside a sandbox: in one, nobody but the design says where the worker listens.
        [option, path] if option == "--link" && !is_init => (PathBuf::from(path), protocol::VERSION),
        _ => fatal("takes no such arguments"),
    };
    if !nix::unistd::geteuid().is_root() {
        fatal("must be root inside its sandbox: it gives commands another identity");
    }
    kernel::tame_allocator();
    umask(Mode::from_bits_truncate(0o022));
    // Descriptors are the agent's own; commands get their limits from the worker. A refusal leaves the limit as it is.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard.min(65_536), hard);
    }
    // A file beyond the sandbox's largest size is an error of that write, and not the end of the agent.
    kernel::ignore_file_size_signal();
    let hidden = kernel::prctl(nix::libc::PR_SET_DUMPABLE, 0);
    if hidden.is_err() {
        fatal("cannot hide its memory from the sandbox");
    }
    // Orphans of a supervisor that died come to the agent even where it is not the first process.
    let _ = kernel::prctl(nix::libc::PR_SET_CHILD_SUBREAPER, 1);
    let outcome = daemon::Daemon::new(link, newest_version).and_then(daemon::Daemon::run);
    if let Err(errno) = outcome {
        fatal(errno.desc());
    }
}

/// A version of the protocol that this build can be held to.
fn speakable(version: &OsStr) -> u32 {
    let version = version.to_str().and_then(|text| text.parse().ok());
    match version.filter(|version| (protocol::OLDEST_VERSION..=protocol::VERSION).contains(version)) {
        Some(version) => version,
        None => fatal("speaks no such version of the protocol"),
    }
}

/// Carries bytes between the worker and the daemon where the two can share no socket. Never returns.
fn relay() -> ! {
    if kernel::prctl(nix::libc::PR_SET_DUMPABLE, 0).is_err() {
        fatal("cannot hide its memory from the sandbox");
    }
    kernel::tame_allocator();
    match relay::run(&Path::new(protocol::LINK_DIR).join(protocol::LINK_SOCKET)) {
        Ok(()) => std::process::exit(0),
        Err(error) => fatal(&error.to_string()),
    }
}

fn fatal(reason: &str) -> ! {
    eprintln!("toolhost-agent: {reason}");
    std::process::exit(1);
}
