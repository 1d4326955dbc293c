//! The agent as a worker meets it: the real binary, as pid 1 of a sandbox made of namespaces, over the real wire.

mod execution;
mod harness;
