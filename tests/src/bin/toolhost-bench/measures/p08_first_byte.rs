//! P8: how long output takes from the process that writes it to the client that follows its call, alone and with a thousand
//! others who follow the same one.
//!
//! The command writes the time at which it writes (bash's `EPOCHREALTIME`), and the reader notes when the event has come: both
//! read the clock of one machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tests::sse::Parser;

use crate::bench::Bench;
use crate::figures::{Ratio, Samples};
use crate::http::{Http, Session};
use crate::report::{Goal, Row, Unit};

/// Calls that are followed alone in a round.
const ALONE: usize = 40;
/// As many streams as a tenant may have.
const CROWD: usize = 1_000;
/// Streams that are opened at the same time.
const AT_ONCE: usize = 32;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    bench.stack.serve(&mut bench.progress).await?;
    let mut http = bench.stack.client().await?;
    let session = http.create_session().await?;
    bench.stack.pool_is_full(&mut bench.progress).await?;
    let (mut alone, mut crowd, mut ratios) = (Samples::default(), Samples::default(), Vec::new());
    let mut grown_mib = Samples::default();
    let readers = if bench.effort.burst < 100 { CROWD / 10 } else { CROWD };
    for round in 0..bench.effort.rounds {
        bench.progress.step("streams, round", round, bench.effort.rounds);
        let mut single = Samples::default();
        for _ in 0..ALONE {
            single.extend(&delays(bench, &mut http, &session, 1, "0.1").await?);
        }
        bench.stack.reset_peak_memory()?;
        let before = bench.stack.memory_kib("VmRSS")?;
        let many = delays(bench, &mut http, &session, readers, "5").await?;
        grown_mib.push(bench.stack.memory_kib("VmHWM")?.saturating_sub(before) as f64 / 1024.0);
        ratios.push(many.p50() / single.p50());
        alone.extend(&single);
        crowd.extend(&many);
    }
    http.end_session(&session).await?;
    let samples = json!({"ours": alone.json(), "crowd": crowd.json()});
    Ok(vec![
        Row::time("P8", "output, from the process to the client, p50", Goal::AtMost(5.0), alone.p50())
            .measured(format!("p95 {:.2} ms", alone.p95()))
            .samples(samples.clone()),
        Row::ratio(
            "P8",
            &format!("the same with {readers} streams / with one, p50"),
            Goal::AtMost(2.0),
            Ratio::of(ratios),
        )
        .measured(format!("{:.2} ms (p95 {:.2}) / {:.2} ms", crowd.p50(), crowd.p95(), alone.p50()))
        .samples(samples),
        Row::note(
            "P8",
            "the same with many streams, the last reader",
            crowd.quantile(1.0),
            Unit::Milliseconds,
        ),
        Row::note(
            "P8",
            "the service's memory at its peak over before, with many streams",
            grown_mib.quantile(1.0),
            Unit::Mebibytes,
        )
        .measured(format!("{readers} streams; of {} rounds the most", bench.effort.rounds)),
    ])
}

/// One call that writes when so many seconds are over, and how long what it wrote took to each of so many readers.
async fn delays(
    bench: &Bench,
    http: &mut Http,
    session: &Session,
    readers: usize,
    pause_s: &str,
) -> Result<Samples> {
    let command = format!("sleep {pause_s}; echo at $EPOCHREALTIME");
    let call = http.submit(session, "bash", &json!({"command": command})).await?;
    let path = format!("/v1/calls/{call}/events");
    // As many requests at once as one tenant may have under way; a stream that is open is none any more.
    let streams: Vec<Incoming> =
        stream::iter((0..readers).map(async |_| bench.stack.client().await?.stream(&path).await))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
    let mut samples = Samples::default();
    for delay in try_join_all(streams.into_iter().map(delay)).await? {
        samples.add(delay);
    }
    Ok(samples)
}

/// Reads a stream to its end; how long after it was written the output came.
async fn delay(mut stream: Incoming) -> Result<Duration> {
    let mut parser = Parser::default();
    let mut delay = None;
    while let Some(frame) = stream.frame().await {
        let came_at = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let Ok(data) = frame?.into_data() else { continue };
        for event in parser.push(&data)? {
            if event.event == "call.output" && delay.is_none() {
                delay = Some(came_at.saturating_sub(written_at(&event.data.to_string())?));
            }
            if event.event == "call.ended" {
                return delay.context("it ended without output");
            }
        }
    }
    bail!("the stream ended before its call")
}

/// The time of day in an event's text, after the word `at`.
fn written_at(text: &str) -> Result<Duration> {
    let at = text.split("at ").nth(1).context("no time in the output")?;
    let digits: String = at.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let (seconds, micros) = digits.split_once('.').with_context(|| format!("no time: {digits:?}"))?;
    Ok(Duration::from_secs(seconds.parse()?) + Duration::from_micros(micros.parse()?))
}

#[cfg(test)]
mod time_tests {
    use super::*;

    #[test]
    fn the_time_is_read_from_an_event() {
        let text = r#"{"stream":"stdout","text":"at 1700000000.000250\n"}"#;
        assert_eq!(written_at(text).expect("a time"), Duration::new(1_700_000_000, 250_000));
        assert!(written_at("{}").is_err());
    }
}
