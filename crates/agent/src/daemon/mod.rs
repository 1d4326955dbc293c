//! The daemon: one thread, one `epoll`, every event of the sandbox. It never blocks; what may block (files) runs on
//! threads of its own, and what waits for processes runs in supervisors.
//!
//! # Design notes
//!
//! *Plain `epoll` and no runtime*: supervisors are forked from this thread, which must then own everything that it holds,
//! and the whole agent has to fit 8 MiB.

mod connection;
mod ending;
mod execution;
mod housekeeping;
mod input;
mod output;
mod removals;
mod transfers;
mod verbs;
mod watches;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use protocol::StreamId;

use crate::cgroup::ControlGroup;
use crate::files::pool::Pool;
use crate::journal::Journal;
use crate::kernel;
use crate::link::Link;
use crate::operation::{Operation, OperationId};
use crate::warm::WarmPrograms;
use transfers::Transfers;

/// Size of the buffer that pipes and the worker's socket are read into.
const SCRATCH_BYTES: usize = 64 * 1024;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Link,
    Candidate,
    Signals,
    Files,
    Folder,
    Control(OperationId),
    Gate(OperationId),
    Stdout(OperationId),
    Stderr(OperationId),
    Stdin(OperationId),
    Warm(u64),
    Watch(u64),
}

impl Source {
    const BITS: u32 = 4;

    fn token(self) -> u64 {
        let (kind, id) = match self {
            Self::Link => (0, 0),
            Self::Candidate => (1, 0),
            Self::Signals => (2, 0),
            Self::Files => (3, 0),
            Self::Folder => (4, 0),
            Self::Control(id) => (5, id),
            Self::Gate(id) => (6, id),
            Self::Stdout(id) => (7, id),
            Self::Stderr(id) => (8, id),
            Self::Stdin(id) => (9, id),
            Self::Warm(id) => (10, id),
            Self::Watch(ticket) => (11, ticket),
        };
        id << Self::BITS | kind
    }

    fn from_token(token: u64) -> Self {
        let id = token >> Self::BITS;
        match token & ((1 << Self::BITS) - 1) {
            0 => Self::Link,
            1 => Self::Candidate,
            2 => Self::Signals,
            3 => Self::Files,
            4 => Self::Folder,
            5 => Self::Control(id),
            6 => Self::Gate(id),
            7 => Self::Stdout(id),
            8 => Self::Stderr(id),
            9 => Self::Stdin(id),
            10 => Self::Warm(id),
            _ => Self::Watch(id),
        }
    }
}

/// What a stream of the present connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamUse {
    Exec(OperationId),
    Transfer(u64),
}

/// What the worker has said about this sandbox.
#[derive(Debug, Clone)]
struct Settings {
    uid: u32,
    env: BTreeMap<String, String>,
    warm_shells: usize,
}

/// The daemon's whole state.
pub(crate) struct Daemon {
    epoll: Epoll,
    signals: SignalFd,
    folder: Option<Inotify>,
    link_path: PathBuf,
    link: Option<Link>,
    candidate: Option<Link>,
    /// A worker has put a new socket in place: dial it until then, though a connection exists.
    candidate_until: Option<Instant>,
    next_dial: Instant,
    dial_pause: Duration,
    boot_id: String,
    /// Newest version of the protocol that is offered to workers.
    newest_version: u32,
    highest_epoch: u64,
    settings: Option<Settings>,
    journal: Journal,
    operations: HashMap<OperationId, Operation>,
    /// Operations that have not ended.
    active: BTreeSet<OperationId>,
    next_operation: OperationId,
    /// Output of all operations in memory.
    buffered: usize,
    streams: HashMap<StreamId, StreamUse>,
    warm: WarmPrograms,
    transfers: Transfers,
    files: Option<Pool>,
    supervisors: HashSet<i32>,
    /// When to look for processes whose supervisor died.
    sweep_at: Option<Instant>,
    control_group: ControlGroup,
    /// Supervisors are handed the orphans of their commands; else the agent is.
    has_subreapers: bool,
    scratch: Vec<u8>,
    stopping: bool,
}

impl Daemon {
    /// Sets everything up; dials on the first turn of the loop. No newer version than this one is spoken.
    pub(crate) fn new(link_path: PathBuf, newest_version: u32) -> nix::Result<Self> {
        let mut handled = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
            handled.add(signal);
        }
        handled.thread_block()?;
        let signals = SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(signals.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, Source::Signals.token()))?;
        let mut random = [0; 16];
        kernel::random(&mut random)?;
        let now = Instant::now();
        let mut daemon = Self {
            epoll,
            signals,
            folder: None,
            link_path,
            link: None,
            candidate: None,
            candidate_until: None,
            next_dial: now,
            dial_pause: Duration::from_millis(protocol::REDIAL_INTERVAL_MS),
            boot_id: random.iter().map(|byte| format!("{byte:02x}")).collect(),
            newest_version,
            highest_epoch: 0,
            settings: None,
            journal: Journal::default(),
            operations: HashMap::new(),
            active: BTreeSet::new(),
            next_operation: 1,
            buffered: 0,
            streams: HashMap::new(),
            warm: WarmPrograms::default(),
            transfers: Transfers::default(),
            files: None,
            supervisors: HashSet::new(),
            sweep_at: None,
            control_group: ControlGroup::open(),
            has_subreapers: kernel::has_subreapers(),
            scratch: vec![0; SCRATCH_BYTES],
            stopping: false,
        };
        daemon.watch_folder();
        Ok(daemon)
    }

    /// A worker that takes over puts its own socket in place of the old one: seen at once, and not after a silence.
    fn watch_folder(&mut self) {
        let Some(folder) = self.link_path.parent() else { return };
        let Ok(inotify) = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK) else { return };
        if inotify.add_watch(folder, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO).is_ok()
            && self.watch(&inotify, Source::Folder, EpollFlags::EPOLLIN)
        {
            self.folder = Some(inotify);
        }
    }

    /// Runs until told to stop by the outside of the sandbox.
    pub(crate) fn run(mut self) -> nix::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        while !self.stopping {
            let timeout = self.tend();
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(errno),
            };
            for event in &events[..count] {
                self.dispatch(Source::from_token(event.data()), event.events());
            }
            self.flush();
        }
        Ok(())
    }

    fn dispatch(&mut self, source: Source, flags: EpollFlags) {
        match source {
            Source::Link => self.link_ready(flags),
            Source::Candidate => self.candidate_ready(),
            Source::Signals => self.signalled(),
            Source::Files => self.files_done(),
            Source::Folder => self.folder_changed(),
            Source::Control(id) => self.supervisor_reports(id),
            Source::Gate(id) => self.gate_speaks(id),
            Source::Stdout(id) => self.read_output(id, protocol::StreamName::Stdout),
            Source::Stderr(id) => self.read_output(id, protocol::StreamName::Stderr),
            Source::Stdin(id) => self.write_input(id),
            Source::Warm(id) => self.warm_program_reports(id),
            Source::Watch(ticket) => self.kernel_speaks(ticket),
        }
    }

    /// Does what time asks for, and says how long the loop may sleep.
    fn tend(&mut self) -> EpollTimeout {
        let now = Instant::now();
        self.tend_links(now);
        self.tend_operations(now);
        self.tend_warm_programs(now);
        self.sweep_strays(now);
        self.tend_watches(now);
        self.flush();
        let wakes =
            [self.links_wake_at(), self.warm_programs_wake_at(), self.sweep_at, self.watches_wake_at()];
        let operations = self.active.iter().filter_map(|id| self.operations.get(id)?.wakes_at());
        let Some(next) = wakes.into_iter().flatten().chain(operations).min() else {
            return EpollTimeout::NONE;
        };
        let wait = next.saturating_duration_since(Instant::now());
        // Rounded up: a millisecond too late is better than a turn for nothing.
        let wait_ms = wait.as_micros().div_ceil(1000).min(60_000);
        EpollTimeout::try_from(Duration::from_millis(wait_ms as u64)).unwrap_or(EpollTimeout::ZERO)
    }

    /// Adds a descriptor to the loop. False when the kernel refuses.
    fn watch(&self, fd: impl AsFd, source: Source, flags: EpollFlags) -> bool {
        self.epoll.add(fd, EpollEvent::new(flags, source.token())).is_ok()
    }

    /// Takes a descriptor out of the loop. Needed before it is closed: a child that has just been forked may still hold
    /// a copy, and `epoll` would go on reporting it.
    fn unwatch(&self, fd: impl AsFd) {
        let _ = self.epoll.delete(fd);
    }
}
