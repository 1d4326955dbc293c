//! Code in the sandbox.
