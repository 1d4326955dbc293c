//! The program `toolhost`: parses the command line, runs a command, and says in one line why one failed.

use std::process::ExitCode;

use clap::Parser;
use server::cli::Cli;
use server::config::load::ConfigError;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match server::commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A sentence with its causes, then the hint on a line of its own.
            let text = format!("{error:#}");
            let (problem, hint) = match text.split_once(" (hint: ") {
                Some((problem, hint)) => (problem, hint.strip_suffix(')')),
                None => (text.as_str(), None),
            };
            eprintln!("toolhost: {problem}");
            if let Some(hint) = hint {
                eprintln!("hint: {hint}");
            }
            let misconfigured = error.downcast_ref::<ConfigError>().is_some();
            ExitCode::from(if misconfigured { 2 } else { 1 })
        }
    }
}
