//! Artifacts: seen, read and deleted here; made by calls.

use domain::{Artifact, ArtifactId, TenantContext};
use store::{ArtifactFilter, Listed, Page};

use crate::problem::Problem;
use crate::state::ApiState;

/// Artifacts, newest first.
pub(crate) async fn list(
    state: &ApiState,
    context: &TenantContext,
    filter: &ArtifactFilter,
    page: Page,
) -> Result<Listed<Artifact>, Problem> {
    Ok(state.store.list_artifacts(context, filter, page).await?)
}

/// One artifact.
pub(crate) async fn get(
    state: &ApiState,
    context: &TenantContext,
    id: ArtifactId,
) -> Result<Artifact, Problem> {
    Ok(state.store.get_artifact(context, id).await?)
}

/// Deletes one. From here on nobody can read it, by a link that was given out neither.
pub(crate) async fn delete(state: &ApiState, context: &TenantContext, id: ArtifactId) -> Result<(), Problem> {
    Ok(state.store.delete_artifact(context, id).await?)
}
