//! Tenants: who pays and who is isolated. Only operators make and change them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use domain::policy::Policy;
use domain::{OperatorContext, TenantContext, TenantId, TenantStatus};

use crate::{Listed, Page, Result, Store};

/// One tenant, as its row says.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Its name, unique in the installation.
    pub name: String,
    /// Whether it may use the service.
    pub status: TenantStatus,
    /// Its policy.
    pub policy: Policy,
    /// The operator's labels.
    pub metadata: BTreeMap<String, String>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
}

/// A tenant to be created.
#[derive(Debug, Clone, Default)]
pub struct NewTenant {
    /// 1 to 100 characters, unique.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// The operator's labels.
    pub metadata: BTreeMap<String, String>,
}

impl Store {
    /// Creates a tenant. [`crate::StoreError::Conflict`] when the name is taken.
    pub async fn create_tenant(&self, operator: &OperatorContext, new: NewTenant) -> Result<Tenant> {
        todo!()
    }

    /// All tenants, newest first.
    pub async fn list_tenants(&self, operator: &OperatorContext, page: Page) -> Result<Listed<Tenant>> {
        todo!()
    }

    /// One tenant.
    pub async fn get_tenant(&self, operator: &OperatorContext, id: TenantId) -> Result<Tenant> {
        todo!()
    }

    /// One tenant by its name.
    pub async fn find_tenant(&self, operator: &OperatorContext, name: &str) -> Result<Tenant> {
        todo!()
    }

    /// Replaces a tenant's policy. It holds for new requests within seconds.
    pub async fn set_tenant_policy(
        &self,
        operator: &OperatorContext,
        id: TenantId,
        policy: &Policy,
    ) -> Result<Tenant> {
        todo!()
    }

    /// Suspends or reactivates a tenant. Suspension refuses its keys within seconds and asks its sessions to end.
    pub async fn set_tenant_status(
        &self,
        operator: &OperatorContext,
        id: TenantId,
        status: TenantStatus,
    ) -> Result<Tenant> {
        todo!()
    }

    /// The tenant's own policy.
    pub async fn policy_of_tenant(&self, context: &TenantContext) -> Result<Policy> {
        todo!()
    }
}
