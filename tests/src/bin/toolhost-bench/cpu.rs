//! Time of the processor, as the kernel accounts it: of the service, of the database, and of the sandboxes.

use std::fs;

use anyhow::{Context, Result};

use crate::container;
use crate::stack::Stack;

/// What each has used so far, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuTimes {
    pub(crate) service: f64,
    /// The server and all processes that it has started.
    pub(crate) postgres: f64,
    /// Everything in containers; nothing where a container's control group, of either version, cannot be read.
    pub(crate) sandboxes: Option<f64>,
}

impl CpuTimes {
    /// Now.
    ///
    /// # Errors
    /// When the service or the database does not run.
    pub(crate) fn now(stack: &Stack) -> Result<Self> {
        let (service, postgres) = (stack.service()?, stack.postgres_pid()?);
        Ok(Self {
            service: of_process(service)?.0,
            postgres: of_process(postgres)?.0 + of_children(postgres),
            sandboxes: container::cpu_ms(stack.installation()),
        })
    }

    /// What was used since then.
    pub(crate) fn since(&self, then: &Self) -> Self {
        Self {
            service: self.service - then.service,
            postgres: self.postgres - then.postgres,
            sandboxes: self.sandboxes.zip(then.sandboxes).map(|(now, then)| now - then),
        }
    }
}

/// Its own time in milliseconds, and its parent.
fn of_process(pid: u32) -> Result<(f64, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // What is before the last parenthesis is the program's name, which may have anything in it.
    let rest = stat.rsplit_once(')').context("no stat")?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).context("no stat");
    // utime and stime, in hundredths of a second wherever Linux runs today.
    Ok(((field(11)? + field(12)?) * 10.0, field(1)? as u32))
}

fn of_children(parent: u32) -> f64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| of_process(pid).ok()).filter(|(_, of)| *of == parent).map(|(ms, _)| ms).sum()
}
