//! What a command child needs to become the command: everything is prepared here, before the fork, so that the child
//! only makes system calls.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use protocol::{AgentError, ErrorCode, ExecLimits, ExecSpec, Program, Role, TerminalSize, WORKSPACE_DIR};

use super::prelude;

/// Where a shell may lie. Never searched in the caller's `PATH`: a tool could put its own there.
const BASH: [&str; 3] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash"];
const SH: [&str; 2] = ["/usr/bin/sh", "/bin/sh"];
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program to execute: the first of the paths that exists.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) paths: Vec<CString>,
    pub(crate) argv: Vec<CString>,
}

/// Everything about a command child that is known before the fork.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) image: Image,
    /// Taken when no path of the image exists (`sh` for bash).
    pub(crate) fallback: Option<Image>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: CString,
    /// A warm shell starts in `/` when the directory is missing; its real one comes with the command.
    pub(crate) cwd_may_be_missing: bool,
    pub(crate) limits: ExecLimits,
    pub(crate) uid: u32,
    /// What descriptor 3 is.
    pub(crate) memory: Option<OwnedFd>,
    /// The agent's end of what descriptor 3 is, for a kernel.
    pub(crate) serves: Option<OwnedFd>,
    /// The kernel that is given the request; no program is executed then.
    pub(crate) kernel: Option<OwnedFd>,
    /// The program says itself, on descriptor 4, when it begins: a shell with the prelude.
    pub(crate) speaks: bool,
    /// The command finds `/dev/null` on descriptor 0, and not a pipe.
    pub(crate) null_stdin: bool,
    /// Descriptors 0, 1 and 2 are a terminal of this size, which controls the command's session.
    pub(crate) terminal: Option<TerminalSize>,
}

/// An error that tells why a command cannot be started.
pub(crate) fn refuse(message: impl Into<String>) -> AgentError {
    AgentError { code: ErrorCode::StartFailed, message: message.into() }
}

fn c_string(text: &str, what: &str) -> Result<CString, AgentError> {
    CString::new(text).map_err(|_| refuse(format!("{what} contains a NUL character")))
}

/// The environment of every command of this sandbox, before the command's own variables.
pub(crate) fn base_env(from_worker: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let defaults = [
        ("HOME", WORKSPACE_DIR),
        ("PATH", DEFAULT_PATH),
        ("USER", "tool"),
        ("LOGNAME", "tool"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
    ];
    let mut env: BTreeMap<String, String> =
        defaults.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.extend(from_worker.clone());
    env
}

fn env_strings(env: &BTreeMap<String, String>) -> Result<Vec<CString>, AgentError> {
    env.iter()
        .map(|(name, value)| {
            if name.is_empty() || name.contains('=') {
                return Err(refuse(format!("{name:?} is no name of an environment variable")));
            }
            c_string(&format!("{name}={value}"), "the environment")
        })
        .collect()
}

fn images(paths: &[&str], argv: &[&str]) -> Image {
    let own = |texts: &[&str]| texts.iter().filter_map(|text| CString::new(*text).ok()).collect();
    Image { paths: own(paths), argv: own(argv) }
}

/// A memory file with this content, read from its start.
pub(crate) fn memory_file(content: &[u8]) -> Result<OwnedFd, AgentError> {
    let failed = |error| refuse(format!("no memory file for the command: {error}"));
    let fd = nix::sys::memfd::memfd_create(c"command", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| failed(errno.desc()))?;
    fill(&fd, content).map_err(|errno| failed(errno.desc()))?;
    Ok(fd)
}

/// Writes to a memory file without moving the offset that its other holder reads from.
pub(crate) fn fill(fd: &OwnedFd, mut content: &[u8]) -> nix::Result<()> {
    let mut offset = 0;
    while !content.is_empty() {
        let written = nix::sys::uio::pwrite(fd, content, offset)?;
        offset += written as i64;
        content = &content[written..];
    }
    Ok(())
}

/// A bash that waits for its command, in the base environment.
pub(crate) fn waiting_shell(
    base: &BTreeMap<String, String>,
    limits: &ExecLimits,
    uid: u32,
) -> Result<Launch, AgentError> {
    Ok(Launch {
        image: images(&BASH, &["bash", "-c", prelude::WAIT]),
        fallback: None,
        env: env_strings(base)?,
        cwd: c_string(WORKSPACE_DIR, "the working directory")?,
        cwd_may_be_missing: true,
        limits: limits.clone(),
        uid,
        memory: Some(memory_file(b"")?),
        serves: None,
        kernel: None,
        speaks: true,
        null_stdin: false,
        terminal: None,
    })
}

/// An interpreter that waits for its request, in the base environment.
pub(crate) fn waiting_interpreter(
    base: &BTreeMap<String, String>,
    argv: &[String],
    limits: &ExecLimits,
    uid: u32,
) -> Result<Launch, AgentError> {
    let shell = waiting_shell(base, limits, uid)?;
    Ok(Launch { image: program(argv, base)?, ..shell })
}

/// The command child for `spec`, started for it alone.
pub(crate) fn for_spec(
    base: &BTreeMap<String, String>,
    spec: &ExecSpec,
    uid: u32,
    kernel: Option<OwnedFd>,
) -> Result<Launch, AgentError> {
    if !spec.cwd.starts_with('/') {
        return Err(refuse(format!("the working directory {:?} is not absolute", spec.cwd)));
    }
    let mut env = base.clone();
    env.extend(spec.env.clone());
    let null_stdin = spec.stdin == protocol::StdinMode::Null;
    let mut serves = None;
    let (image, fallback, memory, speaks) = match &spec.program {
        Program::Shell { command } => {
            c_string(command, "the command")?;
            let shell = images(&BASH, &["bash", "-c", prelude::WAIT]);
            let plain = images(&SH, &["sh", "-c", prelude::PLAIN]);
            (shell, Some(plain), Some(memory_file(prelude::command_text(command).as_bytes())?), true)
        }
        Program::Argv { argv, script } => {
            let script = || script.as_ref().map(|script| memory_file(script.as_bytes())).transpose();
            match &spec.role {
                Role::Command => (program(argv, &env)?, None, script()?, false),
                Role::Interpreter => (program(argv, &env)?, None, script()?, true),
                Role::Kernel => {
                    let (ours, theirs) = packets().map_err(|errno| refuse(errno.desc()))?;
                    serves = Some(ours);
                    (program(argv, &env)?, None, Some(theirs), false)
                }
                Role::Request { .. } => (images(&[], &[]), None, script()?, true),
            }
        }
    };
    Ok(Launch {
        image,
        fallback,
        env: env_strings(&env)?,
        cwd: c_string(&spec.cwd, "the working directory")?,
        cwd_may_be_missing: false,
        limits: spec.limits.clone(),
        uid,
        memory,
        serves,
        kernel,
        speaks,
        null_stdin,
        terminal: spec.terminal,
    })
}

/// A pair of sockets for packets that carry descriptors.
pub(crate) fn packets() -> nix::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

fn program(argv: &[String], env: &BTreeMap<String, String>) -> Result<Image, AgentError> {
    let Some(name) = argv.first().filter(|name| !name.is_empty()) else {
        return Err(refuse("there is no program to run"));
    };
    let paths = if name.contains('/') {
        vec![c_string(name, "the program")?]
    } else {
        let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        path.split(':')
            .map(|folder| {
                let folder = if folder.is_empty() { "." } else { folder };
                c_string(&format!("{folder}/{name}"), "the program")
            })
            .collect::<Result<_, _>>()?
    };
    let argv = argv.iter().map(|argument| c_string(argument, "an argument")).collect::<Result<_, _>>()?;
    Ok(Image { paths, argv })
}
