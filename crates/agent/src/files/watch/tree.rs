//! Which directory each of the kernel's watches is of. No I/O.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits;

/// Memory that all watches share.
#[derive(Debug, Default)]
pub(crate) struct Room {
    taken: AtomicUsize,
}

#[derive(Debug)]
struct Node {
    /// `None` for the watched directory itself.
    above: Option<i32>,
    name: Vec<u8>,
}

/// The directories of one watch, by the kernel's numbers.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<i32, Node>,
    room: Arc<Room>,
    taken: usize,
}

/// There is no room for another directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// A directory that cannot be named from the watched one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nameless {
    /// It is not watched (any more).
    Unknown,
    /// The way to it does not end: something was missed.
    Lost,
}

fn cost(name: &[u8]) -> usize {
    name.len() + limits::WATCH_DIRECTORY_BYTES
}

impl Tree {
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self { nodes: HashMap::new(), room, taken: 0 }
    }

    pub(super) fn knows(&self, watch: i32) -> bool {
        self.nodes.contains_key(&watch)
    }

    pub(super) fn watches(&self) -> impl Iterator<Item = i32> {
        self.nodes.keys().copied()
    }

    /// Puts a directory in its place, which may be another one than before.
    pub(super) fn put(&mut self, watch: i32, above: Option<i32>, name: &[u8]) -> Result<(), Full> {
        self.remove(watch);
        let cost = cost(name);
        if self.room.taken.fetch_add(cost, Ordering::Relaxed) + cost > limits::WATCH_BYTES {
            self.room.taken.fetch_sub(cost, Ordering::Relaxed);
            return Err(Full);
        }
        self.taken += cost;
        self.nodes.insert(watch, Node { above, name: name.to_vec() });
        Ok(())
    }

    pub(super) fn remove(&mut self, watch: i32) {
        if let Some(node) = self.nodes.remove(&watch) {
            let cost = cost(&node.name);
            self.taken -= cost;
            self.room.taken.fetch_sub(cost, Ordering::Relaxed);
        }
    }

    /// The directory of this name in another one.
    pub(super) fn child(&self, above: i32, name: &[u8]) -> Option<i32> {
        self.nodes.iter().find(|(_, node)| node.above == Some(above) && node.name == name).map(|(id, _)| *id)
    }

    /// A directory and all below it.
    pub(super) fn with_all_below(&self, watch: i32) -> Vec<i32> {
        let mut seen = HashSet::from([watch]);
        let mut found = vec![watch];
        let mut at = 0;
        while let Some(above) = found.get(at).copied() {
            let below = self.nodes.iter().filter(|(_, node)| node.above == Some(above)).map(|(id, _)| *id);
            found.extend(below.filter(|below| seen.insert(*below)));
            at += 1;
        }
        found
    }

    /// The names that lead from the watched directory to this one.
    pub(super) fn way(&self, watch: i32) -> Result<Vec<&[u8]>, Nameless> {
        let mut way = Vec::new();
        let mut next = Some(watch);
        while let Some(watch) = next {
            let node = self.nodes.get(&watch).ok_or(Nameless::Unknown)?;
            if node.above.is_some() {
                way.push(node.name.as_slice());
            }
            if way.len() > limits::WATCH_DEPTH {
                return Err(Nameless::Lost);
            }
            next = node.above;
        }
        way.reverse();
        Ok(way)
    }

    /// The path of an entry of a directory, from the watched one.
    pub(super) fn path(&self, watch: i32, name: &[u8]) -> Result<Vec<u8>, Nameless> {
        let mut way = self.way(watch)?;
        way.push(name);
        Ok(way.join(&b'/'))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_their_directories_and_ways_without_end_are_noticed() {
        let room = Arc::new(Room::default());
        let mut tree = Tree::new(Arc::clone(&room));
        tree.put(1, None, b"").expect("room");
        tree.put(2, Some(1), b"a").expect("room");
        tree.put(3, Some(2), b"b").expect("room");
        assert_eq!(tree.path(3, b"f"), Ok(b"a/b/f".to_vec()));
        assert_eq!((tree.child(2, b"b"), tree.child(1, b"b")), (Some(3), None));
        tree.put(2, Some(1), b"moved").expect("room");
        assert_eq!(tree.path(3, b"f"), Ok(b"moved/b/f".to_vec()));
        assert_eq!(tree.with_all_below(2), [2, 3]);
        tree.put(2, Some(3), b"a").expect("room");
        assert_eq!(tree.way(2), Err(Nameless::Lost));
        assert_eq!(tree.with_all_below(2), [2, 3]);
        assert_eq!(tree.way(9), Err(Nameless::Unknown));
        drop(tree);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_watches_share_their_room() {
        let room = Arc::new(Room::default());
        let mut first = Tree::new(Arc::clone(&room));
        let most = (0..).find(|n| first.put(*n, None, b"directory").is_err()).expect("an end");
        let mut second = Tree::new(Arc::clone(&room));
        assert_eq!(second.put(1, None, b"directory"), Err(Full));
        assert!((5_000..10_000).contains(&most), "{most}");
        drop(first);
        assert_eq!(second.put(1, None, b"directory"), Ok(()));
    }
}
