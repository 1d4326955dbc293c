//! The log of output: bytes by owner and offset, shared by calls and shells.

use domain::event::OutputPiece;
use domain::{CallId, ShellId, StreamName, TenantContext};

use crate::{Result, Store};

/// Whose log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputOwner {
    /// A call's.
    Call(CallId),
    /// A shell's.
    Shell(ShellId),
}

/// Bytes of one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputRange {
    /// Pieces in order: offset in the stream, and bytes. Offsets between them were dropped from the middle.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// Bytes that the stream has, dropped ones included.
    pub total_bytes: u64,
    /// Bytes within the range asked for that were dropped.
    pub dropped_bytes: u64,
    /// The log itself is no longer kept (410).
    pub pruned: bool,
}

/// How far a log is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurableOutput {
    /// Bytes of both streams together, dropped ones included: the offset to go on from.
    pub log_offset: u64,
    /// Bytes of stdout.
    pub stdout_offset: u64,
    /// Bytes of stderr.
    pub stderr_offset: u64,
    /// Bytes that were dropped.
    pub dropped_bytes: u64,
}

impl Store {
    /// Bytes `from..to` of one stream of a call or a shell of the tenant.
    pub async fn output_range(
        &self,
        context: &TenantContext,
        owner: OutputOwner,
        stream: StreamName,
        from: u64,
        to: u64,
    ) -> Result<OutputRange> {
        todo!()
    }

    /// Pieces of both streams from an offset of the log on, at most about so many bytes.
    pub async fn output_pieces(
        &self,
        context: &TenantContext,
        owner: OutputOwner,
        since_offset: u64,
        max_bytes: u64,
    ) -> Result<Vec<OutputPiece>> {
        todo!()
    }

    /// How far a log is durable, for a worker that goes on with it.
    pub async fn durable_output(&self, owner: OutputOwner) -> Result<DurableOutput> {
        todo!()
    }

    /// The first and the last bytes of a stream, at most so many each, for a worker that goes on with it.
    /// The two do not overlap.
    pub async fn output_head_tail(
        &self,
        owner: OutputOwner,
        stream: StreamName,
        max_bytes: u64,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        todo!()
    }
}
