//! API keys: made once, kept as a keyed hash, checked on every request.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use domain::policy::Policy;
use domain::{KeyId, OperatorContext, Scope, TenantContext, TenantId};

use crate::{Listed, Page, Result, Store, StoreError};

/// One key, as its row says; never its secret.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    /// Its id; also the readable part of the key itself.
    pub id: KeyId,
    /// Whose it is; `None` for an operator's.
    pub tenant_id: Option<TenantId>,
    /// A name for people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// Its own narrowing of policy.
    pub policy: Option<Policy>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it stops being valid.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// When it was last used, to the minute or so.
    pub last_used_at: Option<DateTime<Utc>>,
}

/// A key to be created.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    /// 1 to 100 characters.
    pub name: String,
    /// What it may do; never [`Scope::Operator`].
    pub scopes: Vec<Scope>,
    /// Its own narrowing of policy.
    pub policy: Option<Policy>,
    /// When it stops being valid.
    pub expires_at: Option<DateTime<Utc>>,
}

/// The text of a new key: shown once, never kept. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct PlainKey(String);

impl PlainKey {
    /// The text that a client sends as its bearer token.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for PlainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlainKey(…)")
    }
}

/// Who a valid credential speaks for.
#[derive(Debug, Clone)]
pub enum Authenticated {
    /// One tenant.
    Tenant(TenantContext),
    /// An operator, above tenants.
    Operator(OperatorContext),
}

/// Why a credential is refused. Faces answer all but the last two alike (401).
#[derive(Debug, thiserror::Error)]
pub enum AuthRefusal {
    /// Not a key of ours: wrong form or wrong check sum. No query was made.
    #[error("the credential is not an API key")]
    Malformed,
    /// No such key, or another secret.
    #[error("the key is not known")]
    Unknown,
    /// It was revoked.
    #[error("the key is revoked")]
    Revoked,
    /// Its time is over.
    #[error("the key has expired")]
    Expired,
    /// The tenant is suspended (403).
    #[error("the tenant is suspended")]
    TenantSuspended,
    /// It could not be checked (503).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Makes a key for a tenant and returns its text, once.
    pub async fn create_key(
        &self,
        operator: &OperatorContext,
        tenant_id: TenantId,
        new: NewKey,
    ) -> Result<(ApiKey, PlainKey)> {
        todo!()
    }

    /// Makes a key for the caller's own tenant. Its scopes and policy must be within the caller's; faces check that.
    pub async fn create_own_key(&self, context: &TenantContext, new: NewKey) -> Result<(ApiKey, PlainKey)> {
        todo!()
    }

    /// Makes a key above tenants.
    pub async fn create_operator_key(
        &self,
        operator: &OperatorContext,
        name: &str,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<(ApiKey, PlainKey)> {
        todo!()
    }

    /// Keys of a tenant, or of the operators (`None`), newest first.
    pub async fn list_keys(
        &self,
        operator: &OperatorContext,
        tenant_id: Option<TenantId>,
        page: Page,
    ) -> Result<Listed<ApiKey>> {
        todo!()
    }

    /// Keys of the caller's tenant, newest first.
    pub async fn list_own_keys(&self, context: &TenantContext, page: Page) -> Result<Listed<ApiKey>> {
        todo!()
    }

    /// Revokes any key. Every process refuses it within seconds. Revoking twice is no error.
    pub async fn revoke_key(&self, operator: &OperatorContext, id: KeyId) -> Result<ApiKey> {
        todo!()
    }

    /// Revokes a key of the caller's tenant.
    pub async fn revoke_own_key(&self, context: &TenantContext, id: KeyId) -> Result<ApiKey> {
        todo!()
    }

    /// Checks a presented key: form and check sum first (no query), then the row, the keyed hash in constant time,
    /// revocation, expiry and the tenant's status. A positive answer is remembered for at most two seconds.
    pub async fn authenticate(
        &self,
        presented: &str,
        address: Option<IpAddr>,
    ) -> Result<Authenticated, AuthRefusal> {
        todo!()
    }
}
