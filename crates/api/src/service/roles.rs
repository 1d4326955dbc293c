//! Roles: who may define which.

use domain::access::GivenRole;
use domain::{Code, OperatorContext};
use store::{Keeper, NewRole, Role};

use super::grants;
use crate::json::Checks;
use crate::problem::{FieldCode, Problem};
use crate::state::ApiState;
use crate::wire::roles::PutRole;

/// The given roles and the tenant's own.
pub(crate) async fn list(state: &ApiState, keeper: Keeper<'_>) -> Result<Vec<Role>, Problem> {
    if let Keeper::Operator(operator, _) = keeper {
        there(state, operator, keeper).await?;
    }
    Ok(state.store.list_roles(keeper).await?)
}

/// Makes or replaces one.
pub(crate) async fn put(
    state: &ApiState,
    keeper: Keeper<'_>,
    name: &str,
    request: PutRole,
) -> Result<Role, Problem> {
    not_given(name)?;
    let well_formed = name.len() <= 50
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
        && name != "operator";
    if !well_formed {
        let detail = "A role's name is 1 to 50 characters of a-z, 0-9, - and _, starts with a letter, and is not `operator`.";
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    if let Keeper::Tenant(context) = keeper {
        let mut checks = Checks::default();
        grants::within(context, "/scopes", &request.scopes, request.policy.as_ref(), None, &mut checks);
        checks.finish()?;
    }
    let new = NewRole { description: request.description, scopes: request.scopes, policy: request.policy };
    Ok(state.store.put_role(keeper, name, new).await?)
}

/// Deletes one that no valid key has.
pub(crate) async fn delete(state: &ApiState, keeper: Keeper<'_>, name: &str) -> Result<(), Problem> {
    not_given(name)?;
    Ok(state.store.delete_role(keeper, name).await?)
}

/// The role that a new key is to have.
pub(crate) async fn named(
    state: &ApiState,
    keeper: Keeper<'_>,
    name: &str,
    checks: &mut Checks,
) -> Result<Option<Role>, Problem> {
    match state.store.get_role(keeper, name).await {
        Ok(role) => Ok(Some(role)),
        Err(store::StoreError::NotFound { .. }) => {
            checks.add("/role", FieldCode::Invalid, "is no role of the tenant");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn not_given(name: &str) -> Result<(), Problem> {
    match GivenRole::named(name) {
        None => Ok(()),
        Some(_) => Err(Problem::new(Code::Conflict, "This role is given and cannot be changed.")),
    }
}

async fn there(state: &ApiState, operator: &OperatorContext, keeper: Keeper<'_>) -> Result<(), Problem> {
    state.store.get_tenant(operator, keeper.tenant_id()).await?;
    Ok(())
}
