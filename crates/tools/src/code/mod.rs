//! Code in the sandbox.

pub(crate) mod python_execute;
