//! A role on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;
use super::policies::Policy;
use crate::json::Checks;
use crate::problem::FieldCode;

/// A role: a name for some scopes and a narrowing of policy.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Role)]
pub struct RoleView {
    /// Always `role`.
    #[schema(pattern = "^role$")]
    pub object: &'static str,
    /// Its name.
    #[schema(examples("developer"))]
    pub name: String,
    /// What it is for.
    pub description: String,
    /// What it may do.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<domain::Scope>,
    /// Its narrowing of policy.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
    /// Whether every tenant has it; such a role cannot be changed.
    pub given: bool,
    /// When it was made; null for a given one.
    pub created_at: Option<Time>,
    /// When it was last changed; null for a given one.
    pub updated_at: Option<Time>,
}

/// What a role is to be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"description": "Runs the nightly jobs.", "scopes": ["sessions:write", "calls:write", "calls:read"]})))]
pub struct PutRole {
    /// What it is for.
    #[serde(default)]
    #[schema(max_length = 500, required = false)]
    pub description: String,
    /// What it may do.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<domain::Scope>,
    /// A narrowing of the tenant's policy.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
}

impl PutRole {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.text("/description", Some(&self.description), 0..=500);
        if self.scopes.contains(&domain::Scope::Operator) {
            checks.add(
                "/scopes",
                FieldCode::Invalid,
                "the scope `operator` is never given to a tenant's role",
            );
        }
    }
}
