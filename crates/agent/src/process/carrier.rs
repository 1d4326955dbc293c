//! The carrier: the command child of a request to a kernel. It hands its descriptors over, waits for the answer, and passes
//! the wish to end on as SIGINT. It never executes a program.
//!
//! # Design notes
//!
//! *A process of its own for each request*, though a kernel does the work: so that a request is an operation like any
//! other, with supervisor, pipes, journal and end. It has the tool's identity, and can signal nothing else.
//! *It says that the request is on its way before it sends it*: when it is killed in between, the request may be lost, but never
//! taken for one that has not begun and sent twice. Whether it arrived, its exit code says.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use nix::unistd::Pid;

use super::child::{self, Stage};
use super::launch::packets;
use crate::kernel;

/// Descriptor of the kernel's socket in the carrier.
pub(super) const KERNEL: RawFd = 5;
const MEMORY: RawFd = 3;
/// First byte of the kernel's answers.
const BEGUN: u8 = b'p';
const DONE: u8 = b'd';
/// Bytes of the longest answer.
const ANSWER_BYTES: usize = 5;

/// Carries one request. `gate` is the agent's, on which it says that the request is on its way.
pub(super) fn run(gate: RawFd) -> ! {
    match carry(gate) {
        Ok(code) => kernel::exit_now(code),
        Err(errno) => {
            child::fail(gate, Stage::Kernel, errno);
            kernel::exit_now(127);
        }
    }
}

fn carry(gate: RawFd) -> nix::Result<i32> {
    let mut wish = SigSet::empty();
    wish.add(Signal::SIGTERM);
    wish.thread_block()?;
    let wished = SignalFd::with_flags(&wish, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let (ours, theirs) = packets()?;
    let descriptors = [0, 1, 2, MEMORY, theirs.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    kernel::write_raw(gate, &[child::GATE_BEGUN]);
    if sendmsg::<()>(KERNEL, &[IoSlice::new(b"r")], &rights, MsgFlags::MSG_NOSIGNAL, None).is_err() {
        return Ok(protocol::KERNEL_ABSENT);
    }
    drop(theirs);
    for descriptor in [0, 1, 2, MEMORY, gate, KERNEL] {
        let _ = nix::unistd::close(descriptor);
    }
    Ok(wait(&ours, &wished))
}

/// Waits for the answer. What goes wrong here means that there will be none.
fn wait(answers: &OwnedFd, wished: &SignalFd) -> i32 {
    let mut group: Option<Pid> = None;
    let mut interrupted = false;
    loop {
        let mut waiting =
            [PollFd::new(answers.as_fd(), PollFlags::POLLIN), PollFd::new(wished.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return protocol::KERNEL_LOST,
        }
        if wished.read_signal().is_ok_and(|signal| signal.is_some()) {
            interrupted = true;
            interrupt(group);
        }
        let mut answer = [0; ANSWER_BYTES];
        match recv(answers.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT) {
            // What only the carrier may say, a kernel cannot.
            Ok(2) if answer[0] == DONE => return i32::from(answer[1]).min(protocol::KERNEL_LOST),
            Ok(ANSWER_BYTES) if answer[0] == BEGUN => {
                let [_, pid @ ..] = answer;
                group = Some(i32::from_ne_bytes(pid)).filter(|pid| *pid > 1).map(|pid| Pid::from_raw(-pid));
                if interrupted {
                    interrupt(group);
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Ok(_) | Err(_) => return protocol::KERNEL_LOST,
        }
    }
}

fn interrupt(group: Option<Pid>) {
    if let Some(group) = group {
        // A group that is gone answers by its closed socket.
        let _ = kill(group, Signal::SIGINT);
    }
}
