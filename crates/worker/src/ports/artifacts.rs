//! Artifacts of the session, for a tool.

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use domain::limits::{ARTIFACT_BYTES, FILE_BYTES};
use domain::{Artifact, Code};
use futures_util::TryStreamExt;
use store::{ArtifactFilter, Draft, NewArtifact, Page, StoreError};
use tools::ToolError;
use tools::port::{
    ArtifactDraft, ArtifactQuery, ArtifactRef, ArtifactSource, Artifacts, EntryKind, SandboxPath,
};

use super::{CallPorts, context_of};
use crate::call::{NotKept, is_storage, keep};
use crate::tenure::Unwritten;

fn no_such() -> ToolError {
    ToolError::new(Code::ArtifactNotFound, "There is no such artifact in this session.")
        .hint("list_artifacts shows those that there are.")
}

fn too_large() -> ToolError {
    ToolError::new(Code::FileTooLarge, format!("An artifact has at most {ARTIFACT_BYTES} bytes."))
}

impl CallPorts {
    fn not_kept(&self, not_kept: NotKept) -> ToolError {
        match not_kept {
            NotKept::Unwritten(unwritten) => self.not_stored(unwritten),
            NotKept::Disk(error) => {
                tracing::error!(call = %self.facts.call.id, %error, "an artifact could not be gathered");
                ToolError::new(Code::PlatformError, "The platform could not gather the artifact.")
            }
        }
    }

    pub(super) fn not_stored(&self, unwritten: Unwritten) -> ToolError {
        match unwritten {
            Unwritten::Refused(StoreError::NotFound { .. }) => no_such(),
            Unwritten::Refused(error) if is_storage(&error) => {
                tracing::warn!(call = %self.facts.call.id, %error, "the object store does not answer");
                ToolError::new(
                    Code::StorageUnavailable,
                    "The object store does not answer; try again in a moment.",
                )
            }
            other => self.unwritten(other),
        }
    }

    /// A file of the sandbox, piece by piece. It must not change meanwhile.
    async fn gather(&self, draft: &mut Draft, path: &SandboxPath) -> Result<(), ToolError> {
        let mut seen = None;
        loop {
            let part = self.read_file(path, draft.size_bytes(), FILE_BYTES).await?;
            if part.stat.kind != EntryKind::File {
                return Err(ToolError::new(Code::NotRegularFile, "Only a regular file can be saved."));
            }
            if part.stat.size_bytes > ARTIFACT_BYTES {
                return Err(too_large());
            }
            let first = *seen.get_or_insert((part.stat.size_bytes, part.stat.modified_ms));
            let is_short = part.bytes.is_empty() && draft.size_bytes() < part.stat.size_bytes;
            if first != (part.stat.size_bytes, part.stat.modified_ms) || is_short {
                return Err(ToolError::new(Code::StaleRead, "The file changed while it was being saved.")
                    .hint("Wait until nothing writes to it, then save it again."));
            }
            draft.push(&part.bytes).await.map_err(|error| self.not_kept(error.into()))?;
            if draft.size_bytes() >= part.stat.size_bytes {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Artifacts for CallPorts {
    async fn save(&self, new: ArtifactDraft) -> Result<Artifact, ToolError> {
        let origin = format!("saved/{}", self.next_key().operation);
        let mut draft = Draft::default();
        match &new.content {
            ArtifactSource::Bytes(bytes) if bytes.len() as u64 > ARTIFACT_BYTES => return Err(too_large()),
            ArtifactSource::Bytes(bytes) => {
                draft.push(bytes).await.map_err(|error| self.not_kept(error.into()))?;
            }
            ArtifactSource::File(path) => self.gather(&mut draft, path).await?,
        }
        let content = draft.seal().await.map_err(|error| self.not_kept(error.into()))?;
        let new = NewArtifact {
            call_id: self.facts.call.id,
            origin,
            name: new.name,
            kind: new.kind,
            mime_type: new.mime_type,
            metadata: new.metadata,
        };
        tokio::select! {
            kept = keep(&self.facts, new, &content) => kept.map_err(|error| self.not_kept(error)),
            () = self.facts.running.cancel.cancelled() => Err(self.ended_before()),
        }
    }

    async fn find(&self, which: &ArtifactRef) -> Result<Artifact, ToolError> {
        let (facts, context) = (&self.facts, context_of(self.facts.call.tenant_id));
        let (store, session) = (facts.tenure.store(), facts.call.session_id);
        let found = facts
            .tenure
            .write(async || match which {
                ArtifactRef::Id(id) => store.get_artifact(&context, *id).await,
                ArtifactRef::Named { name, version } => {
                    store.named_artifact(&context, session, name, *version).await
                }
            })
            .await
            .map_err(|error| self.not_stored(error))?;
        // What another session of the tenant has saved is not for this session's tools.
        if found.session_id == session { Ok(found) } else { Err(no_such()) }
    }

    async fn read(&self, artifact: &Artifact, offset: u64, max_bytes: u64) -> Result<Bytes, ToolError> {
        let end = offset.saturating_add(max_bytes).min(artifact.size_bytes);
        let reading = async {
            let pieces = self.facts.tenure.store().artifact_content(artifact, offset.min(end)..end).await?;
            pieces
                .try_fold(BytesMut::new(), async |mut all, piece| {
                    all.extend_from_slice(&piece);
                    Ok(all)
                })
                .await
        };
        tokio::select! {
            read = reading => read.map(BytesMut::freeze).map_err(|error| self.not_stored(Unwritten::Refused(error))),
            () = self.facts.running.cancel.cancelled() => Err(self.ended_before()),
        }
    }

    async fn list(&self, query: ArtifactQuery) -> Result<(Vec<Artifact>, bool), ToolError> {
        let (facts, context) = (&self.facts, context_of(self.facts.call.tenant_id));
        let filter = ArtifactFilter {
            session_id: Some(facts.call.session_id),
            name: query.name,
            kind: query.kind,
            latest_only: query.latest_only,
            ..ArtifactFilter::default()
        };
        let page = Page { limit: query.limit, after: None };
        let store = facts.tenure.store();
        let listed = facts.tenure.write(|| store.list_artifacts(&context, &filter, page)).await;
        let listed = listed.map_err(|error| self.not_stored(error))?;
        Ok((listed.items, listed.next.is_some()))
    }
}
