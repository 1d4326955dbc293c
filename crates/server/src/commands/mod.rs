//! The subcommands: which one, with which configuration, on which runtime.

mod admin;
mod audit;
mod leaving;

use std::io::Write as _;

use anyhow::{Context, Result};

use crate::cli::{Cli, Command, ConfigArgs, MigrateArgs, ServeArgs};
use crate::config::load::{Sources, load};
use crate::config::{Config, LogConfig, LogFormat, reference};
use crate::service::{self, Parts};
use crate::telemetry::Telemetry;
use crate::{dev, telemetry, wiring};

/// Runs what the command line asks for.
///
/// # Errors
/// When it could not be done; the error's chain is a sentence for people.
pub fn run(cli: Cli) -> Result<()> {
    let sources = Sources::of_process(cli.config);
    match cli.command {
        Command::Version => print(&format!("toolhost {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Config(ConfigArgs { reference: true }) => print(&reference::markdown()),
        Command::Config(ConfigArgs { reference: false }) => print(&effective(&load(&sources)?)?),
        Command::Openapi => print(&format!("{}\n", serde_json::to_string_pretty(&api::openapi())?)),
        Command::Dev(arguments) => {
            let config = load(&sources)?;
            let mut log = config.log.clone();
            if log == LogConfig::default() {
                // The demo is what the terminal is for.
                log = LogConfig { format: LogFormat::Pretty, filter: "warn".to_owned() };
            }
            let telemetry = telemetry::start(&log, &config.telemetry)?;
            block_on(dev::run(config, arguments, &telemetry))
        }
        Command::Serve(ServeArgs { with_worker }) => {
            let (config, telemetry) = started(&sources)?;
            let parts = if with_worker { Parts::ApiAndWorker } else { Parts::Api };
            block_on(service::run(&config, parts, &telemetry))
        }
        Command::Worker => {
            let (config, telemetry) = started(&sources)?;
            block_on(service::run(&config, Parts::Worker, &telemetry))
        }
        Command::Migrate(MigrateArgs { check: true }) => {
            let config = load(&sources)?;
            block_on(check_schema(&config))
        }
        Command::Migrate(MigrateArgs { check: false }) => {
            let (config, _telemetry) = started(&sources)?;
            block_on(wiring::migrate(&config))
        }
        Command::Audit(command) => {
            let config = load(&sources)?;
            block_on(audit::run(&config, command))
        }
        Command::Admin(command) => {
            let config = load(&sources)?;
            block_on(admin::run(&config, command))
        }
    }
}

/// One line for each migration that one side has and the other has not.
async fn check_schema(config: &Config) -> Result<()> {
    let schema = wiring::schema_of_database(config).await?;
    for (word, migrations) in [("missing", &schema.missing), ("newer", &schema.newer)] {
        for migration in migrations {
            print(&format!("{word}\t{:04}\t{}\n", migration.version, migration.name))?;
        }
    }
    wiring::usable(&schema)?;
    match schema.newer.is_empty() {
        true => eprintln!("the schema is up to date"),
        false => eprintln!("the schema is newer than this version, which may run on it"),
    }
    Ok(())
}

/// The configuration of a process that works for long, with its log begun.
fn started(sources: &Sources) -> Result<(Config, Telemetry)> {
    let config = load(sources)?;
    let telemetry = telemetry::start(&config.log, &config.telemetry)?;
    Ok((config, telemetry))
}

fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(Box::pin(work))
}

fn effective(config: &Config) -> Result<String> {
    toml::to_string(config).context("the configuration cannot be written as TOML")
}

/// A reader that closes early (`toolhost openapi | head`) is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot write"),
        _ => Ok(()),
    }
}
