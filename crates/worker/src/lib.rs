//! The worker: claims calls, owns sessions, runs tools, relays their output, sweeps what is over.
//!
//! This room knows no HTTP and no SQL: rows go through `store`, containers through `sandbox`, and tools see only
//! the ports that are implemented here.

mod relay;
