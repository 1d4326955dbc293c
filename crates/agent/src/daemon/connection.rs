//! The daemon's connections: dialling, the greeting, ownership epochs, heartbeats, and a new owner taking over.

use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use protocol::{AgentError, ErrorCode, Frame, FrameKind, Hello, OLDEST_VERSION, Reply, StreamId, Welcome};

use super::{Daemon, Settings, Source, StreamUse};
use crate::files::pool::Pool;
use crate::limits;
use crate::link::Link;
use crate::process::launch;

const REDIAL: Duration = Duration::from_millis(protocol::REDIAL_INTERVAL_MS);
/// How long a socket that has appeared beside a living connection is dialled.
const CANDIDATE_TRIES: Duration = Duration::from_secs(2);

impl Daemon {
    /// A socket has appeared in the folder: dial it, though a connection may exist.
    pub(super) fn folder_changed(&mut self) {
        let Some(folder) = &self.folder else { return };
        let mut appeared = false;
        while let Ok(events) = folder.read_events() {
            appeared |= events.iter().any(|event| event.name.as_deref() == self.link_path.file_name());
        }
        if !appeared {
            return;
        }
        let now = Instant::now();
        self.candidate_until = Some(now + CANDIDATE_TRIES);
        self.next_dial = now;
        self.dial_pause = REDIAL;
    }

    pub(super) fn tend_links(&mut self, now: Instant) {
        if self.link.as_mut().is_some_and(|link| link.beat(now).is_err()) {
            self.drop_link();
        }
        if self.candidate.as_mut().is_some_and(|link| link.beat(now).is_err()) {
            self.drop_candidate();
        }
        if self.candidate_until.is_some_and(|until| now >= until) {
            self.candidate_until = None;
        }
        if self.wants_dial() && now >= self.next_dial {
            self.dial(now);
        }
    }

    fn wants_dial(&self) -> bool {
        self.candidate.is_none() && (self.link.is_none() || self.candidate_until.is_some())
    }

    pub(super) fn links_wake_at(&self) -> Option<Instant> {
        let beats = [&self.link, &self.candidate].into_iter().flatten().map(Link::next_beat).min();
        let dial = self.wants_dial().then_some(self.next_dial);
        beats.into_iter().chain(dial).min()
    }

    /// Every connection starts as a candidate and takes over with its welcome.
    fn dial(&mut self, now: Instant) {
        let dialled = Link::dial(&self.link_path).ok();
        if let Some(mut link) = dialled
            && self.watch(&link, Source::Candidate, EpollFlags::EPOLLIN)
        {
            let hello = Hello {
                oldest_version: OLDEST_VERSION,
                newest_version: self.newest_version,
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
                boot_id: self.boot_id.clone(),
                highest_epoch: self.highest_epoch,
            };
            link.send_json(FrameKind::Hello, 0, &hello);
            self.candidate = Some(link);
            self.candidate_until = None;
            self.dial_pause = REDIAL;
        } else {
            self.next_dial = now + self.dial_pause;
            self.dial_pause = (self.dial_pause * 2).min(limits::REDIAL_MAX);
        }
    }

    pub(super) fn candidate_ready(&mut self) {
        let Some(mut link) = self.candidate.take() else { return };
        let frame = match link.read(&mut self.scratch) {
            Ok(true) => link.next_frame(),
            Ok(false) | Err(_) => return self.refuse_candidate(&link),
        };
        match frame {
            Ok(None) => self.candidate = Some(link),
            Ok(Some(frame)) if frame.kind == FrameKind::Welcome => {
                match serde_json::from_slice(&frame.payload) {
                    Ok(welcome) if self.accepts(&welcome) => self.promote(link, welcome),
                    Ok(_) | Err(_) => self.refuse_candidate(&link),
                }
            }
            Ok(Some(_)) | Err(_) => self.refuse_candidate(&link),
        }
    }

    fn refuse_candidate(&mut self, link: &Link) {
        self.unwatch(link);
        self.next_dial = Instant::now() + self.dial_pause;
        self.dial_pause = (self.dial_pause * 2).min(limits::REDIAL_MAX);
    }

    fn drop_candidate(&mut self) {
        if let Some(link) = self.candidate.take() {
            self.refuse_candidate(&link);
        }
    }

    /// A worker with an old epoch has lost the sandbox; one with another uid speaks of another sandbox.
    fn accepts(&self, welcome: &Welcome) -> bool {
        (OLDEST_VERSION..=self.newest_version).contains(&welcome.version)
            && welcome.epoch >= self.highest_epoch
            && welcome.tool_uid != 0
            && self.settings.as_ref().is_none_or(|settings| settings.uid == welcome.tool_uid)
    }

    fn promote(&mut self, mut link: Link, welcome: Welcome) {
        self.drop_link();
        if self.files.is_none() {
            match Pool::start(welcome.tool_uid) {
                Ok(pool) => {
                    self.watch(pool.signal(), Source::Files, EpollFlags::EPOLLIN);
                    self.files = Some(pool);
                }
                Err(_) => return self.refuse_candidate(&link),
            }
        }
        link.epoch = Some(welcome.epoch);
        link.version = welcome.version;
        self.highest_epoch = welcome.epoch;
        let settings = Settings {
            uid: welcome.tool_uid,
            env: launch::base_env(&welcome.env),
            warm_shells: (welcome.warm_shells as usize).min(limits::WARM_SHELLS),
        };
        if self.settings.as_ref().is_some_and(|old| old.env != settings.env) {
            self.discard_warm_programs();
        }
        self.settings = Some(settings);
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Link.token());
        let _ = self.epoll.modify(&link, &mut event);
        self.link = Some(link);
        self.handle_frames();
    }

    pub(super) fn link_ready(&mut self, flags: EpollFlags) {
        if flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            let Some(link) = &mut self.link else { return };
            match link.read(&mut self.scratch) {
                Ok(true) => self.handle_frames(),
                Ok(false) | Err(_) => self.drop_link(),
            }
        }
    }

    pub(super) fn handle_frames(&mut self) {
        while let Some(link) = &mut self.link {
            if link.paused {
                return;
            }
            match link.next_frame() {
                Ok(Some(frame)) => self.frame(frame),
                Ok(None) => return,
                Err(_) => return self.drop_link(),
            }
        }
    }

    fn frame(&mut self, frame: Frame) {
        match frame.kind {
            FrameKind::Ping => {}
            FrameKind::Request => self.request(frame.stream, &frame.payload),
            FrameKind::Data => match protocol::decode_data(frame.payload) {
                Ok((_, 0, content)) => self.content(frame.stream, content),
                Ok(_) | Err(_) => self.drop_link(),
            },
            FrameKind::Ack => match <[u8; 8]>::try_from(&frame.payload[..]) {
                Ok(offset) => self.acknowledged(frame.stream, u64::from_be_bytes(offset)),
                Err(_) => self.drop_link(),
            },
            FrameKind::Close => self.closed(frame.stream),
            // The worker has no reason to send these: it speaks something else.
            FrameKind::Hello | FrameKind::Welcome | FrameKind::Reply => self.drop_link(),
        }
    }

    fn content(&mut self, stream: StreamId, content: bytes::Bytes) {
        match self.streams.get(&stream) {
            Some(StreamUse::Exec(id)) => self.stream_input(*id, stream, &content),
            Some(StreamUse::Transfer(ticket)) => self.transfer_content(*ticket, content),
            None => {}
        }
    }

    fn closed(&mut self, stream: StreamId) {
        match self.streams.get(&stream).copied() {
            Some(StreamUse::Exec(id)) => {
                self.streams.remove(&stream);
                if let Some(operation) = self.operations.get_mut(&id)
                    && operation.stream == Some(stream)
                {
                    operation.stream = None;
                }
            }
            Some(StreamUse::Transfer(ticket)) => self.transfer_closed(ticket),
            None => {}
        }
    }

    /// The connection is over: its streams end, the operations go on.
    pub(super) fn drop_link(&mut self) {
        let Some(link) = self.link.take() else { return };
        self.unwatch(&link);
        self.streams.clear();
        for operation in self.operations.values_mut() {
            operation.stream = None;
            operation.started_by = None;
            operation.kill_waiters.clear();
        }
        self.journal.forget_streams();
        self.abandon_transfers();
        self.next_dial = Instant::now();
        self.dial_pause = REDIAL;
    }

    /// Writes what the sockets take, and goes on producing when they have taken it.
    pub(super) fn flush(&mut self) {
        if self.candidate.as_mut().is_some_and(|link| link.flush().is_err()) {
            self.drop_candidate();
        }
        loop {
            let Some(link) = &mut self.link else { return };
            let before = link.backlog();
            if before == 0 {
                break;
            }
            if link.flush().is_err() {
                return self.drop_link();
            }
            let after = link.backlog();
            if before < limits::LINK_BACKLOG_BYTES || after >= limits::LINK_BACKLOG_BYTES {
                break;
            }
            self.pump_all();
        }
        self.update_link_interest();
    }

    pub(super) fn update_link_interest(&mut self) {
        let paused = self.transfers.is_full();
        let Some(link) = &mut self.link else { return };
        let wants_write = link.backlog() > 0;
        if wants_write == link.wants_write && paused == link.paused {
            return;
        }
        let resumed = link.paused && !paused;
        link.wants_write = wants_write;
        link.paused = paused;
        let mut flags = EpollFlags::empty();
        flags.set(EpollFlags::EPOLLIN, !paused);
        flags.set(EpollFlags::EPOLLOUT, wants_write);
        let mut event = EpollEvent::new(flags, Source::Link.token());
        let _ = self.epoll.modify(&*link, &mut event);
        if resumed {
            self.handle_frames();
        }
    }

    /// Queues a message on a stream.
    pub(super) fn reply(&mut self, stream: StreamId, reply: &Reply) {
        let Some(link) = &mut self.link else { return };
        match reply {
            // A worker of version 1 does not know the word.
            Reply::Error(AgentError { code: ErrorCode::Busy, message }) if link.version < 2 => {
                let error = AgentError { code: ErrorCode::Conflict, message: message.clone() };
                link.send_json(FrameKind::Reply, stream, &Reply::Error(error));
            }
            reply => link.send_json(FrameKind::Reply, stream, reply),
        }
    }

    /// Queues the last message on a stream and closes it.
    pub(super) fn finish(&mut self, stream: StreamId, reply: &Reply) {
        self.reply(stream, reply);
        self.close(stream);
    }

    /// Queues an error as the last message on a stream.
    pub(super) fn fail(&mut self, stream: StreamId, error: AgentError) {
        self.finish(stream, &Reply::Error(error));
    }

    /// Ends a stream.
    pub(super) fn close(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        if let Some(link) = &mut self.link {
            link.send(FrameKind::Close, stream, &[]);
        }
    }
}
