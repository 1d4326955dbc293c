//! P7: the queue alone, calls that do nothing by 64 clients, against job queues over the same Postgres.
//!
//! Each has a database of its own in one cluster that waits for the disk at each commit. Ours does more for each call: events, an audit
//! trail that is sealed beside it, limits and fences; that is in its figure.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::bench::Bench;
use crate::figures::Ratio;
use crate::own_queue::{OwnQueue, Way};
use crate::peers::Queue;
use crate::report::{Goal, Row, Unit};

const GRAPHILE: (&str, Goal) = ("Graphile Worker", Goal::AtLeast(10.0));
const PG_BOSS: (&str, Goal) = ("pg-boss, batches of 50", Goal::AtLeast(2.0));

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.stop_service()?;
    let slice = Duration::from_secs(bench.effort.slice_s);
    let database = bench.stack.new_database("bench_queue").await?;
    let ours = OwnQueue::open(&database).await?;
    let mut peers = [
        (
            GRAPHILE,
            Queue::graphile_worker(&bench.stack.new_database("bench_graphile").await?).await?,
            Vec::new(),
        ),
        (PG_BOSS, Queue::pg_boss(&bench.stack.new_database("bench_pgboss").await?).await?, Vec::new()),
    ];
    let (mut at_once, mut claimed) = (Vec::new(), Vec::new());
    for round in 0..bench.effort.rounds {
        bench.progress.step("slices of each queue in turn, round", round, bench.effort.rounds);
        at_once.push(ours.calls_per_second(Way::AtOnce, slice).await?);
        claimed.push(ours.calls_per_second(Way::Claimed, slice).await?);
        for (_, peer, rates) in &mut peers {
            if let Some(peer) = peer {
                rates.push(peer.jobs_per_second(slice).await?);
            }
        }
    }
    ours.close().await;
    let disk = disk(&database).await?;
    let mut rows = Vec::new();
    for ((name, goal), peer, rates) in peers {
        let what = format!("no-op calls by 64 clients / {name}, per second");
        let Some(peer) = peer else {
            rows.push(Row::missing("P7", &what, goal));
            continue;
        };
        rows.push(
            Row::ratio("P7", &what, goal, ratio(&at_once, &rates))
                .measured(format!("{:.0}/s / {:.0}/s ({})", median(&at_once), median(&rates), peer.name))
                .samples(json!({"ours": {"per_second": at_once}, "theirs": {"per_second": rates}})),
        );
        let what = format!("the same, queued and claimed, / {name}");
        rows.push(
            Row::note("P7", &what, ratio(&claimed, &rates).median, Unit::Times)
                .measured(format!("{:.0}/s / {:.0}/s", median(&claimed), median(&rates)))
                .samples(json!({"ours": {"per_second": claimed}, "theirs": {"per_second": rates}})),
        );
        peer.stop().await?;
    }
    rows.push(
        Row::note(
            "P7",
            "no-op calls by 64 clients, started with their admission",
            median(&at_once),
            Unit::PerSecond,
        )
        .measured(format!("queued and claimed {:.0}/s", median(&claimed))),
    );
    rows.push(disk);
    Ok(rows)
}

/// What calls leave in the database, with their events and audit rows.
async fn disk(url: &str) -> Result<Row> {
    let mut database = PgConnection::connect(url).await?;
    let (calls, bytes): (i64, i64) =
        sqlx::query_as("SELECT count(*), pg_database_size(current_database()) FROM calls")
            .fetch_one(&mut database)
            .await?;
    database.close().await?;
    let each = bytes as f64 / calls.max(1) as f64;
    Ok(Row::note(
        "P7",
        "disk for a million no-op calls, audit trail included",
        each * 1e6 / 1_048_576.0,
        Unit::Mebibytes,
    )
    .measured(format!("{each:.0} bytes each, of {calls} calls")))
}

fn ratio(ours: &[f64], theirs: &[f64]) -> Ratio {
    Ratio::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
}

fn median(rates: &[f64]) -> f64 {
    Ratio::of(rates.iter().copied()).median
}
