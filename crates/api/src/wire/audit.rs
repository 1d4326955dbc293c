//! One recorded decision on the wire.

use serde::Serialize;
use serde_json::Value;
use store::AuditEntry;
use utoipa::ToSchema;

use super::Time;

/// One decision or change, as it was recorded with it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub struct AuditEntryView {
    /// Its number; rises with time.
    #[schema(examples("4711"))]
    pub id: String,
    /// Always `audit_entry`.
    #[schema(pattern = "^audit_entry$")]
    pub object: &'static str,
    /// When.
    pub at: Time,
    /// Who.
    pub principal: AuditPrincipal,
    /// What was tried, such as `session.create`.
    pub action: String,
    /// On what.
    pub target: Option<String>,
    /// Whether it was allowed.
    pub allowed: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Facts; arguments only as a hash.
    #[schema(value_type = Object)]
    pub details: Value,
    /// Its link in the tenant's hash chain; null for the second or so until it is sealed.
    pub seal: Option<AuditSealView>,
}

/// A row's link in the tenant's hash chain.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = AuditSeal)]
pub struct AuditSealView {
    /// Its place, from 1, without gaps.
    pub sequence: u64,
    /// SHA-256 over the link before and the row, in hexadecimal.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub hash: String,
}

/// Who did something.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AuditPrincipal {
    /// The API key; null for an issuer's token, the service itself and the command line.
    #[schema(value_type = Option<String>)]
    pub key_id: Option<domain::KeyId>,
    /// The key's name, the token's subject, `system`, or `cli`.
    pub name: String,
    /// Who vouches for the token's subject; null for everybody else.
    pub issuer: Option<String>,
    /// The address that the request came from.
    pub address: Option<String>,
}

impl From<AuditEntry> for AuditEntryView {
    fn from(entry: AuditEntry) -> Self {
        let principal = AuditPrincipal {
            key_id: entry.principal.key_id,
            name: entry.principal.name,
            issuer: entry.principal.issuer,
            address: entry.principal.address.map(|address| address.to_string()),
        };
        Self {
            id: entry.id.to_string(),
            object: "audit_entry",
            at: entry.at.into(),
            principal,
            action: entry.action,
            target: entry.target,
            allowed: entry.allowed,
            reason: entry.reason,
            details: entry.details,
            seal: entry.seal.map(|seal| AuditSealView {
                sequence: seal.sequence,
                hash: data_encoding::HEXLOWER.encode(&seal.hash),
            }),
        }
    }
}
