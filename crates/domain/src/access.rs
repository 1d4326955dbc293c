//! Who asks: scopes, principals, and the tenant context that every query of tenant data takes.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::{KeyId, TenantId};

macro_rules! scopes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// What a credential may do. Every route declares the one it needs; nothing is allowed by default.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Scope {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl Scope {
            /// Every scope.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The scope's name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

scopes! {
    /// See sessions.
    SessionsRead = "sessions:read";
    /// Create, change and end sessions.
    SessionsWrite = "sessions:write";
    /// See calls, their events and their output.
    CallsRead = "calls:read";
    /// Submit and cancel calls.
    CallsWrite = "calls:write";
    /// See and download files of sessions.
    FilesRead = "files:read";
    /// Upload, change and remove files of sessions.
    FilesWrite = "files:write";
    /// See and download artifacts, see wheels.
    ArtifactsRead = "artifacts:read";
    /// Delete artifacts, put and delete wheels.
    ArtifactsWrite = "artifacts:write";
    /// See the catalogue.
    ToolsRead = "tools:read";
    /// See the tenant's policy and explain it.
    PoliciesRead = "policies:read";
    /// See what the tenant's calls and sessions cost.
    UsageRead = "usage:read";
    /// See the audit trail.
    AuditRead = "audit:read";
    /// See, make, replace and revoke the tenant's own API keys and roles.
    KeysWrite = "keys:write";
    /// Everything above tenants: tenants, their keys and policies, hosts. Never given to a tenant's key.
    Operator = "operator";
}

impl Scope {
    /// What a tenant's key has when its creator does not say: everything but [`Scope::Operator`].
    #[must_use]
    pub fn tenant_default() -> Vec<Self> {
        Self::ALL.iter().copied().filter(|scope| *scope != Self::Operator).collect()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == text).ok_or(UnknownScope)
    }
}

/// A text that is no scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown scope")]
pub struct UnknownScope;

/// A role that every tenant has. Tenants define further ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GivenRole {
    /// Everything of the tenant, its keys and its audit trail included.
    Admin,
    /// Works: sessions, calls and what they need.
    Developer,
    /// Sees the same and changes nothing.
    Viewer,
    /// Sees who did what under which policy, and nothing of the work itself.
    Auditor,
}

impl GivenRole {
    /// Every given role.
    pub const ALL: &'static [Self] = &[Self::Admin, Self::Developer, Self::Viewer, Self::Auditor];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Developer => "developer",
            Self::Viewer => "viewer",
            Self::Auditor => "auditor",
        }
    }

    /// What it is for.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Admin => "Everything of the tenant, its keys and its audit trail included.",
            Self::Developer => "Works: sessions, calls and what they need.",
            Self::Viewer => "Sees what developers do and changes nothing.",
            Self::Auditor => "Sees who did what under which policy, and nothing of the work itself.",
        }
    }

    /// The role of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|role| role.as_str() == name)
    }

    /// Its scopes. A new scope is an admin's and a developer's at once, and a viewer's when it only reads.
    #[must_use]
    pub fn scopes(self) -> Vec<Scope> {
        let oversight = [Scope::AuditRead, Scope::KeysWrite];
        let all = Scope::tenant_default();
        match self {
            Self::Admin => all,
            Self::Developer => all.into_iter().filter(|scope| !oversight.contains(scope)).collect(),
            Self::Viewer => all
                .into_iter()
                .filter(|scope| scope.as_str().ends_with(":read") && !oversight.contains(scope))
                .collect(),
            Self::Auditor => vec![Scope::PoliciesRead, Scope::AuditRead],
        }
    }
}

/// Whether a tenant may use the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantStatus {
    /// It may.
    Active,
    /// It may not; what runs is ended.
    Suspended,
}

impl TenantStatus {
    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
        }
    }
}

/// Who did something, for the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The API key; `None` for the subject of a token, the service itself and the command line.
    pub key_id: Option<KeyId>,
    /// A name for people: the key's name, the token's subject, `system`, or `cli`.
    pub name: String,
    /// The address that the request came from.
    pub address: Option<IpAddr>,
    /// Who vouched for the subject of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
}

impl Principal {
    /// The service itself.
    #[must_use]
    pub fn system() -> Self {
        Self { key_id: None, name: "system".to_owned(), address: None, issuer: None }
    }

    /// An operator at the command line.
    #[must_use]
    pub fn command_line() -> Self {
        Self { key_id: None, name: "cli".to_owned(), address: None, issuer: None }
    }
}

/// The proof that a request acts for one tenant. Every query of tenant data takes one, so that a query without
/// it does not compile; row-level security stands behind it.
#[derive(Debug, Clone)]
pub struct TenantContext {
    tenant_id: TenantId,
    principal: Principal,
    scopes: Vec<Scope>,
    policies: Vec<Policy>,
    role: Option<RoleGrant>,
    until: Option<DateTime<Utc>>,
}

/// The role that a credential acts in.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleGrant {
    /// Its name.
    pub name: String,
    /// Its narrowing of policy.
    pub policy: Option<Policy>,
}

impl TenantContext {
    /// Made where a credential has just been verified (or by the service for its own work), and nowhere else.
    /// `policies` are those of tenant and key, outermost first.
    #[must_use]
    pub fn verified(
        tenant_id: TenantId,
        principal: Principal,
        scopes: Vec<Scope>,
        policies: Vec<Policy>,
    ) -> Self {
        Self { tenant_id, principal, scopes, policies, role: None, until: None }
    }

    /// The same, acting in a role, whose policy narrows between the tenant's and the key's.
    #[must_use]
    pub fn in_role(mut self, role: RoleGrant) -> Self {
        self.role = Some(role);
        self
    }

    /// The same with the moment at which the credential stops holding by itself, if it does.
    #[must_use]
    pub fn until(mut self, until: Option<DateTime<Utc>>) -> Self {
        self.until = until;
        self
    }

    /// When the credential stops holding by itself; `None` when it does not.
    #[must_use]
    pub fn ends_at(&self) -> Option<DateTime<Utc>> {
        self.until
    }

    /// The same with no more than these scopes.
    #[must_use]
    pub fn with_only(mut self, scopes: &[Scope]) -> Self {
        self.scopes.retain(|scope| scopes.contains(scope));
        self
    }

    /// The role, if the credential has one.
    #[must_use]
    pub fn role(&self) -> Option<&RoleGrant> {
        self.role.as_ref()
    }

    /// The tenant.
    #[must_use]
    pub fn tenant_id(&self) -> TenantId {
        self.tenant_id
    }

    /// Who acts.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Policies of tenant and key, outermost first.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The credential's scopes.
    #[must_use]
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// Whether the credential has a scope.
    #[must_use]
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }
}

/// The proof that a request acts above tenants.
#[derive(Debug, Clone)]
pub struct OperatorContext {
    principal: Principal,
}

impl OperatorContext {
    /// Made where an operator's credential has just been verified, or for the command line.
    #[must_use]
    pub fn verified(principal: Principal) -> Self {
        Self { principal }
    }

    /// Who acts.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_roles_are_never_operators_and_viewers_change_nothing() {
        for role in GivenRole::ALL {
            assert!(!role.scopes().contains(&Scope::Operator), "{role:?}");
            assert_eq!(GivenRole::named(role.as_str()), Some(*role));
        }
        assert!(GivenRole::Viewer.scopes().iter().all(|scope| scope.as_str().ends_with(":read")));
        assert!(!GivenRole::Developer.scopes().contains(&Scope::KeysWrite));
        assert!(!GivenRole::Auditor.scopes().contains(&Scope::CallsRead));
        assert_eq!(GivenRole::Admin.scopes(), Scope::tenant_default());
    }
}
