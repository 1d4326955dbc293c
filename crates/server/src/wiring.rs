//! Builds the rooms from the configuration and connects them. The only place where all of them meet.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use api::{ApiConfig, StreamConfig};
use prometheus::Registry;
use store::{
    AuditKeys, DatabaseConfig, HostCapacity, Objects, ObjectsConfig, Retention, S3Config, Schema, SchemaFit,
    Store,
};
use worker::{Capacity, OnShutdown, WorkerConfig};

use crate::config::Config;

/// The database's URL.
///
/// # Errors
/// When none is set.
pub fn database_url(config: &Config) -> Result<&str> {
    config.database.url.as_ref().map(|url| url.expose()).ok_or_else(|| {
        anyhow!(
            "no database is configured (hint: set database.url or DATABASE_URL; `toolhost dev` needs none)"
        )
    })
}

/// Where the schema is changed: past a pooler, as that takes a lock of its session.
fn migration_url(config: &Config) -> Result<&str> {
    config.database.direct_url.as_ref().map_or_else(|| database_url(config), |url| Ok(url.expose()))
}

/// A connected store for a command, which has no business with the bytes of artifacts.
///
/// # Errors
/// When the database is not configured or does not answer.
pub async fn store(config: &Config, registry: &Registry) -> Result<Store> {
    connect(config, registry, Objects::in_memory()).await
}

/// A connected store for a service.
///
/// # Errors
/// When the database or the object store is not configured, or the database does not answer.
pub async fn service_store(config: &Config, registry: &Registry) -> Result<Store> {
    let objects = Objects::open(&objects_config(config)?).context("cannot open artifacts.store")?;
    connect(config, registry, objects).await
}

async fn connect(config: &Config, registry: &Registry, objects: Objects) -> Result<Store> {
    let url = database_url(config)?;
    let pepper = config.keys.pepper.as_ref().ok_or_else(|| {
        anyhow!("keys.pepper is not set (hint: make one with `openssl rand -hex 32`; every process needs the same)")
    })?;
    let mut database = DatabaseConfig::new(url, pepper.expose());
    database.direct_url = config.database.direct_url.as_ref().map(|url| url.expose().to_owned());
    database.max_connections = config.database.max_connections;
    database.timeout = Duration::from_millis(config.database.timeout_ms);
    database.objects = objects;
    let audit = &config.audit;
    database.audit = [&audit.previous_signing_key, &audit.signing_key]
        .into_iter()
        .flatten()
        .fold(AuditKeys::of_pepper(pepper.expose().as_bytes()), |keys, key| {
            keys.then(key.expose().as_bytes())
        });
    Store::connect(&database, registry)
        .await
        .context("cannot connect to the database (hint: is it running, and is database.url right?)")
}

fn objects_config(config: &Config) -> Result<ObjectsConfig> {
    let artifacts = &config.artifacts;
    let Some(bucket) = artifacts.store.strip_prefix("s3://") else {
        let folder = artifacts.store.strip_prefix("file://").unwrap_or(&artifacts.store);
        if folder.contains("://") || !folder.starts_with('/') {
            return Err(anyhow!(
                "artifacts.store is neither a folder nor a bucket (hint: /folder or s3://bucket/prefix)"
            ));
        }
        return Ok(ObjectsConfig::Folder(folder.into()));
    };
    let (bucket, prefix) = bucket.split_once('/').unwrap_or((bucket, ""));
    if bucket.is_empty() {
        return Err(anyhow!("artifacts.store names no bucket (hint: s3://bucket/prefix)"));
    }
    Ok(ObjectsConfig::S3(S3Config {
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
        region: artifacts.s3_region.clone(),
        endpoint: artifacts.s3_endpoint.clone(),
        access_key_id: artifacts.s3_access_key_id.clone(),
        secret_access_key: artifacts.s3_secret_access_key.as_ref().map(|secret| secret.expose().to_owned()),
    }))
}

/// Brings the schema up to date, or refuses an old one, as configured.
///
/// # Errors
/// When the schema is old and may not be changed here, or the change fails.
pub async fn schema(config: &Config, store: &Store) -> Result<()> {
    if config.database.migrate {
        migrate(config).await?;
    }
    let schema = store.schema().await?;
    if schema.fit() == SchemaFit::Newer {
        let newer = schema.newer.len();
        tracing::info!(newer, "the database has newer migrations, and still what this version uses");
    }
    usable(&schema)
}

/// Refuses a schema that this binary may not run on.
///
/// # Errors
/// When something that it uses is missing, or is gone.
pub fn usable(schema: &Schema) -> Result<()> {
    match schema.fit() {
        SchemaFit::Same | SchemaFit::Newer => Ok(()),
        SchemaFit::Missing => {
            let missing = schema.missing.len();
            Err(anyhow!("the database lacks {missing} migrations (hint: run `toolhost migrate`)"))
        }
        SchemaFit::LeftBehind => Err(anyhow!(
            "the database's schema needs a newer version of toolhost (hint: start that one, or restore a backup)"
        )),
    }
}

/// The schema that the database has, asked for as whoever migrates it.
///
/// # Errors
/// When the database is not configured or does not answer.
pub async fn schema_of_database(config: &Config) -> Result<Schema> {
    Store::schema_at(migration_url(config)?).await.context("cannot read the database's schema")
}

/// Applies the migrations that are missing.
///
/// # Errors
/// When the database does not answer or one fails.
pub async fn migrate(config: &Config) -> Result<()> {
    let report = Store::migrate(migration_url(config)?).await.context("cannot migrate the database")?;
    tracing::info!(applied = report.applied, total = report.total, "the schema is up to date");
    Ok(())
}

/// The API's settings.
///
/// # Errors
/// When the signing key is missing.
pub fn api_config(config: &Config) -> Result<ApiConfig> {
    let signing_key = config.stream_url.signing_key.as_ref().ok_or_else(|| {
        anyhow!(
            "stream_url.signing_key is not set (hint: make one with `openssl rand -hex 32`; every API process needs the same)"
        )
    })?;
    let server = &config.server;
    Ok(ApiConfig {
        signing_key: signing_key.expose().as_bytes().to_vec(),
        policy: config.policy.clone(),
        default_image: config.sandbox.image.clone(),
        images: server.images.clone(),
        runtime: config.sandbox.runtime.clone(),
        runtimes: config.sandbox.runtimes.clone(),
        trusted_proxies: server.trusted_proxies.clone(),
        issuers: config.jwt.issuers()?,
        failed_auth_per_minute: server.failed_auth_per_minute,
        requests: server.requests,
        connections: server.connections,
        header_timeout: Duration::from_millis(server.header_timeout_ms),
        body_timeout: Duration::from_millis(server.body_timeout_ms),
        answer_timeout: Duration::from_millis(server.answer_timeout_ms),
        tls: None,
        linger: Duration::from_millis(server.linger_ms),
        drain: Duration::from_millis(server.drain_ms),
        streams: StreamConfig {
            per_tenant: server.streams_per_tenant,
            total: server.streams,
            ..StreamConfig::default()
        },
    })
}

/// The worker's settings.
///
/// # Errors
/// When the host has no name.
pub fn worker_config(config: &Config, internal_address: Option<String>) -> Result<WorkerConfig> {
    let worker = &config.worker;
    Ok(WorkerConfig {
        installation: worker.installation.clone(),
        host: match &worker.host {
            Some(name) => name.clone(),
            None => host_name()?,
        },
        internal_address,
        slots: worker.slots,
        sessions: worker.sessions,
        policy: config.policy.clone(),
        retention: Retention {
            output_days: config.retention.output_days,
            events_days: config.retention.events_days,
            calls_days: config.retention.calls_days,
        },
        artifacts_days: config.retention.artifacts_days,
        on_shutdown: if worker.end_sessions_at_exit {
            OnShutdown::EndSessions
        } else {
            OnShutdown::HandOver { drain: Duration::from_millis(worker.drain_ms) }
        },
        capacity: capacity(config),
        sandbox: config.sandbox.clone(),
    })
}

/// What the host has for sessions: as configured, else as found.
fn capacity(config: &Config) -> Capacity {
    let said = &config.capacity;
    let host = HostCapacity {
        cpus: said.cpus.or_else(|| std::thread::available_parallelism().ok().map(|cpus| cpus.get() as f64)),
        cpu_overcommit: said.cpu_overcommit,
        memory_mb: said.memory_mb.or_else(|| memory_of_machine().map(most)),
        disk_mb: said.disk_mb.or_else(|| disk_of(&config.sandbox.state_dir).map(most)),
        sandboxes: said.sandboxes,
    };
    Capacity { host, pool_share: said.pool_share }
}

/// What is left for sessions beside the system and ourselves.
fn most(all: u64) -> u64 {
    all / 10 * 9
}

/// Memory in MiB.
fn memory_of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().split(' ').next()?.parse::<u64>().ok()? / 1_024)
}

/// Size in MiB of the file system that a folder lies in, or will lie in.
fn disk_of(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let about = nix::sys::statvfs::statvfs(there).ok()?;
    Some(about.blocks() * about.fragment_size() / (1_024 * 1_024))
}

fn host_name() -> Result<String> {
    let name =
        std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read this host's name")?;
    match name.trim() {
        "" | "(none)" => Err(anyhow!("this host has no name (hint: set worker.host)")),
        name => Ok(name.to_owned()),
    }
}
