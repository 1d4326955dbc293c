//! Programs that wait: already executed as the tool, in the base environment, blocked until their work comes. One serves
//! one call and is gone with it, so that nothing passes from call to call.

use std::time::{Duration, Instant};

use protocol::ExecLimits;

use crate::limits;
use crate::process::Process;

/// What a waiting program is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// `None` for the shell.
    pub(crate) argv: Option<Vec<String>>,
    /// Limits are set before the tool's identity is taken, so that a waiting program cannot change them any more.
    pub(crate) limits: ExecLimits,
    pub(crate) grace: Duration,
}

impl Default for Recipe {
    fn default() -> Self {
        Self { argv: None, limits: ExecLimits::default(), grace: Duration::from_millis(200) }
    }
}

/// A program that waits.
#[derive(Debug)]
pub(crate) struct WarmProgram {
    pub(crate) id: u64,
    pub(crate) process: Process,
    recipe: Recipe,
}

/// The programs that wait, and when to start the next.
#[derive(Debug, Default)]
pub(crate) struct WarmPrograms {
    programs: Vec<WarmProgram>,
    next_id: u64,
    /// Not before then.
    rest_until: Option<Instant>,
    /// As the latest command: the next one will most likely be the same.
    shell: Recipe,
    /// As the latest interpreter, and until when another is expected.
    interpreter: Option<(Recipe, Instant)>,
    /// The image has no bash.
    no_shell: bool,
}

impl WarmPrograms {
    /// Something has been started or has ended: refilling waits for a quiet moment.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.rest_for(now, limits::WARM_REST);
    }

    /// A program died unused; the next one is not started at once.
    pub(crate) fn rest_longer(&mut self, now: Instant) {
        self.rest_for(now, limits::WARM_RETRY);
    }

    fn rest_for(&mut self, now: Instant, pause: Duration) {
        let until = now + pause;
        self.rest_until = Some(self.rest_until.map_or(until, |at| at.max(until)));
    }

    /// What the next call will most likely ask for.
    pub(crate) fn expect(&mut self, recipe: Recipe, now: Instant) {
        match recipe.argv {
            None => self.shell = recipe,
            Some(_) => self.interpreter = Some((recipe, now + limits::WARM_INTERPRETER_LIFE)),
        }
    }

    /// A program that was started with exactly this, if one waits.
    pub(crate) fn take(&mut self, recipe: &Recipe) -> Option<Process> {
        let index = self.programs.iter().position(|program| program.recipe == *recipe)?;
        Some(self.programs.remove(index).process)
    }

    /// Programs that no call will ask for any more.
    pub(crate) fn take_unexpected(&mut self, now: Instant) -> Vec<WarmProgram> {
        if self.interpreter.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.interpreter = None;
        }
        let interpreter = self.interpreter.as_ref().map(|(recipe, _)| recipe);
        let is_expected =
            |program: &WarmProgram| program.recipe == self.shell || Some(&program.recipe) == interpreter;
        self.programs.extract_if(.., |program| !is_expected(program)).collect()
    }

    /// All of them.
    pub(crate) fn take_all(&mut self) -> Vec<WarmProgram> {
        std::mem::take(&mut self.programs)
    }

    /// One that has something to say, which can only be that it is gone.
    pub(crate) fn take_by_id(&mut self, id: u64) -> Option<WarmProgram> {
        let index = self.programs.iter().position(|program| program.id == id)?;
        Some(self.programs.remove(index))
    }

    /// Takes a new program in. Returns its number.
    pub(crate) fn add(&mut self, process: Process, recipe: Recipe) -> u64 {
        self.next_id += 1;
        self.programs.push(WarmProgram { id: self.next_id, process, recipe });
        self.next_id
    }

    /// The program that was added with this number.
    pub(crate) fn get(&self, id: u64) -> Option<&WarmProgram> {
        self.programs.iter().find(|program| program.id == id)
    }

    /// Nothing like this can be started in this image.
    pub(crate) fn give_up(&mut self, program: &WarmProgram) {
        match program.recipe.argv {
            None => self.no_shell = true,
            Some(_) => self.interpreter = None,
        }
    }

    /// What is to be started next, given how many of each kind are wanted. `None` while there are enough.
    pub(crate) fn wanted(&self, count: usize) -> Option<Recipe> {
        let lacks = |recipe: &Recipe, count: usize| {
            self.programs.iter().filter(|program| program.recipe == *recipe).count() < count
        };
        if !self.no_shell && lacks(&self.shell, count) {
            return Some(self.shell.clone());
        }
        // One more than of shells, as an interpreter takes longer to start than a call to come.
        let interpreters = if count > 0 { count + 1 } else { 0 };
        let (recipe, _) = self.interpreter.as_ref()?;
        lacks(recipe, interpreters).then(|| recipe.clone())
    }

    /// When there is something to do: start a program, or end one that nobody has asked for in a while.
    pub(crate) fn wakes_at(&self, count: usize, now: Instant) -> Option<Instant> {
        let start = self.wanted(count).map(|_| self.rest_until.unwrap_or(now));
        let end = self.interpreter.as_ref().filter(|_| count > 0).map(|(_, until)| *until);
        [start, end].into_iter().flatten().min()
    }

    /// Whether the rest is over.
    pub(crate) fn has_rested(&self, now: Instant) -> bool {
        self.rest_until.is_none_or(|at| now >= at)
    }
}
