//! A tenant on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;
use super::policies::Policy;
use crate::json::Checks;

/// Whether a tenant may use the service.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum TenantStatus {
    /// It may.
    Active,
    /// It may not; what runs is ended.
    Suspended,
}

/// Days that a tenant keeps things. What is left out is the installation's; output goes before events, and events before calls.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantRetention {
    /// Calls and their results.
    #[schema(minimum = 1, maximum = 36_500)]
    pub calls_days: Option<u32>,
    /// Events of calls.
    #[schema(minimum = 1, maximum = 36_500)]
    pub events_days: Option<u32>,
    /// Output of calls and shells.
    #[schema(minimum = 1, maximum = 36_500)]
    pub output_days: Option<u32>,
}

impl PatchTenant {
    pub(crate) fn check(&self, checks: &mut Checks) {
        let retention = self.retention.unwrap_or_default();
        checks.range("/retention/calls_days", retention.calls_days, 1..=36_500);
        checks.range("/retention/events_days", retention.events_days, 1..=36_500);
        checks.range("/retention/output_days", retention.output_days, 1..=36_500);
    }
}

/// Who pays and who is isolated.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Tenant)]
pub struct TenantView {
    /// Its id.
    #[schema(value_type = String, examples("ten_06b2m8j0v5x3t9q7k1h4c8n2ra"))]
    pub id: domain::TenantId,
    /// Always `tenant`.
    #[schema(pattern = "^tenant$")]
    pub object: &'static str,
    /// Its name, unique in the installation.
    pub name: String,
    /// Whether it may use the service.
    #[schema(value_type = TenantStatus)]
    pub status: domain::TenantStatus,
    /// Its policy.
    #[schema(value_type = Policy)]
    pub policy: domain::policy::Policy,
    /// Days that it keeps things, where it is less than the installation's.
    pub retention: TenantRetention,
    /// The operator's labels.
    pub metadata: BTreeMap<String, String>,
    /// When it was created.
    pub created_at: Time,
}

/// A tenant to create.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"name": "acme"})))]
pub struct CreateTenant {
    /// Its name, unique in the installation.
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    /// Its policy.
    #[serde(default)]
    #[schema(value_type = Policy, required = false)]
    pub policy: domain::policy::Policy,
    /// Labels.
    #[serde(default)]
    #[schema(schema_with = super::metadata)]
    pub metadata: BTreeMap<String, String>,
}

impl CreateTenant {
    pub(crate) fn check(&self, checks: &mut Checks) {
        checks.text("/name", Some(&self.name), 1..=100);
        checks.metadata("/metadata", Some(&self.metadata));
    }
}

/// What is to change of a tenant; what is left out stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"status": "suspended"})))]
pub struct PatchTenant {
    /// Whether it may use the service. Suspending ends its streams within seconds.
    #[schema(value_type = Option<TenantStatus>)]
    pub status: Option<domain::TenantStatus>,
    /// Replaces its policy.
    #[schema(value_type = Option<Policy>)]
    pub policy: Option<domain::policy::Policy>,
    /// Replaces what it keeps. It can only be less than what the installation does.
    pub retention: Option<TenantRetention>,
}

/// Who the credential is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Me {
    /// Always `principal`.
    #[schema(pattern = "^principal$")]
    pub object: &'static str,
    /// The tenant; null for an operator.
    #[schema(value_type = Option<String>)]
    pub tenant_id: Option<domain::TenantId>,
    /// The API key; null for an issuer's token.
    #[schema(value_type = Option<String>)]
    pub key_id: Option<domain::KeyId>,
    /// The key's name, or the token's subject.
    pub name: String,
    /// Who vouches for the token's subject; null for a key.
    pub issuer: Option<String>,
    /// The credential's role.
    pub role: Option<String>,
    /// What it may do.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<domain::Scope>,
    /// When an issuer's token stops holding; null for a key.
    pub expires_at: Option<Time>,
    /// Limits of tenant, role and key; null for an operator.
    #[schema(value_type = Option<super::policies::EffectiveLimits>)]
    pub limits: Option<domain::policy::EffectiveLimits>,
    /// What is left of them; null for an operator.
    pub left: Option<Left>,
}

/// What is left of a credential's limits now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Left {
    /// Requests that could be made at once.
    pub requests: u32,
    /// Sessions that could be created.
    pub sessions: u64,
    /// Calls that could start.
    pub running_calls: u64,
    /// Calls that could wait.
    pub queued_calls: u64,
    /// Bytes of output and artifacts that could be kept.
    pub stored_bytes: u64,
}
