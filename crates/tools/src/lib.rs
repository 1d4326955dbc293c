//! The catalogue of tools: one file per tool, one folder per toolkit, and the ports that tools use.
//!
//! This room knows no database, no HTTP and no container engine: the ports are traits, implemented by `worker`.

pub mod port;
mod tool;

pub use tool::{
    Annotations, ArgumentProblem, Conclusion, Context, Fate, Finished, Permissions, Spec, Tool, ToolError,
    ToolOutput,
};
