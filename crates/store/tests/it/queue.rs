//! Who is taken on, who is claimed and when, what ends while it waits, and what lists show of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use domain::policy::EffectiveLimits;
use domain::{CallEnded, CallError, CallStatus, Code, EndReason, SessionStatus, TenantContext};
use futures_util::future::join_all;
use serde_json::json;
use store::testing::{TestDatabase, admission, new_session, running_session, tenant};
use store::{
    AdmitSession, Admitted, Announce, CallDecision, CallFilter, ClaimCursor, ClaimRequest, Fence, Hint,
    Idempotency, Page, TenantTurn,
};

use crate::calls::{all_events, claim, outcome, output, queued, started, worker};

#[tokio::test]
async fn limits_of_queue_and_conditions_of_admission_hold_without_a_race() -> Result<()> {
    let database = TestDatabase::new().await?;
    let stores = [database.store().await?, database.store().await?];
    let context = tenant(&stores[0], "acme").await?;
    let worker = worker(&stores[0]).await?;
    let session = running_session(&stores[0], &context, worker).await?;
    let submits = (0..30).map(|n| {
        let mut admission = admission(&context, session.id);
        admission.limits = EffectiveLimits { queued_calls: 7, ..EffectiveLimits::default() };
        let store = stores[n % 2].clone();
        async move { store.admit(admission).await }
    });
    let mut positions = Vec::new();
    for admitted in join_all(submits).await {
        match admitted? {
            Admitted::Queued(_, place) => positions.push(place.position),
            Admitted::QueueFull { limit: 7, .. } => {}
            other => bail!("{other:?}"),
        }
    }
    positions.sort_unstable();
    assert_eq!(positions, [1, 2, 3, 4, 5, 6, 7]);

    let store = &stores[0];
    let nowhere = admission(&context, store.clock().new_id());
    assert!(matches!(store.admit(nowhere).await?, Admitted::SessionNotFound));
    let mut after = admission(&context, session.id);
    after.call.after_call_id = Some(store.clock().new_id());
    assert!(matches!(store.admit(after).await?, Admitted::AfterNotFound));
    let mut denied = admission(&context, session.id);
    denied.decision = CallDecision::Denied {
        error: CallError::new(Code::PolicyDenied, "no"),
        ended: CallEnded::because(EndReason::Denied),
    };
    let Admitted::Denied(call) = store.admit(denied).await? else { bail!("denied") };
    assert_eq!(store.get_call(&context, call.id).await?, call);
    assert_eq!(all_events(store, &context, call.id).await?.len(), 1);
    store.request_session_end(&context, session.id).await?;
    assert!(matches!(store.admit(admission(&context, session.id)).await?, Admitted::SessionEnded(_)));
    Ok(())
}

#[tokio::test]
async fn cancelling_ends_what_waits_and_marks_what_runs() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let waiting = queued(&store, &context, session.id).await?;
    let cancelled = store.request_cancel(&context, waiting.id).await?;
    assert_eq!(cancelled.status, CallStatus::Cancelled);
    assert_eq!(all_events(&store, &context, waiting.id).await?.len(), 2);
    assert_eq!(store.request_cancel(&context, waiting.id).await?, cancelled, "twice is no error");
    assert!(store.claim_calls(worker, &claim(&context, 4), &mut ClaimCursor::default()).await?.is_empty());

    let running = started(&store, &context, session.id, worker).await?;
    let mut hints = store.bus().subscribe_queue();
    let marked = store.request_cancel(&context, running.id).await?;
    assert!(marked.cancel_requested && marked.status == CallStatus::Starting);
    while hints.next().await != Hint::CancelRequested(running.id) {}
    let fence = Fence::of(&marked).context("running")?;
    store.finish_call(&fence, Announce::Nothing, vec![], outcome(CallStatus::Cancelled)).await?;
    assert_eq!(store.get_call(&context, running.id).await?.status, CallStatus::Cancelled);
    Ok(())
}

#[tokio::test]
async fn claims_are_fair_bounded_and_in_order() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let (big, small) = (tenant(&store, "big").await?, tenant(&store, "small").await?);
    let (mine, other) = (worker(&store).await?, worker(&store).await?);
    let crowded = running_session(&store, &big, mine).await?;
    let second = running_session(&store, &big, mine).await?;
    let lone = running_session(&store, &small, mine).await?;
    let foreign = running_session(&store, &small, other).await?;
    let mut expected = Vec::new();
    for n in 0..12 {
        expected.push(queued(&store, &big, if n < 10 { crowded.id } else { second.id }).await?.id);
    }
    let only = queued(&store, &small, lone.id).await?;
    let elsewhere = queued(&store, &small, foreign.id).await?;

    let turn = |context: &TenantContext, slots| TenantTurn {
        tenant_id: context.tenant_id(),
        slots,
        session_running_limit: 4,
    };
    let mut cursor = ClaimCursor::default();
    let request =
        ClaimRequest { max: 10, turns: vec![turn(&small, 1), turn(&big, 5)], running: vec![(crowded.id, 1)] };
    let claimed: Vec<_> =
        store.claim_calls(mine, &request, &mut cursor).await?.iter().map(|call| call.id).collect();
    let mut wanted = vec![expected[0], expected[1], expected[2], expected[10], expected[11], only.id];
    wanted.sort_unstable();
    assert_eq!(claimed, wanted, "three of the crowded session, two of the other, one of the small tenant");

    let request = ClaimRequest { max: 2, turns: vec![turn(&big, 5)], running: vec![(crowded.id, 0)] };
    let claimed: Vec<_> =
        store.claim_calls(mine, &request, &mut cursor).await?.iter().map(|call| call.id).collect();
    assert_eq!(claimed, expected[3..5]);
    let claimed = store.claim_calls(other, &claim(&small, 9), &mut ClaimCursor::default()).await?;
    assert_eq!(claimed.iter().map(|call| call.id).collect::<Vec<_>>(), [elsewhere.id]);
    Ok(())
}

#[tokio::test]
async fn a_call_after_another_waits_for_its_end() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let first = started(&store, &context, session.id, worker).await?;
    let mut after = admission(&context, session.id);
    after.call.after_call_id = Some(first.id);
    after.reservation = Some(worker);
    let Admitted::Queued(second, _) = store.admit(after).await? else { bail!("it waits") };
    let mut cursor = ClaimCursor::default();
    assert!(store.claim_calls(worker, &claim(&context, 4), &mut cursor).await?.is_empty());
    let fence = Fence::of(&first).context("started")?;
    store.finish_call(&fence, Announce::Started, vec![], outcome(CallStatus::Failed)).await?;
    let claimed = store.claim_calls(worker, &claim(&context, 4), &mut cursor).await?;
    assert_eq!(claimed.iter().map(|call| call.id).collect::<Vec<_>>(), [second.id]);
    Ok(())
}

#[tokio::test]
async fn a_one_shot_call_brings_its_session_in_the_same_commit() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let one_shot = || {
        let mut admission = admission(&context, store.clock().new_id());
        admission.session = AdmitSession::OneShot(Box::new(new_session(Some(worker))));
        admission.idempotency = Some(Idempotency::of("POST /v1/calls", "once", &json!({"tool": "bash"})));
        admission
    };
    let Admitted::Queued(call, _) = store.admit(one_shot()).await? else { bail!("queued") };
    let session = store.get_session(&context, call.session_id).await?;
    assert!(session.one_shot && session.worker_id == Some(worker));
    assert!(matches!(store.admit(one_shot()).await?, Admitted::Duplicate(same) if same.id == call.id));
    let mut full = one_shot();
    full.idempotency = None;
    full.limits.sessions = 1;
    assert!(matches!(store.admit(full).await?, Admitted::SessionQuotaExceeded { limit: 1, in_use: 1 }));
    let mut denied = one_shot();
    denied.idempotency = None;
    denied.decision = CallDecision::Denied {
        error: CallError::new(Code::PolicyDenied, "no"),
        ended: CallEnded::because(EndReason::Denied),
    };
    let Admitted::Denied(call) = store.admit(denied).await? else { bail!("denied") };
    assert_eq!(store.get_session(&context, call.session_id).await?.status, SessionStatus::Ended);
    Ok(())
}

#[tokio::test]
async fn lists_filter_and_page() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let mut ids = Vec::new();
    for n in 0..5 {
        let mut admission = admission(&context, session.id);
        admission.call.tool = if n % 2 == 0 { "bash" } else { "read_file" }.to_owned();
        admission.call.metadata = BTreeMap::from([("n".to_owned(), n.to_string())]);
        let Admitted::Queued(call, _) = store.admit(admission).await? else { bail!("queued") };
        ids.push(call.id);
    }
    ids.reverse();
    let first = store.list_calls(&context, &CallFilter::default(), Page { limit: 3, after: None }).await?;
    assert_eq!(first.items.iter().map(|call| call.id).collect::<Vec<_>>(), ids[..3]);
    let rest =
        store.list_calls(&context, &CallFilter::default(), Page { limit: 3, after: first.next }).await?;
    assert_eq!(rest.items.iter().map(|call| call.id).collect::<Vec<_>>(), ids[3..]);
    assert_eq!(rest.next, None);
    let filter = CallFilter { tool: Some("read_file".to_owned()), ..CallFilter::default() };
    assert_eq!(store.list_calls(&context, &filter, Page::default()).await?.items.len(), 2);
    let filter = CallFilter { status: vec![CallStatus::Running], ..CallFilter::default() };
    assert!(store.list_calls(&context, &filter, Page::default()).await?.items.is_empty());
    let place = store.queue_place(&context, ids[0]).await?.context("waits")?;
    assert_eq!(place.position, 5);
    Ok(())
}

#[tokio::test]
async fn the_start_of_what_waits_is_guessed_from_the_pace_so_far() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let mut latest = None;
    for expected_guess in [false, false, true] {
        let waiting = queued(&store, &context, session.id).await?;
        let place = store.queue_place(&context, waiting.id).await?.context("waits")?;
        assert_eq!((place.position, place.estimated_start_at.is_some()), (1, expected_guess));
        assert!(!expected_guess || place.estimated_start_at >= latest, "nothing starts in the past");
        let claimed = store.claim_calls(worker, &claim(&context, 1), &mut ClaimCursor::default()).await?;
        let fence = Fence::of(&claimed[0]).context("claimed")?;
        store.append_events(&fence, Announce::Started, vec![output(0, b"x")]).await?;
        let started = store.get_call(&context, waiting.id).await?;
        assert_eq!(store.queue_place(&context, waiting.id).await?, None, "it waits no more");
        latest = started.started_at;
    }
    Ok(())
}
