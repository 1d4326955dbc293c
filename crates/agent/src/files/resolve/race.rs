//! The walk by itself against a tree that is swapped under it: where `openat2` answers, it is hardly ever asked.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::fcntl::{OFlag, RenameFlags, renameat2};
use nix::sys::stat::fstat;

use super::tests::tree;
use super::{Root, by_walk, entry, place};

const SWAPS: u64 = 100_000;
const ROUNDS: u64 = 20_000;

/// Exchanges a directory and a link to one outside, again and again.
fn swap(root: &Root, link: &str, done: &AtomicU64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let swapped = renameat2(&root.fd, "sub", &root.fd, link, RenameFlags::RENAME_EXCHANGE);
        done.fetch_add(u64::from(swapped.is_ok()), Ordering::Relaxed);
    }
}

#[test]
fn a_walk_by_itself_loses_no_race() {
    let (folder, root) = tree();
    let outside = folder.path().join("root-beside");
    std::fs::write(outside.join("file"), "outside").expect("a file");
    let inode = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(folder.path().join(path)).expect("exists").ino()
    };
    let (file, directory) = (inode("root/sub/file"), inode("root/sub"));
    for (link, target) in [("by-name", outside.to_str().expect("a name")), ("by-steps", "../root-beside")] {
        symlink(target, folder.path().join("root").join(link)).expect("a link");
        let (swaps, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (mut outcomes, mut leaked, mut rounds) = (BTreeSet::new(), 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| swap(&root, link, &swaps, &over));
            while leaked == 0
                && (swaps.load(Ordering::Relaxed) < SWAPS || rounds < ROUNDS || outcomes.len() < 2)
                && rounds < 100 * SWAPS
            {
                rounds += 1;
                let read = by_walk(&root, "sub/file", OFlag::O_RDONLY | OFlag::O_NONBLOCK);
                let read = read.and_then(|opened| fstat(&opened));
                leaked += u32::from(read.is_ok_and(|found| found.st_ino != file));
                outcomes.insert(read.is_ok());
                for placed in [place(&root, "sub/file"), entry(&root, "sub/file")].into_iter().flatten() {
                    leaked +=
                        u32::from(fstat(&placed.directory).is_ok_and(|found| found.st_ino != directory));
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(leaked, 0, "{link}: left the root in {rounds} rounds");
        assert!(outcomes.len() == 2 && swaps.into_inner() >= SWAPS, "{link}: the race never happened");
        // As it was, for the next.
        if std::fs::symlink_metadata(folder.path().join("root/sub")).expect("is there").is_symlink() {
            renameat2(&root.fd, "sub", &root.fd, link, RenameFlags::RENAME_EXCHANGE).expect("swaps");
        }
    }
}
