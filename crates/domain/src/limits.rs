//! Every fixed limit of Toolhost, named once and with its reason. Limits that an operator or a tenant may set
//! are in the configuration and in [`crate::policy`]; these bound what they may be set to, or are not theirs.

/// Largest request body, in bytes. Room for a file written through `write_file`, not for uploads.
pub const REQUEST_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Deepest nesting of JSON that is accepted. Deeper documents only serve to exhaust stacks.
pub const JSON_DEPTH: usize = 64;
/// Most values in one JSON document, counted with its keys. Bounds the memory that a small body may unfold to.
pub const JSON_NODES: usize = 200_000;
/// Longest `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_BYTES: usize = 255;
/// Hours that an idempotency key is remembered.
pub const IDEMPOTENCY_KEEP_HOURS: u32 = 24;
/// Most pairs in `metadata`.
pub const METADATA_PAIRS: usize = 16;
/// Longest key of `metadata`, in characters.
pub const METADATA_KEY_CHARS: usize = 64;
/// Longest value of `metadata`, in characters.
pub const METADATA_VALUE_CHARS: usize = 512;
/// Longest `description` of a call, in characters.
pub const DESCRIPTION_CHARS: usize = 200;
/// Most environment variables of a session or a command.
pub const ENV_PAIRS: usize = 128;
/// Longest environment variable with its name, in bytes (the kernel itself refuses 128 KiB).
pub const ENV_BYTES: usize = 32 * 1024;
/// Most calls in one batch.
pub const BATCH_CALLS: usize = 100;
/// Exports of tenants that one process makes at a time: each keeps a connection and a snapshot of the database.
pub const EXPORTS: usize = 2;
/// Bytes that the results in the answer of one request may have together (8 MiB): they are held in memory until the client has taken them.
pub const ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// Calls of one request that are taken on at the same time. Each that was made before brings its whole result with it.
pub const BATCH_ADMISSIONS: usize = 8;
/// Part of a process's requests that one tenant may have under way: an eighth, so that seven others find room.
pub const TENANT_SHARE_OF_REQUESTS: usize = 8;
/// Credentials of one address that are being looked at in one process at the same time; further ones wait, without a place among the
/// requests under way: whoever shows none that are valid delays nobody else.
pub const AUTHENTICATIONS_PER_ADDRESS: usize = 64;
/// Longest wait for that: a little more than one statement may take, in milliseconds. Then the answer is 503 and not silence.
pub const AUTHENTICATION_WAIT_MS: u64 = 5_000;
/// Streams of one HTTP/2 connection: as many calls as one client sensibly waits for at a time. Others wait on the client's side.
pub const HTTP2_STREAMS: u32 = 128;
/// Keys of one tenant that are valid at the same time; and as many again that are being replaced.
pub const TENANT_KEYS: u32 = 1_000;
/// Wrong credentials that one address may present in a minute, when the operator does not say: no client needs more, and a
/// guess costs a query.
pub const FAILED_AUTH_PER_MINUTE: u32 = 120;
/// Requests of one tenant that one process takes in a minute when no policy says otherwise: far above what its calls could use,
/// so that only a runaway client meets it.
pub const REQUESTS_PER_MINUTE: u32 = 120_000;
/// Longest token of an issuer, in bytes: real ones have one or two thousand, and all of it is hashed before anything is believed.
pub const TOKEN_BYTES: usize = 8 * 1024;
/// Longest that a replaced key goes on working, in seconds.
pub const KEY_OVERLAP_S: u32 = 30 * 86_400;
/// How long a replaced key goes on working when nobody says, in seconds.
pub const KEY_OVERLAP_S_DEFAULT: u32 = 86_400;
/// Output and artifacts that are kept for a tenant when no policy says otherwise, in bytes: the output of 300 calls that each write
/// all that they may.
pub const STORED_BYTES: u64 = 20 * 1024 * 1024 * 1024;
/// Most items in one page of a list.
pub const PAGE_ITEMS: u32 = 100;
/// Items in a page when the caller does not say.
pub const PAGE_ITEMS_DEFAULT: u32 = 20;
/// Longest that one HTTP request waits for a call's end, in milliseconds.
pub const WAIT_MS: u64 = 60_000;
/// A call's timeout when the tool does not say, in milliseconds.
pub const TIMEOUT_MS_DEFAULT: u64 = 120_000;
/// Largest timeout of a call, in milliseconds.
pub const TIMEOUT_MS: u64 = 600_000;
/// Time between SIGTERM and SIGKILL, in milliseconds.
pub const KILL_GRACE_MS: u64 = 200;
/// Output of one call that is kept in the log, in bytes; what lies beyond is dropped in the middle and counted.
pub const OUTPUT_BYTES: u64 = 64 * 1024 * 1024;
/// The part of [`OUTPUT_BYTES`] that is kept from the end. Half of the window between worker and agent, so that
/// what is not yet durable can still be sent again by the agent.
pub const OUTPUT_TAIL_BYTES: u64 = 128 * 1024;
/// Largest output event, in bytes.
pub const OUTPUT_EVENT_BYTES: usize = 64 * 1024;
/// How long output is gathered into one event after the first, in milliseconds.
pub const OUTPUT_GATHER_MS: u64 = 5;
/// Text for a model when the caller gives no budget, in bytes.
pub const OUTPUT_BUDGET_BYTES_DEFAULT: u64 = 30_000;
/// Largest budget of text for a model, in bytes.
pub const OUTPUT_BUDGET_BYTES: u64 = 1_000_000;
/// Calls of one session that run at the same time when policy does not say.
pub const SESSION_RUNNING_CALLS: u32 = 4;
/// Contexts that one session may have: each holds an interpreter and its data in memory.
pub const SESSION_CONTEXTS: u32 = 8;
/// Longest name of a context, in characters.
pub const CONTEXT_NAME_CHARS: usize = 64;
/// Time between the interrupt of code in a context and the end of its interpreter, in milliseconds.
pub const INTERRUPT_GRACE_MS: u64 = 1_000;
/// Shells that may run in one session when policy does not say.
pub const SESSION_SHELLS: u32 = 16;
/// Shells of a tenant that run at the same time when policy does not say.
pub const SHELLS: u32 = 256;
/// Named shells that a session remembers: each may hold as much text as `NAMED_SHELL_BYTES`.
pub const SESSION_NAMED_SHELLS: u32 = 16;
/// Longest name of a named shell, in characters.
pub const NAMED_SHELL_NAME_CHARS: usize = 64;
/// Most of a named shell that is kept between two commands, in bytes: far more than variables and functions take.
pub const NAMED_SHELL_BYTES: u64 = 256 * 1024;
/// Deepest nesting of calls inside calls.
pub const CALL_DEPTH: u32 = 8;
/// Attempts of one call before it is quarantined as failed: a call that takes its worker down twice.
pub const CALL_ATTEMPTS: u32 = 3;
/// Idle time of a session when the caller does not say, in seconds.
pub const IDLE_TIMEOUT_S_DEFAULT: u32 = 900;
/// Shortest idle time of a session that has no sandbox yet, in seconds: nobody could have used it, and a busy host takes its time.
pub const IDLE_STARTING_S: u32 = 60;
/// Lifetime of a session when the caller does not say, in seconds.
pub const LIFETIME_S_DEFAULT: u32 = 86_400;
/// Longest lifetime of a session, in seconds (a week).
pub const LIFETIME_S: u32 = 7 * 86_400;
/// How often a worker renews its lease, in milliseconds.
pub const LEASE_RENEW_MS: u64 = 1_500;
/// How long a lease lives, in milliseconds. Its holder stops acting at half of it without a renewal.
pub const LEASE_TTL_MS: u64 = 6_000;
/// Silence of all workers of a host after which its sessions end, in seconds.
pub const HOST_LOST_S: u64 = 60;
/// How often everyone polls for what a hint should have told, in milliseconds.
pub const POLL_MS: u64 = 1_000;
/// Comment heartbeat of an event stream, in seconds.
pub const SSE_HEARTBEAT_S: u64 = 10;
/// Bookmark of an event stream, in seconds.
pub const SSE_BOOKMARK_S: u64 = 30;
/// Bytes of events that wait for one slow reader before it is switched to reading the table.
pub const SSE_BUFFER_BYTES: usize = 256 * 1024;
/// Time without progress after which a slow reader is closed, in seconds.
pub const SSE_STALL_S: u64 = 30;
/// Open event streams of one tenant.
pub const SSE_STREAMS_PER_TENANT: u32 = 1_000;
/// Open event streams of one process.
pub const SSE_STREAMS: u32 = 10_000;
/// Life of a signed stream URL when the caller does not say, in seconds.
pub const STREAM_URL_S_DEFAULT: u32 = 300;
/// Longest life of a signed stream URL, in seconds.
pub const STREAM_URL_S: u32 = 3_600;
/// Largest file that a file tool reads or writes in one call, in bytes.
pub const FILE_BYTES: u64 = 6 * 1024 * 1024;
/// Most entries that `list_files` returns.
pub const LIST_ENTRIES: u32 = 10_000;
/// Most files that `glob` returns.
pub const GLOB_ENTRIES: u32 = 1_000;
/// Most lines or files that `grep` returns.
pub const GREP_RESULTS: u64 = 10_000;
/// Earlier versions of one file that are kept for undoing.
pub const FILE_VERSIONS: u32 = 50;
/// Bytes of earlier versions that are kept for one session; the oldest go first.
pub const FILE_VERSION_BYTES: u64 = 64 * 1024 * 1024;
/// Files whose reading is remembered for one session; the longest unread go first.
pub const FILE_READS: u32 = 10_000;
/// Bytes in one piece of an exchange between an API process and a worker.
pub const EXCHANGE_DATA_BYTES: usize = 64 * 1024;
/// Largest message of an exchange, in bytes.
pub const EXCHANGE_MESSAGE_BYTES: usize = 1024 * 1024;
/// Pieces of an exchange that wait in one direction: what a slow reader may hold back (1 MiB).
pub const EXCHANGE_BACKLOG: usize = 16;
/// Exchanges that are open on one session at the same time.
pub const EXCHANGES_PER_SESSION: usize = 64;
/// Calls of a session that only wait and take no slot; further ones keep theirs.
pub const RESTING_PER_SESSION: usize = 64;
/// Calls of a session that wait for their turn in a named shell or a context, or to write to a shell; a further one is refused.
pub const IN_LINE_PER_SESSION: usize = 64;
/// Exchanges that one connection between two processes carries at the same time.
pub const EXCHANGES_PER_CONNECTION: u32 = 1_024;
/// How long an API process looks for the worker of a session that is starting or being taken over, in milliseconds.
pub const EXCHANGE_OPEN_MS: u64 = 20_000;
/// CPU-hours that a tenant's calls and shells may use in a day when policy does not say: more than most installations have.
pub const CPU_HOURS_PER_DAY: f64 = 24_000.0;
/// Longest period of one question about usage, in days. Longer ones are read from the closed hours.
pub const USAGE_DAYS: u32 = 92;
/// Period of a question about usage when the caller does not say, in days.
pub const USAGE_DAYS_DEFAULT: u32 = 30;
/// Largest artifact, in bytes: what a worker may have to hold on its disk while it hashes it.
pub const ARTIFACT_BYTES: u64 = 256 * 1024 * 1024;
/// Content of an artifact that is held in memory before it goes to a temporary file, in bytes.
pub const ARTIFACT_MEMORY_BYTES: usize = 4 * 1024 * 1024;
/// Longest name of an artifact, in characters.
pub const ARTIFACT_NAME_CHARS: usize = 255;
/// Picture in a result that is also kept in the call's row, in bytes; a larger one is in its artifact alone.
pub const INLINE_IMAGE_BYTES: usize = 256 * 1024;
/// How long the end of a call waits for the object store to take what the call leaves, in seconds.
pub const ARTIFACT_WAIT_S: u64 = 60;
/// Age from which content that no artifact has is removed from the object store, in seconds. Far longer than an upload takes.
pub const ARTIFACT_SWEEP_S: u32 = 3_600;
/// Life of a download link when the caller does not say, in seconds.
pub const ARTIFACT_LINK_S_DEFAULT: u32 = 3_600;
/// Longest life of a download link, in seconds (a week).
pub const ARTIFACT_LINK_S: u32 = 7 * 86_400;
/// Largest wheel, in bytes: what an API process may have to hold on its disk while it hashes it.
pub const WHEEL_BYTES: u64 = 256 * 1024 * 1024;
/// Longest name of a wheel's file, in bytes: that of a file in a sandbox.
pub const WHEEL_NAME_BYTES: usize = 255;
/// Wheels that one tenant keeps: all of their names go into a sandbox that installs something.
pub const WHEELS: u32 = 2_000;
/// Wheels that a sandbox gets at a time while it installs something. Each has the number of an operation, taken or not.
pub const WHEELS_AT_ONCE: u32 = 64;
/// How often one installation gets wheels: as deep as what they need may lead from one to the next.
pub const WHEEL_ROUNDS: u32 = 16;
/// Largest file that is uploaded at once, in bytes; the workspace's own size is usually less.
pub const UPLOAD_BYTES: u64 = 8 * 1024 * 1024 * 1024;
/// Longest time of one upload, in seconds: a client that sends a byte now and then does not hold a place for ever.
pub const UPLOAD_S: u64 = 3_600;
/// Longest time of putting one wheel, in seconds: far more than [`WHEEL_BYTES`] take, and the places for it ([`WHEEL_PUTS`]) are few.
pub const WHEEL_PUT_S: u64 = 600;
/// Deepest directory that a listing of files goes down to, below the listed one.
pub const LIST_DEPTH: u32 = 64;
/// Entries of a listing of files when the caller does not say.
pub const LIST_ENTRIES_DEFAULT: u32 = 1_000;
/// Most entries of an archive that is uploaded: each costs a round trip.
pub const ARCHIVE_ENTRIES: u32 = 100_000;
/// Most files of one form: each costs a round trip, and has its outcome in the answer.
pub const FORM_FILES: usize = 1_000;
/// Headers of one part of a form, in bytes: a path of the longest kind, written in full, and some more.
pub const FORM_HEADER_BYTES: usize = 8 * 1024;
/// Uploads and downloads of one session that one process carries at the same time: below [`EXCHANGES_PER_SESSION`], so that terminals
/// find room beside what one process carries.
pub const TRANSFERS_PER_SESSION: u32 = 32;
/// Uploads and downloads of one tenant that one process carries at the same time: each may hold a megabyte.
pub const TRANSFERS_PER_TENANT: u32 = 128;
/// Searches of one tenant's output, and readings of its whole audit trail, that one process does at the same time: each takes a connection to the
/// database again and again.
pub const SEARCHES_PER_TENANT: u32 = 4;
/// Wheels that one process takes at the same time: each may have all its bytes on the disk, and some tens of megabytes in memory.
pub const WHEEL_PUTS: usize = 8;
/// Of them those of one tenant.
pub const WHEEL_PUTS_PER_TENANT: u32 = 2;
/// Connections of one process's listener for metrics and health: far more than scrapers and probes have, and far fewer than its descriptors.
pub const METRICS_CONNECTIONS: usize = 256;
