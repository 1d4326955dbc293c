//! Wheels: put once, their tenant's alone, and with bytes as long as they are there.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use domain::{TenantContext, Wheel, WheelName};
use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Executor};
use store::testing::{TestDatabase, running_session, tenant};
use store::{AuditFilter, Draft, NewArtifact, Page, PutWheel, SealedDraft, SessionFence, Store, StoreError};

use crate::calls::worker;

pub(crate) fn name(text: &str) -> WheelName {
    text.parse().expect("the name of a wheel")
}

async fn sealed(content: &[u8]) -> Result<SealedDraft> {
    let mut draft = Draft::default();
    draft.push(content).await?;
    Ok(draft.seal().await?)
}

async fn put(store: &Store, context: &TenantContext, file: &str, content: &[u8]) -> Result<PutWheel> {
    let content = sealed(content).await?;
    store.announce_wheel(context, &content).await?;
    store.send_artifact(context.tenant_id(), &content).await?;
    Ok(store.put_wheel(context, &name(file), &content).await?)
}

/// A wheel that was not there before.
pub(crate) async fn made(
    store: &Store,
    context: &TenantContext,
    file: &str,
    content: &[u8],
) -> Result<Wheel> {
    match put(store, context, file, content).await? {
        PutWheel::Made(wheel) => Ok(wheel),
        other => bail!("{file}: {other:?}"),
    }
}

async fn content(store: &Store, wheel: &Wheel) -> Result<Vec<u8>> {
    let pieces: Vec<Bytes> = store.wheel_content(wheel).await?.try_collect().await?;
    Ok(pieces.concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wheel_is_put_once_and_is_its_tenants() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let (ours, theirs) = (tenant(&store, "ours").await?, tenant(&store, "theirs").await?);
    let file = "tiny-1.0-py3-none-any.whl";
    let wheel = made(&store, &ours, file, b"one").await?;
    assert_eq!((wheel.name.as_str(), wheel.size_bytes, wheel.last_used_at), (file, 3, None));
    assert_eq!(put(&store, &ours, "Tiny-1.0-py3-none-any.whl", b"one").await?, PutWheel::Same(wheel.clone()));
    assert_eq!(put(&store, &ours, file, b"two").await?, PutWheel::Taken(wheel.clone()));
    assert_eq!(content(&store, &wheel).await?, b"one", "nothing was touched");
    // Another tenant has none of it, and its own under the same name.
    for refused in [
        store.get_wheel(&theirs, &wheel.name).await.map(drop),
        store.delete_wheel(&theirs, &wheel.name).await,
    ] {
        assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{refused:?}");
    }
    assert!(store.wheel_names(&theirs).await?.is_empty());
    let foreign = made(&store, &theirs, file, b"foreign").await?;
    assert_eq!(content(&store, &foreign).await?, b"foreign");
    store.wheels_used(&theirs, &[wheel.id]).await?;
    assert_eq!(store.get_wheel(&ours, &wheel.name).await?, wheel, "nobody else says when it was used");
    store.wheels_used(&ours, &[wheel.id]).await?;
    assert!(store.get_wheel(&ours, &wheel.name).await?.last_used_at.is_some());

    let second = made(&store, &ours, "tiny-1.1-py3-none-any.whl", b"newer").await?;
    let other = made(&store, &ours, "other_one-2.0-py3-none-any.whl", b"other").await?;
    let list = async |project: Option<&str>, page| store.list_wheels(&ours, project, page).await;
    let first_page = list(None, Page { limit: 2, after: None }).await?;
    assert_eq!(first_page.items.iter().map(|wheel| wheel.id).collect::<Vec<_>>(), [other.id, second.id]);
    let rest = list(None, Page { limit: 2, after: first_page.next }).await?;
    assert_eq!((rest.items.len(), rest.items[0].id, rest.next), (1, wheel.id, None));
    assert_eq!(list(Some("other-one"), Page::default()).await?.items, [other]);
    assert!(list(Some("none\0"), Page::default()).await?.items.is_empty());
    let names: Vec<_> =
        store.wheel_names(&ours).await?.into_iter().map(|(name, size)| (name.to_string(), size)).collect();
    assert_eq!(names[1..], [(file.to_owned(), 3), ("tiny-1.1-py3-none-any.whl".to_owned(), 5)]);

    store.delete_wheel(&ours, &wheel.name).await?;
    assert!(matches!(store.get_wheel(&ours, &wheel.name).await, Err(StoreError::NotFound { .. })));
    let again = made(&store, &ours, file, b"two").await?;
    assert_eq!(content(&store, &again).await?, b"two");
    let filter = AuditFilter { actions: vec!["wheel.*".to_owned()], ..AuditFilter::default() };
    let trail = store.list_audit(&ours, &filter, Page::default()).await?.items;
    let actions: Vec<_> = trail.iter().map(|row| row.action.as_str()).collect();
    assert_eq!(actions, ["wheel.put", "wheel.delete", "wheel.put", "wheel.put", "wheel.put"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_stay_as_long_as_a_wheel_or_an_artifact_has_them() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let context = tenant(&store, "acme").await?;
    let session = running_session(&store, &context, worker(&store).await?).await?;
    let fence = SessionFence::of(&session).context("owned")?;
    let stored = async || anyhow::Ok(store.tenant_use(&context).await?.stored_bytes);
    let wheel = made(&store, &context, "tiny-1.0-py3-none-any.whl", b"shared").await?;
    assert_eq!(stored().await?, 6, "what it takes counts as stored");
    assert_eq!(store.sweep_artifact_objects(0).await?, 0, "the wheel has the bytes");
    let bytes = sealed(b"shared").await?;
    store.announce_artifact(&fence, &bytes).await?;
    let new = NewArtifact {
        call_id: domain::CallId::from_uuid(uuid::Uuid::from_u128(1)),
        origin: "a".to_owned(),
        name: "a".to_owned(),
        kind: domain::ArtifactKind::Other,
        mime_type: "text/plain".to_owned(),
        metadata: Default::default(),
    };
    let artifact = store.save_artifact(&fence, &new, &bytes).await?;
    assert_eq!(stored().await?, 6, "the same content is stored once");
    store.delete_wheel(&context, &wheel.name).await?;
    assert_eq!(store.sweep_artifact_objects(0).await?, 0, "the artifact has the bytes");
    let wheel = made(&store, &context, "tiny-1.0-py3-none-any.whl", b"shared").await?;
    store.delete_artifact(&context, artifact.id).await?;
    assert_eq!(store.sweep_artifact_objects(0).await?, 0);
    assert_eq!(content(&store, &wheel).await?, b"shared");
    store.delete_wheel(&context, &wheel.name).await?;
    assert_eq!(store.sweep_artifact_objects(3_600).await?, 0, "too young: somebody may be about to put it");
    assert_eq!(store.sweep_artifact_objects(0).await?, 1);
    assert_eq!(stored().await?, 0);
    // Without its object there is no wheel, whatever somebody says.
    let unknown = store.put_wheel(&context, &wheel.name, &sealed(b"never sent").await?).await;
    assert!(unknown.is_err(), "{unknown:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_so_many_wheels() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (context, other) = (tenant(&store, "acme").await?, tenant(&store, "other").await?);
    let first = made(&store, &context, "tiny-0-py3-none-any.whl", b"same").await?;
    let most = domain::limits::WHEELS;
    let many = format!(
        "INSERT INTO wheels (id, tenant_id, file_name, project, version, size_bytes, sha256)
         SELECT gen_random_uuid(), tenant_id, 'tiny-' || n || '-py3-none-any.whl', project, n::text, size_bytes, sha256
         FROM wheels, generate_series(1, {most} - 1) AS n"
    );
    database.superuser().await?.execute(AssertSqlSafe(many)).await?;
    let refused = put(&store, &context, "one_more-1-py3-none-any.whl", b"more").await;
    let error = refused.expect_err("no room").downcast::<StoreError>()?;
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    assert_eq!(put(&store, &context, first.name.as_str(), b"same").await?, PutWheel::Same(first.clone()));
    assert_eq!(store.wheel_names(&context).await?.len(), most as usize);
    made(&store, &other, "one_more-1-py3-none-any.whl", b"more").await?;
    store.delete_wheel(&context, &first.name).await?;
    made(&store, &context, "one_more-1-py3-none-any.whl", b"more").await?;
    Ok(())
}
