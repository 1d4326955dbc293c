//! What one request, and one tenant, may take of a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::{Readiness, ReadinessCheck};
use domain::call::Outcome;
use domain::{CallEnded, CallResult, CallStatus, CallUsage, ContentBlock, EndReason, limits};
use futures_util::StreamExt;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use store::testing::{until, until_some};
use tokio::sync::{Notify, Semaphore};
use tower::ServiceExt;

use crate::app::App;
use crate::client::{Client, Reply};
use crate::issuer::{Answer, Issuer, KeyServer, claims, signed};

/// A result that takes several megabytes as JSON.
fn huge() -> Outcome {
    let data = Some("A".repeat(2_000_000));
    let result = CallResult {
        // As JSON six bytes each.
        output: "\u{1}".repeat(1_000_000),
        structured: json!({"stdout": "x".repeat(1_000_000)}),
        content: vec![ContentBlock::Image { mime_type: "image/png".to_owned(), data, artifact_id: None }],
        ..CallResult::default()
    };
    Outcome {
        status: CallStatus::Succeeded,
        result: Some(result),
        error: None,
        ended: CallEnded::because(EndReason::Exited),
        usage: CallUsage::default(),
    }
}

/// Ends so many calls, each with a huge result.
async fn end_hugely(app: &App, count: usize) {
    let mut worker = app.worker().await;
    worker.serve_sessions().await;
    for _ in 0..count {
        let mut running = worker.claim().await;
        running.start().await;
        running.finish_with(huge()).await;
    }
}

/// The answer: bounded, but for what the request itself brought.
#[track_caller]
fn bounded(reply: &Reply) -> Value {
    let answer = reply.expect(200);
    assert!(reply.bytes.len() < limits::ANSWER_BYTES + 64 * 1024, "{} bytes", reply.bytes.len());
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_blocks_share_one_answer() {
    const BLOCKS: usize = 6;
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let path = format!("/v1/sessions/{session}/tool_results");
    let block = |n: usize| json!({"type": "tool_use", "id": format!("toolu_{n}"), "name": "bash", "input": {"command": "make"}});
    let blocks: Vec<_> = (0..BLOCKS).map(block).collect();
    let request = |blocks: &[Value]| json!({"format": "anthropic", "wait_ms": 0, "output_budget_bytes": 1_000_000, "tool_calls": blocks});
    let first = client.post(&path, &request(&blocks)).await.expect(200);
    assert_eq!(first["pending"], json!(BLOCKS));
    // What is made for a shared answer has a budget that fits into it.
    let call = first["calls"][0]["call_id"].as_str().expect("a call").to_owned();
    let budget = client.get(&format!("/v1/calls/{call}")).await.expect(200)["output_budget_bytes"].as_u64();
    assert_eq!(budget, Some((limits::ANSWER_BYTES / BLOCKS / 2) as u64));
    end_hugely(&app, BLOCKS).await;
    let answer = bounded(&client.post(&path, &request(&blocks)).await);
    for (index, result) in answer["results"].as_array().expect("results").iter().enumerate() {
        let text = result["content"][0]["text"].as_str().expect("text");
        let of = answer["calls"][index]["call_id"].as_str().expect("a call");
        assert!(text.contains("bytes are left out here") && text.contains(&format!("GET /v1/calls/{of}")));
        assert!(text.contains("1 picture(s) are left out"), "{}", &text[text.len() - 500..]);
        assert_eq!(
            (result["content"].as_array().map(Vec::len), &result["is_error"]),
            (Some(1), &json!(false))
        );
    }
    // Nothing is lost: the call has all of it, and asked for alone it has the whole answer to itself.
    let whole = client.get(&format!("/v1/calls/{call}")).await.expect(200);
    assert_eq!(whole["result"]["output"].as_str().map(str::len), Some(1_000_000));
    let alone = bounded(&client.post(&path, &request(&blocks[..1])).await);
    assert_eq!(
        alone["results"][0]["content"][0]["text"].as_str().map(|text| text.matches('\u{1}').count()),
        Some(1_000_000)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_a_batch_share_one_answer_again_and_again() {
    const CALLS: usize = 4;
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let path = format!("/v1/sessions/{session}/calls/batch");
    let call = json!({"tool": "bash", "arguments": {"command": "make"}});
    let batch = json!({"calls": vec![call; CALLS]});
    let send = || client.send(client.request("POST", &path).header("idempotency-key", "once").json(&batch));
    send().await.expect(200);
    end_hugely(&app, CALLS).await;
    let answer = bounded(&send().await);
    for item in answer["data"].as_array().expect("items") {
        let (id, result) = (item["call"]["id"].as_str().expect("an id"), &item["call"]["result"]);
        let system = result["system"].as_str().expect("a remark");
        assert!(
            system.contains("not the whole result") && system.contains(&format!("/v1/calls/{id}")),
            "{system}"
        );
        assert!(result["output"].as_str().is_some_and(|output| output.contains("bytes are left out here")));
        assert_eq!((&item["call"]["status"], &result["structured"]), (&json!("succeeded"), &Value::Null));
    }
}

/// Requests that wait for a call which nobody runs.
fn wait(client: &Client, session: &str, count: usize) -> Vec<tokio::task::JoinHandle<Reply>> {
    let body = json!({"tool": "bash", "arguments": {"command": "true"}, "wait_ms": 60_000});
    let path = format!("/v1/sessions/{session}/calls");
    let one = |_| {
        let (client, path, body) = (client.clone(), path.clone(), body.clone());
        tokio::spawn(async move { client.post(&path, &body).await })
    };
    (0..count).map(one).collect()
}

/// Until so many requests are under way.
async fn under_way(app: &App, count: f64) {
    let are = async || app.metric("toolhost_http_requests_in_flight") >= count;
    until("they are under way", Duration::from_secs(30), are).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_lets_everything_wait_leaves_room_for_others() {
    let app = App::with(|config| config.requests = 16).await;
    let (greedy, other) = (app.client().await, app.tenant("other").await.1);
    let session = greedy.session().await;
    let waiting = wait(&greedy, &session, 2);
    under_way(&app, 2.0).await;
    let refused = until_some("its share is taken", Duration::from_secs(30), async || {
        Some(greedy.get("/v1/calls").await).filter(|reply| reply.status == 429)
    })
    .await;
    let problem = refused.problem(429, "quota_exceeded");
    assert_eq!((&problem["quota"], &problem["limit"]), (&json!("requests_under_way"), &json!(2)));
    assert_eq!((refused.header("retry-after"), &problem["retryable"]), ("1", &json!(true)));
    other.get("/v1/calls").await.expect(200);
    other.submit(&other.session().await).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let again = async || greedy.get("/v1/calls").await.status != 429;
    until("its share is given back", Duration::from_secs(30), again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_process_still_says_how_it_is() {
    let app = App::with(|config| config.requests = 2).await;
    let (first, second) = (app.client().await, app.tenant("other").await.1);
    let sessions = [first.session().await, second.session().await];
    let _waiting = [wait(&first, &sessions[0], 1), wait(&second, &sessions[1], 1)];
    under_way(&app, 2.0).await;
    let third = app.tenant("third").await.1;
    let full = until_some("the process is full", Duration::from_secs(30), async || {
        Some(third.get("/v1/me").await).filter(|reply| reply.status == 503)
    })
    .await;
    full.problem(503, "capacity");
    for path in ["/healthz", "/readyz", "/openapi.json", "/problems/capacity"] {
        assert_eq!(third.with_key("").get(path).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_without_a_valid_credential_takes_a_place_from_those_who_have_one() {
    let issuer = Issuer::new();
    let server = KeyServer::start(Answer::Never).await;
    let app = App::with(|config| {
        config.requests = 2;
        config.trusted_proxies = vec!["127.0.0.1".parse().expect("an address")];
        config.issuers = vec![issuer.published(&server.url, Duration::from_millis(1))];
    })
    .await;
    let (tenant, client) = app.tenant("acme").await;
    // Tokens whose keys have to be asked for, of an issuer that does not answer, from many addresses.
    let claims = claims(&tenant.to_string(), 600);
    let token = signed(&json!({"alg": "RS256", "kid": "one"}), &claims, |text| issuer.rs256(text));
    let nobody = |number: usize| {
        let client = client.with_key(&token);
        let from = format!("198.51.100.{number}");
        tokio::spawn(async move {
            client.send(client.request("GET", "/v1/me").header("x-forwarded-for", from)).await
        })
    };
    let nobodies: Vec<_> = (0..40).map(nobody).collect();
    // More than may be: how many of them meet depends on how long each is made to wait.
    under_way(&app, 3.0).await;
    client.get("/v1/me").await.expect(200);
    for nobody in nobodies {
        nobody.await.expect("joins").problem(503, "issuer_unavailable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_end_are_not_waited_for_without_a_credential() {
    let app = App::with(|config| config.requests = 2).await;
    let client = app.client().await;
    let address = app.base.trim_start_matches("http://").to_owned();
    let stream = tokio::net::TcpStream::connect(&address).await.expect("connects");
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .expect("greets");
    tokio::spawn(connection);
    // Far more than a connection may have at a time: each is over with its answer.
    let ask = |number: usize| {
        let (mut sender, address) = (sender.clone(), address.clone());
        let first = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(
            bytes::Bytes::from_static(b"{\"tool\":"),
        ))]);
        let body = StreamBody::new(first.chain(futures_util::stream::pending()));
        let request = hyper::Request::post(format!("http://{address}/v1/calls"))
            .header("authorization", format!("Bearer th_wrong{number}"))
            .header("content-type", "application/json");
        tokio::spawn(async move {
            sender.ready().await.expect("the connection stays");
            sender.send_request(request.body(body).expect("a request")).await.expect("answered").status()
        })
    };
    let all = futures_util::future::join_all((0..400).map(ask));
    let answered = tokio::time::timeout(Duration::from_secs(60), all).await.expect("nobody waits for a body");
    assert!(answered.into_iter().all(|status| status.expect("joins") == 401));
    client.get("/v1/me").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_questions_for_readiness_costs_one_answer() {
    let app = App::start().await;
    let (asked, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let begun = Arc::new(Notify::new());
    let check = {
        let (asked, open, begun) = (Arc::clone(&asked), Arc::clone(&open), Arc::clone(&begun));
        ReadinessCheck::new("slow", move || {
            let (asked, open, begun) = (Arc::clone(&asked), Arc::clone(&open), Arc::clone(&begun));
            async move {
                asked.fetch_add(1, Ordering::SeqCst);
                begun.notify_one();
                open.acquire().await.map(drop).map_err(|error| error.to_string())
            }
        })
    };
    let readiness = Readiness::new(&app.store, vec![check], app.stop.clone());
    let router = api::metrics_router(prometheus::Registry::new(), readiness);
    let ask = || {
        let request =
            axum::extract::Request::get("/readyz").body(axum::body::Body::empty()).expect("a request");
        tokio::spawn(router.clone().oneshot(request))
    };
    let first = ask();
    tokio::time::timeout(Duration::from_secs(30), begun.notified()).await.expect("it looks");
    // Who asked first goes away; the others are answered by what it had asked for.
    first.abort();
    let flood: Vec<_> = (0..500).map(|_| ask()).collect();
    let since = Instant::now();
    open.add_permits(500);
    let mut answers = Vec::new();
    for answer in flood {
        answers.push(answer.await.expect("joins").expect("answers").status().as_u16());
    }
    assert_eq!(answers, vec![200; 500]);
    // Once, and once more whenever that answer is older than it holds, on a machine on which all of them take so long.
    let most = 1 + since.elapsed().as_millis() / 250;
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked as u128 <= most, "the checks ran {asked} times for 500 questions, and not {most}");
}
