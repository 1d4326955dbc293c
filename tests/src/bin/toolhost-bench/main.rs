//! `toolhost-bench`: what a user feels, as ratios to what this machine itself needs, measured in turn in one run.
//!
//! Benchmarks are not tests: nothing here fails because of a time. See PERFORMANCE.md's P1, P4 and P5.

mod machine;
mod measure;
mod one_call;
mod report;
mod sessions;
mod stack;
mod throughput;

use anyhow::{Context, Result, bail};

use report::Report;
use stack::Stack;

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Fewer repetitions, for a look.
    pub(crate) quick: bool,
    /// Only these.
    pub(crate) only: Vec<String>,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--only" => {
                    let names = arguments.next().context("--only needs names, such as P1,P4")?;
                    options.only.extend(names.split(',').map(|name| name.trim().to_uppercase()));
                }
                "--help" | "-h" => {
                    println!("toolhost-bench [--quick] [--only P1,P4,P5]");
                    std::process::exit(0);
                }
                other => bail!("unknown argument {other}; there are --quick and --only P1,P4,P5"),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == name)
    }

    /// A number of repetitions, less when only a look is wanted.
    pub(crate) fn times(&self, full: usize) -> usize {
        if self.quick { (full / 8).max(3) } else { full }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build: its figures mean nothing (hint: make bench)");
    }
    let mut report = Report::new(machine::describe());
    let stack = Box::pin(Stack::start()).await?;
    if options.wants("P1") {
        report.extend(Box::pin(one_call::measure(&stack, &options)).await?);
    }
    if options.wants("P4") {
        report.extend(Box::pin(throughput::measure(&stack, &options)).await?);
    }
    if options.wants("P5") {
        report.extend(Box::pin(sessions::measure(&stack, &options)).await?);
    }
    drop(stack);
    report.print();
    let path = report.write()?;
    println!("\n{}", path.display());
    Ok(())
}
