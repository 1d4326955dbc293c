//! The tests of the engine once more, on gVisor: the agent is reached over a relay, and everything above is the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

/// What the sandboxes of these tests run on.
pub(crate) const RUNTIME: &str = "runsc";

#[path = "../engine/faults.rs"]
mod faults;
#[path = "../engine/life.rs"]
mod life;
#[path = "../engine/mute.rs"]
mod mute;
#[path = "../engine/profile.rs"]
mod profile;
#[expect(unreachable_pub, reason = "the integration tests have it in their library")]
#[path = "../../../../tests/src/proxy.rs"]
mod proxy;
#[path = "../engine/support.rs"]
mod support;
#[path = "../engine/takeover.rs"]
mod takeover;
#[path = "../engine/workspaces.rs"]
mod workspaces;
