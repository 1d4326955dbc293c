//! Changes that wait to be told, in their order. No I/O.
//!
//! # Design notes
//!
//! The kernel tells a move in two halves, which may come in two readings and need not both be watched. The first half keeps its place and holds up
//! what came behind it until the second has come or has been waited for long enough: then the entry has left what is watched.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use crate::limits;

/// One change that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) what: What,
    /// From the watched directory, as it was then.
    pub(super) path: Vec<u8>,
    /// Where it can be looked at: a watch, and the name in its directory.
    pub(super) watch: i32,
    pub(super) name: Vec<u8>,
    pub(super) is_directory: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    Created,
    Modified,
    Deleted,
    Moved {
        from: Vec<u8>,
    },
    /// The first half of a move; `child` is the watch of the directory that moves.
    Leaving {
        cookie: u32,
        since: Instant,
        child: Option<i32>,
    },
    Overflow,
}

impl Pending {
    /// Something was lost.
    pub(super) fn overflow() -> Self {
        Self { what: What::Overflow, path: Vec::new(), watch: -1, name: Vec::new(), is_directory: false }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Changes {
    queue: VecDeque<Pending>,
    bytes: usize,
    /// Entries whose creation or change waits with nothing of theirs behind it: another change of them is the same.
    fresh: HashSet<(i32, Vec<u8>)>,
}

fn cost(pending: &Pending) -> usize {
    let from = if let What::Moved { from } = &pending.what { from.len() } else { 0 };
    pending.path.len() + pending.name.len() + from + size_of::<Pending>()
}

impl Changes {
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= limits::WATCH_QUEUE_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, pending: Pending) {
        let key = (pending.watch, pending.name.clone());
        if pending.is_directory && matches!(pending.what, What::Leaving { .. }) {
            self.rename_below();
        }
        match pending.what {
            What::Modified if self.fresh.contains(&key) => return,
            What::Created | What::Modified => self.fresh.insert(key),
            What::Deleted | What::Moved { .. } | What::Leaving { .. } | What::Overflow => {
                self.fresh.remove(&key)
            }
        };
        self.bytes += cost(&pending);
        self.queue.push_back(pending);
    }

    /// The second half of a move: where it has come to. The watch of the directory that moved, if there is one; `None` when its first half
    /// is not here.
    pub(super) fn arrive(
        &mut self,
        cookie: u32,
        path: &[u8],
        watch: i32,
        name: &[u8],
    ) -> Option<Option<i32>> {
        let is_it =
            |pending: &Pending| matches!(pending.what, What::Leaving { cookie: left, .. } if left == cookie);
        let at = self.queue.iter().rposition(is_it)?;
        self.fresh.remove(&(watch, name.to_vec()));
        if self.queue[at].is_directory {
            self.rename_below();
        }
        let pending = &mut self.queue[at];
        self.bytes -= cost(pending);
        let from = std::mem::replace(&mut pending.path, path.to_vec());
        let What::Leaving { child, .. } = std::mem::replace(&mut pending.what, What::Moved { from }) else {
            return Some(None);
        };
        (pending.watch, pending.name) = (watch, name.to_vec());
        self.bytes += cost(pending);
        Some(child)
    }

    /// A directory has another path from here on: what changes below it is told under that, whatever waits under the old one.
    fn rename_below(&mut self) {
        self.fresh.clear();
    }

    /// A directory is watched again, or still: that it left some place ends nothing.
    pub(super) fn keep(&mut self, watch: i32) {
        for pending in &mut self.queue {
            if let What::Leaving { child, .. } = &mut pending.what
                && *child == Some(watch)
            {
                *child = None;
            }
        }
    }

    /// What left before `before` has not come anywhere. Directories that are watched no more.
    pub(super) fn give_up(&mut self, before: Instant) -> Vec<i32> {
        let mut gone = Vec::new();
        for pending in &mut self.queue {
            if let What::Leaving { since, child, .. } = pending.what
                && since <= before
            {
                gone.extend(child);
                pending.what = What::Deleted;
            }
        }
        gone
    }

    /// The next change that is known whole.
    pub(super) fn pop(&mut self) -> Option<Pending> {
        if matches!(self.queue.front()?.what, What::Leaving { .. }) {
            return None;
        }
        let pending = self.queue.pop_front()?;
        self.bytes -= cost(&pending);
        if matches!(pending.what, What::Created | What::Modified) {
            self.fresh.remove(&(pending.watch, pending.name.clone()));
        }
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pending(what: What, name: &str) -> Pending {
        Pending { what, path: name.into(), watch: 1, name: name.into(), is_directory: false }
    }

    #[test]
    fn what_changes_again_and_again_is_told_once() {
        let mut changes = Changes::default();
        for what in
            [What::Created, What::Modified, What::Modified, What::Deleted, What::Created, What::Modified]
        {
            changes.push(pending(what, "a"));
        }
        let mut told = Vec::new();
        while let Some(pending) = changes.pop() {
            told.push(pending.what);
        }
        assert_eq!(told, [What::Created, What::Deleted, What::Created]);
        changes.push(pending(What::Modified, "a"));
        assert!(changes.pop().is_some(), "what was told may happen again");
        assert_eq!((changes.bytes, changes.is_empty()), (0, true));
    }

    #[test]
    fn what_changes_across_the_move_of_its_directory_is_told_on_both_sides_of_it() {
        let mut changes = Changes::default();
        let below = |path: &str| Pending { path: path.into(), ..pending(What::Modified, "z") };
        let leaving = What::Leaving { cookie: 1, since: Instant::now(), child: Some(7) };
        changes.push(below("d/z"));
        changes.push(Pending { watch: 2, is_directory: true, ..pending(leaving, "d") });
        changes.push(below("d/z"));
        assert_eq!(changes.arrive(1, b"e", 2, b"e"), Some(Some(7)));
        for _ in 0..2 {
            changes.push(below("e/z"));
        }
        let told: Vec<_> = std::iter::from_fn(|| changes.pop()).map(|change| change.path).collect();
        assert_eq!(told, [&b"d/z"[..], b"e", b"d/z", b"e/z"]);
        assert_eq!((changes.bytes, changes.is_empty()), (0, true));
    }

    #[test]
    fn a_directory_that_has_come_back_is_not_given_up() {
        let mut changes = Changes::default();
        let now = Instant::now();
        changes.push(pending(What::Leaving { cookie: 1, since: now, child: Some(7) }, "a"));
        changes.keep(7);
        assert!(changes.give_up(now).is_empty(), "it is watched");
        assert_eq!(changes.pop().map(|gone| gone.what), Some(What::Deleted));
    }

    #[test]
    fn a_move_keeps_its_place_until_its_other_half_has_come_or_never_will() {
        let mut changes = Changes::default();
        let now = Instant::now();
        for (cookie, name) in [(1, "a"), (2, "b")] {
            changes.push(pending(What::Leaving { cookie, since: now, child: Some(7) }, name));
        }
        changes.push(pending(What::Created, "a"));
        assert!(changes.pop().is_none());
        assert_eq!(changes.arrive(1, b"c", 2, b"c"), Some(Some(7)));
        assert_eq!(changes.arrive(9, b"c", 2, b"c"), None);
        assert_eq!(changes.pop().map(|moved| moved.what), Some(What::Moved { from: b"a".to_vec() }));
        assert!(changes.give_up(now - Duration::from_secs(1)).is_empty());
        assert!(changes.pop().is_none());
        assert_eq!(changes.give_up(now), [7]);
        assert_eq!(changes.pop().map(|gone| gone.what), Some(What::Deleted));
        assert_eq!(changes.pop().map(|made| made.what), Some(What::Created));
        assert_eq!(changes.bytes, 0);
    }
}
