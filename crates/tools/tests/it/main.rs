//! Tools through the catalogue, as api and worker use them, in a fake world.
#![expect(unreachable_pub, reason = "the modules of a test binary have nobody outside")]

mod admission;
mod aliases;
mod artifacts;
mod catalog;
mod changes;
mod code;
mod contract;
mod files;
mod search;
mod shell;
mod shell_output;
mod world;
