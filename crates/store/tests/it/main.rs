//! The store against a real Postgres, through its public doors.

mod access;
mod artifacts;
mod audit;
mod calls;
mod commits;
mod erasure;
mod export;
mod faults;
mod files;
mod hosts;
mod isolation;
mod leases;
mod placement;
mod plans;
mod queue;
mod restore;
mod sessions;
mod tls;
mod upgrades;
mod usage;
mod wheels;
