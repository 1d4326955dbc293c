//! What every setting means: the table behind `toolhost config --reference`, docs/configuration.md, and the check
//! for unknown keys. A test compares it with the tree, so that neither has a key that the other lacks.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::Config;

/// How the environment's text becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As it stands.
    Text,
    /// As it stands, and never printed.
    Secret,
    /// Written as in TOML: a number, `true`, a list, a table; text when it is none of these.
    Value,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its dotted name.
    pub key: &'static str,
    /// How the environment's text becomes a value.
    pub kind: Kind,
    /// What it does, in Markdown.
    pub doc: &'static str,
}

const fn text(key: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Text, doc }
}

const fn secret(key: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Secret, doc }
}

const fn value(key: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Value, doc }
}

/// Every setting, by section.
pub const SETTINGS: &[Setting] = &[
    text("server.listen", "Address and port of the HTTP API."),
    value(
        "server.requests",
        "Requests that this process handles at the same time, those that wait for a call's end included.",
    ),
    value("server.connections", "Open connections of this process."),
    value(
        "server.header_timeout_ms",
        "Time for a request's headers to arrive, and for the next request of a connection on which nothing is under way.",
    ),
    value("server.body_timeout_ms", "Time for a request's body to arrive."),
    value(
        "server.answer_timeout_ms",
        "Time for a request to be answered, beside what it asked to wait (`wait_ms`).",
    ),
    value(
        "server.failed_auth_per_minute",
        "Wrong credentials that one address may present to this process in a minute; beyond it is answered 429, except to credentials that were right a while ago or are well signed.",
    ),
    value("server.streams_per_tenant", "Open event streams of one tenant in this process."),
    value("server.streams", "Open event streams of this process."),
    value(
        "server.images",
        "Images that sessions may name beside the default one: names, or prefixes that end in `*`.",
    ),
    value(
        "server.linger_ms",
        "Time in which new connections are still taken after the process was asked to stop, while `/readyz` says no already. Behind a balancer: a little longer than it takes to notice.",
    ),
    value(
        "server.drain_ms",
        "Time that open requests and event streams get when the process is asked to stop.",
    ),
    value(
        "server.trusted_proxies",
        "Proxies whose `X-Forwarded-For` is believed when a client's address is recorded and throttled: addresses, and networks such as `10.0.0.0/8` where an ingress has changing ones.",
    ),
    text(
        "tls.certificate",
        "File with the certificate chain (PEM) of the HTTP API. Without one it speaks plain HTTP: then keep it behind a proxy that ends TLS (`server.trusted_proxies`). Both files are read again on SIGHUP and when they change; TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1.",
    ),
    text("tls.key", "File with the key (PEM) of that certificate."),
    value("metrics.enabled", "Whether there is a listener for `/metrics`, `/healthz` and `/readyz`."),
    text("metrics.listen", "Address and port of that listener. Keep it private: it has no authentication."),
    text(
        "internal.listen",
        "Address and port of the internal listener of a process with a worker, over which API processes reach the sessions of that worker: uploads, downloads, terminals. Not needed when every API process has the only worker in itself. Keep it on a private network, and set `internal.tls_ca` where that network is not trusted.",
    ),
    text(
        "internal.advertise",
        "Where other processes reach that listener, `host:port`. The address itself when left out; needed when that is `0.0.0.0` or `[::]`.",
    ),
    secret(
        "internal.key",
        "The secret that processes show each other there, at least 32 characters, the same in every process.",
    ),
    text(
        "internal.tls_certificate",
        "File with the certificate (PEM) that this process shows to the others, as server and as client. With `internal.tls_key` and `internal.tls_ca` the internal listener speaks TLS and takes only clients with a certificate of that CA; set the three in every process. A worker's names the host of `internal.advertise`.",
    ),
    text("internal.tls_key", "File with the key (PEM) of that certificate."),
    text(
        "internal.tls_ca",
        "File with the CA (PEM) of all processes of this installation; nobody else is trusted there. Make one for this alone.",
    ),
    secret(
        "database.url",
        "Postgres, as `postgres://user:password@host/database` (a unix socket as `?host=/folder`). `DATABASE_URL` is accepted too. `toolhost dev` starts a private cluster when there is none.",
    ),
    secret(
        "database.direct_url",
        "Postgres itself, when `database.url` is a pooler in transaction mode (PgBouncer): for hints between processes and for migrations. When it is set, nothing that lasts longer than a transaction is asked of `database.url`.",
    ),
    value("database.max_connections", "Most connections that this process opens; at least 4."),
    value(
        "database.timeout_ms",
        "Longest wait for a connection, and for an answer; beyond it a request is answered 503.",
    ),
    value(
        "database.migrate",
        "Whether `serve` and `worker` bring the schema up to date when they start. Otherwise they refuse to start on an old schema and `toolhost migrate` does it.",
    ),
    secret(
        "keys.pepper",
        "The secret under which API keys are hashed, at least 32 characters, the same in every process. Changing it invalidates every key. `toolhost dev` makes one.",
    ),
    value(
        "jwt.issuers",
        "Whose tokens are taken: a list of `{issuer, audience, keys?, jwks_url?, jwks_ca?, jwks_algorithms?, jwks_refresh_s? (300), jwks_least_interval_s? (30), tenants?, tenant_claim? (\"tenant_id\"), scope_claim? (\"scope\"), role_claim? (\"role\"), leeway_s? (30)}`. `keys` are `{kid?, algorithm, secret or pem or pem_file}`; algorithms are `HS256`, `RS256`, `ES256` and `EdDSA`. `jwks_ca` is a file (PEM) with whom to trust at `jwks_url`, in place of the system's.",
    ),
    secret(
        "stream_url.signing_key",
        "The secret that signs stream URLs, at least 32 characters, the same in every API process. Changing it invalidates the URLs given out. `toolhost dev` makes one.",
    ),
    secret(
        "audit.signing_key",
        "The secret that signs the heads of the audit trail's chains, at least 32 characters, the same in every process. Made from `keys.pepper` when left out.",
    ),
    secret(
        "audit.previous_signing_key",
        "The secret that signed before, so that its heads stay good while `audit.signing_key` is changed.",
    ),
    text(
        "artifacts.store",
        "Where the bytes of artifacts are, the same for every process: a folder (shared, when there are several machines), or a bucket as `s3://bucket/prefix`. `toolhost dev` uses a folder beneath its own.",
    ),
    text(
        "artifacts.s3_region",
        "Region of the bucket. The usual `AWS_…` variables are read for what is not set here.",
    ),
    text(
        "artifacts.s3_endpoint",
        "Address of a service that speaks S3, such as `https://minio.internal:9000`. Amazon's when left out.",
    ),
    text("artifacts.s3_access_key_id", "Access key of the bucket."),
    secret("artifacts.s3_secret_access_key", "Secret of that access key."),
    text(
        "worker.installation",
        "Name of the installation, part of the name and labels of every container: two installations that share an engine need two names.",
    ),
    text(
        "worker.host",
        "Name of this host, the same for all workers on it and after a restart. The machine's host name when left out.",
    ),
    value("worker.slots", "Calls that run at the same time in this process."),
    value(
        "worker.sessions",
        "Sessions that this process owns at the same time. Counts as room when sessions are placed.",
    ),
    value(
        "worker.drain_ms",
        "Time that running calls get when the process is asked to stop; what still runs then is taken over by another worker of the host, or by the next one to start.",
    ),
    value(
        "worker.end_sessions_at_exit",
        "Whether sessions and their sandboxes are removed when the process stops. For machines that are used alone; `toolhost dev` sets it.",
    ),
    value("capacity.cpus", "CPUs of this host for sessions. What the machine has when left out."),
    value(
        "capacity.cpu_overcommit",
        "How often each CPU is promised: sessions rarely use all of theirs, and the kernel shares what there is.",
    ),
    value(
        "capacity.memory_mb",
        "Memory of this host for sessions. Nine tenths of what the machine has when left out.",
    ),
    value(
        "capacity.disk_mb",
        "Room of this host for workspaces, counted at their full size. Nine tenths of the file system of `sandbox.state_dir` when left out.",
    ),
    value("capacity.sandboxes", "Sandboxes of this host. Not counted when left out."),
    value(
        "capacity.pool_share",
        "Part of the host, 0 to 1, that the warm pool may set aside; a larger pool is cut at the start.",
    ),
    text(
        "sandbox.runtime_dir",
        "Folder for the sockets of running sandboxes. Mounted into containers, so the engine must see the same path; short, because paths of sockets are limited to 107 bytes.",
    ),
    text("sandbox.state_dir", "Folder for workspaces that are files of the host (see `sandbox.workspaces`)."),
    text(
        "sandbox.agent_path",
        "The agent's static binary, which is put into every sandbox. `TOOLHOST_AGENT_PATH` is accepted too.",
    ),
    value(
        "sandbox.agent_protocol",
        "Newest version of the protocol that the agents of new sandboxes speak, to rehearse an upgrade or the way back. That of this version when left out.",
    ),
    text(
        "sandbox.engine",
        "Address of the container engine. `DOCKER_HOST`, else the usual socket, when left out.",
    ),
    text("sandbox.image", "Image of sessions that name none."),
    text("sandbox.runtime", "Container runtime of sessions that name none: `runc`, or `runsc` for gVisor."),
    value("sandbox.runtimes", "Runtimes that sessions may name."),
    value(
        "sandbox.gvisor_runtimes",
        "Runtimes that are gVisor, by the engine's names: their agents are reached over the engine and not over a socket.",
    ),
    value("sandbox.pool", "Sandboxes that wait for a claim: a list of `{image?, size, runtime?, count}`."),
    value("sandbox.refill_parallel", "Creations at a time that refill the pool."),
    value("sandbox.create_parallel", "Creations at a time on the path of a request."),
    value("sandbox.agent_connect_ms", "Time within which a new container's agent must connect."),
    text(
        "sandbox.workspaces",
        "How a workspace's size is held: `loopback` (a file system of its own; needs root), `volume` (an engine volume; its size is not held by the kernel), or `auto` for the better one that works.",
    ),
    text(
        "sandbox.seccomp",
        "File with a seccomp profile in the engine's format, instead of the built-in one.",
    ),
    value(
        "sandbox.allow_known_bad",
        "Start in spite of an engine, runtime or kernel with known holes, with a warning. `false` refuses.",
    ),
    value("sandbox.warm_shells", "Shells that wait pre-started in an idle sandbox."),
    value("sandbox.reconcile_s", "How often what runs is compared with what should run."),
    value("sandbox.orphan_grace_s", "Age from which a container that nobody knows is removed."),
    value("policy.tools.enabled", "When present, only these tools may run: names, `toolkit:<name>`, or `*`."),
    value("policy.tools.disabled", "Tools that may not run, even when enabled."),
    value(
        "policy.tools.per_tool",
        "Rules of single tools: `{<tool> = {approval = \"auto\" or \"deny\", limits = {timeout_ms = …}}}`.",
    ),
    value(
        "policy.limits.sessions",
        "Sessions of one tenant that have not ended. 50 when no layer says anything.",
    ),
    value(
        "policy.limits.requests_per_minute",
        "Requests of one tenant in a minute, counted by each API process; in a key's policy: of that key. Otherwise 120,000.",
    ),
    value(
        "policy.limits.cpu_hours_per_day",
        "CPU-hours that calls and shells of one tenant use in a day (UTC); beyond: 429 `quota_exceeded` until the next. Otherwise 24,000.",
    ),
    value("policy.limits.running_calls", "Calls of one tenant that run at the same time. Otherwise 32."),
    value("policy.limits.queued_calls", "Calls of one tenant that wait. Otherwise 10,000."),
    value(
        "policy.limits.session_running_calls",
        "Calls of one session that run at the same time. Otherwise 4.",
    ),
    value("policy.limits.session_shells", "Shells that run in one session. Otherwise 16."),
    value("policy.limits.shells", "Shells of a tenant that run at the same time. Otherwise 256."),
    value(
        "policy.limits.timeout_ms",
        "Largest `timeout_ms` of a call. Otherwise 600,000, which is also the most.",
    ),
    value(
        "policy.limits.output_bytes",
        "Output of one call that is kept. Otherwise 64 MiB, which is also the most.",
    ),
    value(
        "policy.limits.stored_bytes",
        "Output and artifacts of one tenant that are kept, in bytes. Beyond it new calls are refused. Otherwise 20 GiB.",
    ),
    value("policy.limits.idle_timeout_s", "Longest idle timeout of a session. Otherwise a week."),
    value(
        "policy.limits.lifetime_s",
        "Longest lifetime of a session. Otherwise a week, which is also the most.",
    ),
    value("policy.limits.cpus", "Most CPUs of a session. Otherwise 4."),
    value("policy.limits.memory_mb", "Most memory of a session. Otherwise 8,192."),
    value("policy.limits.disk_mb", "Largest workspace of a session. Otherwise 16,384."),
    value("policy.limits.pids", "Most processes of a session. Otherwise 1,024."),
    value("retention.output_days", "How long output is kept; at most as long as events."),
    value("retention.events_days", "How long events are kept; whoever asks later gets 410 and the result."),
    value("retention.calls_days", "How long calls and their results are kept."),
    value(
        "retention.artifacts_days",
        "How long artifacts are kept, whatever becomes of their sessions and calls; 0 for ever.",
    ),
    text(
        "log.format",
        "`pretty`, `json`, or `auto`: pretty on a terminal, else JSON. Arguments and outputs of calls are never logged.",
    ),
    text("log.filter", "What is logged, as `level` or `target=level,…` (the syntax of `RUST_LOG`)."),
    text(
        "telemetry.otlp_endpoint",
        "Address of an OpenTelemetry collector that takes OTLP over HTTP (`http://127.0.0.1:4318`; `/v1/traces` is added). No traces are recorded when left out. `https://` for a collector elsewhere; plain HTTP for one beside the process.",
    ),
    text(
        "telemetry.otlp_ca",
        "File with whom to trust there (PEM), in place of those whom the system trusts.",
    ),
    value(
        "telemetry.sampling_ratio",
        "The part of the traces that begin here which is recorded, from 0 to 1. A trace that a client with a good credential began (`traceparent`) is recorded as that client decided.",
    ),
];

const SECTIONS: &[(&str, &str)] = &[
    ("server", "The HTTP API."),
    ("tls", "TLS of the HTTP API."),
    ("metrics", "Metrics and health of a process, on a listener of their own."),
    ("internal", "The way of bytes from any API process to the worker that has a session."),
    ("database", "Postgres, the only store."),
    ("keys", "API keys."),
    ("jwt", "Tokens (JWT) of issuers that this installation trusts; see [security.md](security.md#tokens)."),
    ("stream_url", "Signed stream URLs, for clients that cannot send headers."),
    ("audit", "The audit trail, which is chained and signed."),
    ("artifacts", "Files that calls keep beyond their sandboxes."),
    ("worker", "What a process that runs calls does."),
    (
        "capacity",
        "What a worker's host has for sessions. A session is admitted when its memory, disk and CPUs are free, and refused with 503 `capacity` when not.",
    ),
    ("sandbox", "How sandboxes are made."),
    ("policy", "The installation's own layer of policy. Tenants, keys and sessions can only narrow it."),
    ("retention", "How long things are kept."),
    ("log", "What the process says, on standard error."),
    ("telemetry", "Traces of calls, for an OpenTelemetry collector."),
];

/// The setting of this name.
#[must_use]
pub fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// Whether settings lie under this name.
#[must_use]
pub fn is_section(key: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
}

/// The setting whose name is most like this one.
#[must_use]
pub fn nearest(key: &str) -> &'static str {
    SETTINGS
        .iter()
        .map(|setting| setting.key)
        .max_by(|left, right| strsim::jaro_winkler(left, key).total_cmp(&strsim::jaro_winkler(right, key)))
        .unwrap_or_default()
}

/// docs/configuration.md.
#[must_use]
pub fn markdown() -> String {
    let defaults = Table::try_from(Config::default()).unwrap_or_default();
    let mut page = String::from(INTRODUCTION);
    for (section, title) in SECTIONS {
        let _ =
            write!(page, "\n## {section}\n\n{title}\n\n| key | default | what it does |\n|---|---|---|\n");
        for setting in SETTINGS.iter().filter(|setting| setting.key.split('.').next() == Some(section)) {
            let default = default_of(&defaults, setting.key)
                .map_or_else(|| "–".to_owned(), |value| format!("`{value}`"));
            let _ = writeln!(page, "| `{}` | {default} | {} |", setting.key, setting.doc);
        }
    }
    page
}

fn default_of(defaults: &Table, key: &str) -> Option<Value> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    match (defaults.get(first)?, rest) {
        (value, None) => Some(value.clone()),
        (Value::Table(inner), Some(rest)) => default_of(inner, rest),
        (_, Some(_)) => None,
    }
}

const INTRODUCTION: &str = "# Configuration

<!-- Printed by `toolhost config --reference`; a test compares. -->

Settings come from three places, each overriding the one before: the defaults below, a TOML file (`--config PATH` or
`TOOLHOST_CONFIG`), and the environment. The variable of `server.listen` is `TOOLHOST_SERVER__LISTEN`: `TOOLHOST_`, then
the key in capitals with two underscores for each dot. Values of variables are written as in TOML (`7`, `true`,
`[\"runc\", \"runsc\"]`); text needs no quotes.

An unknown key is an error, in the file and in the environment, and the message names the nearest one.
`toolhost config` prints what holds in the end, with secrets redacted. Units are in the names: `_ms` milliseconds,
`_s` seconds, `_mb` MiB. A default of – means that nothing is set.

```toml
# toolhost.toml
[server]
listen = \"0.0.0.0:8080\"

[database]
url = \"postgres://toolhost@db.internal/toolhost\"

[policy.limits]
sessions = 20
memory_mb = 2048
```
";

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str, table: &Table, into: &mut Vec<String>) {
        for (name, value) in table {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match value {
                Value::Table(inner) if find(&key).is_none() => names(&key, inner, into),
                _ => into.push(key),
            }
        }
    }

    #[test]
    fn every_default_is_documented() {
        let mut keys = Vec::new();
        names("", &Table::try_from(Config::default()).expect("serialises"), &mut keys);
        let missing: Vec<_> = keys.iter().filter(|key| find(key).is_none()).collect();
        assert!(missing.is_empty(), "not in the reference: {missing:?}");
    }

    #[test]
    fn every_documented_key_exists() {
        for setting in SETTINGS {
            // A table is no value for any leaf but maps, so the tree says whether the name is known to it.
            let mut tree = Table::new();
            let mut value = Value::Boolean(true);
            for part in setting.key.rsplit('.') {
                value = Value::Table(Table::from_iter([(part.to_owned(), value)]));
            }
            if let Value::Table(table) = value {
                tree = table;
            }
            if let Err(error) = Value::Table(tree).try_into::<Config>() {
                assert!(!error.to_string().contains("unknown field"), "{}: {error}", setting.key);
            }
        }
    }

    #[test]
    fn every_section_has_settings_and_every_setting_a_section() {
        for (section, _) in SECTIONS {
            assert!(is_section(section), "{section}");
        }
        for setting in SETTINGS {
            assert!(
                SECTIONS.iter().any(|(section, _)| setting.key.split('.').next() == Some(section)),
                "{}",
                setting.key
            );
        }
    }

    #[test]
    fn the_committed_page_is_what_is_printed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, markdown(), "run `toolhost config --reference > docs/configuration.md`");
    }
}
