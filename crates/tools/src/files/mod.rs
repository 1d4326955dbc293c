//! Files of the workspace.

pub(crate) mod delete_directory;
pub(crate) mod delete_file;
pub(crate) mod edit_file;
pub(crate) mod glob;
pub(crate) mod grep;
pub(crate) mod list_files;
pub(crate) mod read_document;
pub(crate) mod read_file;
pub(crate) mod str_replace_editor;
pub(crate) mod undo_edit;
pub(crate) mod write_file;
