//! Rate limits of requests: tenant and key by policy, addresses by what they got wrong. Counted by [`crate::rates`].
//!
//! # Design notes
//!
//! * A tenant's limit is that of installation and tenant; the narrowing of a role or a key makes it a limit of each key's (or
//!   token subject's) own. So many keys of one tenant share
//!   one quota, and one key cannot use up more than its own.
//! * A batch takes one for each of its calls: else a limit of requests would be one of a hundred times as many calls.
//! * An address that presents many wrong credentials is refused before the database is asked, so that guessing costs us next to nothing.
//!   A credential that was right in the last minutes still passes from there, and so does a new one with a good signature (a renewed
//!   token, a signed URL): a proxy or an office must not be locked out by one bad client.
//! * A token that names a key which no set of its issuer has is counted only when the set was read for it: whoever may read it
//!   a moment too late, or not at all, cannot say that the token is wrong.
//! * What is remembered of a credential is its SHA-256.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use domain::policy::{Layer, Layered, effective_limits};
use domain::{Code, KeyId, TenantContext, TenantId};
use sha2::{Digest as _, Sha256};

use crate::problem::Problem;
use crate::rates::{Buckets, Quota};
use crate::service::policies::layers;
use crate::state::ApiState;

/// How long it is remembered that a credential was right, or that a signed one was wrong all the same.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Credentials that are remembered at once.
const CREDENTIALS: usize = 10_000;

/// What this process counts.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    tenants: Buckets<TenantId>,
    callers: Buckets<Caller>,
    failures: Buckets<IpAddr>,
    /// Credentials that were looked at: until when that is remembered, and whether they were right.
    known: Mutex<HashMap<[u8; 32], (Instant, bool)>>,
}

/// Whose own limit it is: a key's, or the subject's of an issuer's token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Caller {
    Key(KeyId),
    Subject(TenantId, Option<String>, String),
}

impl Caller {
    fn of(context: &TenantContext) -> Self {
        let principal = context.principal();
        match principal.key_id {
            Some(id) => Self::Key(id),
            None => Self::Subject(context.tenant_id(), principal.issuer.clone(), principal.name.clone()),
        }
    }
}

/// What the caller has left, by the names of the limits.
#[derive(Debug, Clone)]
pub(crate) struct Quotas(pub(crate) Vec<(&'static str, Quota)>);

/// Takes one request of the tenant's quota and the key's. What is refused takes of neither. Each call of a batch is a request.
pub(crate) fn take(state: &ApiState, context: &TenantContext) -> Result<Quotas, (Quotas, Problem)> {
    let (rates, now) = (&state.rates, Instant::now());
    let (of_tenant, of_key) = limits(state, context);
    let tenant_id = context.tenant_id();
    let mut quotas = Vec::new();
    if of_key < of_tenant {
        let caller = Caller::of(context);
        if rates.tenants.look(&tenant_id, of_tenant, now).wait.is_zero() {
            quotas.push(("key", rates.callers.take(caller, of_key, now)));
        } else {
            quotas.push(("key", rates.callers.look(&caller, of_key, now)));
        }
    }
    let key_waits = quotas.iter().any(|(_, quota)| !quota.wait.is_zero());
    let tenant = if key_waits {
        rates.tenants.look(&tenant_id, of_tenant, now)
    } else {
        rates.tenants.take(tenant_id, of_tenant, now)
    };
    quotas.insert(0, ("tenant", tenant));
    let wait = quotas.iter().map(|(_, quota)| quota.wait).max().unwrap_or_default();
    let quotas = Quotas(quotas);
    if wait.is_zero() {
        return Ok(quotas);
    }
    let whose = if key_waits { "This key makes" } else { "This tenant makes" };
    let detail =
        format!("{whose} more requests a minute than its policy allows; `RateLimit-Policy` says how many.");
    Err((quotas, refused(detail, wait)))
}

/// Requests that the caller could make at once.
pub(crate) fn left(state: &ApiState, context: &TenantContext) -> u32 {
    let (rates, now) = (&state.rates, Instant::now());
    let (of_tenant, of_key) = limits(state, context);
    let tenant = rates.tenants.look(&context.tenant_id(), of_tenant, now).left;
    if of_key < of_tenant {
        tenant.min(rates.callers.look(&Caller::of(context), of_key, now).left)
    } else {
        tenant
    }
}

/// The tenant's limit, and the caller's.
fn limits(state: &ApiState, context: &TenantContext) -> (u32, u32) {
    let all = layers(state, context, None);
    let whole = |layered: &&Layered<'_>| matches!(layered.layer, Layer::Installation | Layer::Tenant);
    let of_tenant: Vec<_> = all.iter().filter(whole).copied().collect();
    (effective_limits(&of_tenant).requests_per_minute, effective_limits(&all).requests_per_minute)
}

/// Refuses an address that has shown too many wrong credentials, unless this one was right a while ago or has a good signature and was
/// not wrong for another reason a while ago.
pub(crate) fn admit_address(
    state: &ApiState,
    address: Option<IpAddr>,
    credential: &str,
    is_signed: bool,
) -> Result<(), Problem> {
    let Some(address) = address else { return Ok(()) };
    let (rates, now) = (&state.rates, Instant::now());
    let quota = rates.failures.look(&subject(address), state.config.failed_auth_per_minute, now);
    if quota.wait.is_zero() || rates.was_right(credential, now).unwrap_or(is_signed) {
        return Ok(());
    }
    let detail = "Too many requests with wrong credentials came from this address.";
    Err(refused(detail.to_owned(), quota.wait))
}

/// Counts a wrong credential. One that was right before (a key that was revoked meanwhile), or has a good signature all the same (a URL
/// of such a key), passes no longer.
pub(crate) fn failed(state: &ApiState, address: Option<IpAddr>, credential: &str, is_signed: bool) {
    let now = Instant::now();
    if is_signed {
        state.rates.remember(credential, false, now);
    } else {
        state.rates.forget(credential);
    }
    if let Some(address) = address {
        state.rates.failures.take(subject(address), state.config.failed_auth_per_minute, now);
    }
}

/// Remembers a right one.
pub(crate) fn succeeded(state: &ApiState, credential: &str) {
    state.rates.remember(credential, true, Instant::now());
}

fn refused(detail: String, wait: Duration) -> Problem {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
    Problem::new(Code::RateLimited, detail).retry_after_ms(wait_ms)
}

/// Whoever has one IPv6 address has the network around it.
fn subject(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & (u128::MAX << 64)).into()),
        four @ IpAddr::V4(_) => four,
    }
}

impl Rates {
    fn remember(&self, credential: &str, is_right: bool, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if known.len() >= CREDENTIALS {
            known.retain(|_, (until, _)| *until > now);
            if known.len() > CREDENTIALS / 2 {
                known.clear();
            }
        }
        known.insert(Sha256::digest(credential).into(), (now + REMEMBERED, is_right));
    }

    fn forget(&self, credential: &str) {
        let digest: [u8; 32] = Sha256::digest(credential).into();
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&digest);
    }

    /// What was found of it a while ago, if that is remembered.
    fn was_right(&self, credential: &str, now: Instant) -> Option<bool> {
        let digest: [u8; 32] = Sha256::digest(credential).into();
        let known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.get(&digest).filter(|(until, _)| *until > now).map(|(_, is_right)| *is_right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_an_ipv6_network_are_one_and_mapped_addresses_are_ipv4() {
        let of = |text: &str| subject(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
