//! Traces and lines: one call's trace from the request to the process in the sandbox, as a collector gets it, and what a
//! collector or a log that is down, slow or closed does to the service: nothing.

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Fact;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tests::collector::{Collector, hex};
use tests::{Client, Host, host, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn fact(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Fact::StringValue(text) => Some(text.clone()),
        Fact::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

/// One call with everything that nobody but its tenant may read; the call's id.
async fn canary(client: &Client) -> Result<String> {
    let session = client.session(json!({"env": {"SECRET": "canary-of-a-secret"}})).await?;
    let body = json!({
        "tool": "bash",
        "arguments": {"command": "echo canary-of-an-argument; echo canary-of-$((40 + 2))-output; echo $SECRET; exit 3"},
        "wait_ms": 60_000,
    });
    let request = client.request("POST", &format!("/v1/sessions/{session}/calls")).json(&body);
    let reply = client.send(request.header("traceparent", format!("00-{TRACE}-{PARENT}-01"))).await?;
    let call = reply.json();
    ensure!(call["result"]["exit_code"] == 3, "{call:#}");
    let text = call["result"]["structured"]["stdout"].as_str().context("stdout")?;
    ensure!(text == "canary-of-an-argument\ncanary-of-42-output\ncanary-of-a-secret\n", "{text}");
    tests::client::id_of(&call)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_runs_from_the_request_through_queue_and_worker_to_the_process() {
    let collector = Collector::start().await.expect("a collector");
    Host::test_prepared(async |host| {
        host.set("telemetry.otlp_endpoint", &collector.url);
        host.set("log.filter", "debug");
        // Two processes: the trace goes through the row.
        host.serve(&[])?;
        host.worker()?;
        let client = host.tenant("acme")?.client;
        let call_id = canary(&client).await?;
        let names = ["request", "admission", "queue", "call", "tool", "process"];
        wait::until("every span arrives", || async {
            let spans = collector.of_trace(TRACE);
            Ok(names.iter().all(|name| spans.iter().any(|span| span.name == *name)))
        })
        .await?;
        let spans = collector.of_trace(TRACE);
        let one = |name: &str| {
            let mut named = spans.iter().filter(|span| span.name == name);
            let first = named.next().with_context(|| format!("no span {name}"))?;
            ensure!(named.next().is_none(), "more than one {name}");
            Ok(first)
        };
        for (child, parent) in [
            ("admission", "request"),
            ("queue", "request"),
            ("call", "request"),
            ("tool", "call"),
            ("process", "tool"),
        ] {
            ensure!(
                one(child)?.parent_span_id == one(parent)?.span_id,
                "{child} is not under {parent}: {spans:#?}"
            );
        }
        ensure!(hex(&one("request")?.parent_span_id) == PARENT);
        ensure!(fact(one("call")?, "call_id").as_deref() == Some(call_id.as_str()));
        ensure!(fact(one("call")?, "how").as_deref() == Some("claimed"));
        let process = one("process")?;
        ensure!(fact(process, "process.exit.code").as_deref() == Some("3"), "{process:#?}");
        ensure!(
            fact(process, "process.pid").is_some_and(|pid| pid.parse::<u32>().is_ok_and(|pid| pid > 1)),
            "{process:#?}"
        );
        ensure!(process.end_time_unix_nano >= process.start_time_unix_nano);

        let spans = format!("{:?}", collector.spans());
        let key = client.key().to_owned();
        let mut lines = String::new();
        for process in &mut host.processes {
            lines.push_str(&process.said().join("\n"));
        }
        for canary in ["canary-of", "SECRET", key.as_str()] {
            ensure!(!lines.contains(canary), "a log has {canary}: {lines}");
            ensure!(!spans.contains(canary), "a trace has {canary}: {spans}");
        }
        // A line of the request has the ids by which everything else is found.
        let has_ids = |line: &&str| line.contains(TRACE) && line.contains(&call_id) && line.contains("req_");
        ensure!(lines.lines().any(|line| has_ids(&line)), "{lines}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_is_let_in_decides_what_is_recorded() {
    const STRANGER: &str = "1af7651916cd43dd8448eb211c80319c";
    let collector = Collector::start().await.expect("a collector");
    Host::test_prepared(async |host| {
        host.set("telemetry.otlp_endpoint", &collector.url);
        host.set("telemetry.sampling_ratio", "0.0");
        host.serve(&[])?;
        let client = host.tenant("acme")?.client;
        let asks = async |client: &Client, path: &str, trace: &str| {
            let request =
                client.request("GET", path).header("traceparent", format!("00-{trace}-{PARENT}-01"));
            Ok::<_, anyhow::Error>(client.send(request).await?.status)
        };
        let nobody = client.with_key("");
        for (client, path, status) in [
            (&nobody, "/v1/me", 401),
            (&client.with_key("th_wrong"), "/v1/me", 401),
            (&nobody, "/healthz", 200),
            (&nobody, "/nowhere", 404),
            (&client, "/nowhere", 404),
        ] {
            ensure!(asks(client, path, STRANGER).await? == status, "{path}");
        }
        ensure!(asks(&client, "/v1/me", TRACE).await? == 200);
        // Spans arrive in the order in which they ended.
        wait::until("the tenant's span arrives", || async { Ok(!collector.of_trace(TRACE).is_empty()) })
            .await?;
        let spans = collector.spans();
        ensure!(collector.of_trace(STRANGER).is_empty(), "{spans:#?}");
        ensure!(spans.len() == 1, "nothing else is recorded: {spans:#?}");
        Ok(())
    })
    .await;
}

/// What a page of metrics says.
async fn value(metrics: &Client, name: &str) -> Result<f64> {
    let page = String::from_utf8(metrics.get("/metrics").await?.bytes)?;
    let line = page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_and_a_log_that_nobody_reads_hold_nothing_up() {
    // It takes connections (the kernel does) and never answers.
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let collector = format!("http://{}", hanging.local_addr().expect("an address"));
    Host::test_prepared(async |host| {
        host.set("telemetry.otlp_endpoint", &collector);
        host.set("log.filter", "trace");
        // The pipe of this process is read until it serves, and then never again.
        let mut process = host.spawn(&["serve", "--with-worker"])?;
        host.base = process.wait_for(|line| host::address(line, "the API listens"))?;
        let metrics = process.wait_for(|line| host::address(line, "metrics are served"))?;
        process.stop_reading();
        host.processes.push(process);
        let metrics = Client::new(&metrics, "");
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        wait::until("lines are dropped", || async {
            // Each is a line at least, and thousands of lines may wait.
            try_join_all((0..500).map(|_| client.get("/healthz"))).await?;
            Ok(value(&metrics, "toolhost_log_lines_dropped_total").await? > 0.0)
        })
        .await?;
        wait::until("spans are dropped", || async {
            let call = client.bash(&session, "echo still").await?;
            ensure!(call["result"]["structured"]["stdout"] == "still\n", "{call:#}");
            Ok(value(&metrics, "toolhost_trace_spans_dropped_total{reason=\"not_taken\"}").await? > 0.0)
        })
        .await?;
        // And it still stops in order.
        let stopped = host.processes[0].stop()?;
        ensure!(stopped.success(), "{stopped}");
        Ok(())
    })
    .await;
    drop(hanging);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_log_and_no_collector_at_all_hold_nothing_up() {
    Host::test_prepared(async |host| {
        host.set("telemetry.otlp_endpoint", "http://127.0.0.1:9");
        let mut process = host.spawn(&["serve", "--with-worker"])?;
        host.base = process.wait_for(|line| host::address(line, "the API listens"))?;
        process.close_outputs();
        host.processes.push(process);
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        for _ in 0..20 {
            let call = client.bash(&session, "echo still").await?;
            ensure!(call["result"]["structured"]["stdout"] == "still\n", "{call:#}");
        }
        Ok(())
    })
    .await;
}

/// A scraper that asks again and again and reads nothing, so that answers wait in the process.
async fn deaf_scraper(address: std::net::SocketAddr) -> Result<tokio::net::TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4_096)?;
    let mut stream = socket.connect(address).await?;
    stream.write_all("GET /metrics HTTP/1.1\r\nhost: toolhost\r\n\r\n".repeat(300).as_bytes()).await?;
    // The first byte: it is being answered.
    stream.read_u8().await?;
    Ok(stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn scrapers_that_read_nothing_hold_nothing_up() {
    Host::test(&[], async |host| {
        let metrics = host.processes[0].wait_for(|line| host::address(line, "metrics are served"))?;
        let address = metrics.trim_start_matches("http://").parse()?;
        let mut scrapers = Vec::new();
        for _ in 0..20 {
            scrapers.push(deaf_scraper(address).await?);
        }
        // And some that say nothing at all.
        for _ in 0..20 {
            scrapers.push(tokio::net::TcpStream::connect(address).await?);
        }
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        for _ in 0..5 {
            let call = client.bash(&session, "echo still").await?;
            ensure!(call["result"]["structured"]["stdout"] == "still\n", "{call:#}");
        }
        let metrics = Client::new(&metrics, "");
        let ended = "toolhost_calls_ended_total{status=\"succeeded\",tool=\"bash\"}";
        wait::until("another one is served", || async { Ok(value(&metrics, ended).await? >= 5.0) }).await?;
        wait::until("it is ready", || async { Ok(metrics.get("/readyz").await?.status == 200) }).await?;
        // It still stops in order, with all of them there.
        let stopped = host.processes[0].stop()?;
        ensure!(stopped.success(), "{stopped}");
        drop(scrapers);
        Ok(())
    })
    .await;
}
