//! Who presents a credential: API keys checked on every request, refusals counted and recorded.
//!
//! # Design notes
//!
//! * A text that is not a key of ours (form, check sum) costs no query. The hash is compared in constant time, also when
//!   there is no such key.
//! * A positive answer is remembered for two seconds, so that a busy key costs a query every two seconds; revocation,
//!   expiry and suspension therefore hold everywhere within that time. Refusals are not remembered.
//! * Refusals are recorded in the audit trail, but at most [`REFUSALS_RECORDED`] a minute and process for each [`Owner`]: a flood of
//!   wrong keys must not become a flood of writes, nor hide that a tenant's revoked key is still in use. The next row after a pause
//!   says how many were left out; the metric counts all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use domain::access::RoleGrant;
use domain::policy::Policy;
use domain::{KeyId, OperatorContext, Principal, Scope, TenantContext, TenantId, TenantStatus};
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::credential::{Digest, Presented};
use crate::db::read;
use crate::keys::{scopes, scopes_of};
use crate::subjects::granted;
use crate::{AuditRow, Result, Store, StoreError};

/// How long a positive answer is remembered by a process that nobody tells otherwise.
pub const REMEMBER: Duration = Duration::from_secs(2);
// A revocation holds everywhere within seconds.
const _: () = assert!(REMEMBER.as_millis() <= 2_000);
/// Keys that are remembered at once.
pub(crate) const REMEMBERED: usize = 10_000;
/// Refusals of one owner's credentials that one process records in a minute.
const REFUSALS_RECORDED: u32 = 30;

/// Why tokens are refused. Closed, so that metrics show each from the start.
pub const TOKEN_REFUSALS: &[&str] = &[
    "token_algorithm",
    "token_audience",
    "token_exp",
    "token_expired",
    "token_form",
    "token_header",
    "token_issuer",
    "token_key",
    "token_not_yet",
    "token_role",
    "token_scopes",
    "token_signature",
    "token_subject",
    "token_tenant",
    "token_time",
    "token_too_large",
    UNKNOWN_TENANT,
];

/// A genuine token of a tenant that is not there.
pub(crate) const UNKNOWN_TENANT: &str = "unknown_tenant";

/// Who a valid credential speaks for.
#[expect(clippy::large_enum_variant, reason = "made once a request and moved out of at once")]
#[derive(Debug, Clone)]
pub enum Authenticated {
    /// One tenant.
    Tenant(TenantContext),
    /// An operator, above tenants.
    Operator(OperatorContext),
}

/// What the end of a credential's time means to whoever asks about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The credential is refused.
    Refuses,
    /// Nothing: what it began while it held may come to its end. That it was revoked counts all the same.
    IsLetPass,
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
    /// A token that is not valid, and why, for the record.
    #[error("the token is not valid: {0}")]
    Token(&'static str),
    /// It could not be checked (503).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AuthRefusal {
    /// Every word that [`Self::reason`] has.
    pub(crate) fn reasons() -> impl Iterator<Item = &'static str> {
        let of_keys = [Self::Malformed, Self::Unknown, Self::Revoked, Self::Expired, Self::TenantSuspended];
        of_keys.into_iter().filter_map(|refusal| refusal.reason()).chain(TOKEN_REFUSALS.iter().copied())
    }

    /// The word for metrics and trail; `None` when nothing was decided.
    const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Malformed => Some("malformed"),
            Self::Unknown => Some("unknown"),
            Self::Revoked => Some("revoked"),
            Self::Expired => Some("expired"),
            Self::TenantSuspended => Some("tenant_suspended"),
            Self::Token(reason) => Some(*reason),
            Self::Store(_) => None,
        }
    }

    /// Whether the credential itself was right, so that it is known whose it is.
    const fn is_of_somebody(&self) -> bool {
        match self {
            Self::Revoked | Self::Expired | Self::TenantSuspended => true,
            Self::Malformed | Self::Unknown | Self::Token(_) | Self::Store(_) => false,
        }
    }
}

/// Whose a refused credential is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    /// Nobody knows: whoever guesses shares what is recorded with all who guess.
    Nobody,
    /// The operators'.
    Operators,
    /// A tenant's.
    Tenant(TenantId),
}

/// What is known of a key that was right.
#[derive(Debug, Clone)]
struct Known {
    key_id: KeyId,
    name: String,
    tenant: Option<(TenantId, Policy)>,
    role: Option<RoleGrant>,
    scopes: Vec<Scope>,
    policy: Option<Policy>,
    expires_at: Option<DateTime<Utc>>,
    until: Instant,
}

/// Keys that were right a moment ago, and the budgets of recorded refusals.
#[derive(Debug, Default)]
pub(crate) struct AuthMemory {
    known: Mutex<HashMap<Digest, Known>>,
    refusals: Mutex<HashMap<Owner, Refusals>>,
}

#[derive(Debug, Default)]
struct Refusals {
    minute: Option<Instant>,
    recorded: u32,
    left_out: u64,
}

impl Refusals {
    fn is_over(&self, now: Instant) -> bool {
        self.minute.is_none_or(|minute| now.duration_since(minute) >= Duration::from_secs(60))
    }

    /// Whether one more may be recorded now, and how many were left out before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.is_over(now) {
            (self.minute, self.recorded) = (Some(now), 0);
        }
        if self.recorded >= REFUSALS_RECORDED {
            self.left_out += 1;
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Store {
    /// Checks a presented key: form and check sum first (no query), then the row, the keyed hash in constant time,
    /// revocation, expiry and the tenant's status. A positive answer is remembered for at most two seconds.
    pub async fn authenticate(
        &self,
        presented: &str,
        address: Option<IpAddr>,
    ) -> Result<Authenticated, AuthRefusal> {
        self.authenticate_again(presented, address, Expiry::Refuses).await
    }

    /// The same for a key that has begun something.
    pub async fn authenticate_again(
        &self,
        presented: &str,
        address: Option<IpAddr>,
        expiry: Expiry,
    ) -> Result<Authenticated, AuthRefusal> {
        let answer = match Presented::parse(presented) {
            Some(presented) => self.check(&presented, expiry).await,
            None => Err((AuthRefusal::Malformed, None, None)),
        };
        match answer {
            Ok(known) => {
                self.activity().key(known.key_id);
                Ok(known.speak(address))
            }
            Err((refusal, key_id, tenant_id)) => {
                self.record_refusal(&refusal, key_id, tenant_id, address).await;
                Err(refusal)
            }
        }
    }

    async fn check(
        &self,
        presented: &Presented<'_>,
        expiry: Expiry,
    ) -> Result<Known, (AuthRefusal, Option<KeyId>, Option<TenantId>)> {
        let digest = self.pepper().hash_presented(presented);
        let now = Instant::now();
        if let Some(known) = locked(&self.auth().known).get(&digest).filter(|known| known.until > now) {
            return Ok(known.clone());
        }
        let row = self.key_row(presented.key_id()).await.map_err(|error| (error.into(), None, None))?;
        let (stored, row) = match row {
            Some((stored, row)) => (stored, Some(row)),
            None => (vec![0; 32], None),
        };
        let right = digest.matches(&stored);
        let Some(row) = row.filter(|_| right) else {
            return Err((AuthRefusal::Unknown, Some(presented.key_id()), None));
        };
        let tenant_id = row.known.tenant.as_ref().map(|(id, _)| *id);
        match row.refusal(expiry) {
            Some(refusal) => Err((refusal, Some(presented.key_id()), tenant_id)),
            None => {
                // One whose time is over is right for this question alone.
                if !row.expired {
                    self.auth().remember(digest, row.known.clone());
                }
                Ok(row.known)
            }
        }
    }

    /// What a key of a tenant may do now, for whoever shows something that was made with it. Its secret is not asked for.
    pub async fn authenticate_maker(
        &self,
        tenant_id: TenantId,
        id: KeyId,
        address: Option<IpAddr>,
        expiry: Expiry,
    ) -> Result<TenantContext, AuthRefusal> {
        let of_tenant = |row: &KeyRow| row.known.tenant.as_ref().is_some_and(|(of, _)| *of == tenant_id);
        let Some((_, row)) = self.key_row(id).await?.filter(|(_, row)| of_tenant(row)) else {
            return Err(AuthRefusal::Unknown);
        };
        match (row.refusal(expiry), row.known.speak(address)) {
            (None, Authenticated::Tenant(context)) => Ok(context),
            (Some(refusal), _) => {
                self.record_refusal(&refusal, Some(id), Some(tenant_id), address).await;
                Err(refusal)
            }
            (None, Authenticated::Operator(_)) => Err(AuthRefusal::Unknown),
        }
    }

    async fn key_row(&self, id: KeyId) -> Result<Option<(Vec<u8>, KeyRow)>> {
        const OPERATION: &str = "authenticate";
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT k.id, k.tenant_id, k.name, k.secret_hash, k.scopes, k.role, k.policy, k.expires_at,
                            k.revoked_at IS NOT NULL AS revoked,
                            coalesce(k.expires_at <= clock_timestamp(), false) AS expired,
                            t.status, t.policy AS tenant_policy, r.scopes AS role_scopes, r.policy AS role_policy
                     FROM api_keys k LEFT JOIN tenants t ON t.id = k.tenant_id
                         LEFT JOIN roles r ON r.tenant_id = k.tenant_id AND r.name = k.role
                     WHERE k.id = $1",
                )
                .bind(id.uuid()),
            )
            .await?;
        conn.end().await?;
        Ok(read(OPERATION, row.as_slice(), key_row)?.into_iter().next())
    }

    /// Forgets that a key was right a moment ago.
    pub(crate) fn forget_key(&self, id: KeyId) {
        locked(&self.auth().known).retain(|_, known| known.key_id != id);
    }

    /// Forgets what is known of a tenant's roles, and of the keys that may have them.
    pub(crate) fn forget_role(&self, tenant_id: TenantId) {
        let of_tenant = |known: &Known| known.tenant.as_ref().is_some_and(|(id, _)| *id == tenant_id);
        locked(&self.auth().known).retain(|_, known| !of_tenant(known));
        self.standings().forget(tenant_id);
    }

    pub(crate) async fn record_refusal(
        &self,
        refusal: &AuthRefusal,
        key_id: Option<KeyId>,
        tenant_id: Option<TenantId>,
        address: Option<IpAddr>,
    ) {
        let Some(reason) = refusal.reason() else { return };
        self.db().metrics.auth_refusals.with_label_values(&[reason]).inc();
        let owner = match (refusal.is_of_somebody(), tenant_id) {
            (false, _) => Owner::Nobody,
            (true, None) => Owner::Operators,
            (true, Some(tenant_id)) => Owner::Tenant(tenant_id),
        };
        let Some(left_out) = self.auth().may_record(owner, Instant::now()) else { return };
        // The key id of an unknown key is what the caller claims, so it is a detail and not the principal's.
        let claimed = key_id.filter(|_| owner == Owner::Nobody);
        let principal = Principal {
            key_id: key_id.filter(|_| owner != Owner::Nobody),
            name: "unauthenticated".to_owned(),
            address,
            issuer: None,
        };
        let row = AuditRow {
            action: "auth.refuse",
            target: None,
            allowed: false,
            reason: Some(reason.to_owned()),
            details: json!({"claimed_key_id": claimed, "left_out_before": left_out}),
        };
        if let Err(error) = self.write_refusal(tenant_id, &principal, &row).await {
            tracing::warn!(%error, "a refused credential was not recorded");
        }
    }

    async fn write_refusal(
        &self,
        tenant_id: Option<TenantId>,
        principal: &Principal,
        row: &AuditRow,
    ) -> Result<()> {
        let mut conn = self.db().system("record refusal").await?;
        conn.audit(tenant_id, principal, row).await?;
        conn.end().await
    }
}

impl AuthMemory {
    /// Whether one more refusal of this owner's credentials may be recorded, and how many were left out before it.
    fn may_record(&self, owner: Owner, now: Instant) -> Option<u64> {
        let mut refusals = locked(&self.refusals);
        if refusals.len() >= REMEMBERED && !refusals.contains_key(&owner) {
            refusals.retain(|_, of_owner| !of_owner.is_over(now));
            if refusals.len() >= REMEMBERED {
                return None;
            }
        }
        refusals.entry(owner).or_default().take(now)
    }

    fn remember(&self, digest: Digest, known: Known) {
        let mut memory = locked(&self.known);
        if memory.len() >= REMEMBERED {
            let now = Instant::now();
            memory.retain(|_, known| known.until > now);
            if memory.len() >= REMEMBERED {
                memory.clear();
            }
        }
        memory.insert(digest, known);
    }
}

impl Known {
    fn speak(self, address: Option<IpAddr>) -> Authenticated {
        let principal = Principal { key_id: Some(self.key_id), name: self.name, address, issuer: None };
        match self.tenant {
            Some((tenant_id, tenant_policy)) => {
                let policies = std::iter::once(tenant_policy).chain(self.policy).collect();
                let context = TenantContext::verified(tenant_id, principal, self.scopes, policies);
                let context = context.until(self.expires_at);
                Authenticated::Tenant(match self.role {
                    Some(role) => context.in_role(role),
                    None => context,
                })
            }
            None => Authenticated::Operator(OperatorContext::verified(principal)),
        }
    }
}

struct KeyRow {
    known: Known,
    revoked: bool,
    expired: bool,
    status: Option<TenantStatus>,
}

impl KeyRow {
    /// Why the key is good for nothing now.
    fn refusal(&self, expiry: Expiry) -> Option<AuthRefusal> {
        if self.revoked {
            Some(AuthRefusal::Revoked)
        } else if self.expired && expiry == Expiry::Refuses {
            Some(AuthRefusal::Expired)
        } else if self.status == Some(TenantStatus::Suspended) {
            Some(AuthRefusal::TenantSuspended)
        } else {
            None
        }
    }
}

fn key_row(row: &PgRow) -> Result<(Vec<u8>, KeyRow), sqlx::Error> {
    let tenant_id = row.try_get::<Option<Uuid>, _>("tenant_id")?.map(TenantId::from_uuid);
    let tenant = match tenant_id {
        Some(id) => Some((id, row.try_get::<Json<Policy>, _>("tenant_policy")?.0)),
        None => None,
    };
    let role: Option<String> = row.try_get("role")?;
    let own = scopes(row)?;
    let scopes = match &role {
        None => own,
        Some(name) => {
            let of_role = row.try_get::<Option<Vec<String>>, _>("role_scopes")?.map(scopes_of).transpose()?;
            granted(Some(own).filter(|own| !own.is_empty()), Some((name, of_role.as_deref())))
        }
    };
    let role_policy = row.try_get::<Option<Json<Policy>>, _>("role_policy")?.map(|policy| policy.0);
    let known = Known {
        key_id: KeyId::from_uuid(row.try_get("id")?),
        name: row.try_get("name")?,
        tenant,
        role: role.map(|name| RoleGrant { name, policy: role_policy }),
        scopes,
        policy: row.try_get::<Option<Json<Policy>>, _>("policy")?.map(|policy| policy.0),
        expires_at: row.try_get("expires_at")?,
        until: Instant::now() + REMEMBER,
    };
    let status = row.try_get::<Option<&str>, _>("status")?.map(crate::tenants::status).transpose()?;
    let row = (
        row.try_get("secret_hash")?,
        KeyRow { known, revoked: row.try_get("revoked")?, expired: row.try_get("expired")?, status },
    );
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_but_not_written() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for _ in 0..REFUSALS_RECORDED {
            assert_eq!(refusals.take(start), Some(0));
        }
        assert_eq!(refusals.take(start), None);
        assert_eq!(refusals.take(start), None);
        assert_eq!(refusals.take(start + Duration::from_secs(61)), Some(2));
    }

    #[test]
    fn guesses_hide_nobody_s_own_refusals() {
        let (memory, start) = (AuthMemory::default(), Instant::now());
        for _ in 0..=REFUSALS_RECORDED {
            memory.may_record(Owner::Nobody, start);
        }
        assert_eq!(memory.may_record(Owner::Nobody, start), None);
        let tenants = [1, 2].map(|n| Owner::Tenant(TenantId::from_uuid(Uuid::from_u128(n))));
        for owner in [Owner::Operators, tenants[0], tenants[1]] {
            assert_eq!(memory.may_record(owner, start), Some(0), "{owner:?}");
        }
    }
}
