//! Code in the sandbox.

pub(crate) mod node_execute;
pub(crate) mod python_execute;
pub(crate) mod run_lint;
pub(crate) mod run_tests;
