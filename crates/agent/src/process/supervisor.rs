//! The supervisor: one process for each operation, between agent and command. It adopts whatever the command's
//! descendants leave behind, so that its subtree is the operation, and it ends that subtree when told to.
//!
//! It runs in a forked copy of the agent: it makes system calls, allocates a little, and must never return into the
//! agent's code.
//!
//! # Design notes
//!
//! *No children means no descendants*: orphans are handed to the nearest subreaper, so the usual end of a command
//! costs one `waitpid` and no look at `/proc`.
//! *Left to finish by itself first*: when a command has ended and something of it still runs (`> >(tee log)`), that has
//! the grace to end by itself; then it gets SIGTERM and SIGCONT, the grace again, and SIGKILL.
//! *Where the kernel knows no subreapers* (an old gVisor), orphans go to the agent. Those that kept the command's session
//! are found by it; what left both parent and session belongs to nobody, and ends when the sandbox has nothing to do.
//! *Scan and kill, round after round*: stopping the tree first was tried against setsid and double-fork bombs and did
//! not converge; killing did, 75 of 75 times.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::unistd::{ForkResult, Pid};

use super::child::{self, Ends, Stage};
use super::control::{Gone, Order, Report, receive_order, send_report};
use super::launch::Launch;
use super::tree;
use crate::{kernel, limits};

/// The rest of one who is told of no child's end.
const ORPHANS_REST: Duration = Duration::from_millis(20);
/// Rests between two rounds of the same phase; a child's end cuts them short.
const KILL_REST: Duration = Duration::from_millis(2);
const STUCK_REST: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The command lives.
    Running,
    /// The command has ended, what it left has until then to end by itself.
    Lingering(Instant),
    /// SIGTERM has been sent; SIGKILL follows then.
    Terminating(Instant),
    /// SIGKILL round after round; the last resort is asked for then.
    Killing(Instant),
    /// Asked for; given up then.
    Stuck(Instant),
}

struct Supervisor {
    control: RawFd,
    command: Pid,
    /// The command's session, where orphans have to be looked for in it.
    session: Option<i32>,
    status: Option<i32>,
    phase: Phase,
    grace: Duration,
    left_over: u32,
    /// The agent has let go: end quickly and tell nobody.
    alone: bool,
}

/// Supervises one command in the forked child of the agent. `control` must not be one of the descriptors in `ends`.
pub(crate) fn run(launch: &Launch, ends: &Ends, control: RawFd, gate: RawFd, grace: Duration) -> ! {
    // Refusals are survivable: without them a supervisor outlives a dying agent, or shows more in /proc.
    let _ = kernel::prctl(nix::libc::PR_SET_PDEATHSIG, nix::libc::SIGKILL as u64);
    let _ = kernel::prctl(nix::libc::PR_SET_DUMPABLE, 0);
    let adopts = kernel::prctl(nix::libc::PR_SET_CHILD_SUBREAPER, 1).is_ok();
    kernel::listen_for_children();
    let command = match kernel::fork() {
        Ok(ForkResult::Child) => child::run(launch, ends),
        Ok(ForkResult::Parent { child }) => child,
        Err(errno) => {
            child::fail(gate, Stage::Fork, errno);
            kernel::exit_now(1);
        }
    };
    const CONTROL: RawFd = 3;
    if kernel::place(control, CONTROL).is_ok() {
        kernel::close_from(CONTROL + 1);
    }
    kernel::name_process(c"supervisor");
    let mut supervisor = Supervisor {
        control: CONTROL,
        command,
        // The command makes a session of its own.
        session: (!adopts).then_some(command.as_raw()),
        status: None,
        phase: Phase::Running,
        grace,
        left_over: 0,
        alone: false,
    };
    supervisor.until_gone();
    supervisor.report_gone();
    kernel::exit_now(0);
}

impl Supervisor {
    fn until_gone(&mut self) {
        loop {
            if self.reap() == Tree::Gone {
                return;
            }
            if self.status.is_some() && self.phase == Phase::Running {
                self.phase = Phase::Lingering(Instant::now() + self.grace);
            }
            if !self.advance() {
                return;
            }
            let readable = kernel::wait_readable(if self.alone { -1 } else { self.control }, self.rest());
            if readable {
                self.obey();
            }
        }
    }

    /// How long to wait before looking again, at most.
    fn rest(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => None,
            Phase::Lingering(until) | Phase::Terminating(until) => {
                let rest = until.saturating_duration_since(Instant::now());
                Some(if self.session.is_some() { rest.min(ORPHANS_REST) } else { rest })
            }
            Phase::Killing(_) => Some(KILL_REST),
            Phase::Stuck(_) => Some(STUCK_REST),
        }
    }

    /// Does what the phase asks for now. False when the tree is given up.
    fn advance(&mut self) -> bool {
        let now = Instant::now();
        match self.phase {
            Phase::Lingering(until) if now >= until => {
                let left = self.terminate(self.grace);
                self.left_over = left as u32;
            }
            Phase::Terminating(until) if now >= until => {
                self.phase = Phase::Killing(now + limits::KILL_BUDGET);
                self.kill_round();
            }
            Phase::Killing(until) if now >= until => {
                self.phase = Phase::Stuck(now + limits::RESET_BUDGET);
                send_report(self.control, Report::Stuck);
                self.kill_round();
            }
            Phase::Stuck(until) if now >= until => return false,
            Phase::Killing(_) | Phase::Stuck(_) => self.kill_round(),
            Phase::Running | Phase::Lingering(_) | Phase::Terminating(_) => {}
        }
        true
    }

    /// Asks everything to end. Returns how many there were.
    fn terminate(&mut self, grace: Duration) -> usize {
        let pids = self.descendants();
        tree::signal_all(&pids, Signal::SIGTERM);
        tree::signal_all(&pids, Signal::SIGCONT);
        self.phase = Phase::Terminating(Instant::now() + grace);
        pids.len()
    }

    fn kill_round(&self) {
        tree::signal_all(&self.descendants(), Signal::SIGKILL);
    }

    fn descendants(&self) -> Vec<i32> {
        let own = nix::unistd::getpid().as_raw();
        match self.session {
            Some(session) => tree::descendants_and_session(own, session),
            None => tree::descendants(own),
        }
    }

    fn obey(&mut self) {
        match receive_order(self.control) {
            Ok(Some(Order::End(grace))) => match self.phase {
                Phase::Running | Phase::Lingering(_) => {
                    self.terminate(grace);
                }
                // A second order can only make it quicker.
                Phase::Terminating(until) => {
                    self.phase = Phase::Terminating(until.min(Instant::now() + grace))
                }
                Phase::Killing(_) | Phase::Stuck(_) => {}
            },
            Ok(Some(Order::Signal(number))) => self.signal(number),
            Ok(None) => {}
            Err(_) => {
                self.alone = true;
                if !matches!(self.phase, Phase::Killing(_) | Phase::Stuck(_)) {
                    self.phase = Phase::Terminating(Instant::now());
                }
            }
        }
    }

    /// To the command's process group while the command has not been reaped (its number cannot be another's), else to
    /// whatever is left.
    fn signal(&self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        if self.status.is_none() && kill(Pid::from_raw(-self.command.as_raw()), signal).is_ok() {
            return;
        }
        tree::signal_all(&self.descendants(), signal);
    }

    fn reap(&mut self) -> Tree {
        loop {
            match kernel::reap_one() {
                Ok(Some((pid, status))) => {
                    if pid == self.command.as_raw() {
                        self.status = Some(status);
                    }
                }
                Ok(None) => return Tree::Living,
                Err(Errno::EINTR) => {}
                Err(_) if self.session.is_none() || self.descendants().is_empty() => return Tree::Gone,
                Err(_) => return Tree::Living,
            }
        }
    }

    fn report_gone(&self) {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
        let gone = Gone {
            status: self.status,
            cpu_ms: usage.map_or(0, |u| (u.user_time() + u.system_time()).num_milliseconds().max(0) as u64),
            max_rss_bytes: usage.map_or(0, |u| u.max_rss().max(0) as u64 * 1024),
            left_over: self.left_over,
        };
        send_report(self.control, Report::Gone(gone));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    Living,
    Gone,
}
