//! The agent as a worker meets it: the real binary, as pid 1 of a sandbox made of namespaces, over the real wire.

mod ending;
mod execution;
mod figures;
mod files;
mod harness;
mod interpreters;
mod isolation;
mod journal;
mod prelude;
mod terminals;
mod trees;
mod watch;
