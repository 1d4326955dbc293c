//! Wheels: put by a tenant's clients, installed by its sessions.
//!
//! # Design notes
//!
//! What is put here runs in every session of the tenant that asks for it by name, so it comes from the tenant's credentials alone: a
//! session has no way to put one. Nothing here looks into a wheel beyond its first bytes; what is wrong with it is found in a sandbox.

use std::pin::{Pin, pin};

use bytes::Bytes;
use domain::limits::WHEEL_BYTES;
use domain::policy::effective_limits;
use domain::{Code, TenantContext, Wheel, WheelName};
use futures_util::{Stream, StreamExt};
use store::{Draft, Listed, Page, PutWheel, SealedDraft};

use super::calls::room_to_store;
use super::policies::layers;
use crate::problem::Problem;
use crate::state::ApiState;
use crate::transfers::read_over;

/// What every wheel begins with: a zip archive that is not empty.
const MAGIC: &[u8] = b"PK\x03\x04";

/// Whether a wheel is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    Made,
    WasThere,
}

/// Wheels, of one project or all, the newest first.
pub(crate) async fn list(
    state: &ApiState,
    context: &TenantContext,
    project: Option<&str>,
    page: Page,
) -> Result<Listed<Wheel>, Problem> {
    Ok(state.store.list_wheels(context, project, page).await?)
}

/// Keeps a wheel. `announced` is how many bytes the client says that it sends.
pub(crate) async fn put(
    state: &ApiState,
    context: &TenantContext,
    name: &str,
    announced: Option<u64>,
    pieces: impl Stream<Item = Result<Bytes, Problem>> + Send,
) -> Result<(Wheel, Put), Problem> {
    let mut pieces = pin!(pieces.fuse());
    let gathered = async {
        let name: WheelName =
            name.parse().map_err(|error| Problem::new(Code::InvalidRequest, format!("{error}.")))?;
        if announced.is_some_and(|bytes| bytes > WHEEL_BYTES) {
            return Err(too_large());
        }
        let limits = effective_limits(&layers(state, context, None));
        room_to_store(state, context, &limits).await?;
        let permit = state.transfers.open_wheel(context.tenant_id())?;
        let content = gather(pieces.as_mut(), WHEEL_BYTES).await?;
        // Others may have come meanwhile.
        room_to_store(state, context, &limits).await?;
        Ok((name, content, permit))
    };
    let (name, content, _permit) = match gathered.await {
        Ok(gathered) => gathered,
        Err(problem) => {
            // Who still sends sees the answer only when somebody reads.
            read_over(pieces).await;
            return Err(problem);
        }
    };
    let there = match state.store.wheel_there(context, &name, &content).await? {
        Some(there) => there,
        None => {
            state.store.announce_wheel(context, &content).await?;
            state.store.send_artifact(context.tenant_id(), &content).await?;
            state.store.put_wheel(context, &name, &content).await?
        }
    };
    match there {
        PutWheel::Made(wheel) => Ok((wheel, Put::Made)),
        PutWheel::Same(wheel) => Ok((wheel, Put::WasThere)),
        PutWheel::Taken(wheel) => {
            let detail = format!(
                "Another wheel has the name {name}. Delete it first, or give this one another version or build."
            );
            Err(Problem::new(Code::AlreadyExists, detail).with("sha256", wheel.sha256))
        }
    }
}

/// Deletes one. No session gets it from here on; where it is installed it stays.
pub(crate) async fn delete(state: &ApiState, context: &TenantContext, name: &str) -> Result<(), Problem> {
    // What is no name of a wheel is not there.
    let name: WheelName = name.parse().map_err(|_| Problem::not_found())?;
    Ok(state.store.delete_wheel(context, &name).await?)
}

/// All of a body, as long as it may be a wheel.
async fn gather(
    mut pieces: Pin<&mut impl Stream<Item = Result<Bytes, Problem>>>,
    most_bytes: u64,
) -> Result<SealedDraft, Problem> {
    let failed = |error: std::io::Error| Problem::internal("gather a wheel", &error);
    let (mut draft, mut head) = (Draft::default(), Vec::new());
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        if head.len() < MAGIC.len() {
            head.extend(piece.iter().take(MAGIC.len() - head.len()));
            if !MAGIC.starts_with(&head) {
                return Err(no_archive());
            }
        }
        if draft.size_bytes() + piece.len() as u64 > most_bytes {
            return Err(too_large());
        }
        draft.push(&piece).await.map_err(failed)?;
    }
    if head.len() < MAGIC.len() {
        return Err(no_archive());
    }
    draft.seal().await.map_err(failed)
}

fn no_archive() -> Problem {
    Problem::new(Code::InvalidArchive, "A wheel is a zip archive, and this is none.")
}

fn too_large() -> Problem {
    Problem::new(Code::BodyTooLarge, format!("A wheel may have at most {WHEEL_BYTES} bytes."))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn gathered(pieces: &[&'static [u8]]) -> Result<u64, Code> {
        let pieces = stream::iter(pieces.iter().map(|piece| Ok(Bytes::from_static(piece))));
        let content = gather(pin!(pieces), 10).await;
        content.map(|content| content.size_bytes()).map_err(|problem| problem.code)
    }

    #[tokio::test]
    async fn a_wheel_begins_as_one_and_is_not_too_large() {
        assert_eq!(gathered(&[b"PK\x03\x04123456"]).await, Ok(10));
        assert_eq!(gathered(&[b"P", b"", b"K\x03", b"\x04", b"1"]).await, Ok(5));
        assert_eq!(gathered(&[b"PK\x03\x04", b"1234567"]).await, Err(Code::BodyTooLarge));
        for none in
            [vec![], vec![&b""[..]], vec![b"PK\x03"], vec![b"PK\x05\x06"], vec![b"P", b"X"], vec![b"{}"]]
        {
            assert_eq!(gathered(&none).await, Err(Code::InvalidArchive), "{none:?}");
        }
    }
}
