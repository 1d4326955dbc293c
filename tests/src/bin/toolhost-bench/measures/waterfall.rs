//! Where the time of one warm call goes, by its own trace: the spans that a collector gets of it, as rows and as a picture.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use opentelemetry_proto::tonic::trace::v1::Span;
use tests::collector::Collector;
use tests::wait;

use crate::bench::Bench;
use crate::figures::Samples;
use crate::report::{Row, Unit};
use crate::stack;
use crate::svg::{Anchor, Picture};

/// The spans of a call that starts with its admission, what each is, and its colour.
const SPANS: [(&str, &str, &str); 5] = [
    ("request", "the request, as the service has it", "one"),
    ("admission", "admission, with the first commit", "one"),
    ("call", "the worker's run, with the second commit", "two"),
    ("tool", "the tool", "two"),
    ("process", "the command, as the worker sees it", "three"),
];

/// One call: when it was asked for and answered, and its spans in the order above; all in milliseconds since it was asked for.
#[derive(Debug, Clone, Copy)]
struct Trace {
    took: f64,
    spans: [(f64, f64); SPANS.len()],
}

impl Trace {
    /// The stretches between the spans' ends, which cover the call without a gap.
    fn stretches(&self) -> [(&'static str, f64); 7] {
        let [_, admission, call, tool, process] = self.spans;
        [
            ("request sent, read, key and arguments checked", admission.0),
            ("admission, with the first commit", admission.1 - admission.0),
            ("handed to the worker, the tool begins", tool.0 - admission.1),
            ("sent to the agent, and begun", process.0 - tool.0),
            ("the command, until the worker knows its end", process.1 - process.0),
            ("result shaped, the second commit", call.1 - process.1),
            ("request woken, answer written and read", self.took - call.1),
        ]
    }
}

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let collector = Collector::start().await?;
    bench.stack.export_traces_to(Some(&collector.url))?;
    bench.stack.serve(&mut bench.progress).await?;
    let mut http = bench.stack.client().await?;
    let session = http.create_session().await?;
    bench.stack.pool_is_full(&mut bench.progress).await?;
    for _ in 0..bench.effort.warm_up {
        http.echo(&session).await?;
    }
    let calls = bench.effort.rounds * bench.effort.block * 2;
    let mut asked = Vec::new();
    for number in 0..calls {
        bench.progress.step("traced call", number, calls);
        let trace = format!("{:032x}", rand::random::<u128>().max(1));
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let took = http.traced_echo(&session, &format!("00-{trace}-00000000000000aa-01")).await?;
        asked.push((trace, since, took));
    }
    http.end_session(&session).await?;
    bench.progress.say("waiting for the spans");
    let mut traces = Vec::new();
    for (trace, since, took) in &asked {
        wait::until("the call's spans arrive", async || Ok(gathered(&collector, trace).is_some())).await?;
        let spans = gathered(&collector, trace).context("the spans are there")?;
        traces.push(read(&spans, *since, *took));
    }
    bench.stack.export_traces_to(None)?;
    traces.sort_by(|one, other| one.took.total_cmp(&other.took));
    let median = *traces.get(traces.len() / 2).context("no call was traced")?;
    let words = format!(
        "![One warm call of bash as spans on a scale of time](performance-waterfall.svg)\n\nThe median of {calls} calls, on {}.\n",
        chrono::Utc::now().format("%Y-%m-%d")
    );
    std::fs::write(stack::folder()?.join("waterfall.md"), words)?;
    let path = stack::folder()?.join("waterfall.svg");
    std::fs::write(&path, draw(&median, calls))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(rows(&traces))
}

/// A call's spans in the order of [`SPANS`], once all are there.
fn gathered(collector: &Collector, trace: &str) -> Option<Vec<Span>> {
    let spans = collector.of_trace(trace);
    SPANS.iter().map(|(name, ..)| spans.iter().find(|span| span.name == *name).cloned()).collect()
}

fn read(spans: &[Span], since: Duration, took: Duration) -> Trace {
    let since = since.as_nanos() as i128;
    let ms = |at: u64| (i128::from(at) - since) as f64 / 1e6;
    Trace {
        took: took.as_secs_f64() * 1e3,
        spans: std::array::from_fn(|n| (ms(spans[n].start_time_unix_nano), ms(spans[n].end_time_unix_nano))),
    }
}

/// Each stretch's median over all calls.
fn rows(traces: &[Trace]) -> Vec<Row> {
    let stretches = traces.first().map(|trace| trace.stretches().map(|(what, _)| what)).into_iter().flatten();
    stretches
        .enumerate()
        .map(|(n, what)| {
            let mut samples = Samples::default();
            for trace in traces {
                samples.add(Duration::from_secs_f64((trace.stretches()[n].1 / 1e3).max(0.0)));
            }
            Row::note("trace", what, samples.p50(), Unit::Milliseconds)
                .measured(format!("p95 {:.2} ms", samples.p95()))
        })
        .collect()
}

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 920.0;
const TOP: f64 = 88.0;
const ROW: f64 = 30.0;

fn draw(trace: &Trace, calls: usize) -> String {
    let mut picture = Picture::default();
    picture.text(24.0, 34.0, Anchor::Start, "title", "One warm call of bash, by its trace");
    let which = format!(
        "The median of {calls} calls, {:.2} ms from the request to the answer; times in ms.",
        trace.took
    );
    picture.text(24.0, 56.0, Anchor::Start, "faint", &which);
    let x = |ms: f64| LEFT + (ms / trace.took).clamp(0.0, 1.0) * (RIGHT - LEFT);
    let bottom = TOP + ROW * (SPANS.len() + 1) as f64;
    let step = nice_step(trace.took);
    for n in 0..=(trace.took / step) as u32 {
        let at = f64::from(n) * step;
        picture.line((x(at), TOP - 6.0), (x(at), bottom), "line", 1.0);
        picture.text(x(at), TOP - 12.0, Anchor::Middle, "faint", &trimmed(at));
    }
    let client = ("client", "from POST to answer, as the client sees it", "faint");
    let bars = std::iter::once((client, (0.0, trace.took))).chain(SPANS.into_iter().zip(trace.spans));
    for (n, ((name, what, colour), (from, to))) in (0_u32..).zip(bars) {
        let top = TOP + ROW * f64::from(n);
        picture.text(24.0, top + 14.0, Anchor::Start, "", name);
        picture.text(24.0, top + 26.0, Anchor::Start, "faint small", what);
        picture.bar((x(from), top + 5.0), ((x(to) - x(from)).max(1.5), 16.0), colour);
        let end = if x(to) > RIGHT - 60.0 { RIGHT } else { x(to) };
        picture.text(end + 8.0, top + 17.5, Anchor::Start, "number", &format!("{:.2}", to - from));
    }
    picture.finish(WIDTH, bottom + 24.0, "The spans of one call on a scale of time")
}

/// A step of the scale that makes four to ten marks.
fn nice_step(took: f64) -> f64 {
    let steps = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0];
    steps.into_iter().find(|step| took / step <= 10.0).unwrap_or(100.0)
}

fn trimmed(at: f64) -> String {
    let text = format!("{at:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod stretch_tests {
    use super::*;

    #[test]
    fn stretches_cover_the_whole_call() {
        let trace = Trace { took: 3.0, spans: [(0.1, 2.9), (0.3, 1.0), (1.1, 2.6), (1.2, 2.0), (1.4, 1.8)] };
        let sum: f64 = trace.stretches().iter().map(|(_, ms)| ms).sum();
        assert!((sum - trace.took).abs() < 1e-9, "{sum}");
        assert!(draw(&trace, 1).matches("<rect").count() == 1 + 1 + SPANS.len());
    }
}
