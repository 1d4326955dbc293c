//! The subcommands, one file each.

use std::io::Write as _;

use anyhow::{Context, Result};

use crate::cli::{Cli, Command, ConfigArgs};
use crate::config::load::{Sources, load};
use crate::config::{Config, reference};

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
        _ => anyhow::bail!("this subcommand is not wired yet"),
    }
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
