//! `toolhost-instructions`: how many instructions the pure parts of a call take. They repeat on machines where times do not.
//!
//! # Design notes
//!
//! The program runs itself under valgrind's callgrind, once for each part, and counts inside one function only. Libraries that do this
//! bring macros, a second program of exactly their version that has to be installed, and files of results of their own; what is needed
//! of them is what is here.

mod parts;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;

use crate::parts::{ALL, Part};

/// Times that a part runs before it is counted: what is made once is made then.
const WARM_UP: usize = 20;
/// Times that it is counted.
const TIMES: u64 = 100;

/// Counts instructions of the pure parts of a call, by valgrind.
#[derive(Debug, Parser)]
#[command(name = "toolhost-instructions")]
struct Options {
    /// Runs one part and nothing else: for valgrind.
    #[arg(long, hide = true)]
    part: Option<String>,
}

fn main() -> ExitCode {
    let done = match Options::parse().part {
        Some(name) => run(&name),
        None => count(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("toolhost-instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a part as often as it is counted.
fn run(name: &str) -> Result<()> {
    let part = ALL.iter().find(|part| part.name == name).context("no such part")?;
    let mut work = (part.prepare)();
    for _ in 0..WARM_UP {
        work();
    }
    for _ in 0..TIMES {
        counted_by_callgrind(&mut *work);
    }
    Ok(())
}

/// Callgrind counts from its beginning to its end, and finds it by its name.
#[inline(never)]
fn counted_by_callgrind(work: &mut dyn FnMut()) {
    work();
}

/// Counts every part, and writes what came out beside the results of the bench.
fn count() -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build: its figures mean nothing (hint: make bench-instructions)");
    }
    let mut table =
        String::from("| part | instructions | threshold | verdict |\n| --- | ---: | ---: | --- |\n");
    let mut rows = Vec::new();
    for part in ALL {
        eprintln!("{}", part.name);
        let instructions = instructions(part)? / TIMES;
        let verdict = if instructions <= part.threshold { "within" } else { "more" };
        let _ = writeln!(table, "| {} | {instructions} | {} | {verdict} |", part.name, part.threshold);
        rows.push(json!({"part": part.name, "instructions": instructions, "threshold": part.threshold, "verdict": verdict}));
    }
    print!("{table}");
    let folder = folder()?;
    for (name, text) in [
        ("instructions.md", table),
        ("instructions.json", serde_json::to_string_pretty(&json!({"parts": rows}))?),
    ] {
        std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
        println!("{}", folder.join(name).display());
    }
    Ok(())
}

/// Instructions of all counted runs of a part.
fn instructions(part: &Part) -> Result<u64> {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*counted_by_callgrind*",
        ])
        .arg(std::env::current_exe()?)
        .args(["--part", part.name])
        .output()
        .context("cannot start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {said}", part.name);
    let collected = said.lines().find_map(|line| line.split_once("Collected :"));
    let count: u64 = collected.context("valgrind counted nothing")?.1.trim().parse()?;
    ensure!(count > 0, "valgrind did not find what to count in {} (has the program no symbols?)", part.name);
    Ok(count)
}

/// `target/bench`, beside the folder of this program.
fn folder() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.ancestors().nth(2).context("this program lies in no target folder")?.join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
