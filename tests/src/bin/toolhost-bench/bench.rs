//! What every measure gets: the running stack, how much to repeat, and the progress line.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use crate::options::{Effort, Options};
use crate::stack::Stack;

/// What every measure gets.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) stack: Stack,
    pub(crate) effort: Effort,
    pub(crate) progress: Progress,
}

impl Bench {
    /// A bench over this stack.
    pub(crate) fn new(stack: Stack, options: &Options) -> Self {
        Self {
            stack,
            effort: options.effort(),
            progress: Progress { since: Instant::now(), measure: String::new(), last: String::new() },
        }
    }
}

/// One line on standard error that says what is being measured, how many measures there are, and how long it runs already;
/// lines of their own where it is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Instant,
    measure: String,
    last: String,
}

impl Progress {
    /// Another measure begins.
    pub(crate) fn enter(&mut self, measure: &'static str, number: usize, of: usize) {
        self.measure = format!("[{number}/{of}] {measure}");
        self.last.clear();
    }

    /// Says what happens now.
    pub(crate) fn say(&mut self, what: &str) {
        let s = self.since.elapsed().as_secs();
        let line = format!("{:2}:{:02} {} {what}", s / 60, s % 60, self.measure);
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[2K{line}");
            let _ = std::io::stderr().flush();
        } else if self.last != what {
            eprintln!("{line}");
        }
        what.clone_into(&mut self.last);
    }

    /// Says how far it is.
    pub(crate) fn step(&mut self, what: &str, done: usize, of: usize) {
        if std::io::stderr().is_terminal() {
            self.say(&format!("{what} {}/{of}", done + 1));
        } else {
            self.say(&format!("{what}, {of} times"));
        }
    }

    /// Makes room for other output.
    pub(crate) fn clear(&mut self) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[2K");
        }
    }
}
