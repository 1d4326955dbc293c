//! What of a call becomes an artifact: what its tool saves, output that its result does not show, pictures.
//!
//! # Design notes
//!
//! A call does not fail because the object store does: what could not be kept is missing in the result, which says so.
//! Origins name what of the call an artifact is, so that a call that is run again does not save it twice. All that a call leaves has one
//! deadline together, as its end waits for it: an object store that stands still costs a call one wait and not one for each picture.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use domain::limits::{ARTIFACT_WAIT_S, INLINE_IMAGE_BYTES};
use domain::{Artifact, ArtifactId, ArtifactKind, CallResult, ContentBlock, EventBody};
use store::{Draft, NewArtifact, OutputOwner, SealedDraft, StoreError};
use tokio::time::{Instant, timeout_at};

use super::Facts;
use crate::ports::context_of;
use crate::relay::Utf8;
use crate::tenure::Unwritten;

const WAIT: Duration = Duration::from_secs(ARTIFACT_WAIT_S);
/// Bytes of output that are read at a time.
const PIECE_BYTES: u64 = 1024 * 1024;

/// Why something was not kept.
#[derive(Debug)]
pub(crate) enum NotKept {
    /// This worker may not write any more, or the store refused.
    Unwritten(Unwritten),
    /// The temporary file could not be written.
    Disk(std::io::Error),
}

impl From<Unwritten> for NotKept {
    fn from(unwritten: Unwritten) -> Self {
        Self::Unwritten(unwritten)
    }
}

impl From<std::io::Error> for NotKept {
    fn from(error: std::io::Error) -> Self {
        Self::Disk(error)
    }
}

/// Saves content as an artifact of the call, once for each origin, and tells of it in an event.
pub(crate) async fn keep(
    facts: &Facts,
    new: NewArtifact,
    content: &SealedDraft,
) -> Result<Artifact, NotKept> {
    let (tenure, fence) = (&facts.tenure, &facts.session.fence);
    tenure.write(|| tenure.store().announce_artifact(fence, content)).await?;
    let sent = tenure.store().send_artifact(facts.call.tenant_id, content).await;
    sent.map_err(Unwritten::Refused)?;
    let artifact = tenure.write(|| tenure.store().save_artifact(fence, &new, content)).await?;
    facts.log.push(EventBody::ArtifactCreated { artifact: artifact.facts() });
    Ok(artifact)
}

/// Keeps what of a result is to outlive it, as far as that is possible in time.
pub(super) async fn artifacts(facts: &Facts, result: &mut CallResult) {
    let deadline = Instant::now() + WAIT;
    let is_cut = result.truncated.as_ref().is_some_and(|truncated| truncated.artifact_id.is_none());
    if is_cut {
        match in_time(deadline, output(facts)).await {
            Ok(Some(id)) => {
                if let Some(truncated) = &mut result.truncated {
                    truncated.artifact_id = Some(id);
                }
            }
            Ok(None) => {}
            Err(error) => not_kept(facts, result, "The whole output", error),
        }
    }
    let mut content = std::mem::take(&mut result.content);
    let mut lost = Vec::new();
    for (index, block) in content.iter_mut().enumerate() {
        if let Err(error) = in_time(deadline, image(facts, index, block)).await {
            lost.push(error);
        }
    }
    result.content = content;
    let what = match lost.len() {
        1 => "A picture".to_owned(),
        count => format!("{count} pictures"),
    };
    if let Some(error) = lost.pop() {
        not_kept(facts, result, &what, error);
    }
}

async fn in_time<T>(
    deadline: Instant,
    keeping: impl Future<Output = Result<T, NotKept>>,
) -> Result<T, NotKept> {
    match timeout_at(deadline, keeping).await {
        Ok(kept) => kept,
        Err(elapsed) => Err(NotKept::Disk(std::io::Error::other(elapsed))),
    }
}

fn not_kept(facts: &Facts, result: &mut CallResult, what: &str, error: NotKept) {
    tracing::warn!(call = %facts.call.id, ?error, what, "not kept as an artifact");
    let remark = format!("{what} could not be kept as an artifact.");
    result.system = Some(match result.system.take() {
        Some(system) => format!("{system} {remark}"),
        None => remark,
    });
}

/// The call's log, stdout and stderr as they came. Nothing when the tool has cut something else short.
async fn output(facts: &Facts) -> Result<Option<ArtifactId>, NotKept> {
    facts.log.flush().await;
    let (store, context) = (facts.tenure.store(), context_of(facts.call.tenant_id));
    let (mut draft, mut since, mut text) = (Draft::default(), 0, Utf8::default());
    loop {
        let owner = OutputOwner::Call(facts.call.id);
        let pieces = facts.tenure.write(|| store.output_pieces(&context, owner, since, PIECE_BYTES)).await?;
        let Some(last) = pieces.last() else { break };
        since = last.log_offset + last.bytes.len() as u64;
        for piece in &pieces {
            text.push(&piece.bytes);
            draft.push(&piece.bytes).await?;
        }
    }
    if draft.size_bytes() == 0 {
        return Ok(None);
    }
    let new = NewArtifact {
        call_id: facts.call.id,
        origin: "output".to_owned(),
        name: format!("{}.log", facts.call.id),
        kind: ArtifactKind::Output,
        mime_type: if text.is_whole() { "text/plain; charset=utf-8" } else { "application/octet-stream" }
            .to_owned(),
        metadata: BTreeMap::from([("tool".to_owned(), facts.call.tool.clone())]),
    };
    Ok(Some(keep(facts, new, &draft.seal().await?).await?.id))
}

/// A picture of the result, one that is text included. A large one leaves the result, whose row it would swell.
async fn image(facts: &Facts, index: usize, block: &mut ContentBlock) -> Result<(), NotKept> {
    match block {
        ContentBlock::Image { mime_type, data, artifact_id: artifact_id @ None } => {
            let decoded = data.as_ref().and_then(|data| BASE64.decode(data.as_bytes()).ok());
            let Some(bytes) = decoded.map(Bytes::from) else { return Ok(()) };
            *artifact_id = Some(picture(facts, index, mime_type, &bytes).await?);
            if bytes.len() > INLINE_IMAGE_BYTES {
                *data = None;
            }
        }
        ContentBlock::Text { mime_type: Some(mime_type), text, artifact_id: artifact_id @ None }
            if mime_type == "image/svg+xml" =>
        {
            let bytes = Bytes::copy_from_slice(text.as_bytes());
            *artifact_id = Some(picture(facts, index, mime_type, &bytes).await?);
        }
        ContentBlock::Image { .. } | ContentBlock::Text { .. } | ContentBlock::Json { .. } => {}
    }
    Ok(())
}

async fn picture(facts: &Facts, index: usize, mime_type: &str, bytes: &Bytes) -> Result<ArtifactId, NotKept> {
    let suffix = match mime_type.split(';').next().unwrap_or_default() {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/svg+xml" => "svg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        _ => "image",
    };
    let mut draft = Draft::default();
    draft.push(bytes).await?;
    let new = NewArtifact {
        call_id: facts.call.id,
        origin: format!("content/{index}"),
        name: format!("{}-{}.{suffix}", facts.call.id, index + 1),
        kind: ArtifactKind::Image,
        mime_type: mime_type.to_owned(),
        metadata: BTreeMap::from([("tool".to_owned(), facts.call.tool.clone())]),
    };
    Ok(keep(facts, new, &draft.seal().await?).await?.id)
}

/// Whether it is the object store's fault.
pub(crate) fn is_storage(error: &StoreError) -> bool {
    matches!(error, StoreError::Storage { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_that_a_call_leaves_waits_once() {
        let (start, deadline) = (Instant::now(), Instant::now() + WAIT);
        for _ in 0..32 {
            let never = std::future::pending::<Result<(), NotKept>>();
            assert!(matches!(in_time(deadline, never).await, Err(NotKept::Disk(_))));
        }
        assert!(start.elapsed() < WAIT + Duration::from_secs(1));
    }
}
