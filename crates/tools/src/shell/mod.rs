//! Commands in the sandbox, in the foreground and in the background.

pub(crate) mod bash;
pub(crate) mod bash_input;
pub(crate) mod bash_output;
pub(crate) mod kill_bash;
pub(crate) mod list_bash;
pub(crate) mod read_output;
pub(crate) mod wait;
