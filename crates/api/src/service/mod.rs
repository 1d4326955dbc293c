//! What can be asked of the service, whatever the face. Knows no HTTP: requests come as types, refusals go as [`crate::problem::Problem`].

pub(crate) mod access;
pub(crate) mod artifacts;
pub(crate) mod calls;
pub(crate) mod contexts;
pub(crate) mod events;
mod exchange;
pub(crate) mod files;
pub(crate) mod forms;
pub(crate) mod grants;
pub(crate) mod keys;
pub(crate) mod named_shells;
pub(crate) mod native;
pub(crate) mod output;
pub(crate) mod policies;
pub(crate) mod quotas;
pub(crate) mod rates;
pub(crate) mod roles;
pub(crate) mod sessions;
pub(crate) mod shares;
pub(crate) mod shells;
pub(crate) mod tenants;
pub(crate) mod tools;
pub(crate) mod usage;
pub(crate) mod vigil;
pub(crate) mod watch;
pub(crate) mod wheels;

pub(crate) mod refusal;
