//! The erasure of a tenant on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Time;

/// The wish to erase a tenant.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"confirm": "acme"})))]
pub struct EraseTenant {
    /// The tenant's name, so that no slip erases another.
    #[schema(min_length = 1, max_length = 100)]
    pub confirm: String,
}

/// Where an erasure is.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum ErasureState {
    /// Its sessions and sandboxes end.
    Ending,
    /// Its bytes and rows go.
    Deleting,
    /// Its audit trail loses what it says of anybody.
    Trail,
    /// There is a receipt.
    Done,
}

/// The erasure of a tenant.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Erasure)]
pub struct ErasureView {
    /// Always `erasure`.
    #[schema(pattern = "^erasure$")]
    pub object: &'static str,
    /// Who is erased.
    #[schema(value_type = String)]
    pub tenant_id: domain::TenantId,
    /// Where it is.
    #[schema(value_type = ErasureState)]
    pub state: store::ErasureState,
    /// When it was asked for.
    pub requested_at: Time,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Rows deleted so far, by table.
    pub deleted: BTreeMap<String, u64>,
    /// The proof, once it is done. Keep it as it is: `toolhost admin tenant verify-receipt` checks its signature.
    #[schema(value_type = Option<Object>)]
    pub receipt: Option<Value>,
}

/// What an erasure waits for, before the first row goes.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct WaitsFor {
    /// Sessions that have not ended.
    pub sessions: u64,
    /// Sandboxes that are not removed with their workspaces.
    pub sandboxes: u64,
}

impl From<store::Erasure> for ErasureView {
    fn from(erasure: store::Erasure) -> Self {
        let (sessions, sandboxes) = erasure.waits_for;
        Self {
            object: "erasure",
            tenant_id: erasure.tenant_id,
            state: erasure.state,
            requested_at: erasure.requested_at.into(),
            waits_for: WaitsFor { sessions, sandboxes },
            deleted: erasure.deleted,
            receipt: erasure.receipt.and_then(|receipt| serde_json::to_value(receipt).ok()),
        }
    }
}
