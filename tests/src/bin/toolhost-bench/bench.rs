//! What every measure gets: the running stack, how much to repeat, and the progress line.

use std::io::{IsTerminal, Write};

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
        Self { stack, effort: options.effort(), progress: Progress::default() }
    }
}

/// One line on standard error that says what is being measured; lines of their own where it is no terminal.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    measure: &'static str,
    last: String,
}

impl Progress {
    /// Another measure begins.
    pub(crate) fn enter(&mut self, measure: &'static str) {
        self.measure = measure;
        self.last.clear();
    }

    /// Says what happens now.
    pub(crate) fn say(&mut self, what: &str) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[2K{} {what}", self.measure);
            let _ = std::io::stderr().flush();
        } else if self.last != what {
            eprintln!("{} {what}", self.measure);
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
