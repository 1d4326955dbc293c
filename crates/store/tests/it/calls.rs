//! A call's life: admission, claim, events, end; races and batches.

use anyhow::{Context, Result, bail};
use chrono::NaiveDate;
use domain::call::Outcome;
use domain::event::OutputPiece;
use domain::{
    Call, CallEnded, CallError, CallId, CallResult, CallStatus, CallUsage, Code, EndReason, Event, EventBody,
    StreamName, TenantContext, WorkerId,
};
use futures_util::future::join_all;
use serde_json::json;
use sqlx::{PgConnection, Row};
use store::testing::{TestDatabase, admission, running_session, tenant, worker_on};
use store::{
    Admitted, Announce, AuditFilter, CallChange, CallFilter, ClaimCursor, ClaimRequest, Fence, Idempotency,
    OutputOwner, Page, Store, StoreError, TenantTurn,
};

pub(crate) async fn worker(store: &Store) -> Result<WorkerId> {
    let host = store.register_host("host").await?;
    worker_on(store, host).await
}

/// Today, for whom days are counted: what a test expects of them may be of the day before when it is another afterwards.
pub(crate) async fn today(raw: &mut PgConnection) -> Result<NaiveDate> {
    Ok(sqlx::query_scalar("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date").fetch_one(raw).await?)
}

pub(crate) fn outcome(status: CallStatus) -> Outcome {
    Outcome {
        status,
        result: Some(CallResult { output: "done".to_owned(), exit_code: Some(0), ..CallResult::default() }),
        error: None,
        ended: CallEnded::because(EndReason::Exited),
        usage: CallUsage { duration_ms: 5, ..CallUsage::default() },
    }
}

pub(crate) fn claim(context: &TenantContext, slots: u32) -> ClaimRequest {
    let turn = TenantTurn { tenant_id: context.tenant_id(), slots, session_running_limit: 4 };
    ClaimRequest { max: 100, turns: vec![turn], running: Vec::new() }
}

pub(crate) fn output(log_offset: u64, bytes: &[u8]) -> EventBody {
    let stream = StreamName::Stdout;
    EventBody::Output(OutputPiece { log_offset, stream, offset: log_offset, bytes: bytes.to_vec() })
}

pub(crate) async fn all_events(store: &Store, context: &TenantContext, call: CallId) -> Result<Vec<Event>> {
    let page = store.events(context, call, 0, 1_000, u64::MAX >> 1).await?;
    assert_eq!(page.pruned_before, None);
    Ok(page.events)
}

pub(crate) async fn queued(
    store: &Store,
    context: &TenantContext,
    session: domain::SessionId,
) -> Result<Call> {
    match store.admit(admission(context, session)).await? {
        Admitted::Queued(call, _) => Ok(call),
        other => bail!("not queued: {other:?}"),
    }
}

pub(crate) async fn started(
    store: &Store,
    context: &TenantContext,
    session: domain::SessionId,
    worker: WorkerId,
) -> Result<Call> {
    let mut admission = admission(context, session);
    admission.reservation = Some(worker);
    match store.admit(admission).await? {
        Admitted::Started(call) => Ok(call),
        other => bail!("not started: {other:?}"),
    }
}

#[tokio::test]
async fn a_queued_call_is_claimed_runs_and_ends_with_every_event_in_order() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;

    let (call, place) = match store.admit(admission(&context, session.id)).await? {
        Admitted::Queued(call, place) => (call, place),
        other => bail!("not queued: {other:?}"),
    };
    assert_eq!(place.position, 1);
    assert_eq!(store.get_call(&context, call.id).await?, call);
    assert_eq!(store.tenants_waiting(worker).await?.len(), 1);

    let claimed = store.claim_calls(worker, &claim(&context, 4), &mut ClaimCursor::default()).await?;
    assert_eq!(claimed.iter().map(|call| call.id).collect::<Vec<_>>(), [call.id]);
    assert_eq!((claimed[0].status, claimed[0].attempt), (CallStatus::Starting, 1));

    let mut watch = store.bus().subscribe_call(call.id);
    let mut fence = Fence::of(&claimed[0]).context("claimed")?;
    let appended = store.append_events(&fence, Announce::Started, vec![output(0, b"hello ")]).await?;
    assert_eq!((appended.first_seq, appended.last_seq), (2, 3));
    fence.after_seq = appended.last_seq;
    let ended = store
        .finish_call(&fence, Announce::Nothing, vec![output(6, b"world")], outcome(CallStatus::Succeeded))
        .await?;
    assert_eq!(ended.last_seq, 5);

    let events = all_events(&store, &context, call.id).await?;
    let kinds: Vec<_> = events.iter().map(|event| event.body.kind()).collect();
    assert_eq!(kinds, ["call.queued", "call.started", "call.output", "call.output", "call.ended"]);
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let mut live = Vec::new();
    while live.len() < 4 {
        match watch.changed().await {
            CallChange::Events(batch) => live.extend(batch.iter().cloned()),
            CallChange::Wake => {}
        }
    }
    assert_eq!(live, events[1..], "what is published is what is stored");

    let stored = store.get_call(&context, call.id).await?;
    assert_eq!(stored.status, CallStatus::Succeeded);
    assert_eq!(stored.result.map(|result| result.output), Some("done".to_owned()));
    assert!(stored.started_at.is_some() && stored.ended_at.is_some());
    let range = store.output_range(&context, OutputOwner::Call(call.id), StreamName::Stdout, 3, 8).await?;
    assert_eq!((range.total_bytes, range.dropped_bytes), (11, 0));
    assert_eq!(range.pieces.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<_>>(), b"lo wo");

    let trail: Vec<_> = store
        .list_audit(&context, &AuditFilter::default(), Page { limit: 100, after: None })
        .await?
        .items
        .into_iter()
        .map(|row| row.action)
        .rev()
        .collect();
    assert_eq!(
        trail,
        ["tenant.create", "session.create", "session.start", "call.submit", "call.start", "call.end"]
    );
    Ok(())
}

#[tokio::test]
async fn the_direct_way_is_two_commits_and_needs_the_session_to_be_the_worker_s() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (mine, other) = (worker(&store).await?, worker(&store).await?);
    let session = running_session(&store, &context, mine).await?;

    let call = started(&store, &context, session.id, mine).await?;
    assert_eq!((call.status, call.attempt, call.worker_id), (CallStatus::Starting, 1, Some(mine)));
    assert_eq!(store.get_call(&context, call.id).await?, call);
    let fence = Fence::of(&call).context("started")?;
    store
        .finish_call(&fence, Announce::Started, vec![output(0, b"hi")], outcome(CallStatus::Succeeded))
        .await?;
    let kinds: Vec<_> =
        all_events(&store, &context, call.id).await?.iter().map(|event| event.body.kind()).collect();
    assert_eq!(kinds, ["call.started", "call.output", "call.ended"]);

    let mut admission = admission(&context, session.id);
    admission.reservation = Some(other);
    let Admitted::Queued(call, _) = store.admit(admission).await? else { bail!("a void reservation queues") };
    assert_eq!(call.worker_id, None);
    assert_eq!(store.get_call(&context, call.id).await?.status, CallStatus::Queued);
    Ok(())
}

#[tokio::test]
async fn twenty_submits_with_one_key_make_one_call() -> Result<()> {
    let database = TestDatabase::new().await?;
    let (first, second) = (database.store().await?, database.store().await?);
    let context = tenant(&first, "acme").await?;
    let worker = worker(&first).await?;
    let session = running_session(&first, &context, worker).await?;
    let submit = |n: usize| {
        let mut admission = admission(&context, session.id);
        let request = json!({"tool": "bash", "arguments": admission.call.arguments});
        admission.idempotency = Some(Idempotency::of("POST calls", "key-1", &request));
        let store = if n.is_multiple_of(2) { first.clone() } else { second.clone() };
        async move { store.admit(admission).await }
    };
    let mut made = 0;
    let mut ids = Vec::new();
    for admitted in join_all((0..20).map(submit)).await {
        match admitted? {
            Admitted::Queued(call, _) => {
                made += 1;
                ids.push(call.id);
            }
            Admitted::Duplicate(call) => ids.push(call.id),
            other => bail!("{other:?}"),
        }
    }
    ids.dedup();
    assert_eq!((made, ids.len()), (1, 1));
    assert_eq!(first.list_calls(&context, &CallFilter::default(), Page::default()).await?.items.len(), 1);

    let mut other = admission(&context, session.id);
    other.idempotency = Some(Idempotency::of(
        "POST calls",
        "key-1",
        &json!({"tool": "bash", "arguments": {}, "timeout_ms": 5}),
    ));
    let Admitted::Mismatch { fields } = first.admit(other).await? else { bail!("another body") };
    assert_eq!(fields, ["arguments", "timeout_ms"]);
    Ok(())
}

#[tokio::test]
async fn events_have_no_gap_and_no_twin_however_many_write_at_once() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let runs = (0..24_u64).map(|n| {
        let (store, context) = (store.clone(), context.clone());
        async move {
            let call = started(&store, &context, session.id, worker).await?;
            let mut fence = Fence::of(&call).context("started")?;
            let (mut offset, mut announce) = (0, Announce::Started);
            for round in 0..10 {
                let pieces = (0..=(n + round) % 4).map(|_| {
                    offset += 3;
                    output(offset - 3, b"abc")
                });
                fence.after_seq = store.append_events(&fence, announce, pieces.collect()).await?.last_seq;
                announce = Announce::Nothing;
            }
            store.finish_call(&fence, announce, vec![], outcome(CallStatus::Succeeded)).await?;
            anyhow::Ok((call.id, offset))
        }
    });
    for run in join_all(runs).await {
        let (id, bytes) = run?;
        let mut seen = 0;
        let events = all_events(&store, &context, id).await?;
        for (event, expected) in events.iter().zip(1..) {
            assert_eq!(event.seq, expected);
            if let EventBody::Output(piece) = &event.body {
                assert_eq!(piece.log_offset, seen);
                seen += piece.bytes.len() as u64;
            }
        }
        assert_eq!(seen, bytes);
        assert_eq!(events.iter().filter(|event| event.body.is_last()).count(), 1);
        assert!(events.last().is_some_and(|event| event.body.is_last()));
    }
    Ok(())
}

#[tokio::test]
async fn pages_of_events_are_bounded_by_number_and_by_bytes() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let call = started(&store, &context, session.id, worker).await?;
    let fence = Fence::of(&call).context("started")?;
    let pieces = (0..10).map(|n| output(n * 1_000, &[b'x'; 1_000])).collect();
    store.finish_call(&fence, Announce::Started, pieces, outcome(CallStatus::Succeeded)).await?;
    let by_number = store.events(&context, call.id, 2, 3, 1 << 30).await?;
    assert_eq!(by_number.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!((by_number.last_seq, by_number.ended), (12, true));
    let by_bytes = store.events(&context, call.id, 1, 100, 2_500).await?;
    assert_eq!(by_bytes.events.len(), 3);
    assert_eq!(store.events(&context, call.id, 1, 100, 1).await?.events.len(), 1, "one, even when larger");
    let at_the_end = store.events(&context, call.id, 12, 100, 1).await?;
    assert!(at_the_end.events.is_empty() && at_the_end.pruned_before.is_none() && at_the_end.ended);
    Ok(())
}

#[tokio::test]
async fn one_bad_row_harms_nobody_else_in_its_batch() -> Result<()> {
    let database = TestDatabase::new().await?;
    let mut config = database.config();
    config.writer_lanes = 1;
    let store = Store::connect(&config, &prometheus::Registry::new()).await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let mut superuser = database.superuser().await?;
    // A fault of the database's own, which nothing in the store can foresee.
    sqlx::query("ALTER TABLE calls ADD CONSTRAINT poison CHECK (tool <> 'poison')")
        .execute(&mut superuser)
        .await?;
    let submits = (0..40).map(|n| {
        let mut admission = admission(&context, session.id);
        if n % 10 == 3 {
            admission.call.tool = "poison".to_owned();
        }
        let store = store.clone();
        async move { (n % 10 == 3, store.admit(admission).await) }
    });
    for (poisoned, admitted) in join_all(submits).await {
        match admitted {
            Ok(Admitted::Queued(..)) if !poisoned => {}
            Err(StoreError::Internal { .. }) if poisoned => {}
            other => bail!("{poisoned}: {other:?}"),
        }
    }
    let row = sqlx::query("SELECT count(*) FROM calls").fetch_one(&mut superuser).await?;
    assert_eq!(row.get::<i64, _>(0), 36);
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused_at_the_door_and_replaced_in_results() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let worker = worker(&store).await?;
    let session = running_session(&store, &context, worker).await?;
    let mut nul = admission(&context, session.id);
    nul.call.arguments = json!({"command": "a\0b"});
    assert!(matches!(store.admit(nul).await, Err(StoreError::Unstorable { field: "arguments", .. })));
    let mut nul = admission(&context, session.id);
    nul.call.description = Some("\0".to_owned());
    assert!(matches!(store.admit(nul).await, Err(StoreError::Unstorable { field: "description", .. })));

    let call = started(&store, &context, session.id, worker).await?;
    let mut watch = store.bus().subscribe_call(call.id);
    let mut odd = outcome(CallStatus::Failed);
    odd.result = Some(CallResult {
        output: "a\0b\\u0000".to_owned(),
        structured: json!({"k\0": ["\0", "\u{10ffff}", 1e300]}),
        ..CallResult::default()
    });
    odd.error = Some(CallError::new(Code::PlatformError, "x\0y"));
    let progress = EventBody::Progress { message: Some("\0".to_owned()), percent: Some(1.5) };
    let bytes = output(0, b"\0\xff\0");
    let fence = Fence::of(&call).context("started")?;
    store.finish_call(&fence, Announce::Started, vec![progress, bytes], odd).await?;
    let stored = all_events(&store, &context, call.id).await?;
    let CallChange::Events(live) = watch.changed().await else { bail!("a batch") };
    assert_eq!(live.to_vec(), stored);
    assert!(matches!(&stored[2].body, EventBody::Output(piece) if piece.bytes == b"\0\xff\0"));
    let call = store.get_call(&context, call.id).await?;
    assert_eq!(call.result.map(|result| result.output), Some("a\u{fffd}b\\u0000".to_owned()));
    assert_eq!(call.error.map(|error| error.message), Some("x\u{fffd}y".to_owned()));
    Ok(())
}
