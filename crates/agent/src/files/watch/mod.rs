//! Watching a directory: what the kernel says of it and of what is below, in the words of a worker.
//!
//! # Design notes
//!
//! *With the tool's rights.* The kernel counts watches for the user that makes them and asks whether it may read; so the instance is made, and every
//! directory opened, on a file thread. Nothing is watched by its path: each directory is opened from the one above it, name by name and without
//! links, and the kernel is given the descriptor.
//! *No gap where a directory appears.* It is watched first and looked into afterwards; what is found is told, and remembered until the kernel's
//! queue was empty once, so that it is not told twice.
//! *What was lost is said.* When the kernel's queue overflows, the directories are looked for anew first, and the overflow is told then: who lists after it
//! misses nothing.

mod changes;
mod events;
mod look;
mod tree;

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::inotify::{InitFlags, Inotify, InotifyEvent};
use nix::sys::stat::fstat;
use protocol::{AgentError, ErrorCode, WatchEnd, WatchEnded, WatchRequest};

use super::{error, refuse};
use crate::limits;
use changes::{Changes, Pending, What};
use look::unable;
pub(crate) use tree::Room;
use tree::{Full, Nameless, Tree};

/// Names or events looked at in one step, whatever comes of them.
const STEP_TURNS: usize = 4096;

/// A directory that is watched.
#[derive(Debug)]
pub(crate) struct OpenWatch {
    inotify: Arc<Inotify>,
    request: WatchRequest,
    room: Arc<Room>,
    tree: Tree,
    /// The watched directory: its watch, device and inode.
    top: (i32, u64, u64),
    changes: Changes,
    /// What the kernel said and was not looked at.
    heard: VecDeque<InotifyEvent>,
    /// Directories that are new and were not looked into.
    unseen: VecDeque<i32>,
    /// Names found in a new directory that are to be told.
    found: VecDeque<(i32, Vec<u8>)>,
    /// Told because they were found: the kernel may say so as well.
    told: HashSet<(i32, Vec<u8>)>,
    /// A file of the agent's own that is about to take its place: the move's number, and whether something was there.
    saving: Option<(u32, What)>,
    /// The directory that was looked into last.
    here: Option<(i32, OwnedFd)>,
    is_lost: bool,
    is_gone: bool,
}

/// What a step came to.
#[derive(Debug)]
pub(crate) struct WatchStep {
    /// Changes, a line of JSON each.
    pub(crate) lines: Vec<u8>,
    pub(crate) next: Next,
}

/// How a watch goes on.
#[derive(Debug)]
pub(crate) enum Next {
    /// When the kernel says something.
    Quiet(Box<OpenWatch>),
    /// There is more to tell.
    More(Box<OpenWatch>),
    /// Not at all.
    Ended(WatchEnded),
}

/// Why a watch cannot begin or go on.
enum Stop {
    Gone,
    TooMuch(&'static str),
    Refused(AgentError),
}

impl From<Full> for Stop {
    fn from(_: Full) -> Self {
        Self::TooMuch("there are too many directories to watch them all; watch a part of them")
    }
}

impl OpenWatch {
    /// Begins to watch: what changes from now on is told by [`Self::step`].
    pub(crate) fn open(request: WatchRequest, room: Arc<Room>) -> Result<Box<Self>, AgentError> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        let inotify = inotify.map_err(|errno| unable(errno, &request.path))?;
        let mut watch = Box::new(Self {
            inotify: Arc::new(inotify),
            tree: Tree::new(Arc::clone(&room)),
            request,
            room,
            top: (0, 0, 0),
            changes: Changes::default(),
            heard: VecDeque::new(),
            unseen: VecDeque::new(),
            found: VecDeque::new(),
            told: HashSet::new(),
            saving: None,
            here: None,
            is_lost: false,
            is_gone: false,
        });
        match watch.build() {
            Ok(()) => Ok(watch),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Gone) => Err(error(Errno::ENOENT, &watch.request.path)),
            Err(Stop::TooMuch(message)) => Err(refuse(ErrorCode::LimitExceeded, message)),
        }
    }

    /// What becomes readable when the kernel has something to say.
    pub(crate) fn signal(&self) -> Arc<Inotify> {
        Arc::clone(&self.inotify)
    }

    /// Looks at what has happened, as much of it as fits a step.
    pub(crate) fn step(mut self: Box<Self>) -> WatchStep {
        let mut lines = Vec::new();
        let advanced = self.advance(&mut lines);
        // What is held open is not gone for the kernel, which says so only then.
        self.here = None;
        let next = match advanced {
            Ok(true) => Next::More(self),
            Ok(false) => Next::Quiet(self),
            Err(stop) => Next::Ended(stop.told()),
        };
        WatchStep { lines, next }
    }

    /// True when there is more to tell.
    fn advance(&mut self, lines: &mut Vec<u8>) -> Result<bool, Stop> {
        let top = self.find().ok().filter(|top| self.is_top(top));
        self.is_gone |= top.is_none();
        let is_drained = self.gather(top.as_ref())?;
        let now = Instant::now();
        let patience = if self.is_gone || self.changes.is_full() { now } else { now - limits::WATCH_MOVE };
        for child in self.changes.give_up(patience) {
            self.leave(child);
        }
        while lines.len() < limits::WATCH_STEP_BYTES {
            let Some(pending) = self.changes.pop() else { break };
            let change = self.describe(top.as_ref(), pending);
            if serde_json::to_writer(&mut *lines, &change).is_ok() {
                lines.push(b'\n');
            }
        }
        if self.is_gone && is_drained && self.changes.is_empty() {
            return Err(Stop::Gone);
        }
        Ok(!is_drained || !self.changes.is_empty())
    }

    /// Turns what was found and heard into changes. True when there is no more of it at the moment.
    fn gather(&mut self, top: Option<&OwnedFd>) -> Result<bool, Stop> {
        for _ in 0..STEP_TURNS {
            if self.changes.is_full() {
                return Ok(false);
            }
            if let Some((watch, name)) = self.found.pop_front() {
                self.say(What::Created, watch, &name, false);
                continue;
            }
            if let Some(watch) = self.unseen.pop_front() {
                self.look_into(top, watch)?;
                continue;
            }
            if self.is_lost {
                self.recover()?;
                continue;
            }
            match self.next_event() {
                Some(event) => self.take(top, event)?,
                None => {
                    self.told.clear();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn next_event(&mut self) -> Option<InotifyEvent> {
        if self.heard.is_empty() {
            self.heard.extend(self.inotify.read_events().ok()?);
        }
        self.heard.pop_front()
    }

    /// After an overflow: whatever else waits is of before it, and of the directories only those count that are there now.
    fn recover(&mut self) -> Result<(), Stop> {
        self.heard.clear();
        for _ in 0..limits::WATCH_DISCARDS {
            if self.inotify.read_events().is_err() {
                break;
            }
        }
        self.told.clear();
        self.saving = None;
        for child in self.changes.give_up(Instant::now()) {
            self.leave(child);
        }
        match self.build() {
            Ok(()) => {}
            Err(Stop::Refused(_) | Stop::Gone) => self.is_gone = true,
            Err(stop @ Stop::TooMuch(_)) => return Err(stop),
        }
        self.is_lost = false;
        self.changes.push(Pending::overflow());
        Ok(())
    }

    /// Watches the directory and, where asked for, all below it; what was watched and is not there any more is watched no more.
    fn build(&mut self) -> Result<(), Stop> {
        let before: Vec<i32> = self.tree.watches().collect();
        self.tree = Tree::new(Arc::clone(&self.room));
        self.here = None;
        let top = self.find().map_err(Stop::Refused)?;
        let metadata = fstat(&top).map_err(|errno| Stop::Refused(error(errno, &self.request.path)))?;
        let watch = match self.listen_to(&top) {
            Ok(watch) => watch,
            Err(errno) => return Err(Stop::Refused(unable(errno, &self.request.path))),
        };
        self.top = (watch, metadata.st_dev, metadata.st_ino);
        self.tree.put(watch, None, b"")?;
        let mut ahead = if self.request.recursive { vec![watch] } else { Vec::new() };
        while let Some(above) = ahead.pop() {
            for (name, is_directory) in self.entries(&top, above).entries {
                if is_directory && let Some(below) = self.add(&top, above, &name)? {
                    ahead.push(below);
                }
            }
        }
        for watch in before.into_iter().filter(|watch| !self.tree.knows(*watch)) {
            self.forget(watch);
        }
        Ok(())
    }
}

impl Stop {
    fn told(self) -> WatchEnded {
        match self {
            Self::Gone | Self::Refused(_) => WatchEnded {
                reason: WatchEnd::DirectoryGone,
                message: "the path does not lead to the directory any more".to_owned(),
            },
            Self::TooMuch(message) => {
                WatchEnded { reason: WatchEnd::LimitExceeded, message: message.to_owned() }
            }
        }
    }
}
