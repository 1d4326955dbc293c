//! Code in the sandbox.

mod check;
mod findings;
pub(crate) mod node_execute;
mod packages;
pub(crate) mod python_execute;
mod report;
pub(crate) mod run_lint;
pub(crate) mod run_tests;
mod test_counts;
