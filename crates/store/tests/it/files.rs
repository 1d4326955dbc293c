//! What a session knows of its files.

use anyhow::{Context, Result};
use domain::{CallId, TenantContext};
use store::testing::{TestDatabase, running_session, tenant};
use store::{FileBefore, SeenFile, SessionFence, Store, StoreError};
use uuid::Uuid;

use crate::calls::worker;

const OLD: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const NEW: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn call(number: u128) -> CallId {
    CallId::from_uuid(Uuid::from_u128(number))
}

fn seen(sha256: &str) -> SeenFile {
    SeenFile { sha256: Some(sha256.to_owned()), size_bytes: 3, modified_ms: Some(7) }
}

fn content(text: &str) -> FileBefore {
    FileBefore::Content { bytes: text.as_bytes().to_vec(), sha256: OLD.to_owned(), permissions: None }
}

async fn session(store: &Store, name: &str) -> Result<(TenantContext, SessionFence)> {
    let context = tenant(store, name).await?;
    let session = running_session(store, &context, worker(store).await?).await?;
    Ok((context, SessionFence::of(&session).context("owned")?))
}

#[tokio::test]
async fn a_version_is_known_to_its_session_until_it_is_forgotten() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let (context, fence) = session(&store, "acme").await?;
    let (other, other_fence) = session(&store, "other").await?;
    let long = format!("/workspace/{}", "x/".repeat(2_000));
    for path in ["/workspace/a", "/workspace/d/b", "/workspace/dd", &long] {
        assert_eq!(store.seen_file(&context, fence.session_id, path).await?, None);
        store.see_file(&fence, path, &seen(OLD)).await?;
        store.see_file(&fence, path, &seen(NEW)).await?;
        assert_eq!(store.seen_file(&context, fence.session_id, path).await?, Some(seen(NEW)));
        assert_eq!(store.seen_file(&context, other_fence.session_id, path).await?, None);
        assert_eq!(store.seen_file(&other, fence.session_id, path).await?, None, "another tenant's");
    }
    store.forget_files(&fence, "/workspace/d").await?;
    assert_eq!(store.seen_file(&context, fence.session_id, "/workspace/d/b").await?, None);
    assert!(store.seen_file(&context, fence.session_id, "/workspace/dd").await?.is_some());
    let stale = SessionFence { epoch: fence.epoch + 1, ..fence };
    let refused = store.see_file(&stale, "/workspace/a", &seen(OLD)).await;
    assert!(matches!(refused, Err(StoreError::Stale { .. })), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_change_is_planned_made_and_undone_once() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let (context, fence) = session(&store, "acme").await?;
    let path = "/workspace/a";
    let undoable = async |call, steps| store.undoable(&context, fence.session_id, call, path, steps).await;
    store.plan_change(&fence, call(1), path, &FileBefore::Absent).await?;
    assert_eq!(undoable(call(9), 5).await?, None, "what is only planned cannot be undone");
    store.change_made(&fence, call(1), path, &seen(OLD)).await?;
    store.plan_change(&fence, call(2), path, &content("abc")).await?;
    store.plan_change(&fence, call(2), path, &content("not this")).await?;
    assert_eq!(
        store.planned_change(&context, call(2), path).await?,
        Some(content("abc")),
        "the first plan stays"
    );
    store.change_made(&fence, call(2), path, &seen(NEW)).await?;
    store.plan_change(&fence, call(3), path, &FileBefore::NotKept).await?;
    store.change_dropped(&fence, call(3), path).await?;
    assert_eq!(store.planned_change(&context, call(3), path).await?, None);
    assert_eq!(store.seen_file(&context, fence.session_id, path).await?, Some(seen(NEW)));

    let both = undoable(call(4), 5).await?.context("two")?;
    assert_eq!((both.steps, &both.before, both.after_sha256.as_str()), (2, &FileBefore::Absent, NEW));
    let last = undoable(call(4), 1).await?.context("one")?;
    assert_eq!((last.steps, &last.before), (1, &content("abc")));
    for _ in 0..2 {
        store.changes_undone(&fence, call(4), path, 1, Some(&seen(OLD))).await?;
        assert_eq!(undoable(call(4), 1).await?, Some(last.clone()), "the same again for the same call");
    }
    let next = undoable(call(5), 1).await?.context("the one before")?;
    assert_eq!((next.before, next.after_sha256.as_str()), (FileBefore::Absent, OLD));
    store.changes_undone(&fence, call(5), path, 1, None).await?;
    assert_eq!(store.seen_file(&context, fence.session_id, path).await?, None);
    assert_eq!(undoable(call(6), 1).await?, None);
    let (other, _) = session(&store, "other").await?;
    assert_eq!(store.planned_change(&other, call(2), path).await?, None, "another tenant's");
    Ok(())
}

#[tokio::test]
async fn permission_bits_are_those_before_the_first_change_that_set_others() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let (context, fence) = session(&store, "acme").await?;
    let path = "/workspace/a";
    let with = |text: &str, permissions| FileBefore::Content {
        bytes: text.as_bytes().to_vec(),
        sha256: OLD.to_owned(),
        permissions,
    };
    for (number, before) in
        [(1, with("1", None)), (2, with("2", Some(0o644))), (3, with("3", Some(0o755))), (4, with("4", None))]
    {
        store.plan_change(&fence, call(number), path, &before).await?;
        assert_eq!(store.planned_change(&context, call(number), path).await?, Some(before));
        store.change_made(&fence, call(number), path, &seen(NEW)).await?;
    }
    for (steps, before) in [
        (1, with("4", None)),
        (2, with("3", Some(0o755))),
        (3, with("2", Some(0o644))),
        (4, with("1", Some(0o644))),
    ] {
        let undoable = store.undoable(&context, fence.session_id, call(9), path, steps).await?;
        assert_eq!(undoable.context("some")?.before, before, "{steps} steps");
    }
    Ok(())
}

#[tokio::test]
async fn old_versions_go_where_there_are_too_many() -> Result<()> {
    let store = TestDatabase::new().await?.store().await?;
    let (context, fence) = session(&store, "acme").await?;
    let path = "/workspace/a";
    for number in 1..=60 {
        store.plan_change(&fence, call(number), path, &content("abc")).await?;
        store.change_made(&fence, call(number), path, &seen(NEW)).await?;
    }
    let kept = store.undoable(&context, fence.session_id, call(99), path, 1_000).await?.context("some")?;
    assert_eq!(kept.steps, domain::limits::FILE_VERSIONS);
    let large =
        FileBefore::Content { bytes: vec![7; 6 * 1024 * 1024], sha256: OLD.to_owned(), permissions: None };
    for number in 100..112 {
        store.plan_change(&fence, call(number), "/workspace/b", &large).await?;
        store.change_made(&fence, call(number), "/workspace/b", &seen(NEW)).await?;
    }
    let kept = store
        .undoable(&context, fence.session_id, call(999), "/workspace/b", 1_000)
        .await?
        .context("some")?;
    assert_eq!(kept.steps, 10, "64 MiB hold ten versions of 6 MiB");
    Ok(())
}
