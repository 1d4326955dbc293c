//! `toolhost-bench`: measures a release build against its floors and prints how far each goal of performance is.
//!
//! # Design notes
//!
//! *Ratios, in blocks, in turn.* Absolute times on shared machines mean little, so each figure relates two things that
//! are measured in the same run. They alternate in short blocks, and the first repetition of each block is not counted:
//! what a call leaves to be done after its answer (the next shell is started, rows are tidied) must be paid by the call
//! after it, not by the floor that it is compared with.
//!
//! *Other processes, another runtime.* The service is the program that users run, started as a process. The client here
//! is a plain HTTP client with keep-alive on one thread, so that it takes as little as possible of the same cores.
//!
//! *The engine with and without its command line.* The goal speaks of `docker exec`, so that program is what it is
//! judged by; the same through the engine's API is shown beside it. `docker run` is measured through the API only, which
//! spares it the start of the program: the comparison that is harder for us.

mod bench;
mod container;
mod cpu;
mod figures;
mod fork_exec;
mod http;
mod machine;
mod measures;
mod options;
mod own_queue;
mod peers;
mod report;
mod stack;
mod svg;
mod window;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::bench::Bench;
use crate::measures::Measure;
use crate::options::Options;
use crate::report::Report;
use crate::stack::Stack;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    match Box::pin(run(options)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toolhost-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<()> {
    let chosen = measures::chosen(&options.only)?;
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build: its figures mean nothing (hint: make bench)");
    }
    let stack = Stack::prepare().await?;
    let mut report = Report::new(machine::describe(&stack).await?);
    let mut bench = Bench::new(stack, &options);
    let measured = tokio::select! {
        measured = measure(&mut bench, &chosen, &mut report) => measured,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    bench.progress.clear();
    if measured.is_err() {
        eprintln!("the service said last:\n{}", bench.stack.end_of_said());
    }
    for what in bench.stack.stop().await {
        eprintln!("left behind, and removed now: {what}");
    }
    report.finish();
    print!("{}", report.table());
    println!();
    for (name, text) in
        [("results.json", report.json()?), ("results.md", report.markdown()), ("results.svg", report.chart())]
    {
        let path = stack::folder()?.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    measured.context("not everything was measured")
}

async fn measure(bench: &mut Bench, chosen: &[&Measure], report: &mut Report) -> Result<()> {
    for (number, measure) in (1..).zip(chosen) {
        bench.progress.enter(measure.id, number, chosen.len());
        let rows =
            (measure.run)(bench).await.with_context(|| format!("{} could not be measured", measure.id))?;
        report.add(rows);
    }
    Ok(())
}
