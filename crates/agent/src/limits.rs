//! Every limit of the agent, named once, with its reason.

use std::time::Duration;

/// Entries that the journal keeps; the worker forgets an owner as soon as its results are durable.
pub(crate) const JOURNAL_ENTRIES: usize = 4096;
/// How long the result of input is kept at least for one who asks again: longer than any call that writes some may take, whichever worker
/// runs it.
pub(crate) const STDIN_REMEMBERED: Duration = Duration::from_secs(900);
/// Operations whose process tree lives. Each costs a supervisor and six descriptors.
pub(crate) const RUNNING_OPERATIONS: usize = 64;
/// Output of all operations together in the agent's memory; beyond it each keeps only [`BUFFERED_MIN_SHARE`].
pub(crate) const BUFFERED_BYTES: usize = 2 * 1024 * 1024;
/// What an operation may always keep of its output, so that none starves when others fill the memory.
pub(crate) const BUFFERED_MIN_SHARE: usize = 16 * 1024;
/// Output in memory beyond which nothing new is started: a worker that never forgets cannot make the agent grow.
pub(crate) const BUFFERED_REFUSE_BYTES: usize = BUFFERED_BYTES + 1024 * 1024;
/// Alternations between stdout and stderr that one log keeps (a writer of single bytes would cost 16 times its data).
pub(crate) const LOG_RUNS: usize = 4096;
/// Bytes waiting for the worker's socket beyond which no more output or file content is encoded.
pub(crate) const LINK_BACKLOG_BYTES: usize = 256 * 1024;
/// Bytes of an operation's stdin that wait for the command to read them.
pub(crate) const STDIN_QUEUE_BYTES: usize = 1024 * 1024;
/// Bytes of an ended command that are taken out of its terminal. The kernel keeps at most 64 KiB; more can only come from somebody else who holds
/// the terminal.
pub(crate) const TERMINAL_REST_BYTES: usize = 256 * 1024;
/// How long a write to stdin waits for a command that does not read.
pub(crate) const STDIN_WAIT: Duration = Duration::from_secs(2);
/// Bytes of an owner's name; it is a call or shell id.
pub(crate) const OWNER_BYTES: usize = 128;
/// Longest time between SIGTERM and SIGKILL that a worker may ask for.
pub(crate) const GRACE_MAX: Duration = Duration::from_secs(30);
/// How long the supervisor kills process by process before it asks for the last resort.
pub(crate) const KILL_BUDGET: Duration = Duration::from_secs(2);
/// How long after the last resort an operation may still wait for its tree (a process in an uninterruptible sleep).
pub(crate) const RESET_BUDGET: Duration = Duration::from_secs(3);
/// How long a released warm shell may take to confirm (a tool may have stopped it); then it is ended and a fresh one
/// takes over. Far beyond what a busy host takes: one that confirms while it is being ended is a command killed.
pub(crate) const WARM_CONFIRM: Duration = Duration::from_secs(3);
/// Rest after the last operation before a warm shell is started, so that refilling does not compete with work.
pub(crate) const WARM_REST: Duration = Duration::from_millis(1);
/// Pause after a warm shell died before it was used, so that a tool that kills them costs no CPU.
pub(crate) const WARM_RETRY: Duration = Duration::from_secs(1);
/// The same for an interpreter, which may still be starting.
pub(crate) const INTERPRETER_CONFIRM: Duration = Duration::from_secs(5);
/// How long an interpreter is kept waiting after the last call that used one: it holds some megabytes.
pub(crate) const WARM_INTERPRETER_LIFE: Duration = Duration::from_secs(300);
/// Most warm shells, whatever the worker asks for.
pub(crate) const WARM_SHELLS: usize = 4;
/// Longest pause between two attempts to reach the worker.
pub(crate) const REDIAL_MAX: Duration = Duration::from_millis(250);
/// Threads that carry out file verbs.
pub(crate) const FILE_THREADS: usize = 3;
/// Stack of such a thread; the verbs do not recurse.
pub(crate) const FILE_STACK_BYTES: usize = 256 * 1024;
/// File requests in progress on one connection.
pub(crate) const TRANSFERS: usize = 64;
/// Content of all writes that waits for the disk; beyond it the agent stops reading from the worker.
pub(crate) const WRITE_QUEUE_BYTES: usize = 1024 * 1024;
/// Piece in which a file is read and sent.
pub(crate) const READ_PIECE_BYTES: usize = 128 * 1024;
/// Bytes of a path, as the kernel's own limit.
pub(crate) const PATH_BYTES: usize = 4096;
/// Links followed while one path is resolved, as the kernel's own limit.
pub(crate) const LINKS: usize = 40;
/// Directories below the root that a component walk goes into: each costs a descriptor while it lasts.
pub(crate) const WALK_DEPTH: usize = 256;
/// Entries that one listing returns, so that the answer fits a frame.
pub(crate) const LIST_ENTRIES: usize = 10_000;
/// Bytes of all paths that one listing returns.
pub(crate) const LIST_PATH_BYTES: usize = 1024 * 1024;
/// Entries that one listing looks at, and names that it keeps of one directory.
pub(crate) const LIST_VISITED: u64 = 200_000;
/// Directories below the listed one that a listing goes down.
pub(crate) const LIST_DEPTH: u32 = 64;
/// Directories that wait to be listed.
pub(crate) const LIST_QUEUE: usize = 4096;
/// Bytes read of one `.gitignore`.
pub(crate) const IGNORE_BYTES: usize = 64 * 1024;
/// Patterns taken from one `.gitignore`.
pub(crate) const IGNORE_PATTERNS: usize = 1000;
/// Longest pattern; matching costs its length times the name's.
pub(crate) const IGNORE_PATTERN_BYTES: usize = 512;
/// Bytes of a glob; matching costs its length times the path's.
pub(crate) const GLOB_BYTES: usize = 1024;
/// Alternatives that the braces of one glob stand for.
pub(crate) const GLOB_ALTERNATIVES: usize = 256;
/// Globs that narrow one search.
pub(crate) const GREP_GLOBS: usize = 64;
/// Bytes of a regular expression.
pub(crate) const REGEX_BYTES: usize = 4096;
/// Memory of a compiled regular expression, and of what it keeps to be fast: three searches at a time fit beside the rest.
pub(crate) const REGEX_SIZE_BYTES: usize = 512 * 1024;
/// Nesting of a regular expression; compiling it recurses.
pub(crate) const REGEX_DEPTH: u32 = 48;
/// Piece in which a file is searched. A longer line is searched in pieces.
pub(crate) const GREP_PIECE_BYTES: usize = 64 * 1024;
/// Largest file that is searched for matches that span lines: it is held in memory.
pub(crate) const GREP_MULTILINE_BYTES: usize = 1024 * 1024;
/// Bytes of one line that are returned.
pub(crate) const GREP_LINE_BYTES: usize = 2000;
/// Lines around a match.
pub(crate) const GREP_CONTEXT: u32 = 100;
/// Results of one search.
pub(crate) const GREP_RESULTS: u64 = 10_000;
/// Bytes of text and paths that one search returns, so that the answer fits a frame and the memory.
pub(crate) const GREP_ANSWER_BYTES: u64 = 512 * 1024;
/// How long one search goes on, so that it does not keep a thread from others.
pub(crate) const GREP_TIME: Duration = Duration::from_secs(20);
/// Levels of a tree that are open while it is removed; deeper ones are moved up first.
pub(crate) const REMOVE_DEPTH: usize = 32;
/// Names of one directory that are removed in one round.
pub(crate) const REMOVE_BATCH: usize = 32;
/// How long a removal goes on, so that a program that makes files as fast cannot keep it for ever.
pub(crate) const REMOVE_TIME: Duration = Duration::from_secs(120);
/// Directories that are watched for workers at the same time.
pub(crate) const WATCHES: usize = 4;
/// Memory of all watches together for the directories in them: some seven thousand.
pub(crate) const WATCH_BYTES: usize = 1024 * 1024;
/// What one directory costs of it, beside its name.
pub(crate) const WATCH_DIRECTORY_BYTES: usize = 128;
/// Directories below the watched one that are watched.
pub(crate) const WATCH_DEPTH: usize = 64;
/// Changes of one watch that wait to be told.
pub(crate) const WATCH_QUEUE_BYTES: usize = 64 * 1024;
/// Memory for the names in a directory that is new; those beyond it are told as a loss.
pub(crate) const WATCH_NAME_BYTES: usize = 128 * 1024;
/// Changes told in one step, after which others have their turn.
pub(crate) const WATCH_STEP_BYTES: usize = 32 * 1024;
/// Reads of the kernel's queue that throw away what was lost anyway, at most.
pub(crate) const WATCH_DISCARDS: usize = 1024;
/// Pause between two steps of a watch: what is written again and again in it is told once.
pub(crate) const WATCH_REST: Duration = Duration::from_millis(20);
/// How long the second half of a move is waited for.
pub(crate) const WATCH_MOVE: Duration = Duration::from_millis(15);
/// How often the path of a watched directory is resolved anew: what happens above it is not told by the kernel.
pub(crate) const WATCH_RECHECK: Duration = Duration::from_secs(3);
