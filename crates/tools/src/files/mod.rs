//! Files of the workspace.

pub(crate) mod list_files;
pub(crate) mod read_file;
pub(crate) mod write_file;
