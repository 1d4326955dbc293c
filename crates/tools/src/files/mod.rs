//! Files of the workspace.
