//! Builds the rooms from the configuration and connects them. The only place where all of them meet.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use prometheus::Registry;
use store::{DatabaseConfig, Store};

use crate::config::Config;

/// The database's URL.
///
/// # Errors
/// When none is set.
pub fn database_url(config: &Config) -> Result<&str> {
    config.database.url.as_ref().map(|url| url.expose()).ok_or_else(|| {
        anyhow!("no database is configured (hint: set database.url or DATABASE_URL; `toolhost dev` needs none)")
    })
}

/// A connected store.
///
/// # Errors
/// When the database is not configured or does not answer.
pub async fn store(config: &Config, registry: &Registry) -> Result<Store> {
    let url = database_url(config)?;
    let pepper = config.keys.pepper.as_ref().ok_or_else(|| {
        anyhow!("keys.pepper is not set (hint: make one with `openssl rand -hex 32`; every process needs the same)")
    })?;
    let mut database = DatabaseConfig::new(url, pepper.expose());
    database.max_connections = config.database.max_connections;
    database.timeout = Duration::from_millis(config.database.timeout_ms);
    Store::connect(&database, registry)
        .await
        .context("cannot connect to the database (hint: is it running, and is database.url right?)")
}

/// Brings the schema up to date, or refuses an old one, as configured.
///
/// # Errors
/// When the schema is old and may not be changed here, or the change fails.
pub async fn schema(config: &Config, store: &Store) -> Result<()> {
    if config.database.migrate {
        migrate(config).await?;
    }
    match store.migrations_pending().await? {
        0 => Ok(()),
        pending => Err(anyhow!("the database lacks {pending} migrations (hint: run `toolhost migrate`)")),
    }
}

/// Applies the migrations that are missing.
///
/// # Errors
/// When the database does not answer or one fails.
pub async fn migrate(config: &Config) -> Result<()> {
    let report = Store::migrate(database_url(config)?).await.context("cannot migrate the database")?;
    tracing::info!(applied = report.applied, total = report.total, "the schema is up to date");
    Ok(())
}
