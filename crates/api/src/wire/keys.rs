//! An API key on the wire. Its secret is shown once, when it is made.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;
use super::policies::Policy;
use crate::json::Checks;

/// A tenant's API key.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ApiKey)]
pub struct KeyView {
    /// Its id.
    #[schema(value_type = String, examples("key_06b2m8j0v5x3t9q7k1h4c8n2ra"))]
    pub id: domain::KeyId,
    /// Always `api_key`.
    #[schema(pattern = "^api_key$")]
    pub object: &'static str,
    /// The tenant.
    #[schema(value_type = Option<String>)]
    pub tenant_id: Option<domain::TenantId>,
    /// A name for people.
    pub name: String,
    /// What it may do. With a role: empty for all that the role may, else what both may.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<domain::Scope>,
    /// Its role.
    pub role: Option<String>,
    /// The key's own narrowing of policy.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
    /// When it was made.
    pub created_at: Time,
    /// When it stops working by itself.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    /// When it was last used, to within a minute or so.
    pub last_used_at: Option<Time>,
    /// The key that took its place.
    #[schema(value_type = Option<String>)]
    pub rotated_to: Option<domain::KeyId>,
}

/// A new API key with its secret, which is never shown again.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CreatedKey {
    /// The key itself: send it as `Authorization: Bearer <key>`.
    #[schema(examples("th_…"))]
    pub key: String,
    /// What is known of it.
    #[serde(flatten)]
    pub about: KeyView,
}

/// An API key to make.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"name": "backend", "scopes": ["sessions:read", "sessions:write", "calls:read", "calls:write"]})))]
pub struct CreateKey {
    /// A name for people.
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    /// What it may do. When left out: what its role may, else everything that whoever makes it may give.
    #[schema(value_type = Option<Vec<String>>)]
    pub scopes: Option<Vec<domain::Scope>>,
    /// A role: `admin`, `developer`, `viewer`, `auditor`, or one that the tenant has defined. Its scopes are looked up whenever the key
    /// is used; with `scopes` too, the key may do what both say.
    #[schema(max_length = 50)]
    pub role: Option<String>,
    /// A narrowing of the tenant's policy.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
    /// When it is to stop working by itself: not later than the credential that makes it, whose end it has when this is left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<DateTime<Utc>>,
}

/// How a key is to be replaced.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"overlap_s": 86_400})))]
pub struct RotateKey {
    /// Seconds that the old key works beside the new one, 0 to 2,592,000 (30 days); 86,400 (a day) when left out.
    #[schema(minimum = 0, maximum = 2_592_000)]
    pub overlap_s: Option<u32>,
    /// When the new key is to stop working by itself; when the old one would have, if this is left out. Never later than the credential that
    /// asks.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<DateTime<Utc>>,
}

impl RotateKey {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.range("/overlap_s", self.overlap_s, 0..=domain::limits::KEY_OVERLAP_S);
    }
}

impl CreateKey {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.text("/name", Some(&self.name), 1..=100);
        checks.text("/role", self.role.as_deref(), 1..=50);
        if let Some(scopes) = &self.scopes {
            if scopes.is_empty() {
                checks.add(
                    "/scopes",
                    crate::problem::FieldCode::Invalid,
                    "must not be empty; leave it out for all",
                );
            }
            if scopes.contains(&domain::Scope::Operator) {
                let message = "the scope `operator` is never given to a tenant's key";
                checks.add("/scopes", crate::problem::FieldCode::Invalid, message);
            }
        }
    }
}
