//! What can be measured, one file each. A new measure is a file here and a line in [`ALL`].

mod p00_floor;
mod p01_warm_call;
mod p02_stateful_python;
mod p03_stateless_python;
mod p04_throughput;
mod p05_sessions;
mod p06_cold_session;
mod p07_queue;
mod p08_first_byte;
mod p09_bulk_output;
mod p10_footprint;
mod p11_growth;
mod waterfall;

use std::pin::Pin;

use anyhow::{Result, ensure};

use crate::bench::Bench;
use crate::report::Row;

/// What a measure's function returns.
type Measured<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>>> + 'a>>;

/// Something that can be measured.
pub(crate) struct Measure {
    /// Its name in the table of goals.
    pub(crate) id: &'static str,
    /// Measures it.
    pub(crate) run: for<'a> fn(&'a mut Bench) -> Measured<'a>,
}

/// All of them, in the order in which they run.
const ALL: &[Measure] = &[
    Measure { id: "P0", run: |bench| Box::pin(p00_floor::run(bench)) },
    Measure { id: "P1", run: |bench| Box::pin(p01_warm_call::run(bench)) },
    Measure { id: "P2", run: |bench| Box::pin(p02_stateful_python::run(bench)) },
    Measure { id: "P3", run: |bench| Box::pin(p03_stateless_python::run(bench)) },
    Measure { id: "P4", run: |bench| Box::pin(p04_throughput::run(bench)) },
    Measure { id: "P5", run: |bench| Box::pin(p05_sessions::run(bench)) },
    Measure { id: "P6", run: |bench| Box::pin(p06_cold_session::run(bench)) },
    Measure { id: "P7", run: |bench| Box::pin(p07_queue::run(bench)) },
    Measure { id: "P8", run: |bench| Box::pin(p08_first_byte::run(bench)) },
    Measure { id: "P9", run: |bench| Box::pin(p09_bulk_output::run(bench)) },
    Measure { id: "P10", run: |bench| Box::pin(p10_footprint::run(bench)) },
    Measure { id: "trace", run: |bench| Box::pin(waterfall::run(bench)) },
    // Last, as it leaves a million calls behind.
    Measure { id: "P11", run: |bench| Box::pin(p11_growth::run(bench)) },
];

/// Those that were asked for; all when none was.
///
/// # Errors
/// When there is none of a name.
pub(crate) fn chosen(only: &[String]) -> Result<Vec<&'static Measure>> {
    for name in only {
        let known: Vec<_> = ALL.iter().map(|measure| measure.id).collect();
        ensure!(
            known.iter().any(|id| id.eq_ignore_ascii_case(name)),
            "there is no measure {name}, only {}",
            known.join(", ")
        );
    }
    let wanted =
        |measure: &&Measure| only.is_empty() || only.iter().any(|name| name.eq_ignore_ascii_case(measure.id));
    Ok(ALL.iter().filter(wanted).collect())
}
