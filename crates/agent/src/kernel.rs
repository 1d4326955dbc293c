//! The kernel calls that neither std nor nix offer safely. Nothing here decides anything.
#![expect(
    unsafe_code,
    reason = "per-thread credentials, capabilities and descriptor ranges need raw system calls"
)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

fn check(result: i64) -> nix::Result<()> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Gives the *calling thread* the tool's identity for access to files, and nothing else: real and saved uid stay 0,
/// so that the tool, which has the same effective uid, can neither signal this thread nor change its limits.
/// Effective capabilities go with the effective uid.
pub(crate) fn access_files_as(uid: u32) -> nix::Result<()> {
    const KEEP: i64 = -1;
    // SAFETY: the raw calls change the credentials of this thread alone and take no pointers but an empty list.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0_i64, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, KEEP, i64::from(uid), KEEP))?;
        check(libc::syscall(libc::SYS_setresuid, KEEP, i64::from(uid), KEEP))
    }
}

/// Ends one watch of an instance, by its number.
pub(crate) fn forget_watch(inotify: impl AsFd, watch: i32) -> nix::Result<()> {
    // SAFETY: the descriptor is open, and the call takes no pointers.
    check(unsafe { libc::inotify_rm_watch(inotify.as_fd().as_raw_fd(), watch) }.into())
}

/// Does something as the tool where it makes files, on the calling thread alone, and takes root's identity back. As in
/// [`access_files_as`], real and saved uid stay 0.
pub(crate) fn as_owner_of_files<T>(uid: u32, work: impl FnOnce() -> nix::Result<T>) -> nix::Result<T> {
    const KEEP: i64 = -1;
    let uid = i64::from(uid);
    // SAFETY: the raw calls change the credentials of this thread alone and take no pointers.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, KEEP, uid, KEEP))?;
        let taken = check(libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP));
        let done = taken.and_then(|()| work());
        let back = check(libc::syscall(libc::SYS_setresuid, KEEP, 0_i64, KEEP))
            .and_then(|()| check(libc::syscall(libc::SYS_setresgid, KEEP, 0_i64, KEEP)));
        back.and(done)
    }
}

/// Kills every process of `uid` in this pid namespace, in one pass that no fork escapes, by becoming that uid on the
/// calling thread for the moment. The saved uid stays 0, so that the way back is open.
pub(crate) fn kill_everything_of(uid: u32) -> nix::Result<()> {
    let uid = i64::from(uid);
    // SAFETY: credentials of this thread alone; `kill` takes no pointers.
    unsafe {
        check(libc::syscall(libc::SYS_setresuid, uid, uid, 0_i64))?;
        let killed = check(libc::syscall(libc::SYS_kill, -1_i64, i64::from(libc::SIGKILL)));
        check(libc::syscall(libc::SYS_setresuid, 0_i64, 0_i64, 0_i64))?;
        match killed {
            Err(Errno::ESRCH) => Ok(()),
            other => other,
        }
    }
}

/// Takes the tool's identity for good and makes sure that no capability is left. For a process with one thread.
pub(crate) fn become_tool(uid: u32) -> nix::Result<()> {
    // SAFETY: single-threaded process; the only pointers are to local capability structures of the right size.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0_i64, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, i64::from(uid), i64::from(uid), i64::from(uid)))?;
        check(libc::syscall(libc::SYS_setresuid, i64::from(uid), i64::from(uid), i64::from(uid)))?;
        // Kernels without ambient capabilities have none to clear.
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        drop_capabilities()
    }
}

/// Version 3 of the kernel's capability header and its two 32-bit halves of (effective, permitted, inheritable).
unsafe fn drop_capabilities() -> nix::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: header and sets are as large as version 3 of the interface says.
    unsafe {
        check(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()))?;
        sets = [[u32::MAX; 3]; 2];
        check(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()))?;
    }
    if sets == [[0; 3]; 2] { Ok(()) } else { Err(Errno::EPERM) }
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: RawFd) {
    // SAFETY: the callers own none of the descriptors that they give up here.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first as u32, u32::MAX, 0) == 0 {
            return;
        }
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in first..limit.rlim_cur.min(65_536) as RawFd {
            libc::close(fd);
        }
    }
}

/// Makes `target` another name of `fd`, open across exec.
pub(crate) fn place(fd: RawFd, target: RawFd) -> nix::Result<()> {
    // SAFETY: plain descriptor numbers.
    unsafe {
        if fd == target {
            return check(libc::fcntl(fd, libc::F_SETFD, 0).into());
        }
        check(libc::dup2(fd, target).into())
    }
}

/// A copy of `fd` at `lowest` or above, closed on exec.
pub(crate) fn lift(fd: RawFd, lowest: RawFd) -> nix::Result<RawFd> {
    // SAFETY: plain descriptor numbers.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) })
}

/// Sets whether `fd` is closed on exec.
pub(crate) fn close_on_exec(fd: RawFd) {
    // SAFETY: plain descriptor number.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// Writes to a descriptor by number; for a forked child, where nothing may own one.
pub(crate) fn write_raw(fd: RawFd, bytes: &[u8]) {
    // SAFETY: the slice lives across the call.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

/// Leaves the process at once, without any cleaning up of the memory that it shares with its parent's past.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Forks. The child has only this thread; glibc makes its allocator usable there, and nothing else may be used that
/// another thread might have held.
pub(crate) fn fork() -> nix::Result<nix::unistd::ForkResult> {
    // SAFETY: the child's code (supervisor and command child) uses the allocator and system calls only.
    unsafe { nix::unistd::fork() }
}

/// One `prctl` with one number.
pub(crate) fn prctl(option: i32, value: u64) -> nix::Result<()> {
    // SAFETY: only called with options that take a number.
    check(unsafe { libc::prctl(option, value, 0_u64, 0_u64, 0_u64) }.into())
}

/// Whether a process can adopt the orphans below it. Asked of a child: the first process always can.
pub(crate) fn has_subreapers() -> bool {
    match fork() {
        Ok(nix::unistd::ForkResult::Child) => {
            exit_now(i32::from(prctl(libc::PR_SET_CHILD_SUBREAPER, 1).is_err()));
        }
        Ok(nix::unistd::ForkResult::Parent { child }) => {
            let ended = nix::sys::wait::waitpid(child, None);
            !matches!(ended, Ok(nix::sys::wait::WaitStatus::Exited(_, 1)))
        }
        Err(_) => true,
    }
}

/// Names this process in `/proc`.
pub(crate) fn name_process(name: &std::ffi::CStr) {
    // SAFETY: the string ends with a NUL and lives across the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Keeps the allocator small: one arena beside the main one, big blocks given back at once.
pub(crate) fn tame_allocator() {
    // SAFETY: called before any thread exists.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
    }
}

/// Makes a write beyond the limit on file sizes fail with `EFBIG` instead of ending the process.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: SIG_IGN needs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Gives signals 1 to 31 their default action and unblocks all, as a command expects to find them.
pub(crate) fn default_signals() {
    // SAFETY: SIG_DFL for every signal; KILL and STOP refuse, which changes nothing.
    unsafe {
        for signal in 1..32 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

extern "C" fn wake(_signal: i32) {}

/// Makes SIGCHLD interrupt [`wait_readable`] and nothing else.
pub(crate) fn listen_for_children() {
    // SAFETY: the handler does nothing; the set is initialised before use.
    unsafe {
        libc::signal(libc::SIGCHLD, wake as *const () as libc::sighandler_t);
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut blocked);
        libc::sigaddset(&raw mut blocked, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut());
    }
}

/// Waits until `fd` is readable or hung up, a child has ended, or the time is over. True when `fd` has something.
pub(crate) fn wait_readable(fd: RawFd, timeout: Option<std::time::Duration>) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let limit = timeout
        .map(|t| libc::timespec { tv_sec: t.as_secs() as libc::time_t, tv_nsec: t.subsec_nanos().into() });
    // SAFETY: one pollfd, an optional timespec and an empty signal set, all alive across the call.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        libc::ppoll(&raw mut entry, 1, limit, &raw const none) > 0
    }
}

/// A pseudo-terminal: the agent's side, and the side that becomes a command's descriptors 0, 1 and 2. The second one is
/// opened through the first, so that nothing but this terminal can be meant.
pub(crate) fn open_terminal() -> nix::Result<(OwnedFd, OwnedFd)> {
    const FLAGS: i32 = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: each descriptor is new and owned by nobody else; the ioctls take a number, or write one int.
    unsafe {
        let agent = Errno::result(libc::open(c"/dev/ptmx".as_ptr(), FLAGS | libc::O_NONBLOCK))?;
        let agent = OwnedFd::from_raw_fd(agent);
        let unlock: libc::c_int = 0;
        Errno::result(libc::ioctl(agent.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock))?;
        let peer = libc::ioctl(agent.as_raw_fd(), libc::TIOCGPTPEER, FLAGS);
        if peer >= 0 {
            return Ok((agent, OwnedFd::from_raw_fd(peer)));
        }
        // A kernel without that request (an old gVisor): by its number.
        let mut number: libc::c_uint = 0;
        Errno::result(libc::ioctl(agent.as_raw_fd(), libc::TIOCGPTN, &raw mut number))?;
        let path = format!("/dev/pts/{number}\0");
        let peer = Errno::result(libc::open(path.as_ptr().cast(), FLAGS))?;
        Ok((agent, OwnedFd::from_raw_fd(peer)))
    }
}

/// Sets a terminal's size; the kernel tells its foreground processes.
pub(crate) fn resize_terminal(fd: RawFd, rows: u16, cols: u16) -> nix::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the structure lives across the call.
    Errno::result(unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Makes the terminal on descriptor 0 the controlling one of this session, which has none.
pub(crate) fn take_terminal() -> nix::Result<()> {
    // SAFETY: the request takes a number.
    Errno::result(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).map(drop)
}

/// The process group in the foreground of a terminal, asked from the agent's side.
pub(crate) fn foreground_of(fd: RawFd) -> Option<i32> {
    let mut group: libc::pid_t = 0;
    // SAFETY: the request writes one pid.
    let asked = unsafe { libc::ioctl(fd, libc::TIOCGPGRP, &raw mut group) };
    (asked == 0 && group > 1).then_some(group)
}

/// Gives back what a memory file holds beyond so many bytes. A refusal leaves it as it is.
pub(crate) fn cut(file: &std::os::fd::OwnedFd, most: u64) {
    let size = nix::sys::stat::fstat(file).map_or(0, |facts| facts.st_size.max(0) as u64);
    if size > most {
        let _ = nix::unistd::ftruncate(file, most as i64);
    }
}

/// Bytes that wait in a pipe.
pub(crate) fn bytes_waiting(fd: RawFd) -> usize {
    let mut waiting: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut waiting) };
    usize::try_from(waiting).unwrap_or(0)
}

/// Fills `buffer` with random bytes.
pub(crate) fn random(buffer: &mut [u8]) -> nix::Result<()> {
    // SAFETY: the pointer and length are those of the slice.
    check(unsafe { libc::getrandom(buffer.as_mut_ptr().cast(), buffer.len(), 0) } as i64)
}

/// Reaps one child that has ended: its number and wait status. `None` when all that exist still live.
pub(crate) fn reap_one() -> nix::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: `waitpid` writes one int.
    let pid = Errno::result(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) })?;
    Ok((pid > 0).then_some((pid, status)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    #[test]
    fn the_last_resort_kills_one_uid_and_comes_back() {
        assert!(nix::unistd::geteuid().is_root(), "needs root");
        let uid = 690_000 + std::process::id() % 5_000;
        let sleep = |uid| Command::new("sleep").arg("1000").uid(uid).gid(uid).spawn().expect("starts");
        let (mut victim, mut bystander) = (sleep(uid), sleep(uid + 5_000));
        let reset =
            std::thread::spawn(move || kill_everything_of(uid).map(|()| nix::unistd::geteuid().is_root()));
        assert_eq!(reset.join().expect("joins"), Ok(true));
        assert_eq!(victim.wait().expect("waits").signal(), Some(libc::SIGKILL));
        assert_eq!(bystander.try_wait().expect("looks"), None);
        bystander.kill().expect("kills");
        bystander.wait().expect("waits");
    }

    #[test]
    fn a_thread_that_reads_files_as_the_tool_is_not_the_tools_to_signal() {
        assert!(nix::unistd::geteuid().is_root(), "needs root");
        let ids = std::thread::spawn(|| {
            access_files_as(690_001).expect("takes the identity");
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("reads");
            let line =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            (line("Uid:\t"), line("CapEff:\t"))
        });
        let (uids, effective) = ids.join().expect("joins");
        // Real, effective, saved, filesystem.
        assert_eq!(uids.as_deref(), Some("0\t690001\t0\t690001"));
        assert_eq!(effective.as_deref(), Some("0000000000000000"));
        assert!(nix::unistd::geteuid().is_root(), "the other threads are as they were");
    }
}
