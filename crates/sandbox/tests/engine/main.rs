//! Sandboxes on the real engine with the real agent. Each test is an installation of its own and leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

/// What the sandboxes of these tests run on.
pub(crate) const RUNTIME: &str = "runc";

mod agents;
mod faults;
mod life;
mod mute;
mod profile;
#[expect(unreachable_pub, reason = "the integration tests have it in their library")]
#[path = "../../../../tests/src/proxy.rs"]
mod proxy;
mod support;
mod takeover;
mod workspaces;
