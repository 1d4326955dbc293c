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
    /// What it may do.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<domain::Scope>,
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
    /// What it may do; everything that a tenant may when left out.
    #[schema(value_type = Option<Vec<String>>)]
    pub scopes: Option<Vec<domain::Scope>>,
    /// A narrowing of the tenant's policy.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
    /// When it is to stop working by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<DateTime<Utc>>,
}

impl CreateKey {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.text("/name", Some(&self.name), 1..=100);
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
