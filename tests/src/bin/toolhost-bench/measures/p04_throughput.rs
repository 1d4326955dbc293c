//! P4: eight clients, each with a session of its own, against eight threads that start the same command themselves.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;
use serde_json::json;

use crate::bench::Bench;
use crate::figures::Ratio;
use crate::fork_exec;
use crate::http::{Http, Session};
use crate::report::{Goal, Row};

const CLIENTS: usize = 8;
/// Part of a slice that is not counted: what the slice before has left to do is done in it.
const RAMP: Duration = Duration::from_millis(500);

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let slice = Duration::from_secs(bench.effort.slice_s);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut http = bench.stack.client().await?;
        let session = http.create_session().await?;
        http.echo(&session).await?;
        clients.push((http, session));
    }
    bench.stack.pool_is_full(&mut bench.progress).await?;

    let mut rates = Vec::new();
    for round in 0..bench.effort.rounds {
        bench.progress.step("slices of calls and of processes in turn, round", round, bench.effort.rounds);
        let ours = calls_per_second(&mut clients, slice).await?;
        let theirs = tokio::task::spawn_blocking(move || processes_per_second(slice)).await??;
        rates.push((ours, theirs));
    }
    for (http, session) in &mut clients {
        http.end_session(session).await?;
    }

    let ratio = Ratio::of(rates.iter().map(|(ours, theirs)| ours / theirs));
    let (ours, theirs): (Vec<f64>, Vec<f64>) = rates.into_iter().unzip();
    let median = |rates: &[f64]| Ratio::of(rates.iter().copied()).median;
    Ok(vec![
        Row::ratio("P4", "8 clients' calls / 8 threads' fork+exec, per second", Goal::AtLeast(0.9), ratio)
            .measured(format!("{:.0}/s / {:.0}/s", median(&ours), median(&theirs)))
            .samples(json!({"ours": {"per_second": ours}, "theirs": {"per_second": theirs}})),
    ])
}

async fn calls_per_second(clients: &mut [(Http, Session)], slice: Duration) -> Result<f64> {
    let window = Window::from_now(slice);
    let counts = clients.iter_mut().map(async |(http, session)| {
        let mut counted = 0_usize;
        while window.is_open() {
            http.echo(session).await?;
            counted += window.counts_now();
        }
        anyhow::Ok(counted)
    });
    Ok(window.rate(try_join_all(counts).await?))
}

fn processes_per_second(slice: Duration) -> Result<f64> {
    let window = Window::from_now(slice);
    let counts: Vec<Result<usize>> = std::thread::scope(|scope| {
        let work = || {
            let mut counted = 0;
            while window.is_open() {
                fork_exec::once()?;
                counted += window.counts_now();
            }
            Ok(counted)
        };
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
            .collect()
    });
    Ok(window.rate(counts.into_iter().collect::<Result<Vec<_>>>()?))
}

/// The time in which ends count.
#[derive(Debug, Clone, Copy)]
struct Window {
    opens_at: Instant,
    closes_at: Instant,
}

impl Window {
    fn from_now(slice: Duration) -> Self {
        let now = Instant::now();
        Self { opens_at: now + RAMP, closes_at: now + slice }
    }

    fn is_open(&self) -> bool {
        Instant::now() < self.closes_at
    }

    fn counts_now(&self) -> usize {
        let now = Instant::now();
        usize::from(now >= self.opens_at && now < self.closes_at)
    }

    fn rate(&self, counts: Vec<usize>) -> f64 {
        counts.into_iter().sum::<usize>() as f64 / (self.closes_at - self.opens_at).as_secs_f64()
    }
}
