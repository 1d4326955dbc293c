//! What verification says of a trail.

use std::fmt;

use domain::TenantId;

use super::chain::AuditHead;

/// Findings that are listed; the rest is counted.
const LISTED: usize = 1_000;

/// Something that is not as it was sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The row, or the link before it, is not what was sealed.
    Changed {
        /// Its place in the chain.
        sequence: u64,
        /// Its number.
        entry_id: i64,
    },
    /// The row is gone; its link is there.
    Deleted {
        /// Its place in the chain.
        sequence: u64,
        /// Its number.
        entry_id: i64,
    },
    /// Links are gone from the middle.
    LinksMissing {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// A row that was never sealed, long after it claims to have been written.
    Inserted {
        /// Its number.
        entry_id: i64,
    },
    /// A row that was sealed behind rows which are much later than what it says of itself.
    Backdated {
        /// Its place in the chain.
        sequence: u64,
        /// Its number.
        entry_id: i64,
    },
    /// The chain ends before the place that was signed.
    TailCut {
        /// Where it ends.
        sequence: u64,
        /// Where it was when it was signed.
        signed: u64,
    },
    /// Links behind the signed head.
    Unsigned {
        /// The last of them.
        sequence: u64,
    },
    /// The chain has links or rows that should be sealed, but no head.
    HeadMissing,
    /// The head is not signed by a key of ours.
    HeadForged,
    /// The head is well signed, but the link there is another.
    HeadDiffers {
        /// Where.
        sequence: u64,
    },
    /// The digest of an erased tenant's links is not signed by a key of ours.
    ErasureForged,
    /// Links of an erased tenant, or what their rows kept, are not those whose digest was signed.
    ErasureDiffers {
        /// The last of them.
        to: u64,
    },
    /// The given checkpoint is not signed by a key of ours.
    CheckpointForged,
    /// The link at the given checkpoint is another: the chain was made anew.
    CheckpointDiffers {
        /// Where.
        sequence: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { sequence, entry_id } => {
                write!(f, "link {sequence}: row {entry_id}, or the link before it, was changed or moved")
            }
            Self::Deleted { sequence, entry_id } => write!(f, "link {sequence}: row {entry_id} was deleted"),
            Self::LinksMissing { from, to } => write!(f, "links {from} to {to} were deleted"),
            Self::Inserted { entry_id } => write!(f, "row {entry_id} was inserted: it was never sealed"),
            Self::Backdated { sequence, entry_id } => {
                write!(f, "link {sequence}: row {entry_id} is older than rows sealed before it")
            }
            Self::TailCut { sequence, signed } => {
                write!(f, "the tail was cut: the chain ends at link {sequence}, link {signed} was signed")
            }
            Self::Unsigned { sequence } => write!(f, "links up to {sequence} lie behind the signed head"),
            Self::HeadMissing => f.write_str("the signed head is missing"),
            Self::HeadForged => f.write_str("the head is not signed by a key of this installation"),
            Self::HeadDiffers { sequence } => write!(f, "link {sequence} is not the one that was signed"),
            Self::ErasureForged => {
                f.write_str("the digest of the erased rows is not signed by a key of this installation")
            }
            Self::ErasureDiffers { to } => {
                write!(f, "links 1 to {to}, or what was kept of their rows, are not those of the erasure")
            }
            Self::CheckpointForged => {
                f.write_str("the checkpoint is not signed by a key of this installation")
            }
            Self::CheckpointDiffers { sequence } => {
                write!(f, "link {sequence} is not the one of the checkpoint: the chain was made anew")
            }
        }
    }
}

/// What was found in one chain.
#[derive(Debug, Clone)]
pub struct AuditReport {
    /// Whose chain; `None` for the installation's own.
    pub tenant_id: Option<TenantId>,
    /// Links that were looked at.
    pub links: u64,
    /// Rows of the last minute that are not sealed yet.
    pub pending: u64,
    /// Where the chain ends, when that is well signed.
    pub head: Option<AuditHead>,
    /// What is wrong; the first thousand.
    pub findings: Vec<Finding>,
    /// How many more things are wrong.
    pub more: u64,
}

impl AuditReport {
    pub(super) fn find(&mut self, finding: Finding) {
        if self.findings.len() < LISTED {
            self.findings.push(finding);
        } else {
            self.more += 1;
        }
    }
}
