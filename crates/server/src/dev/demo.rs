//! One call over our own HTTP API, printed as it happens: what a new user sees first.

use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};

const COMMAND: &str = "for step in 1 2 3; do echo \"step $step of 3\"; sleep 0.3; done; python3 -c 'import platform; print(\"Python\", platform.python_version(), \"on\", platform.system())'";

/// Creates a session, runs a command, prints each event when it arrives, and deletes the session.
pub(super) async fn run(url: &str, key: &str) -> Result<()> {
    let http = Client::builder().no_proxy().build().context("cannot make an HTTP client")?;
    let session = post(&http, &format!("{url}/v1/sessions"), key)
        .json(&json!({"metadata": {"made_by": "toolhost dev"}}))
        .send()
        .await?;
    let session: Value = accepted(session).await?.json().await?;
    let session_id = session["id"].as_str().context("a session has an id")?;
    println!("  POST /v1/sessions → {session_id}");
    println!("  POST /v1/sessions/{session_id}/calls {{\"tool\": \"bash\", …}}");
    let stream = post(&http, &format!("{url}/v1/sessions/{session_id}/calls"), key)
        .header("accept", "text/event-stream")
        .json(
            &json!({"tool": "bash", "arguments": {"command": COMMAND}, "description": "Show that it works"}),
        )
        .send()
        .await?;
    let status = print_events(accepted(stream).await?).await?;
    http.delete(format!("{url}/v1/sessions/{session_id}")).bearer_auth(key).send().await?;
    ensure!(status == "succeeded", "the demo call ended as {status}");
    Ok(())
}

fn post(http: &Client, url: &str, key: &str) -> RequestBuilder {
    http.post(url).bearer_auth(key)
}

async fn accepted(response: Response) -> Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let problem: Value = response.json().await.unwrap_or_default();
    bail!("{status}: {}", problem["detail"].as_str().or(problem["title"].as_str()).unwrap_or("no details"))
}

/// Prints events until the last one; the call's final status.
async fn print_events(response: Response) -> Result<String> {
    let began = Instant::now();
    let mut body = response.bytes_stream();
    let mut pending = Vec::new();
    while let Some(piece) = body.next().await {
        pending.extend_from_slice(&piece.context("the stream broke")?);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            let event: Value = serde_json::from_slice(data).context("an event's data is JSON")?;
            let Some(kind) = event["type"].as_str() else { continue };
            let seq = event["seq"].as_u64().unwrap_or_default();
            println!(
                "    {:>7.3} s  {seq:>2}  {kind:<12}  {}",
                began.elapsed().as_secs_f64(),
                words(kind, &event)
            );
            std::io::stdout().flush()?;
            if kind == "call.ended" {
                return Ok(event["status"].as_str().unwrap_or_default().to_owned());
            }
        }
    }
    bail!("the stream ended before the call")
}

/// What an event says, in one line.
fn words(kind: &str, event: &Value) -> String {
    match kind {
        "call.queued" => format!("position {}", event["position"]),
        "call.started" => format!("attempt {}", event["attempt"]),
        "call.output" => {
            let text = event["text"].as_str().unwrap_or("(bytes)").trim_end().replace('\n', " ⏎ ");
            format!("{}: {text}", event["stream"].as_str().unwrap_or_default())
        }
        "call.ended" => {
            let status = event["status"].as_str().unwrap_or_default();
            let millis = &event["usage"]["duration_ms"];
            match event["result"]["exit_code"].as_i64() {
                Some(code) => format!("{status}, exit code {code}, {millis} ms"),
                None => format!("{status}: {}", event["error"]["message"].as_str().unwrap_or("no details")),
            }
        }
        _ => String::new(),
    }
}
