//! Searching the contents of a tree, bounded in time, memory and answer.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use protocol::{AgentError, EntryKind, ErrorCode, GrepFile, GrepLine, GrepMode, GrepRequest, Grepped};

use super::pattern::Glob;
use super::resolve::{self, Root};
use super::search::{Around, Matcher, Searched};
use super::walk::{Scope, walk};
use super::{error, kind, refuse};
use crate::limits;

/// Searches a file or a tree, until somebody raises `stop`.
pub(crate) fn grep(request: &GrepRequest, stop: &AtomicBool) -> Result<Grepped, AgentError> {
    let mut search = Search {
        matcher: Matcher::new(&request.pattern, request.ignore_case, request.multiline)?,
        globs: Globs::parse(&request.globs)?,
        request,
        stop,
        began: Instant::now(),
        found: Grepped::default(),
        skipped: 0,
        results: 0,
        bytes: 0,
    };
    let root = Root::open(&request.root)?;
    let top = resolve::open(&root, &request.path, OFlag::O_RDONLY)?;
    match kind(&fstat(&top).map_err(|errno| error(errno, &request.path))?) {
        EntryKind::File => {
            let _ = search.file(top, "");
            return Ok(search.found);
        }
        EntryKind::Directory => {}
        EntryKind::Symlink | EntryKind::Other => {
            return Err(refuse(ErrorCode::NotRegular, format!("{}: not a regular file", request.path)));
        }
    }
    let scope = Scope {
        root: request.root.clone(),
        path: request.path.clone(),
        max_depth: limits::LIST_DEPTH,
        include_hidden: request.include_hidden || search.globs.ask_for_hidden(),
        respect_ignore: request.respect_ignore,
    };
    let cut = walk(&scope, |entry| {
        if !search.goes_on() {
            return ControlFlow::Break(());
        }
        if entry.kind != EntryKind::File || !search.globs.admit(entry.path) {
            return ControlFlow::Continue(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        // What may not be read is no part of the answer, as with any search of a tree.
        let Ok(fd) = openat(entry.directory, entry.name, flags, Mode::empty()) else {
            return ControlFlow::Continue(());
        };
        search.file(fd, &String::from_utf8_lossy(entry.path))
    })?;
    search.found.truncated |= cut;
    Ok(search.found)
}

struct Search<'a> {
    matcher: Matcher,
    globs: Globs,
    request: &'a GrepRequest,
    stop: &'a AtomicBool,
    began: Instant,
    found: Grepped,
    skipped: u64,
    results: u64,
    bytes: u64,
}

impl Search<'_> {
    fn goes_on(&mut self) -> bool {
        if self.began.elapsed() > limits::GREP_TIME {
            self.found.timed_out = true;
            self.found.truncated = true;
        }
        !self.found.timed_out && !self.stop.load(Ordering::Relaxed)
    }

    /// Searches one file; breaks when nothing more is wanted.
    fn file(&mut self, fd: OwnedFd, path: &str) -> ControlFlow<()> {
        if !fstat(&fd).is_ok_and(|metadata| kind(&metadata) == EntryKind::File) {
            return ControlFlow::Continue(());
        }
        self.found.searched_files += 1;
        let mut one = GrepFile { path: path.to_owned(), ..GrepFile::default() };
        let mut around = Around::new(self.request.before, self.request.after);
        let (began, stop) = (self.began, self.stop);
        let mut over = false;
        let mut goes_on = || {
            over = began.elapsed() > limits::GREP_TIME;
            !over && !stop.load(Ordering::Relaxed)
        };
        let limit = self.request.limit.clamp(1, limits::GREP_RESULTS);
        let most_bytes = self.request.max_bytes.min(limits::GREP_ANSWER_BYTES);
        let request = self.request;
        let (mut is_full, mut skipped, mut results, mut bytes) =
            (false, self.skipped, self.results, self.bytes + path.len() as u64);
        let mut take = |one: &mut GrepFile, line: GrepLine| {
            bytes += line.text.len() as u64 + 16;
            one.lines.push(line);
            bytes > most_bytes
        };
        let mut see = |number: u64, text: &[u8], is_match: bool| {
            if !is_match {
                if request.mode == GrepMode::Content
                    && let Some(line) = around.other(number, text)
                    && take(&mut one, line)
                {
                    is_full = true;
                    return ControlFlow::Break(());
                }
                return ControlFlow::Continue(());
            }
            match request.mode {
                GrepMode::Files => {
                    one.matches = 1;
                    return ControlFlow::Break(());
                }
                GrepMode::Count => one.matches += 1,
                GrepMode::Content if skipped < request.skip => skipped += 1,
                GrepMode::Content if results >= limit => {
                    is_full = true;
                    return ControlFlow::Break(());
                }
                GrepMode::Content => {
                    results += 1;
                    one.matches += 1;
                    for line in around.matched(number, text) {
                        if take(&mut one, line) {
                            is_full = true;
                        }
                    }
                    if is_full {
                        return ControlFlow::Break(());
                    }
                }
            }
            ControlFlow::Continue(())
        };
        let searched = self.matcher.search(&mut File::from(fd), request.multiline, &mut see, &mut goes_on);
        match searched {
            Ok(Searched::Binary) => self.found.binary_files += 1,
            Ok(Searched::Large) => self.found.large_files += 1,
            Ok(Searched::Done) | Err(_) => {}
        }
        (self.skipped, self.results) = (skipped, results);
        if over {
            self.found.timed_out = true;
            self.found.truncated = true;
        }
        let mut keeps = one.matches > 0;
        if keeps && request.mode != GrepMode::Content {
            if self.skipped < request.skip {
                self.skipped += 1;
                keeps = false;
            } else if self.results >= limit {
                is_full = true;
                keeps = false;
            } else {
                self.results += 1;
                is_full = bytes > most_bytes;
            }
        }
        if keeps {
            self.bytes = bytes;
            self.found.files.push(one);
        }
        if is_full {
            self.found.truncated = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Which files are searched.
struct Globs {
    wanted: Vec<Glob>,
    unwanted: Vec<Glob>,
}

impl Globs {
    fn parse(globs: &[String]) -> Result<Self, AgentError> {
        if globs.len() > limits::GREP_GLOBS {
            return Err(refuse(ErrorCode::InvalidPattern, "there are too many globs"));
        }
        let mut parsed = Self { wanted: Vec::new(), unwanted: Vec::new() };
        for glob in globs {
            match glob.strip_prefix('!') {
                Some(glob) => parsed.unwanted.push(Glob::parse(glob)?),
                None => parsed.wanted.push(Glob::parse(glob)?),
            }
        }
        Ok(parsed)
    }

    fn admit(&self, path: &[u8]) -> bool {
        (self.wanted.is_empty() || self.wanted.iter().any(|glob| glob.matches(path)))
            && !self.unwanted.iter().any(|glob| glob.matches(path))
    }

    fn ask_for_hidden(&self) -> bool {
        self.wanted.iter().any(Glob::asks_for_hidden)
    }
}
