//! The threads that carry out file verbs, with the tool's rights, and the one that waits to be the last resort. All exist
//! from the start: a sandbox whose processes are used up could not start them when they are needed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};
use protocol::{AgentError, FileStat, FileWritten, Globbed, Grepped, Listing, Removed};

use super::{OpenRead, OpenWatch, OpenWrite, ReadStep, WatchStep};
use crate::{kernel, limits};

/// What a job came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A piece of a file, and the file for the next.
    Read(Result<(ReadStep, Option<Box<OpenRead>>), AgentError>),
    /// Content was taken; the file for more.
    Writing(Result<Box<OpenWrite>, AgentError>),
    /// The file is in place.
    Written(Result<FileWritten, AgentError>),
    /// A listing.
    Listed(Result<Listing, AgentError>),
    /// Something was removed.
    Removed(Result<Removed, AgentError>),
    /// A directory is there; whether it was not before.
    Made(Result<bool, AgentError>),
    /// An entry has another name.
    Moved(Result<(), AgentError>),
    /// Entries found by name.
    Globbed(Result<Globbed, AgentError>),
    /// Contents searched.
    Grepped(Result<Grepped, AgentError>),
    /// Facts of a path.
    Stat(Result<FileStat, AgentError>),
    /// A directory is watched.
    WatchBegun(Result<Box<OpenWatch>, AgentError>),
    /// Changes, and the watch for more.
    Watched(WatchStep),
    /// Something was cleaned up that nobody waits for.
    Nothing,
}

type Job = Box<dyn FnOnce() -> Outcome + Send>;

#[derive(Default)]
struct Work {
    jobs: VecDeque<(u64, Job)>,
    done: Vec<(u64, Outcome)>,
    resets: u32,
}

struct Shared {
    work: Mutex<Work>,
    jobs_wait: Condvar,
    reset_asked: Condvar,
    done: EventFd,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Starts the threads and waits until each has taken the tool's rights.
    pub(crate) fn start(uid: u32) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            work: Mutex::default(),
            jobs_wait: Condvar::new(),
            reset_asked: Condvar::new(),
            done: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        });
        let (ready, taken) = mpsc::channel();
        for _ in 0..limits::FILE_THREADS {
            let (shared, ready) = (Arc::clone(&shared), ready.clone());
            let thread = thread::Builder::new().name("files".to_owned()).stack_size(limits::FILE_STACK_BYTES);
            thread.spawn(move || {
                let identity = kernel::access_files_as(uid);
                let is_ok = identity.is_ok();
                let _ = ready.send(identity);
                if is_ok {
                    work(&shared);
                }
            })?;
        }
        let waiting = Arc::clone(&shared);
        let thread = thread::Builder::new().name("reset".to_owned()).stack_size(limits::FILE_STACK_BYTES);
        thread.spawn(move || reset_when_asked(&waiting, uid))?;
        for _ in 0..limits::FILE_THREADS {
            taken.recv().map_err(std::io::Error::other)??;
        }
        Ok(Self { shared })
    }

    /// What becomes readable when a job is done.
    pub(crate) fn signal(&self) -> &EventFd {
        &self.shared.done
    }

    /// Queues a job. Its outcome comes back under `ticket`.
    pub(crate) fn submit(&self, ticket: u64, job: impl FnOnce() -> Outcome + Send + 'static) {
        self.shared.lock().jobs.push_back((ticket, Box::new(job)));
        self.shared.jobs_wait.notify_one();
    }

    /// What has been done since.
    pub(crate) fn take_done(&self) -> Vec<(u64, Outcome)> {
        // The counter only wakes the loop; an empty one means that somebody has looked already.
        let _ = self.shared.done.read();
        std::mem::take(&mut self.shared.lock().done)
    }

    /// Kills every process of the tool's uid.
    pub(crate) fn reset(&self) {
        self.shared.lock().resets += 1;
        self.shared.reset_asked.notify_one();
    }
}

fn work(shared: &Shared) {
    loop {
        let mut queue = shared.lock();
        let (ticket, job) = loop {
            match queue.jobs.pop_front() {
                Some(job) => break job,
                None => queue = shared.jobs_wait.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        let outcome = job();
        shared.lock().done.push((ticket, outcome));
        // A full counter is a counter that wakes.
        let _ = shared.done.write(1);
    }
}

fn reset_when_asked(shared: &Shared, uid: u32) {
    loop {
        let mut queue = shared.lock();
        while queue.resets == 0 {
            queue = shared.reset_asked.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.resets = 0;
        drop(queue);
        // A refusal leaves the supervisor's own rounds, which go on; the operation ends by its budget.
        let _ = kernel::kill_everything_of(uid);
    }
}
