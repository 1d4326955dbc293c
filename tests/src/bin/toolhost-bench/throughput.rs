//! P4: eight clients, each with its own session, as fast as they can, in turn with the host's own fork and exec from
//! eight threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;

use crate::Options;
use crate::measure::{self, Samples};
use crate::report::Row;
use crate::stack::{COMMAND, Stack};

const CLIENTS: usize = 8;
const ROUNDS: usize = 5;

pub(crate) async fn measure(stack: &Stack, options: &Options) -> Result<Vec<Row>> {
    let round = Duration::from_secs(if options.quick { 1 } else { 4 });
    let sessions = try_join_all((0..CLIENTS).map(|_| stack.warm_session())).await?;
    let mut ratios = Samples::default();
    let mut host_rate = Samples::default();
    for _ in 0..options.times(ROUNDS).max(3) {
        let host = host(round)?;
        let ours = ours(stack, &sessions, round).await?;
        host_rate.add(Duration::from_secs_f64(host));
        ratios.add(Duration::from_secs_f64(ours / host));
    }
    for session in &sessions {
        stack.delete(session).await?;
    }
    Ok(vec![
        Row::new("P4", "host fork+exec, 8 threads", host_rate.median(), "/s", None).of(ratios.len()),
        Row::new("P4", "calls of 8 clients ÷ host", ratios.median(), "×", Some("≥ 0.9")).of(ratios.len()),
    ])
}

async fn ours(stack: &Stack, sessions: &[String], round: Duration) -> Result<f64> {
    let began = Instant::now();
    let counts = try_join_all(sessions.iter().map(|session| async move {
        let mut count = 0_usize;
        while began.elapsed() < round {
            stack.call(session).await?;
            count += 1;
        }
        anyhow::Ok(count)
    }))
    .await?;
    Ok(counts.iter().sum::<usize>() as f64 / began.elapsed().as_secs_f64())
}

fn host(round: Duration) -> Result<f64> {
    let began = Instant::now();
    let count = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let count = Arc::clone(&count);
            std::thread::spawn(move || -> Result<()> {
                while began.elapsed() < round {
                    measure::host(COMMAND)?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread of the comparison broke"))??;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}
