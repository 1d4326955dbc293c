//! The command line of the bench, and how much each measure repeats.

use clap::Parser;

/// Measures Toolhost against its floors and prints ratios, goals and verdicts.
#[derive(Debug, Clone, Parser)]
#[command(name = "toolhost-bench")]
pub(crate) struct Options {
    /// Only these measures, such as `P1,P4`.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<String>,
    /// Fewer repetitions: a look, not a measurement.
    #[arg(long)]
    pub(crate) quick: bool,
}

/// How much is repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Repeats of a whole comparison; the median of their ratios is the figure.
    pub(crate) rounds: usize,
    /// Blocks of each side in a round.
    pub(crate) blocks: usize,
    /// Counted repetitions in a block.
    pub(crate) block: usize,
    /// Repetitions before the first round.
    pub(crate) warm_up: usize,
    /// `docker exec`s in a round.
    pub(crate) engine_execs: usize,
    /// Seconds of one slice of throughput.
    pub(crate) slice_s: u64,
    /// Sessions made one after the other.
    pub(crate) sessions: usize,
    /// Sessions made at once.
    pub(crate) burst: usize,
    /// Cold `docker run`s.
    pub(crate) engine_runs: usize,
}

impl Options {
    /// How much is repeated.
    pub(crate) fn effort(&self) -> Effort {
        if self.quick {
            Effort {
                rounds: 3,
                blocks: 2,
                block: 10,
                warm_up: 10,
                engine_execs: 2,
                slice_s: 2,
                sessions: 15,
                burst: 20,
                engine_runs: 4,
            }
        } else {
            Effort {
                rounds: 5,
                blocks: 8,
                block: 10,
                warm_up: 50,
                engine_execs: 6,
                slice_s: 5,
                sessions: 300,
                burst: 100,
                engine_runs: 12,
            }
        }
    }
}
