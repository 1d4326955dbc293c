//! What is no longer kept: 410 wherever it is asked for, with a link to what still is, and never an empty answer in its place.

use serde_json::json;

use crate::app::{App, ended_call};
use crate::client::{Client, Reply, id_of};
use crate::streams::shell_that_wrote;

/// As if a week had gone by.
const A_WEEK: &str = "SELECT toolhost_drop_partitions(parent, (now() AT TIME ZONE 'UTC')::date + 1)
    FROM (VALUES ('call_events'), ('output_chunks')) AS tables (parent)";

/// Every form of a call's output.
async fn outputs(client: &Client, call: &str) -> Vec<(String, Reply)> {
    let path = format!("/v1/calls/{call}/output");
    let mut replies = Vec::new();
    for query in ["", "?stream=stderr", "?grep=h", "?lines=1", "?lines=1-3&stream=stderr"] {
        replies.push((query.to_owned(), client.get(&format!("{path}{query}")).await));
    }
    for range in ["bytes=0-1", "bytes=3-", "bytes=-2"] {
        let request = client.request("GET", &path).header("range", range);
        replies.push((range.to_owned(), client.send(request).await));
    }
    replies
}

/// The problem, which leads to the call; and the call is there, with its result.
async fn gone(client: &Client, call: &str, what: &str, reply: &Reply) {
    assert_eq!(reply.status, 410, "{what}: {}", reply.json());
    let problem = reply.problem(410, "events_pruned");
    assert_eq!(problem["links"], json!({"call": format!("/v1/calls/{call}")}), "{what}");
    assert_eq!(problem["retryable"], false);
    let call = client.get(problem["links"]["call"].as_str().expect("a link")).await.expect(200);
    assert_eq!((&call["status"], &call["result"]["output"]), (&json!("succeeded"), &json!("done")));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_output_of_days_that_are_gone_are_said_to_be() {
    let app = App::start().await;
    let client = app.client().await;
    let mut running = app.running(&client).await;
    running.start().await;
    running.write(&[b"hello\n"]).await;
    let id = running.id();
    let signed = client.post(&format!("/v1/calls/{id}/stream_url"), &json!({})).await.expect(201);
    let token =
        signed["url"].as_str().and_then(|url| url.split_once("token=")).expect("a token").1.to_owned();
    running.finish().await;
    let path = format!("/v1/calls/{id}/events");
    let before = client.get(&path).await.expect(200);
    let last: u64 = before["next_cursor"].as_str().and_then(|text| text.parse().ok()).expect("a number");
    app.database.execute(A_WEEK).await.expect("dropped");

    for after in 0..last {
        let page = client.get(&format!("{path}?after={after}&limit=1")).await;
        gone(&client, &id, "a page", &page).await;
        assert_eq!(page.json()["pruned_before"], last);
        let stream =
            client.request("GET", &format!("{path}?after={after}")).header("accept", "text/event-stream");
        gone(&client, &id, "a stream", &client.send(stream).await).await;
    }
    let resumed =
        client.request("GET", &path).header("accept", "text/event-stream").header("last-event-id", "1");
    gone(&client, &id, "a stream that is resumed", &client.send(resumed).await).await;
    let browser = client.with_key("").request("GET", &format!("{path}?token={token}"));
    let reply = client.send(browser.header("accept", "text/event-stream")).await;
    gone(&client, &id, "a stream by its URL", &reply).await;
    for (what, reply) in outputs(&client, &id).await {
        gone(&client, &id, &what, &reply).await;
    }
    let head = client.send(client.request("HEAD", &format!("/v1/calls/{id}/output"))).await;
    assert_eq!((head.status, head.bytes.len()), (410, 0));
    // Who has seen everything has missed nothing, and what never was is no more there than before.
    let page = client.get(&format!("{path}?after={last}")).await.expect(200);
    assert_eq!((&page["data"], &page["ended"]), (&json!([]), &json!(true)));
    let stream = client.request("GET", &format!("{path}?after={last}")).header("accept", "text/event-stream");
    assert_eq!(client.send(stream).await.status, 204);
    client.get(&format!("{path}?after={}", last + 1)).await.problem(400, "invalid_cursor");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_a_tenant_keeps_for_a_shorter_time_is_not_taken_for_none() {
    let app = App::start().await;
    let client = app.client().await;
    let wrote = ended_call(&app, &client, &[b"hello\n"]).await;
    let silent = ended_call(&app, &client, &[]).await;
    // What `prune_tenants` does of an old call: its rows go, and the day of the others stays.
    app.database.execute("DELETE FROM output_chunks").await.expect("deleted");
    for (what, reply) in outputs(&client, &wrote).await {
        gone(&client, &wrote, &what, &reply).await;
    }
    let path = format!("/v1/calls/{wrote}/events");
    gone(&client, &wrote, "events with their output", &client.get(&path).await).await;
    let rest = client.get(&format!("{path}?after=3")).await.expect(200);
    assert_eq!(rest["data"][0]["type"], "call.ended", "those without are there: {rest:#}");
    let empty = client.get(&format!("/v1/calls/{silent}/output")).await;
    assert_eq!((empty.status, empty.bytes.len()), (200, 0), "it has written nothing");
    app.database.execute("DELETE FROM call_events").await.expect("deleted");
    for (what, reply) in outputs(&client, &wrote).await {
        gone(&client, &wrote, &what, &reply).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_next_events_are_gone_sends_its_reader_away() {
    let app = App::start().await;
    let client = app.client().await;
    let mut running = app.running(&client).await;
    running.start().await;
    running.write(&[b"one"]).await;
    let path = format!("/v1/calls/{}/events", running.id());
    let mut stream = client.stream(&path, &[]).await;
    let seen = stream.until("call.output").await.id.expect("a number");
    // More has happened, and it was dropped before the stream came to it.
    app.database.execute("UPDATE calls SET last_seq = last_seq + 5").await.expect("updated");
    let away = stream.until("reconnect").await;
    assert_eq!((away.data["seq"].as_u64(), away.id), (Some(seen), None));
    assert!(stream.next().await.is_none(), "the stream has ended");
    let again = client.request("GET", &path).header("accept", "text/event-stream");
    let again = client.send(again.header("last-event-id", seen.to_string())).await;
    assert_eq!(again.problem(410, "events_pruned")["links"]["call"], format!("/v1/calls/{}", running.id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_shell_that_is_gone_is_said_to_be() {
    let app = App::start().await;
    let client = app.client().await;
    let (path, fence, id) = shell_that_wrote(&app, &client, b"hello").await;
    app.store.finish_shell(&fence, id, store::ShellEnd::default()).await.expect("ended");
    app.database.execute("DELETE FROM output_chunks").await.expect("deleted");
    for (name, value) in [("range", "bytes=0-1"), ("accept", "application/octet-stream")] {
        let reply = client.send(client.request("GET", &path).header(name, value)).await;
        let problem = reply.problem(410, "events_pruned");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("shell")), "{problem:#}");
    }
    // The other forms say how much is missing, as they do of what was dropped from the middle.
    let part = client.get(&path).await.expect(200);
    assert_eq!(
        (&part["chunks"], &part["dropped_bytes"], &part["next_offset"]),
        (&json!([]), &json!(5), &json!(5))
    );
    let events = client.stream(&path, &[]).await.rest().await;
    let kinds: Vec<&str> = events.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(kinds, ["shell.ended", "end"]);
    assert_eq!(events[0].data["next_offset"], 5);
    let shell = client.get(path.trim_end_matches("/output")).await.expect(200);
    assert_eq!((id_of(&shell), &shell["status"]), (id.to_string(), &json!("exited")));
}
