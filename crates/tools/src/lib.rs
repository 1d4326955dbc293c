//! The catalogue of tools: one file per tool, one folder per toolkit, and the ports that tools use.
//!
//! This room knows no database, no HTTP and no container engine: the ports are traits, implemented by `worker`.

mod admission;
pub mod alias;
mod artifacts;
pub mod catalog;
mod clean;
mod code;
mod code_check;
mod code_context;
mod code_report;
mod command;
mod descriptor;
pub mod dialect;
mod diff;
mod docs;
mod edit;
mod erased;
mod file_change;
mod file_text;
mod files;
mod findings;
mod grep_text;
pub mod heavy;
mod log_lines;
mod outline;
pub mod output_search;
mod packages;
mod path;
pub mod port;
mod problem;
mod rich_content;
mod schema;
mod shape;
mod shell;
mod shell_log;
pub mod signal;
mod test_counts;
mod tool;

pub use admission::{AdmitError, Admitted};
pub use alias::{Alias, Dialect};
pub use catalog::{Catalog, Filter, Resolved, Toolkit};
pub use descriptor::Descriptor;
pub use path::{sandbox_directory, sandbox_path};
pub use shape::so_far;
pub use tool::{
    Annotations, ArgumentProblem, Conclusion, Context, Fate, Finished, Permissions, Spec, Tool, ToolError,
    ToolOutput,
};
