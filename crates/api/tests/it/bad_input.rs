//! What clients get wrong: always a problem with a code and a place, never a 500.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::app::App;
use crate::client::Client;

async fn raw(client: &Client, path: &str, body: impl Into<reqwest::Body>) -> crate::client::Reply {
    client.send(client.request("POST", path).header("content-type", "application/json").body(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_acceptable_json() {
    let app = App::start().await;
    let client = app.client().await;
    let deep = format!("{{\"metadata\":{}{}}}", "[".repeat(100), "]".repeat(100));
    for (body, pointer) in [
        ("{", ""),
        ("{\"metadata\": {\"a\": \"x\\u0000\"}}", "/metadata/a"),
        ("{\"metadata\": {\"a\": \"\\ud800\"}}", "/metadata/a"),
        ("{\"size\": \"small\", \"size\": \"small\"}", "/size"),
        ("{\"idle_timeout_s\": 1e999}", "/idle_timeout_s"),
        ("{} {}", ""),
        ("nul", ""),
        ("\u{feff}{}", ""),
    ] {
        let problem = raw(&client, "/v1/sessions", body).await.problem(400, "malformed_json");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
    }
    raw(&client, "/v1/sessions", deep).await.problem(400, "malformed_json");
    raw(&client, "/v1/sessions", vec![b'"', 0xff, b'"']).await.problem(400, "malformed_json");
    let wide = format!("{{\"metadata\": [{}]}}", vec!["1"; 250_000].join(","));
    raw(&client, "/v1/sessions", wide).await.problem(400, "malformed_json");
    let path = format!("/v1/sessions/{}/calls", client.session().await);
    raw(&client, &path, "").await.problem(400, "malformed_json");
    for kind in ["text/plain", "application/json; charset=latin1", "application/x-www-form-urlencoded"] {
        let request = client.request("POST", "/v1/sessions").header("content-type", kind).body("{}");
        client.send(request).await.problem(415, "unsupported_media_type");
    }
    let packed = client.request("POST", "/v1/sessions").header("content-encoding", "gzip");
    client.send(packed.json(&json!({}))).await.problem(415, "unsupported_media_type");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_do_not_fit_are_told_with_their_place() {
    let app = App::start().await;
    let client = app.client().await;
    let calls = format!("/v1/sessions/{}/calls", client.session().await);
    let call = |fields: Value| {
        let mut call = json!({"tool": "bash", "arguments": {"command": "true"}});
        call.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        call
    };
    let labels: Value =
        (0..17).map(|n| (n.to_string(), Value::from("x"))).collect::<serde_json::Map<_, _>>().into();
    let session = "/v1/sessions";
    let invalid = "invalid_arguments";
    let limit = "limit_exceeded";
    for (path, body, code, pointer) in [
        (session, json!({"sise": "small"}), invalid, "/sise"),
        (session, json!({"size": "huge"}), invalid, "/size"),
        (
            session,
            json!({"size": "small", "resources": {"cpus": 1.0, "memory_mb": 512, "disk_mb": 512, "pids": 64}}),
            invalid,
            "/size",
        ),
        (session, json!({"resources": {"cpus": 1.0}}), invalid, "/resources/memory_mb"),
        (
            session,
            json!({"resources": {"cpus": 99.0, "memory_mb": 512, "disk_mb": 512, "pids": 64}}),
            limit,
            "/resources/cpus",
        ),
        (
            session,
            json!({"resources": {"cpus": 1.0, "memory_mb": 512, "disk_mb": 512, "pids": 64, "gpus": 1}}),
            invalid,
            "/resources/gpus",
        ),
        (session, json!({"idle_timeout_s": 0}), invalid, "/idle_timeout_s"),
        (session, json!({"lifetime_s": 604_801}), limit, "/lifetime_s"),
        (session, json!({"idle_timeout_s": "900"}), invalid, "/idle_timeout_s"),
        (session, json!({"idle_timeout_s": -1}), invalid, "/idle_timeout_s"),
        (session, json!({"env": {"A=B": "x"}}), invalid, "/env/A=B"),
        (session, json!({"env": {"A": "x".repeat(40_000)}}), limit, "/env/A"),
        (session, json!({"metadata": labels}), limit, "/metadata"),
        (session, json!({"metadata": {"a": "x".repeat(513)}}), limit, "/metadata/a"),
        (session, json!({"metadata": {"a": 1}}), invalid, "/metadata/a"),
        (session, json!({"network": {"mode": "open"}}), invalid, "/network/mode"),
        (
            session,
            json!({"policy": {"tools": {"per_tool": {"bash": {"approval": "ask"}}}}}),
            invalid,
            "/policy/tools/per_tool/bash/approval",
        ),
        (session, json!({"image": "--privileged"}), invalid, "/image"),
        (session, json!({"runtime": "kata"}), invalid, "/runtime"),
        (&calls, json!({"arguments": {}}), invalid, "/tool"),
        (&calls, call(json!({"arguments": "ls"})), invalid, "/arguments"),
        (&calls, call(json!({"arguments": {"comand": "ls"}})), invalid, "/arguments/comand"),
        (&calls, call(json!({"timeout_ms": 0})), invalid, "/timeout_ms"),
        (&calls, call(json!({"timeout_ms": 600_001})), limit, "/timeout_ms"),
        (&calls, call(json!({"timeout_ms": u64::MAX})), limit, "/timeout_ms"),
        (&calls, call(json!({"wait_ms": 60_001})), limit, "/wait_ms"),
        (&calls, call(json!({"description": "x".repeat(201)})), limit, "/description"),
        (&calls, call(json!({"output_budget_bytes": 1})), invalid, "/output_budget_bytes"),
        (&calls, call(json!({"version": "0"})), invalid, "/version"),
        (&calls, call(json!({"after": "sess_06b2m8j0v5x3t9q7k1h4c8n2ra"})), invalid, "/after"),
        (&calls, call(json!({"after": "call_06b2m8j0v5x3t9q7k1h4c8n2ra"})), invalid, "/after"),
        (&calls, call(json!({"wait": 1})), invalid, "/wait"),
        (&calls, json!([]), invalid, ""),
        (&calls, json!({"tool": "bsh", "arguments": {}}), "unknown_tool", "/tool"),
        (
            "/v1/calls",
            json!({"tool": "bash", "arguments": {"command": "true"}, "session": {"idle_timeout_s": 0}}),
            invalid,
            "/session/idle_timeout_s",
        ),
        (
            "/v1/calls",
            json!({"tool": "bash", "arguments": {"command": "true"}, "session": {"image": "-x"}}),
            invalid,
            "/session/image",
        ),
        ("/v1/policies/explain", json!({"tool": "nope-nothing"}), "unknown_tool", "/tool"),
    ] {
        let problem = client.post(path, &body).await.problem(422, code);
        let pointers: Vec<&Value> =
            problem["errors"].as_array().expect("a list").iter().map(|error| &error["pointer"]).collect();
        assert!(pointers.contains(&&Value::from(pointer)), "{body}: {problem:#}");
    }
    let typo = client.post(&calls, &json!({"tool": "bsh", "arguments": {}})).await.json();
    assert_eq!(typo["nearest"][0], "bash");
    let both = client.post(&calls, &call(json!({"arguments": {"command": 7, "nope": 1}}))).await.json();
    assert_eq!(both["errors"].as_array().map(Vec::len), Some(2), "{both:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_methods_and_parameters() {
    let app = App::start().await;
    let client = app.client().await;
    client.get("/v1/nothing").await.problem(404, "not_found");
    client.get("/").await.problem(404, "not_found");
    let reply = client.send(client.request("PUT", "/v1/sessions")).await;
    reply.problem(405, "method_not_allowed");
    assert!(reply.header("allow").contains("POST"), "{:?}", reply.headers);
    for path in [
        "/v1/sessions/nope",
        "/v1/calls/sess_06b2m8j0v5x3t9q7k1h4c8n2ra",
        "/v1/sessions/%00",
        "/v1/calls/%ff",
    ] {
        client.get(path).await.problem(404, "not_found");
    }
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=1&limit=2",
        "status=odd",
        "tool=a%00b",
        "sort=up",
        "created_after=yesterday",
        "session_id=x",
        "token=x",
    ] {
        client.get(&format!("/v1/calls?{query}")).await.problem(400, "invalid_request");
    }
    client.get("/v1/calls?cursor=x").await.problem(400, "invalid_cursor");
    client.get("/v1/tools?format=xml").await.problem(400, "invalid_request");
    client.get("/v1/tools/nothing").await.problem(404, "not_found");
    let typo = client.get("/v1/tools/bsh").await.problem(404, "not_found");
    assert_eq!(typo["nearest"][0], "bash");
    client.get("/problems/nothing").await.problem(404, "not_found");
    let head = client.send(client.request("HEAD", "/v1/nothing")).await;
    assert_eq!((head.status, head.bytes.len()), (404, 0));
    let spoofed = client.request("GET", "/v1/me").header("x-request-id", "mine");
    assert!(client.send(spoofed).await.header("x-request-id").starts_with("req_"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_or_too_slow_is_cut() {
    let app = App::with(|config| {
        config.header_timeout = Duration::from_secs(1);
        config.body_timeout = Duration::from_secs(1);
    })
    .await;
    let client = app.client().await;
    let address = app.base.strip_prefix("http://").expect("http").to_owned();
    let head = format!(
        "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n",
        client.key
    );
    // Announced too large: refused before it is sent.
    let answer = talk(&address, &format!("{head}Content-Length: 99999999\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{answer}");
    // A body that does not come.
    let answer = talk(&address, &format!("{head}Content-Length: 10\r\n\r\n{{")).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("request_timeout"), "{answer}");
    // A head that does not come, not at all or not to its end.
    for part in ["", "G", "GET /v1/me HTTP/1.1\r\nHost: x\r\nX-Slow: "] {
        let answer = talk(&address, part).await;
        assert!(!answer.contains("200"), "{answer}");
    }
    // Lies about chunks are no requests.
    let answer =
        talk(&address, &format!("{head}Transfer-Encoding: chunked\r\n\r\nZZ\r\n{{}}\r\n0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let many: String = (0..1_000).map(|n| format!("X-{n}: y\r\n")).collect();
    let answer = talk(&address, &format!("GET /v1/me HTTP/1.1\r\nHost: x\r\n{many}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(client.get("/v1/me").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_http_2_without_a_request_is_closed_and_one_with_a_stream_is_not() {
    let app = App::with(|config| {
        config.header_timeout = Duration::from_secs(2);
        config.streams.heartbeat = Duration::from_millis(200);
    })
    .await;
    let client = app.client().await;
    let call = client.submit(&client.session().await).await;
    let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().expect("a client");
    let request = http.get(format!("{}/v1/calls/{call}/events", app.base)).bearer_auth(&client.key);
    let mut stream = request.header("accept", "text/event-stream").send().await.expect("an answer");
    assert_eq!((stream.status().as_u16(), stream.version()), (200, reqwest::Version::HTTP_2));
    // Its peer is there: it takes part in HTTP/2 and answers pings. It only asks nothing.
    let mut idle =
        TcpStream::connect(app.base.strip_prefix("http://").expect("http")).await.expect("connects");
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("writes");
    let closing = async {
        let mut said = Vec::new();
        let mut head = [0; 9];
        while idle.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            idle.read_exact(&mut payload).await.expect("a whole frame");
            said.push(head[3]);
            if (head[3], head[4]) == (PING, 0) {
                head[4] = 1;
                idle.write_all(&[&head[..], &payload].concat()).await.expect("writes");
            }
        }
        said
    };
    let said = tokio::time::timeout(Duration::from_secs(60), closing).await.expect("is closed");
    assert!(said.contains(&GOAWAY), "{said:?}");
    // By then the stream has been open for longer than that, and it goes on.
    let mut beats = 0;
    while beats < 10 {
        let chunk = stream.chunk().await.expect("goes on").expect("has no end");
        let text = String::from_utf8(chunk.to_vec()).expect("text");
        beats += text.lines().filter(|line| line.starts_with(':')).count();
    }
}

/// Types of frames (RFC 9113, section 6).
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Sends bytes and reads until the service answers or closes.
async fn talk(address: &str, bytes: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(bytes.as_bytes()).await.expect("writes");
    let mut answer = vec![0; 64 * 1024];
    let mut length = 0;
    let reading = async {
        while let Ok(read) = stream.read(&mut answer[length..]).await {
            length += read;
            if read == 0 || String::from_utf8_lossy(&answer[..length]).contains("\"title\"") {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("answered or closed");
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_and_odd_text_are_just_text() {
    let app = App::start().await;
    let client = app.client().await;
    for text in
        ["'; DROP TABLE calls; --", "\\", "$1", "{\"a\":1}", "\u{202e}\u{0007}", "💥".repeat(100).as_str()]
    {
        let session = client.post("/v1/sessions", &json!({"metadata": {"label": text}})).await.expect(201);
        assert_eq!(session["metadata"]["label"], text);
        let query: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let found = client.get(&format!("/v1/sessions?metadata.label={query}")).await.expect(200);
        assert_eq!(found["data"][0]["id"], session["id"], "{text}");
        assert_eq!(client.get(&format!("/v1/calls?tool={query}")).await.expect(200)["data"], json!([]));
    }
}

/// Pointers of what is wrong, in order of their names.
fn pointers(problem: &Value) -> Vec<&str> {
    let errors = problem["errors"].as_array().expect("a list").iter();
    let mut pointers: Vec<&str> = errors.map(|error| error["pointer"].as_str().expect("a pointer")).collect();
    pointers.sort_unstable();
    for error in problem["errors"].as_array().expect("a list") {
        let message = error["message"].as_str().expect("a message");
        assert!(
            !message.contains("u64") && !message.contains("u32") && !message.contains("map"),
            "{message}"
        );
    }
    pointers
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_wrong_is_told_at_once() {
    let app = App::start().await;
    let client = app.client().await;
    let session = client.session().await;
    let calls = format!("/v1/sessions/{session}/calls");
    let call = json!({
        "tool": "bash", "arguments": {"comand": "id", "cwd": 3}, "timeout_ms": 0, "wait_ms": 1_000_000,
        "output_budget_bytes": "much", "description": "x".repeat(201), "metadata": {"a": 1, "b": "fine", "c": []},
        "after": "nothing", "one": 1, "two": 2,
    });
    let of_call = [
        "/after",
        "/arguments/comand",
        "/arguments/command",
        "/arguments/cwd",
        "/description",
        "/metadata/a",
        "/metadata/c",
        "/one",
        "/output_budget_bytes",
        "/timeout_ms",
        "/two",
        "/wait_ms",
    ];
    let problem = client.post(&calls, &call).await.problem(422, "invalid_arguments");
    assert_eq!(pointers(&problem), of_call, "{problem:#}");
    let wait = problem["errors"].as_array().expect("a list").iter().find(|e| e["pointer"] == "/wait_ms");
    assert_eq!(wait.expect("there")["message"], "must be a whole number from 0 to 60000");

    let fine = json!({"tool": "bash", "arguments": {"command": "true"}});
    let batch = client.post(&format!("{calls}/batch"), &json!({"calls": [fine, call, 3]})).await.expect(200);
    assert!(batch["data"][0]["error"].is_null(), "{batch:#}");
    assert_eq!(pointers(&batch["data"][1]["error"]), of_call.map(|at| format!("/calls/1{at}")));
    assert_eq!(pointers(&batch["data"][2]["error"]), ["/calls/2"]);

    let unknown = json!({"tool": "bsh", "arguments": 3, "wait_ms": -1});
    let problem = client.post(&calls, &unknown).await.problem(422, "unknown_tool");
    assert_eq!(
        (pointers(&problem), &problem["nearest"][0]),
        (vec!["/arguments", "/tool", "/wait_ms"], &json!("bash"))
    );

    let wrong = json!({
        "size": "huge", "image": "--privileged", "network": {"mode": "open"}, "idle_timeout_s": "900", "lifetime_s": 0,
        "env": {"A=B": "x", "C": 1}, "metadata": [], "policy": {"tools": {"disabled": "bash"}, "limit": {}}, "sise": 1,
    });
    let of_session = [
        "/env/A=B",
        "/env/C",
        "/idle_timeout_s",
        "/image",
        "/lifetime_s",
        "/metadata",
        "/network/mode",
        "/policy/limit",
        "/policy/tools/disabled",
        "/sise",
        "/size",
    ];
    let problem = client.post("/v1/sessions", &wrong).await.problem(422, "invalid_arguments");
    assert_eq!(pointers(&problem), of_session, "{problem:#}");
    let one_shot = json!({"arguments": {}, "session": wrong, "wait_ms": null});
    let problem = client.post("/v1/calls", &one_shot).await.problem(422, "invalid_arguments");
    let mut expected: Vec<String> = of_session.iter().map(|at| format!("/session{at}")).collect();
    expected.extend(["/tool".to_owned(), "/wait_ms".to_owned()]);
    assert_eq!(pointers(&problem), expected, "{problem:#}");

    let patch = json!({"idle_timeout_s": 1.5, "lifetime_s": 1, "metadata": {"a": 1}, "policy": 3, "what": 1});
    let request = client.request("PATCH", &format!("/v1/sessions/{session}")).json(&patch);
    let problem = client.send(request).await.problem(422, "invalid_arguments");
    assert_eq!(pointers(&problem), ["/idle_timeout_s", "/lifetime_s", "/metadata/a", "/policy", "/what"]);

    let many: serde_json::Map<String, Value> = (0..5_000).map(|n| (format!("f{n}"), n.into())).collect();
    let problem = client.post("/v1/sessions", &many.into()).await.problem(422, "invalid_arguments");
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(100), "a list has an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_one_call_has_no_background() {
    let app = App::start().await;
    let client = app.client().await;
    for (argument, value) in [
        ("background", json!(true)),
        ("run_in_background", json!(true)),
        ("background_after_ms", json!(1_000)),
    ] {
        let call = json!({"tool": "bash", "arguments": {"command": "true", argument: value}});
        let problem = client.post("/v1/calls", &call).await.problem(422, "invalid_arguments");
        assert_eq!(pointers(&problem), [format!("/arguments/{argument}")]);
        assert!(
            problem["detail"].as_str().is_some_and(|detail| detail.contains("/v1/sessions")),
            "{problem:#}"
        );
    }
    let call = json!({"tool": "bash", "arguments": {"command": "true", "background": false}});
    client.post("/v1/calls", &call).await.expect(202);
    // What another system's tool does by itself is not held against the caller.
    let call = json!({"tool": "shellStart", "arguments": {"command": "true"}});
    let call = client.post("/v1/calls", &call).await.expect(202);
    assert_eq!(call["arguments"], json!({"command": "true"}));
}
