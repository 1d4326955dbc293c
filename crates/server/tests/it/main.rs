//! Tests of the server's own parts.

mod internal;
