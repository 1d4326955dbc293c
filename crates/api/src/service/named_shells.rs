//! Named shells: seen and forgotten here. Commands make them, and change what they hold.

use domain::{NamedShell, SessionId, ShellName, TenantContext};

use crate::problem::Problem;
use crate::state::ApiState;

/// All named shells of a session, by name. There are never more than a page.
pub(crate) async fn list(
    state: &ApiState,
    tenant: &TenantContext,
    session_id: SessionId,
) -> Result<Vec<NamedShell>, Problem> {
    state.store.get_session(tenant, session_id).await?;
    Ok(state.store.list_named_shells(tenant, session_id).await?)
}

/// One named shell.
pub(crate) async fn get(
    state: &ApiState,
    tenant: &TenantContext,
    session_id: SessionId,
    name: &ShellName,
) -> Result<NamedShell, Problem> {
    let shells = state.store.list_named_shells(tenant, session_id).await?;
    shells.into_iter().find(|shell| shell.name == *name).ok_or_else(Problem::not_found)
}

/// Forgets one.
pub(crate) async fn delete(
    state: &ApiState,
    tenant: &TenantContext,
    session_id: SessionId,
    name: &ShellName,
) -> Result<(), Problem> {
    Ok(state.store.delete_named_shell(tenant, session_id, name).await?)
}
