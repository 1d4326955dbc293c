//! A `toolhost` process as a user runs it: started, watched through what it says, stopped or killed.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

/// Generous: two busy cores, and a sandbox or two to remove.
const LIMIT: Duration = Duration::from_secs(90);

/// What becomes of the outputs of a process.
const GOES_ON: u8 = 0;
const HOLDS: u8 = 1;
const ENDS: u8 = 2;

/// A program that cargo built, beside this test.
///
/// # Errors
/// When it is not there.
pub fn built(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.parent().context("a folder")?;
    let folder = if folder.ends_with("deps") { folder.parent().context("a folder")? } else { folder };
    let program = folder.join(name);
    anyhow::ensure!(
        program.exists(),
        "{} is missing: `cargo build --workspace --bins` makes it",
        program.display()
    );
    Ok(program)
}

/// Waits until a process has ended, whoever has started it. False when it has not within `limit`.
///
/// # Errors
/// When it cannot be watched.
pub fn ends(pid: u32, limit: Duration) -> Result<bool> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("no process id")?;
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(true),
        Err(errno) => return Err(errno.into()),
    };
    let deadline = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A running process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    reading: Arc<AtomicU8>,
}

impl Process {
    /// Starts a program. Both its outputs are read line by line.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (sender, lines) = channel();
        let reading = Arc::new(AtomicU8::new(GOES_ON));
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            child.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        for output in outputs.into_iter().flatten() {
            let (sender, reading) = (sender.clone(), Arc::clone(&reading));
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    match reading.load(Ordering::Acquire) {
                        GOES_ON => {}
                        HOLDS => loop {
                            std::thread::park();
                        },
                        _ => break,
                    }
                    let Ok(line) = line else { break };
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { name: name.to_owned(), child, lines, said: Vec::new(), reading })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says a line that `pick` likes.
    ///
    /// # Errors
    /// When it ends before, or says nothing of the kind for too long.
    pub fn wait_for<T>(&mut self, pick: impl Fn(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let picked = pick(&line);
                    self.said.push(line);
                    if let Some(picked) = picked {
                        return Ok(picked);
                    }
                }
                Err(_) => {
                    let said = self.end_of_said();
                    bail!("{} did not say it; it said:\n{said}", self.name)
                }
            }
        }
    }

    /// Reads nothing more of what it says, and keeps the pipes open: they fill up.
    pub fn stop_reading(&self) {
        self.reading.store(HOLDS, Ordering::Release);
    }

    /// Closes the pipes of what it says, as soon as it says something.
    pub fn close_outputs(&self) {
        self.reading.store(ENDS, Ordering::Release);
    }

    /// Everything that it has said so far.
    pub fn said(&mut self) -> &[String] {
        self.said.extend(self.lines.try_iter());
        &self.said
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.pid()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Kills it as a crash would, and reaps it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        if !ends(self.pid(), LIMIT)? {
            let said = self.end_of_said();
            bail!("{} did not end; it said:\n{said}", self.name)
        }
        let status = self.child.wait()?;
        // Its last words may still be in the pipes. What outlives it can hold those open.
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(2)) {
            self.said.push(line);
        }
        Ok(status)
    }

    /// Asks it to stop and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// The last lines that it said.
    pub fn end_of_said(&mut self) -> String {
        let said = self.said();
        said[said.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}
