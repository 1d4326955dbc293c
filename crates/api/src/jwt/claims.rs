//! What a genuine token claims, and whether that holds now.

use chrono::{DateTime, TimeDelta, Utc};
use domain::TenantId;
use serde_json::{Map, Value};
use store::TokenSubject;

use super::config::IssuerConfig;
use super::{Refusal, Verified};

type Claims = Map<String, Value>;

/// Longest subject, in characters.
const SUBJECT_CHARS: usize = 255;
/// Longest name of a role, in bytes.
const ROLE_BYTES: usize = 50;

/// Judges the claims of a token whose signature is right.
pub(crate) fn check(issuer: &IssuerConfig, claims: &Claims, now: DateTime<Utc>) -> Result<Verified, Refusal> {
    let leeway = TimeDelta::from_std(issuer.leeway).unwrap_or_default();
    let until = time(claims, "exp")?.ok_or("token_exp")?.checked_add_signed(leeway).ok_or("token_exp")?;
    if until <= now {
        return Err(super::EXPIRED);
    }
    let soon = now + leeway;
    if time(claims, "nbf")?.is_some_and(|from| from > soon) {
        return Err("token_not_yet");
    }
    if time(claims, "iat")?.is_some_and(|made| made > soon) {
        return Err("token_not_yet");
    }
    if !is_for_us(issuer, claims) {
        return Err("token_audience");
    }
    let subject = text(claims, "sub").ok_or("token_subject")?;
    if subject.chars().count() > SUBJECT_CHARS || subject.chars().any(char::is_control) {
        return Err("token_subject");
    }
    let subject = TokenSubject {
        issuer: issuer.issuer.clone(),
        subject: subject.to_owned(),
        tenant_id: tenant(issuer, claims)?,
        scopes: scopes(issuer, claims)?,
        role: role(issuer, claims)?,
    };
    Ok(Verified { subject, until })
}

/// Seconds since 1970 (RFC 7519 allows fractions). Anything else than a number is no time.
fn time(claims: &Claims, name: &str) -> Result<Option<DateTime<Utc>>, Refusal> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds =
        value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0).ok_or("token_time")?;
    // A number that no calendar has is no time either. Rounded down, so that nothing lives longer than it says.
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked by the calendar")]
    let at = if seconds < 1e15 { DateTime::from_timestamp(seconds.floor() as i64, 0) } else { None };
    at.map(Some).ok_or("token_time")
}

fn text<'a>(claims: &'a Claims, name: &str) -> Option<&'a str> {
    claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn is_for_us(issuer: &IssuerConfig, claims: &Claims) -> bool {
    let ours = |value: &Value| value.as_str().is_some_and(|name| issuer.audience.iter().any(|us| us == name));
    match claims.get("aud") {
        Some(one @ Value::String(_)) => ours(one),
        // All of them have to be names, whichever is ours.
        Some(Value::Array(all)) => all.iter().all(Value::is_string) && all.iter().any(ours),
        _ => false,
    }
}

fn tenant(issuer: &IssuerConfig, claims: &Claims) -> Result<TenantId, Refusal> {
    let tenant_id = match (claims.get(&issuer.tenant_claim), issuer.tenants.as_slice()) {
        (Some(named), _) => named.as_str().and_then(|id| id.parse().ok()).ok_or("token_tenant")?,
        (None, [only]) => *only,
        (None, _) => return Err("token_tenant"),
    };
    if issuer.tenants.is_empty() || issuer.tenants.contains(&tenant_id) {
        Ok(tenant_id)
    } else {
        Err("token_tenant")
    }
}

/// Words that are no scopes of ours are another service's.
fn scopes(issuer: &IssuerConfig, claims: &Claims) -> Result<Option<Vec<domain::Scope>>, Refusal> {
    let words: Vec<&str> = match claims.get(&issuer.scope_claim) {
        None => return Ok(None),
        Some(Value::String(words)) => words.split_ascii_whitespace().collect(),
        Some(Value::Array(words)) => {
            words.iter().map(Value::as_str).collect::<Option<_>>().ok_or("token_scopes")?
        }
        Some(_) => return Err("token_scopes"),
    };
    let mut scopes: Vec<_> = words.into_iter().filter_map(|word| word.parse().ok()).collect();
    scopes.retain(|scope| *scope != domain::Scope::Operator);
    scopes.sort_unstable();
    scopes.dedup();
    Ok(Some(scopes))
}

fn role(issuer: &IssuerConfig, claims: &Claims) -> Result<Option<String>, Refusal> {
    match claims.get(&issuer.role_claim) {
        None => Ok(None),
        Some(Value::String(name)) if (1..=ROLE_BYTES).contains(&name.len()) => Ok(Some(name.clone())),
        Some(_) => Err("token_role"),
    }
}
