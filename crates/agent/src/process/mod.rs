//! Processes: starting a command below a supervisor of its own, and what connects it to the agent.

mod carrier;
pub(crate) mod child;
pub(crate) mod control;
pub(crate) mod launch;
pub(crate) mod prelude;
mod supervisor;
pub(crate) mod tree;

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{ForkResult, Gid, Pid, Uid, fchown, pipe2};
use protocol::{AgentError, ErrorCode, TerminalSize};

use self::child::Ends;
use self::launch::{Launch, refuse};
use crate::kernel;

/// The agent's ends of a started command. Dropping it makes the supervisor kill the tree.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) supervisor: Pid,
    pub(crate) control: OwnedFd,
    pub(crate) gate: Option<OwnedFd>,
    pub(crate) memory: Option<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    /// The agent's side of the command's terminal; `stdin` and `stdout` are copies of it.
    pub(crate) terminal: Option<OwnedFd>,
    /// Where a kernel takes its requests.
    pub(crate) kernel: Option<OwnedFd>,
}

/// Starts the command child under a supervisor. When it returns, nothing is known yet of how far the child came: the
/// gate tells. `grace` is how long what the command leaves behind may go on.
pub(crate) fn spawn(mut launch: Launch, grace: Duration) -> Result<Process, AgentError> {
    let wants_terminal = launch.terminal.is_some();
    let failed = |errno: nix::Error| {
        match errno {
        nix::Error::ENOSPC if wants_terminal => AgentError {
            code: ErrorCode::LimitExceeded,
            message: "no terminal is left: the sandbox has taken all of its own, or its host has no more (kernel.pty.max); \
                      end what holds some, or run the command without one"
                .to_owned(),
        },
        errno => refuse(format!("the pipes of the command: {}", errno.desc())),
    }
    };
    let connections = Connections::open(&launch).map_err(failed)?;
    let Connections { ends, control, stdin, stdout, stderr, terminal, gate } = connections;
    let (control, supervisor_control) = control;
    match kernel::fork() {
        Ok(ForkResult::Child) => {
            supervisor::run(&launch, &ends, supervisor_control.as_raw_fd(), ends.gate.as_raw_fd(), grace)
        }
        Ok(ForkResult::Parent { child }) => Ok(Process {
            supervisor: child,
            control,
            gate: Some(gate),
            memory: launch.memory.take(),
            stdin,
            stdout: Some(stdout),
            stderr,
            terminal,
            kernel: launch.serves.take(),
        }),
        Err(errno) => Err(refuse(format!("no process is left in the sandbox: {}", errno.desc()))),
    }
}

impl Process {
    /// Lets a program that waits go on. Errors mean that it is gone, which its gate says as well.
    pub(crate) fn release(&mut self, text: Option<&str>) {
        if let (Some(text), Some(memory)) = (text, &self.memory)
            && launch::fill(memory, text.as_bytes()).is_err()
        {
            // A program without its text never confirms, and another one takes over.
            self.gate = None;
        }
        if let Some(gate) = &self.gate {
            let _ = nix::unistd::write(gate, b"\n");
        }
    }
}

struct Connections {
    ends: Ends,
    control: (OwnedFd, OwnedFd),
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    gate: OwnedFd,
}

impl Connections {
    fn open(launch: &Launch) -> nix::Result<Self> {
        match launch.terminal {
            Some(size) => Self::with_terminal(launch.uid, size),
            None => Self::with_pipes(launch),
        }
    }

    /// One terminal in the place of three pipes. Like the pipes it belongs to the tool, so that `/dev/tty` can be opened by name.
    fn with_terminal(uid: u32, size: TerminalSize) -> nix::Result<Self> {
        let (terminal, command) = kernel::open_terminal()?;
        fchown(&command, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
        kernel::resize_terminal(terminal.as_raw_fd(), size.rows, size.cols)?;
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| nix::Error::EMFILE);
        let (gate, child_gate) = gate_pair()?;
        let control = control_pair()?;
        let ends =
            Ends { stdin: copy(&command)?, stdout: copy(&command)?, stderr: command, gate: child_gate };
        let (stdin, stdout) = (Some(copy(&terminal)?), copy(&terminal)?);
        Ok(Self { ends, control, stdin, stdout, stderr: None, terminal: Some(terminal), gate })
    }

    fn with_pipes(launch: &Launch) -> nix::Result<Self> {
        let (child_stdin, stdin) = if launch.null_stdin {
            let null = OpenOptions::new().read(true).open("/dev/null");
            (OwnedFd::from(null.map_err(|_| nix::Error::ENODEV)?), None)
        } else {
            let (read, write) = pipe_of(launch.uid)?;
            nonblocking(&write)?;
            (read, Some(write))
        };
        let (stdout, child_stdout) = pipe_of(launch.uid)?;
        let (stderr, child_stderr) = pipe_of(launch.uid)?;
        nonblocking(&stdout)?;
        nonblocking(&stderr)?;
        let (gate, child_gate) = gate_pair()?;
        let control = control_pair()?;
        let ends = Ends { stdin: child_stdin, stdout: child_stdout, stderr: child_stderr, gate: child_gate };
        Ok(Self { ends, control, stdin, stdout, stderr: Some(stderr), terminal: None, gate })
    }
}

fn gate_pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let pair = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    nonblocking(&pair.0)?;
    Ok(pair)
}

fn control_pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

/// A pipe that belongs to the tool, so that a command may open `/dev/stderr`.
fn pipe_of(uid: u32) -> nix::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    match fchown(&read, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid))) {
        Ok(()) => Ok((read, write)),
        // gVisor gives a pipe to whoever makes it, for ever.
        Err(nix::Error::EPERM) => kernel::as_owner_of_files(uid, || pipe2(OFlag::O_CLOEXEC)),
        Err(errno) => Err(errno),
    }
}

fn nonblocking(fd: &impl AsFd) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop)
}
