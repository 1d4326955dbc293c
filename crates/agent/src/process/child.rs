//! The command child, from the supervisor's fork to the program's first instruction. It makes system calls only, reports
//! the first one that fails, and ends.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{chdir, execve, setsid};
use protocol::{AgentError, ExecLimits};

use super::launch::{Image, Launch, refuse};
use crate::kernel;

/// How a started child appears on the gate, its descriptor 4.
pub(crate) const GATE_BEGUN: u8 = b's';
/// No bash: `sh` is executed instead, whose gate just closes.
pub(crate) const GATE_FALLBACK: u8 = b'f';
/// A failure: the stage and the errno follow.
pub(crate) const GATE_FAILED: u8 = b'x';

/// What the child was doing when the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    Fork = 1,
    Limits = 2,
    Identity = 3,
    Descriptors = 4,
    Directory = 5,
    Program = 6,
    Kernel = 7,
}

/// The error for a failure record on the gate: stage, then errno.
pub(crate) fn failure(record: [u8; 5], cwd: &str, program: &str) -> AgentError {
    let [stage, errno @ ..] = record;
    let errno = Errno::from_raw(i32::from_ne_bytes(errno));
    let reason = errno.desc();
    refuse(match (stage, errno) {
        (1, _) | (_, Errno::EAGAIN) => {
            format!("no process is left in the sandbox: {reason}; end some of those that run")
        }
        (5, _) => format!("the working directory {cwd}: {reason}"),
        (6, Errno::E2BIG) => "the arguments and the environment are too long".to_owned(),
        (6, _) => format!("{program}: {reason}"),
        (2, _) => format!("the limits of the command: {reason}"),
        (3, _) => format!("the identity of the command: {reason}"),
        (7, _) => format!("the request could not be handed to its interpreter: {reason}"),
        _ => format!("the descriptors of the command: {reason}"),
    })
}

/// Writes a failure record.
pub(crate) fn fail(gate: RawFd, stage: Stage, errno: Errno) {
    let mut record = [GATE_FAILED, stage as u8, 0, 0, 0, 0];
    record[2..].copy_from_slice(&(errno as i32).to_ne_bytes());
    kernel::write_raw(gate, &record);
}

/// The child's ends of what connects it to the agent.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) gate: OwnedFd,
}

/// Becomes the command. Never returns.
pub(crate) fn run(launch: &Launch, ends: &Ends) -> ! {
    let mut gate = ends.gate.as_raw_fd();
    if let Err((stage, errno)) = prepare(launch, ends, &mut gate) {
        fail(gate, stage, errno);
        kernel::exit_now(127);
    }
    if launch.kernel.is_some() {
        super::carrier::run(gate);
    }
    let mut errno = execute(&launch.image, launch);
    if let (Errno::ENOENT | Errno::EACCES, Some(fallback)) = (errno, &launch.fallback) {
        kernel::close_on_exec(gate);
        kernel::write_raw(gate, &[GATE_FALLBACK]);
        errno = execute(fallback, launch);
    }
    fail(gate, Stage::Program, errno);
    kernel::exit_now(127);
}

/// The order matters: limits and oom score while still root (afterwards the kernel refuses), identity, then everything
/// that the tool's identity must be able to do itself.
fn prepare(launch: &Launch, ends: &Ends, gate: &mut RawFd) -> Result<(), (Stage, Errno)> {
    limit(&launch.limits).map_err(|errno| (Stage::Limits, errno))?;
    // The tool is the one to be killed when memory runs out, and not the agent. Where /proc refuses, it stays as it is.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let _ = setsid();
    umask(Mode::from_bits_truncate(0o022));
    connect(launch, ends, gate).map_err(|errno| (Stage::Descriptors, errno))?;
    if launch.terminal.is_some() {
        kernel::take_terminal().map_err(|errno| (Stage::Descriptors, errno))?;
    }
    kernel::become_tool(launch.uid).map_err(|errno| (Stage::Identity, errno))?;
    // After the identity, because taking one clears it.
    kernel::prctl(nix::libc::PR_SET_PDEATHSIG, nix::libc::SIGKILL as u64)
        .map_err(|errno| (Stage::Identity, errno))?;
    match chdir(launch.cwd.as_c_str()) {
        Err(_) if launch.cwd_may_be_missing => chdir(c"/"),
        other => other,
    }
    .map_err(|errno| (Stage::Directory, errno))?;
    kernel::default_signals();
    Ok(())
}

fn limit(limits: &ExecLimits) -> nix::Result<()> {
    let wanted = [
        (Resource::RLIMIT_CORE, Some(0)),
        (Resource::RLIMIT_CPU, limits.cpu_s),
        (Resource::RLIMIT_NPROC, limits.processes),
        (Resource::RLIMIT_NOFILE, limits.open_files),
        (Resource::RLIMIT_FSIZE, limits.file_bytes),
    ];
    for (resource, value) in wanted {
        // The agent may not raise a limit above the sandbox's own.
        if let Some(value) = value {
            let value = value.min(getrlimit(resource)?.1);
            setrlimit(resource, value, value)?;
        }
    }
    Ok(())
}

/// Descriptors 0, 1, 2, then 3 (memory file), 4 (gate) and for a request 5 (its kernel), and nothing else.
fn connect(launch: &Launch, ends: &Ends, gate: &mut RawFd) -> nix::Result<()> {
    const LIFTED: RawFd = 16;
    let lift = |fd: &OwnedFd| kernel::lift(fd.as_raw_fd(), LIFTED);
    let memory = launch.memory.as_ref().map(lift).transpose()?;
    let kernel = launch.kernel.as_ref().map(lift).transpose()?;
    let lifted = [lift(&ends.stdin)?, lift(&ends.stdout)?, lift(&ends.stderr)?, lift(&ends.gate)?];
    kernel::place(lifted[0], 0)?;
    kernel::place(lifted[1], 1)?;
    kernel::place(lifted[2], 2)?;
    kernel::place(lifted[3], 4)?;
    *gate = 4;
    match memory {
        Some(memory) => kernel::place(memory, 3)?,
        None => drop(nix::unistd::close(3)),
    }
    match kernel {
        Some(socket) => {
            kernel::place(socket, super::carrier::KERNEL)?;
            kernel::close_from(super::carrier::KERNEL + 1);
        }
        None => kernel::close_from(5),
    }
    if !launch.speaks {
        kernel::close_on_exec(4);
    }
    Ok(())
}

/// Executes the first path that exists. Returns why none could be.
fn execute(image: &Image, launch: &Launch) -> Errno {
    let mut reason = Errno::ENOENT;
    for path in &image.paths {
        let Err(errno) = execve(path, &image.argv, &launch.env);
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => {}
            // As execvp: one that may not be executed does not hide another one later in the path.
            Errno::EACCES => reason = errno,
            _ => return errno,
        }
    }
    reason
}
