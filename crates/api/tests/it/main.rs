//! The room as its users meet it: over HTTP, with a real Postgres and a tiny worker.

mod openapi;
