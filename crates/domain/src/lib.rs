//! Nouns and rules of Toolhost: ids, state machines, events, policy evaluation, error codes and limits.
//!
//! This room knows no I/O, no async runtime, no HTTP and no SQL; every other room may use it.

pub mod access;
pub mod artifact;
pub mod call;
pub mod code_context;
pub mod dispatch;
pub mod error;
pub mod event;
pub mod exchange;
pub mod file;
pub mod id;
pub mod limits;
pub mod policy;
pub mod session;
pub mod shell;
pub mod text;
pub mod trace;
pub mod usage;
pub mod wheel;

pub use access::{OperatorContext, Principal, Scope, TenantContext, TenantStatus};
pub use artifact::{Artifact, ArtifactFacts, ArtifactKind};
pub use call::{
    Call, CallEnded, CallError, CallResult, CallStatus, CallUsage, ContentBlock, Effect, EndReason,
    QueuePlace, Truncation,
};
pub use code_context::{CodeContext, ContextStatus, Language, LostState};
pub use error::Code;
pub use event::{Event, EventBody, StreamName};
pub use id::{
    ArtifactId, CallId, ContextId, HostId, KeyId, RequestId, SandboxId, SessionId, ShellId, TenantId,
    WheelId, WorkerId,
};
pub use session::{NetworkMode, Resources, Session, SessionEnd, SessionEndReason, SessionStatus, SizeClass};
pub use shell::{NamedShell, Shell, ShellName, ShellNameError, ShellStatus};
pub use wheel::{Wheel, WheelName, WheelNameError};
