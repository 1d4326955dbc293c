//! P4: eight clients, each with a session of its own, against eight threads that start the same command themselves,
//! and against eight clients of SWE-ReX.

use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use serde_json::json;

use crate::bench::Bench;
use crate::cpu::CpuTimes;
use crate::figures::Ratio;
use crate::fork_exec;
use crate::http::{Http, Session};
use crate::peers::{SweRex, SweRexClient};
use crate::report::{Goal, Row, Unit};
use crate::window::Window;

const CLIENTS: usize = 8;

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

    let swe_rex = SweRex::start().await?;
    let mut their_clients = Vec::new();
    if let Some(swe_rex) = &swe_rex {
        for _ in 0..CLIENTS {
            their_clients.push(swe_rex.client().await?);
        }
    }
    let (mut rates, mut against_swe_rex, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.effort.rounds {
        bench.progress.step("slices of calls and of processes in turn, round", round, bench.effort.rounds);
        let before = CpuTimes::now(&bench.stack)?;
        let (ours, calls) = calls_per_second(&mut clients, slice).await?;
        cpu.push((CpuTimes::now(&bench.stack)?.since(&before), calls as f64));
        let theirs = tokio::task::spawn_blocking(move || processes_per_second(slice)).await??;
        rates.push((ours, theirs));
        if swe_rex.is_some() {
            against_swe_rex.push((ours, executions_per_second(&mut their_clients, slice).await?));
        }
    }
    drop(their_clients);
    if let Some(swe_rex) = swe_rex {
        swe_rex.stop().await?;
    }
    for (http, session) in &mut clients {
        http.end_session(session).await?;
    }

    let peer = "8 clients' calls / SWE-ReX /execute by 8 clients, per second";
    Ok(vec![
        row("8 clients' calls / 8 threads' fork+exec, per second", Goal::AtLeast(0.9), rates),
        if against_swe_rex.is_empty() {
            Row::missing("P4", peer, Goal::AtLeast(5.0))
        } else {
            row(peer, Goal::AtLeast(5.0), against_swe_rex)
        },
        cpu_row(&cpu),
    ])
}

fn row(what: &str, goal: Goal, rates: Vec<(f64, f64)>) -> Row {
    let ratio = Ratio::of(rates.iter().map(|(ours, theirs)| ours / theirs));
    let (ours, theirs): (Vec<f64>, Vec<f64>) = rates.into_iter().unzip();
    let median = |rates: &[f64]| Ratio::of(rates.iter().copied()).median;
    Row::ratio("P4", what, goal, ratio)
        .measured(format!("{:.0}/s / {:.0}/s", median(&ours), median(&theirs)))
        .samples(json!({"ours": {"per_second": ours}, "theirs": {"per_second": theirs}}))
}

async fn executions_per_second(clients: &mut [SweRexClient], slice: Duration) -> Result<f64> {
    let window = Window::from_now(slice);
    let counts = clients.iter_mut().map(async |client| {
        let mut counted = 0_usize;
        while window.is_open() {
            client.execute().await?;
            counted += window.counts_now();
        }
        anyhow::Ok(counted)
    });
    Ok(window.rate(try_join_all(counts).await?))
}

/// Time of the processor for each call, whoever of ours used it.
fn cpu_row(cpu: &[(CpuTimes, f64)]) -> Row {
    let each =
        |part: fn(&CpuTimes) -> f64| Ratio::of(cpu.iter().map(|(times, calls)| part(times) / calls)).median;
    let (service, postgres) = (each(|times| times.service), each(|times| times.postgres));
    let sandboxes = each(|times| times.sandboxes.unwrap_or(f64::NAN));
    let what = "CPU time of a call: service, database and sandbox";
    Row::note("P4", what, service + postgres + sandboxes, Unit::Milliseconds)
        .measured(format!("{service:.2} + {postgres:.2} + {sandboxes:.2} ms"))
        .samples(json!({"service_ms": service, "postgres_ms": postgres, "sandbox_ms": sandboxes}))
}

async fn calls_per_second(clients: &mut [(Http, Session)], slice: Duration) -> Result<(f64, usize)> {
    let window = Window::from_now(slice);
    let counts = clients.iter_mut().map(async |(http, session)| {
        let (mut counted, mut calls) = (0_usize, 0_usize);
        while window.is_open() {
            http.echo(session).await?;
            counted += window.counts_now();
            calls += 1;
        }
        anyhow::Ok((counted, calls))
    });
    let (counts, calls): (Vec<_>, Vec<_>) = try_join_all(counts).await?.into_iter().unzip();
    Ok((window.rate(counts), calls.iter().sum()))
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
