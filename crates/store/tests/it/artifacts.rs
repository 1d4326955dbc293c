//! Artifacts: rows, bytes and what sweeps leave of them.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use domain::{Artifact, ArtifactKind, CallId, TenantContext};
use futures_util::TryStreamExt;
use store::testing::{TestDatabase, running_session, tenant};
use store::{
    ArtifactFilter, Draft, NewArtifact, Objects, ObjectsConfig, Page, S3Config, SealedDraft, SessionFence,
    Store, StoreError,
};
use uuid::Uuid;

use crate::calls::worker;

fn new(origin: &str, name: &str) -> NewArtifact {
    NewArtifact {
        call_id: CallId::from_uuid(Uuid::from_u128(1)),
        origin: origin.to_owned(),
        name: name.to_owned(),
        kind: ArtifactKind::Other,
        mime_type: "text/plain".to_owned(),
        metadata: BTreeMap::from([("origin".to_owned(), origin.to_owned())]),
    }
}

async fn sealed(content: &[u8]) -> Result<SealedDraft> {
    let mut draft = Draft::default();
    for piece in content.chunks(1_000_003) {
        draft.push(piece).await?;
    }
    Ok(draft.seal().await?)
}

async fn keep(
    store: &Store,
    context: &TenantContext,
    fence: &SessionFence,
    new: &NewArtifact,
    content: &[u8],
) -> Result<Artifact> {
    let content = sealed(content).await?;
    store.announce_artifact(fence, &content).await?;
    store.send_artifact(context.tenant_id(), &content).await?;
    Ok(store.save_artifact(fence, new, &content).await?)
}

async fn content(store: &Store, artifact: &Artifact, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
    let pieces: Vec<Bytes> = store.artifact_content(artifact, range).await?.try_collect().await?;
    Ok(pieces.concat())
}

async fn stored(store: &Store, context: &TenantContext) -> Result<u64> {
    Ok(store.tenant_use(context).await?.stored_bytes)
}

async fn session(store: &Store, name: &str) -> Result<(TenantContext, SessionFence)> {
    let context = tenant(store, name).await?;
    let session = running_session(store, &context, worker(store).await?).await?;
    Ok((context, SessionFence::of(&session).context("owned")?))
}

async fn store_on(objects: Objects) -> Result<Store> {
    let config = store::DatabaseConfig { objects, ..TestDatabase::new().await?.config() };
    Ok(Store::connect(&config, &prometheus::Registry::new()).await?)
}

/// What holds on every backend: small and large content, ranges, sharing within a tenant alone, removal.
async fn bytes_come_and_go(objects: Objects) -> Result<()> {
    let store = store_on(objects).await?;
    let ((ours, fence), (theirs, other_fence)) =
        (session(&store, "ours").await?, session(&store, "theirs").await?);
    let large: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    let first = keep(&store, &ours, &fence, &new("a", "large"), &large).await?;
    assert_eq!((first.size_bytes, first.version), (20_000_000, 1));
    assert_eq!(content(&store, &first, 0..first.size_bytes).await?, large);
    assert_eq!(content(&store, &first, 9_999_990..10_000_010).await?, large[9_999_990..10_000_010]);
    let again = keep(&store, &ours, &fence, &new("b", "copy"), &large).await?;
    let foreign = keep(
        &store,
        &theirs,
        &other_fence,
        &NewArtifact { call_id: CallId::from_uuid(Uuid::from_u128(9)), ..new("a", "x") },
        &large,
    )
    .await?;
    assert_eq!(stored(&store, &ours).await?, 20_000_000, "the same content is stored once");
    let empty = keep(&store, &ours, &fence, &new("c", "empty"), b"").await?;
    assert!(content(&store, &empty, 0..0).await?.is_empty());

    store.delete_artifact(&ours, first.id).await?;
    assert_eq!(store.sweep_artifact_objects(0).await?, 0, "the copy still has the bytes");
    store.delete_artifact(&ours, again.id).await?;
    assert_eq!(store.sweep_artifact_objects(3_600).await?, 0, "too young: somebody may be about to keep it");
    assert_eq!(store.sweep_artifact_objects(0).await?, 1);
    assert_eq!(stored(&store, &ours).await?, 0, "what is swept is not stored");
    assert!(matches!(content(&store, &again, 0..1).await, Err(error) if error.is::<StoreError>()));
    assert_eq!(content(&store, &foreign, 0..20_000_000).await?, large, "another tenant's is its own");
    let anew = keep(&store, &ours, &fence, &new("d", "anew"), &large).await?;
    assert_eq!(content(&store, &anew, 0..20_000_000).await?, large);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_and_go_in_memory() -> Result<()> {
    bytes_come_and_go(Objects::in_memory()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_and_go_in_a_folder() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("deep/artifacts");
    bytes_come_and_go(Objects::open(&ObjectsConfig::Folder(place.clone()))?).await?;
    let mode = |place: &Path| anyhow::Ok(std::fs::metadata(place)?.permissions().mode() & 0o7777);
    assert_eq!(mode(&place)?, 0o700, "nobody else's to read");
    // Whoever shares the folder with another user of the machine shares what is in it.
    std::fs::set_permissions(&place, Permissions::from_mode(0o2775))?;
    let store = store_on(Objects::open(&ObjectsConfig::Folder(place.clone()))?).await?;
    let (context, fence) = session(&store, "acme").await?;
    keep(&store, &context, &fence, &new("a", "shared"), b"shared").await?;
    let of_tenant = place.join(context.tenant_id().to_string());
    let inner = std::fs::read_dir(&of_tenant)?.next().context("a folder")??.path();
    assert_eq!((mode(&of_tenant)?, mode(&inner)?), (0o2775, 0o2775));
    // As whoever made them leaves them when it ends at once.
    for place in [&of_tenant, &inner] {
        std::fs::set_permissions(place, Permissions::from_mode(0o755))?;
    }
    keep(&store, &context, &fence, &new("b", "again"), b"shared").await?;
    assert_eq!((mode(&of_tenant)?, mode(&inner)?), (0o2775, 0o2775));
    Ok(())
}

/// `make test-s3` starts a server for it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks S3: TOOLHOST_TEST_S3 is its address, with a bucket `artifacts`"]
async fn bytes_come_and_go_in_a_bucket() -> Result<()> {
    let config = S3Config {
        bucket: "artifacts".to_owned(),
        prefix: format!("tests/{}", Uuid::new_v4()),
        region: Some("us-east-1".to_owned()),
        endpoint: Some(std::env::var("TOOLHOST_TEST_S3")?),
        access_key_id: Some("test".to_owned()),
        secret_access_key: Some("test".to_owned()),
    };
    bytes_come_and_go(Objects::open(&ObjectsConfig::S3(config))?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn names_have_versions_and_origins_are_kept_once() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let (context, fence) = session(&store, "acme").await?;
    let first = keep(&store, &context, &fence, &new("a", "report.md"), b"one").await?;
    let repeated = keep(&store, &context, &fence, &new("a", "report.md"), b"one").await?;
    assert_eq!(first, repeated, "a call that is run again finds what it has saved");
    let racers: Vec<NewArtifact> = (0..8).map(|n| new(&format!("b{n}"), "report.md")).collect();
    let racing = racers.iter().map(|new| keep(&store, &context, &fence, new, b"two"));
    let mut versions: Vec<u32> =
        futures_util::future::try_join_all(racing).await?.iter().map(|artifact| artifact.version).collect();
    versions.sort_unstable();
    assert_eq!(versions, (2..10).collect::<Vec<_>>());
    let named = async |version| store.named_artifact(&context, fence.session_id, "report.md", version).await;
    assert_eq!(named(None).await?.version, 9);
    assert_eq!(named(Some(1)).await?, first);
    assert!(matches!(named(Some(77)).await, Err(StoreError::NotFound { .. })));
    let latest = ArtifactFilter { latest_only: true, ..ArtifactFilter::default() };
    let listed = store.list_artifacts(&context, &latest, Page::default()).await?;
    assert_eq!(listed.items.iter().map(|artifact| artifact.version).collect::<Vec<_>>(), [9]);
    let labelled = ArtifactFilter { metadata: new("a", "").metadata, ..ArtifactFilter::default() };
    assert_eq!(store.list_artifacts(&context, &labelled, Page::default()).await?.items, [first]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_its_tenants_and_a_zombie_saves_nothing() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let ((ours, fence), (theirs, _)) = (session(&store, "ours").await?, session(&store, "theirs").await?);
    let artifact = keep(&store, &ours, &fence, &new("a", "x"), b"one").await?;
    assert_eq!(store.get_artifact(&ours, artifact.id).await?, artifact);
    for refused in [
        store.get_artifact(&theirs, artifact.id).await.map(drop),
        store.named_artifact(&theirs, fence.session_id, "x", None).await.map(drop),
        store.delete_artifact(&theirs, artifact.id).await,
    ] {
        assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{refused:?}");
    }
    assert!(
        store.list_artifacts(&theirs, &ArtifactFilter::default(), Page::default()).await?.items.is_empty()
    );
    let zombie = SessionFence { epoch: fence.epoch + 1, ..fence };
    let content = sealed(b"two").await?;
    assert!(matches!(store.announce_artifact(&zombie, &content).await, Err(StoreError::Stale { .. })));
    store.announce_artifact(&fence, &content).await?;
    let refused = store.save_artifact(&zombie, &new("b", "x"), &content).await;
    assert!(matches!(refused, Err(StoreError::Stale { .. })), "{refused:?}");
    // Without its object there is no artifact: the row is refused, whatever the bytes.
    let unknown = store.save_artifact(&fence, &new("c", "x"), &sealed(b"three").await?).await;
    assert!(unknown.is_err(), "{unknown:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn old_artifacts_go_and_young_ones_stay() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let (context, fence) = session(&store, "acme").await?;
    let artifact = keep(&store, &context, &fence, &new("a", "x"), b"one").await?;
    assert_eq!(store.drop_old_artifacts(0).await?, 0);
    assert_eq!(store.drop_old_artifacts(1).await?, 0);
    assert_eq!(store.get_artifact(&context, artifact.id).await?, artifact);
    Ok(())
}
