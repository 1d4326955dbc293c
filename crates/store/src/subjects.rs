//! Subjects of tokens: what the database says of somebody for whom an issuer vouches. That the token is genuine is found out before.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use domain::access::{GivenRole, RoleGrant};
use domain::policy::Policy;
use domain::{Principal, Scope, TenantContext, TenantId, TenantStatus};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use crate::auth::{AuthRefusal, Authenticated, REMEMBER, REMEMBERED, UNKNOWN_TENANT};
use crate::db::read;
use crate::keys::scopes_of;
use crate::{Result, Store};

/// What a verified token says of its bearer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSubject {
    /// Who vouches.
    pub issuer: String,
    /// For whom.
    pub subject: String,
    /// The tenant that it speaks for.
    pub tenant_id: TenantId,
    /// What it may do, when the token names scopes.
    pub scopes: Option<Vec<Scope>>,
    /// Its role, when the token names one.
    pub role: Option<String>,
}

/// What is known of a tenant and one of its roles.
#[derive(Debug, Clone)]
struct Standing {
    status: TenantStatus,
    policy: Policy,
    role_scopes: Option<Vec<Scope>>,
    role_policy: Option<Policy>,
    until: Instant,
}

/// What was read a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Standings {
    known: Mutex<HashMap<(TenantId, Option<String>), Standing>>,
}

impl Standings {
    fn locked(&self) -> MutexGuard<'_, HashMap<(TenantId, Option<String>), Standing>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn forget(&self, tenant_id: TenantId) {
        self.locked().retain(|(of, _), _| *of != tenant_id);
    }
}

impl Store {
    /// The context of a token's subject: its tenant has to be there and active. What is read is remembered for two seconds, as
    /// with keys. A token without scopes and without a role may do nothing. A tenant that is being erased is none: its trail takes in nobody's
    /// address any more.
    pub async fn authenticate_subject(
        &self,
        subject: &TokenSubject,
        address: Option<IpAddr>,
    ) -> Result<Authenticated, AuthRefusal> {
        let answer = match self.standing(subject).await {
            Ok(Some(standing)) if standing.status == TenantStatus::Active => Ok(standing),
            Ok(Some(_)) => Err((AuthRefusal::TenantSuspended, Some(subject.tenant_id))),
            Ok(None) => Err((AuthRefusal::Token(UNKNOWN_TENANT), None)),
            Err(error) => Err((error.into(), None)),
        };
        match answer {
            Ok(standing) => Ok(speak(subject, standing, address)),
            Err((refusal, tenant_id)) => {
                self.record_refusal(&refusal, None, tenant_id, address).await;
                Err(refusal)
            }
        }
    }

    /// Records that a token was refused before anybody was asked about its subject, for one of [`crate::TOKEN_REFUSALS`].
    pub async fn refuse_token(&self, reason: &'static str, address: Option<IpAddr>) -> AuthRefusal {
        let refusal = AuthRefusal::Token(reason);
        self.record_refusal(&refusal, None, None, address).await;
        refusal
    }

    async fn standing(&self, subject: &TokenSubject) -> Result<Option<Standing>> {
        const OPERATION: &str = "authenticate a subject";
        let key = (subject.tenant_id, subject.role.clone());
        let now = Instant::now();
        if let Some(known) = self.standings().locked().get(&key).filter(|known| known.until > now) {
            return Ok(Some(known.clone()));
        }
        let mut conn = self.db().system(OPERATION).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT t.status, t.policy, r.scopes AS role_scopes, r.policy AS role_policy
                     FROM tenants t LEFT JOIN roles r ON r.tenant_id = t.id AND r.name = $2
                     WHERE t.id = $1 AND NOT EXISTS (SELECT FROM tenant_erasures e WHERE e.tenant_id = t.id)",
                )
                .bind(subject.tenant_id.uuid())
                .bind(subject.role.as_deref().map(crate::json::sanitised_text)),
            )
            .await?;
        conn.end().await?;
        let standing = read(OPERATION, row.as_slice(), standing)?.into_iter().next();
        if let Some(standing) = &standing {
            let mut known = self.standings().locked();
            if known.len() >= REMEMBERED {
                known.clear();
            }
            known.insert(key, standing.clone());
        }
        Ok(standing)
    }
}

fn speak(subject: &TokenSubject, standing: Standing, address: Option<IpAddr>) -> Authenticated {
    let principal = Principal {
        key_id: None,
        name: subject.subject.clone(),
        address,
        issuer: Some(subject.issuer.clone()),
    };
    let scopes = granted(
        subject.scopes.clone(),
        subject.role.as_deref().map(|name| (name, standing.role_scopes.as_deref())),
    );
    let context = TenantContext::verified(subject.tenant_id, principal, scopes, vec![standing.policy]);
    Authenticated::Tenant(match &subject.role {
        Some(name) => context.in_role(RoleGrant { name: name.clone(), policy: standing.role_policy }),
        None => context,
    })
}

/// What scopes and a role come to together: what both allow. A role that is not there allows nothing.
pub(crate) fn granted(own: Option<Vec<Scope>>, role: Option<(&str, Option<&[Scope]>)>) -> Vec<Scope> {
    let role = role.map(|(name, of_tenant)| match GivenRole::named(name) {
        Some(given) => given.scopes(),
        None => of_tenant.unwrap_or_default().to_vec(),
    });
    match (own, role) {
        (Some(own), Some(role)) => role.into_iter().filter(|scope| own.contains(scope)).collect(),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => Vec::new(),
    }
    .into_iter()
    .filter(|scope| *scope != Scope::Operator)
    .collect()
}

fn standing(row: &PgRow) -> Result<Standing, sqlx::Error> {
    Ok(Standing {
        status: crate::tenants::status(row.try_get("status")?)?,
        policy: row.try_get::<Json<Policy>, _>("policy")?.0,
        role_scopes: row.try_get::<Option<Vec<String>>, _>("role_scopes")?.map(scopes_of).transpose()?,
        role_policy: row.try_get::<Option<Json<Policy>>, _>("role_policy")?.map(|policy| policy.0),
        until: Instant::now() + REMEMBER,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_and_role_only_narrow_each_other() {
        let own = || Some(vec![Scope::CallsRead, Scope::AuditRead, Scope::Operator]);
        assert_eq!(granted(own(), None), [Scope::CallsRead, Scope::AuditRead]);
        assert_eq!(granted(own(), Some(("viewer", None))), [Scope::CallsRead]);
        assert_eq!(granted(None, Some(("auditor", None))), GivenRole::Auditor.scopes());
        assert_eq!(granted(None, Some(("robot", Some(&[Scope::CallsWrite])))), [Scope::CallsWrite]);
        assert_eq!(granted(own(), Some(("nobody", None))), []);
        assert_eq!(granted(None, None), []);
        // The given roles cannot be redefined by a row of the same name.
        assert_eq!(granted(None, Some(("auditor", Some(&[Scope::CallsWrite])))), GivenRole::Auditor.scopes());
    }
}
