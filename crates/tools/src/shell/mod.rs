//! Commands in the sandbox, in the foreground and in the background.

pub(crate) mod bash;
