//! Shells that wait: already executed as the tool, in the base environment, blocked until their command comes. One serves
//! one command and is gone with it, so that nothing passes from call to call.

use std::time::{Duration, Instant};

use protocol::ExecLimits;

use crate::limits;
use crate::process::Process;

/// A shell that waits.
#[derive(Debug)]
pub(crate) struct WarmShell {
    pub(crate) id: u64,
    pub(crate) process: Process,
    grace: Duration,
}

/// The shells that wait, and when to start the next.
#[derive(Debug, Default)]
pub(crate) struct WarmShells {
    shells: Vec<WarmShell>,
    next_id: u64,
    /// Not before then.
    rest_until: Option<Instant>,
    /// Limits and grace of the latest command: the next one will most likely have the same. Limits are set before the
    /// tool's identity is taken, so that a waiting shell cannot change them any more.
    expected: Option<(ExecLimits, Duration)>,
    /// The image has no bash.
    unavailable: bool,
}

impl WarmShells {
    /// Something has been started or has ended: refilling waits for a quiet moment.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.rest_for(now, limits::WARM_REST);
    }

    /// A shell died unused; the next one is not started at once.
    pub(crate) fn rest_longer(&mut self, now: Instant) {
        self.rest_for(now, limits::WARM_RETRY);
    }

    fn rest_for(&mut self, now: Instant, pause: Duration) {
        let until = now + pause;
        self.rest_until = Some(self.rest_until.map_or(until, |at| at.max(until)));
    }

    /// What the next command will most likely ask for.
    pub(crate) fn expect_limits(&mut self, limits: &ExecLimits, grace: Duration) {
        self.expected = Some((limits.clone(), grace));
    }

    /// Limits and grace for the next shell.
    pub(crate) fn expected(&self) -> (ExecLimits, Duration) {
        self.expected.clone().unwrap_or((ExecLimits::default(), Duration::from_millis(200)))
    }

    /// A shell with exactly these limits, if one waits.
    pub(crate) fn take(&mut self, limits: &ExecLimits, grace: Duration) -> Option<Process> {
        let fits = |shell: &WarmShell| shell.process.limits == *limits && shell.grace == grace;
        let index = self.shells.iter().position(fits)?;
        Some(self.shells.remove(index).process)
    }

    /// Shells that no command will ask for any more.
    pub(crate) fn take_unexpected(&mut self) -> Vec<WarmShell> {
        let (limits, grace) = self.expected();
        self.shells.extract_if(.., |shell| shell.process.limits != limits || shell.grace != grace).collect()
    }

    /// All of them.
    pub(crate) fn take_all(&mut self) -> Vec<WarmShell> {
        std::mem::take(&mut self.shells)
    }

    /// One that has something to say, which can only be that it is gone.
    pub(crate) fn take_by_id(&mut self, id: u64) -> Option<WarmShell> {
        let index = self.shells.iter().position(|shell| shell.id == id)?;
        Some(self.shells.remove(index))
    }

    /// Takes a new shell in. Returns its number.
    pub(crate) fn add(&mut self, process: Process, grace: Duration) -> u64 {
        self.next_id += 1;
        self.shells.push(WarmShell { id: self.next_id, process, grace });
        self.next_id
    }

    /// The shell that was added with this number.
    pub(crate) fn get(&self, id: u64) -> Option<&WarmShell> {
        self.shells.iter().find(|shell| shell.id == id)
    }

    /// No shell can be started in this image.
    pub(crate) fn give_up(&mut self) {
        self.unavailable = true;
    }

    /// When one more should be started, given how many are wanted. `None` while there are enough.
    pub(crate) fn wanted_at(&self, count: usize, now: Instant) -> Option<Instant> {
        (!self.unavailable && self.shells.len() < count).then(|| self.rest_until.unwrap_or(now))
    }
}
