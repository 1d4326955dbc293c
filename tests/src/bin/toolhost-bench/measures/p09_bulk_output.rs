//! P9: a call that writes as fast as it can, kept in full: from its POST to its answer, which comes when the last byte is durable, and what
//! it costs in memory. What the log has of the last one is read back.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::json;

use crate::bench::Bench;
use crate::figures::Ratio;
use crate::http::Http;
use crate::report::{Goal, Row, Unit};

/// Less than a call keeps.
const BYTES: u64 = 48 * 1024 * 1024;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let mut http = bench.stack.client().await?;
    let session = http.create_session().await?;
    bench.stack.pool_is_full(&mut bench.progress).await?;
    let command = format!("head -c {BYTES} /dev/zero | tr '\\0' x");
    let call = Http::call_body("bash", &json!({"command": command}));
    http.timed_any(&session, &call).await?;
    bench.stack.reset_peak_memory()?;
    let before = bench.stack.memory_kib("VmRSS")?;
    let (mut rates, mut last) = (Vec::new(), String::new());
    for round in 0..bench.effort.rounds {
        bench.progress.step("floods of output, round", round, bench.effort.rounds);
        let (taken, call) = http.timed_any(&session, &call).await?;
        ensure!(call["usage"]["bytes_out"] == BYTES, "not all of it: {}", call["usage"]);
        ensure!(
            call["result"]["truncated"]["dropped_bytes"] == 0,
            "not kept: {}",
            call["result"]["truncated"]
        );
        // The answer comes when the last byte is durable.
        rates.push(BYTES as f64 / 1e6 / taken.as_secs_f64());
        last = call["id"].as_str().context("a call has an id")?.to_owned();
    }
    let peak = bench.stack.memory_kib("VmHWM")?;
    let kept = http.send("GET", &format!("/v1/calls/{last}/output?stream=stdout"), Bytes::new()).await?;
    ensure!(
        kept.body.len() as u64 == BYTES && kept.body.iter().all(|&byte| byte == b'x'),
        "the log has not what was written"
    );
    http.end_session(&session).await?;
    let grown_mib = peak.saturating_sub(before) as f64 / 1024.0;
    Ok(vec![
        Row::rate(
            "P9",
            "output of a call into the durable log",
            Goal::AtLeast(100.0),
            Ratio::of(rates.iter().copied()),
        )
        .measured(format!("{} MiB a call", BYTES >> 20))
        .samples(json!({"ours": {"mb_per_second": rates}})),
        Row::note("P9", "the service's memory at its peak over before", grown_mib, Unit::Mebibytes)
            .measured(format!("{:.0} MiB before", before as f64 / 1024.0)),
    ])
}
