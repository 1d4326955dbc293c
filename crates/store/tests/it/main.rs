//! The store against a real Postgres, through its public doors.

mod access;
mod calls;
mod faults;
mod isolation;
mod leases;
mod sessions;
