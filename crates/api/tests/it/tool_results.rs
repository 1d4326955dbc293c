//! A model's own tool calls, answered in its own blocks, and answers in the form of the source systems.

use domain::call::Outcome;
use domain::{CallEnded, CallError, CallResult, CallStatus, CallUsage, Code, ContentBlock, EndReason};
use serde_json::{Value, json};
use store::testing::until;

use crate::app::App;
use crate::client::Client;

fn ran(result: CallResult) -> Outcome {
    Outcome {
        status: CallStatus::Succeeded,
        result: Some(result),
        error: None,
        ended: CallEnded::because(EndReason::Exited),
        usage: CallUsage::default(),
    }
}

fn image() -> ContentBlock {
    let data = Some("aGk=".to_owned());
    ContentBlock::Image { mime_type: "image/png".to_owned(), data, artifact_id: None }
}

/// Sends blocks in a task of its own.
fn send(client: &Client, session: &str, body: Value) -> tokio::task::JoinHandle<Value> {
    let (client, path) = (client.clone(), format!("/v1/sessions/{session}/tool_results"));
    tokio::spawn(async move { client.post(&path, &body).await.expect(200) })
}

/// Waits until so many calls of the session are queued.
async fn queued(client: &Client, session: &str, count: usize) {
    let path = format!("/v1/sessions/{session}/calls?status=queued");
    until("they are queued", std::time::Duration::from_secs(30), async || {
        client.get(&path).await.expect(200)["data"].as_array().expect("a list").len() >= count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn native_blocks_are_answered_with_native_blocks() {
    let app = App::start().await;
    let client = app.client().await;
    let mut worker = app.worker().await;
    let session = client.session().await;
    worker.serve_sessions().await;
    let body = json!({"format": "anthropic", "tool_calls": [
        {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "echo hi"}},
        {"type": "tool_use", "id": "toolu_2", "name": "bsh", "input": {}},
        {"type": "tool_use", "id": "toolu_3", "name": "bash", "input": {"comand": "x"}},
    ]});
    let answer = send(&client, &session, body.clone());
    queued(&client, &session, 1).await;
    let mut running = worker.claim().await;
    running.start().await;
    let result = CallResult {
        output: "hi".to_owned(),
        is_error: true,
        exit_code: Some(3),
        content: vec![image()],
        system: Some("A remark.".to_owned()),
        ..CallResult::default()
    };
    running.finish_with(ran(result)).await;
    let answer = answer.await.expect("an answer");
    let results = answer["results"].as_array().expect("results");
    assert_eq!(
        results[0],
        json!({"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true, "content": [
            {"type": "text", "text": "hi\n[A remark.]"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        ]})
    );
    let text = |index: usize| results[index]["content"][0]["text"].as_str().expect("text").to_owned();
    assert!(text(1).contains("There is no tool `bsh`; perhaps `bash`"), "{}", text(1));
    assert!(text(2).contains("did you mean `command`"), "{}", text(2));
    assert!(results[1]["is_error"] == true && results[2]["is_error"] == true);
    let call = &answer["calls"][0];
    assert_eq!((&call["tool_call_id"], &call["status"]), (&json!("toolu_1"), &json!("succeeded")));
    assert_eq!((&answer["calls"][1]["code"], &answer["pending"]), (&json!("unknown_tool"), &json!(0)));
    // Sent again, the block is answered by the call that it made; no other is made.
    let again = send(&client, &session, body).await.expect("an answer");
    assert_eq!((&again["results"][0], &again["calls"][0]), (&results[0], call));
    let listed = client.get(&format!("/v1/sessions/{session}/calls")).await.expect(200);
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(1));
    // The same id with another input is another request.
    let other = json!({"format": "anthropic", "tool_calls": [
        {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "echo other"}}]});
    let other = send(&client, &session, other).await.expect("an answer");
    assert_eq!(other["calls"][0]["code"], "idempotency_mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_has_not_ended_says_so_and_is_waited_for_again() {
    let app = App::start().await;
    let client = app.client().await;
    let mut worker = app.worker().await;
    let session = client.session().await;
    worker.serve_sessions().await;
    let chat = |wait_ms: u64| {
        json!({"format": "openai", "wait_ms": wait_ms, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\": \"make\"}"}},
            {"type": "function_call", "call_id": "call_2", "name": "bash", "arguments": "{not json"},
        ]})
    };
    let first = send(&client, &session, chat(0)).await.expect("an answer");
    assert_eq!((&first["pending"], &first["results"][0]["role"]), (&json!(1), &json!("tool")));
    let text = first["results"][0]["content"].as_str().expect("text");
    assert!(text.contains("has not started") && text.contains("This is not its result"), "{text}");
    assert_eq!(first["results"][1]["type"], "function_call_output");
    assert!(
        first["results"][1]["output"].as_str().is_some_and(|text| text.contains("not JSON")),
        "{first:#}"
    );
    let mut running = worker.claim().await;
    running.start().await;
    running.write(&[b"halfway\n"]).await;
    let second = send(&client, &session, chat(0)).await.expect("an answer");
    let text = second["results"][0]["content"].as_str().expect("text");
    assert!(text.starts_with("halfway\n") && text.contains("is still running"), "{text}");
    let third = send(&client, &session, chat(60_000));
    running.finish().await;
    let third = third.await.expect("an answer");
    assert_eq!((&third["results"][0]["content"], &third["pending"]), (&json!("done"), &json!(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_are_none_are_refused_by_their_place() {
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let path = format!("/v1/sessions/{session}/tool_results");
    for (body, pointer) in [
        (json!({"format": "anthropic", "tool_calls": []}), "/tool_calls"),
        (
            json!({"format": "anthropic", "tool_calls": [{"type": "text", "id": "a", "name": "b"}]}),
            "/tool_calls/0/type",
        ),
        (json!({"format": "openai", "tool_calls": [{"id": "a"}]}), "/tool_calls/0/function/name"),
        (json!({"format": "gemini", "tool_calls": [{}]}), "/format"),
        (
            json!({"format": "openai", "tool_calls": [{"type": "function_call", "call_id": "a", "name": "b"}], "wait_ms": 60_001}),
            "/wait_ms",
        ),
    ] {
        let problem = client.post(&path, &body).await.expect(422);
        let pointers: Vec<_> =
            problem["errors"].as_array().expect("errors").iter().map(|error| &error["pointer"]).collect();
        assert!(pointers.contains(&&json!(pointer)), "{body} {pointers:?}");
    }
    let request = client.request("POST", &path).header("idempotency-key", "k");
    let block = json!({"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "true"}});
    let body = json!({"format": "anthropic", "tool_calls": [block], "wait_ms": 0});
    client.send(request.json(&body)).await.problem(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_by_another_systems_name_answers_in_its_form() {
    let app = App::start().await;
    let client = app.client().await;
    let mut worker = app.worker().await;
    let session = client.session().await;
    worker.serve_sessions().await;
    let path = format!("/v1/sessions/{session}/calls");
    let structured = json!({"stdout": "out\n", "stderr": "", "exit_code": 0});
    for (name, expected) in [
        (
            "RunCommandTool",
            json!({"status": "success", "message": "The command ended with exit code 0", "data": structured}),
        ),
        ("shellExecute", json!({"stdout": "out\n", "stderr": "", "exitCode": 0})),
        ("Bash", structured.clone()),
        (
            "execute_command",
            json!({"output": "out\n", "error": null, "base64_image": "aGk=", "system": "A remark."}),
        ),
    ] {
        let call =
            client.post(&path, &json!({"tool": name, "arguments": {"command": "x"}})).await.expect(202);
        assert_eq!(call["dialect"], Value::Null, "{name} has not ended");
        let mut running = worker.claim().await;
        running.start().await;
        running
            .finish_with(ran(CallResult {
                output: "out".to_owned(),
                structured: structured.clone(),
                content: vec![image()],
                exit_code: Some(0),
                system: Some("A remark.".to_owned()),
                ..CallResult::default()
            }))
            .await;
        let id = call["id"].as_str().expect("an id");
        let call = client.get(&format!("/v1/calls/{id}")).await.expect(200);
        assert_eq!(call["dialect"]["result"], expected, "{name}");
        assert_eq!((&call["tool"], &call["result"]["structured"]), (&json!("bash"), &structured));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_a_security_error_there() {
    let app = App::start().await;
    let client = app.client().await;
    let mut worker = app.worker().await;
    let session = client.session().await;
    worker.serve_sessions().await;
    let block = json!({"type": "tool_use", "id": "toolu_1", "name": "ReadFileTool", "input": {"path": "/etc/passwd"}});
    let answer = send(&client, &session, json!({"format": "anthropic", "tool_calls": [block]}));
    queued(&client, &session, 1).await;
    let mut running = worker.claim().await;
    running.start().await;
    let outside = CallError::new(Code::PathOutsideWorkspace, "/etc/passwd is outside.");
    running
        .finish_with(Outcome {
            status: CallStatus::Failed,
            result: None,
            error: Some(outside),
            ended: CallEnded::because(EndReason::ToolError),
            usage: CallUsage::default(),
        })
        .await;
    let answer = answer.await.expect("an answer");
    let text = answer["results"][0]["content"][0]["text"].as_str().expect("text");
    let said: Value = serde_json::from_str(text).expect("the other system's JSON");
    assert_eq!(said, json!({"status": "security_error", "message": "/etc/passwd is outside."}));
    assert_eq!(answer["results"][0]["is_error"], true);
    // What policy denies never reaches a worker, and is answered in the same form.
    let policy = json!({"tools": {"disabled": ["delete_file"]}});
    let denied = client.post("/v1/sessions", &json!({"policy": policy})).await.expect(201);
    let path = format!("/v1/sessions/{}/calls", denied["id"].as_str().expect("an id"));
    let call = client
        .post(&path, &json!({"tool": "DeleteFileTool", "arguments": {"path": "a"}, "wait_ms": 1000}))
        .await
        .expect(200);
    assert_eq!(
        (&call["status"], &call["dialect"]["result"]["status"]),
        (&json!("denied"), &json!("security_error"))
    );
}
