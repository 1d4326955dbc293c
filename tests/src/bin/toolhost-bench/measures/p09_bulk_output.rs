//! P9: a call that writes as fast as it can, kept in full: from its start to the last byte in the durable log, and what it costs in memory.

use anyhow::{Context, Result, ensure};
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
    let mut rates = Vec::new();
    for round in 0..bench.effort.rounds {
        bench.progress.step("floods of output, round", round, bench.effort.rounds);
        let (_, call) = http.timed_any(&session, &call).await?;
        ensure!(call["usage"]["bytes_out"] == BYTES, "not all of it: {}", call["usage"]);
        ensure!(
            call["result"]["truncated"]["dropped_bytes"] == 0,
            "not kept: {}",
            call["result"]["truncated"]
        );
        let ms = call["usage"]["duration_ms"].as_u64().context("a duration")?.max(1);
        rates.push(BYTES as f64 / 1e3 / ms as f64);
    }
    let peak = bench.stack.memory_kib("VmHWM")?;
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
