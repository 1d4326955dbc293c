//! Watches of directories: when each may look at what has happened, and how much of it may be on its way to the worker.

use std::sync::Arc;
use std::time::Instant;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::inotify::Inotify;
use protocol::{
    AgentError, ErrorCode, OUTPUT_FRAME_BYTES, Reply, StreamId, StreamName, WATCH_WINDOW_BYTES, WatchRequest,
};

use super::transfers::{State, Transfer};
use super::{Daemon, Source};
use crate::files::pool::Outcome;
use crate::files::{Next, OpenWatch, WatchStep};
use crate::limits;

/// A directory that is watched for a worker.
#[derive(Debug)]
pub(super) struct Watching {
    /// Between two steps.
    watch: Option<Box<OpenWatch>>,
    /// What the loop waits on; here also while a step is under way.
    inotify: Option<Arc<Inotify>>,
    /// There is something to look at.
    ready: bool,
    rest_until: Instant,
    recheck_at: Instant,
    sent: u64,
    taken: u64,
}

impl Watching {
    fn has_room(&self) -> bool {
        self.sent - self.taken < WATCH_WINDOW_BYTES
    }

    /// When it may look next; `None` while something else has to happen first.
    fn next_look(&self) -> Option<Instant> {
        if self.watch.is_none() || !self.has_room() {
            return None;
        }
        Some(if self.ready { self.rest_until } else { self.recheck_at })
    }
}

impl Daemon {
    pub(super) fn watch_files(&mut self, stream: StreamId, request: WatchRequest) {
        if self.transfers.watches.len() >= limits::WATCHES {
            let message =
                format!("at most {} directories of a session are watched at a time", limits::WATCHES);
            return self.fail(stream, AgentError { code: ErrorCode::LimitExceeded, message });
        }
        let now = Instant::now();
        let watching = Watching {
            watch: None,
            inotify: None,
            ready: false,
            rest_until: now,
            recheck_at: now + limits::WATCH_RECHECK,
            sent: 0,
            taken: 0,
        };
        let room = Arc::clone(&self.transfers.watch_room);
        if let Some(ticket) = self.admit_transfer(stream, State::Watching(watching)) {
            self.transfers.watches.insert(ticket);
            self.submit(ticket, move || Outcome::WatchBegun(OpenWatch::open(request, room)));
        }
    }

    fn watching(&mut self, ticket: u64) -> Option<(&mut Watching, StreamId)> {
        match self.transfers.transfers.get_mut(&ticket)? {
            Transfer { state: State::Watching(watching), stream: Some(stream) } => Some((watching, *stream)),
            _ => None,
        }
    }

    pub(super) fn watch_begun(&mut self, ticket: u64, result: Result<Box<OpenWatch>, AgentError>) {
        let watch = match result {
            Ok(watch) => watch,
            Err(error) => {
                self.transfers.watches.remove(&ticket);
                return self.answered(ticket, Err(error));
            }
        };
        let inotify = watch.signal();
        let Some((watching, stream)) = self.watching(ticket) else { return self.let_go(watch) };
        watching.watch = Some(watch);
        watching.inotify = Some(Arc::clone(&inotify));
        if self.watch(&*inotify, Source::Watch(ticket), EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT) {
            return self.reply(stream, &Reply::Watching);
        }
        self.fail(
            stream,
            AgentError { code: ErrorCode::Io, message: "the watch cannot be waited on".to_owned() },
        );
        self.transfer_closed(ticket);
    }

    /// The kernel has something to say of a watched directory; it says no more until it was heard.
    pub(super) fn kernel_speaks(&mut self, ticket: u64) {
        if let Some((watching, _)) = self.watching(ticket) {
            watching.ready = true;
        }
    }

    /// The worker has taken changes.
    pub(super) fn changes_taken(&mut self, ticket: u64, offset: u64) {
        if let Some((watching, _)) = self.watching(ticket) {
            watching.taken = watching.taken.max(offset.min(watching.sent));
        }
    }

    pub(super) fn tend_watches(&mut self, now: Instant) {
        if self.transfers.watches.is_empty() || self.is_backed_up() {
            return;
        }
        for ticket in self.transfers.watches.iter().copied().collect::<Vec<_>>() {
            let Some((watching, _)) = self.watching(ticket) else { continue };
            if watching.next_look().is_some_and(|at| at <= now)
                && let Some(watch) = watching.watch.take()
            {
                watching.ready = false;
                watching.recheck_at = now + limits::WATCH_RECHECK;
                self.submit(ticket, move || Outcome::Watched(watch.step()));
            }
        }
    }

    pub(super) fn watches_wake_at(&self) -> Option<Instant> {
        if self.is_backed_up() {
            return None;
        }
        let looks = self.transfers.watches.iter().filter_map(|ticket| {
            match &self.transfers.transfers.get(ticket)?.state {
                State::Watching(watching) => watching.next_look(),
                _ => None,
            }
        });
        looks.min()
    }

    /// The worker's socket takes nothing: what is written to it has to wait.
    fn is_backed_up(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.backlog() >= limits::LINK_BACKLOG_BYTES)
    }

    pub(super) fn changes_seen(&mut self, ticket: u64, step: WatchStep) {
        let WatchStep { lines, next } = step;
        let stream = self.watching(ticket).map(|(_, stream)| stream);
        let (Some(stream), Some(link)) = (stream, &mut self.link) else {
            if let Next::Quiet(watch) | Next::More(watch) = next {
                self.let_go(watch);
            }
            return;
        };
        let State::Watching(watching) =
            &mut self.transfers.transfers.get_mut(&ticket).expect("found above").state
        else {
            return;
        };
        for content in lines.chunks(OUTPUT_FRAME_BYTES) {
            link.send_data(stream, watching.sent, StreamName::Stdout.channel(), content);
            watching.sent += content.len() as u64;
        }
        let (watch, has_more) = match next {
            Next::Quiet(watch) => (watch, false),
            Next::More(watch) => (watch, true),
            Next::Ended(ended) => {
                self.finish(stream, &Reply::WatchEnded(ended));
                return self.transfer_closed(ticket);
            }
        };
        watching.watch = Some(watch);
        watching.ready |= has_more;
        watching.rest_until = Instant::now() + limits::WATCH_REST;
        if !has_more && let Some(inotify) = &watching.inotify {
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
            let mut event = EpollEvent::new(flags, Source::Watch(ticket).token());
            let _ = self.epoll.modify(&**inotify, &mut event);
        }
    }

    /// Nobody wants to know any more.
    pub(super) fn end_watch(&mut self, ticket: u64, watching: Watching) {
        self.transfers.watches.remove(&ticket);
        if let Some(inotify) = &watching.inotify {
            self.unwatch(&**inotify);
        }
        if let Some(watch) = watching.watch {
            self.let_go(watch);
        }
    }

    /// Ending thousands of watches takes the kernel a moment.
    fn let_go(&self, watch: Box<OpenWatch>) {
        self.submit(0, move || {
            drop(watch);
            Outcome::Nothing
        });
    }
}
