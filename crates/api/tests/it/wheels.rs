//! Wheels over HTTP: put once, listed, deleted, and refused with a reason.

use domain::limits::WHEEL_BYTES;
use domain::policy::{LimitRules, Policy};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::app::{App, ids};
use crate::client::{Client, Reply, id_of};

/// Puts a wheel. The service looks at its first bytes alone.
pub(crate) async fn put(client: &Client, name: &str, content: &'static [u8]) -> Reply {
    client.send(client.request("PUT", &format!("/v1/wheels/{name}")).body(content)).await
}

const ONE: &[u8] = b"PK\x03\x04one";
const TWO: &[u8] = b"PK\x03\x04two";

#[tokio::test(flavor = "multi_thread")]
async fn a_wheel_is_put_once_listed_and_deleted() {
    let app = App::start().await;
    let (ours, theirs) = (app.tenant("ours").await.1, app.tenant("theirs").await.1);
    let made = put(&ours, "Tiny.One-1.0-py3-none-any.whl", ONE).await.expect(201);
    let file = "tiny_one-1.0-py3-none-any.whl";
    assert_eq!((&made["object"], &made["file_name"]), (&json!("wheel"), &json!(file)));
    assert_eq!(
        (&made["project"], &made["version"], &made["size_bytes"]),
        (&json!("tiny-one"), &json!("1.0"), &json!(7))
    );
    assert_eq!(made["last_used_at"], Value::Null);
    assert_eq!(put(&ours, file, ONE).await.expect(200), made, "the same bytes change nothing");
    let problem = put(&ours, file, TWO).await.problem(409, "already_exists");
    assert_eq!(problem["sha256"], made["sha256"]);
    // Under the same name another tenant has its own.
    assert_eq!(
        theirs.delete(&format!("/v1/wheels/{file}")).await.problem(404, "not_found")["code"],
        "not_found"
    );
    let foreign = put(&theirs, file, TWO).await.expect(201);
    assert_eq!(ours.get("/v1/wheels").await.expect(200)["data"], json!([made]));
    assert_eq!(theirs.get("/v1/wheels").await.expect(200)["data"], json!([foreign]));

    let local = put(&ours, "other-2.0+cpu.1-py3-none-any.whl", ONE).await.expect(201);
    assert_eq!(local["version"], "2.0+cpu.1");
    let page = ours.get("/v1/wheels?limit=1").await.expect(200);
    assert_eq!(ids(&page), [id_of(&local)]);
    let cursor = page["next_cursor"].as_str().expect("another page");
    let rest = ours.get(&format!("/v1/wheels?limit=1&cursor={cursor}")).await.expect(200);
    assert_eq!((ids(&rest), &rest["has_more"]), (vec![id_of(&made)], &json!(false)));
    ours.get(&format!("/v1/wheels?project=other&cursor={cursor}")).await.problem(400, "invalid_cursor");
    for spelled in ["tiny-one", "Tiny_One", "tiny..one"] {
        assert_eq!(
            ids(&ours.get(&format!("/v1/wheels?project={spelled}")).await.expect(200)),
            [id_of(&made)]
        );
    }
    assert_eq!(ours.get("/v1/wheels?project=none").await.expect(200)["data"], json!([]));
    ours.get("/v1/wheels?name=x").await.problem(400, "invalid_request");

    assert_eq!(ours.delete("/v1/wheels/TINY-ONE-1.0-py3-none-any.whl").await.status, 404, "a dash parts");
    assert_eq!(ours.delete("/v1/wheels/TINY_ONE-1.0-py3-none-any.whl").await.status, 204);
    ours.delete(&format!("/v1/wheels/{file}")).await.problem(404, "not_found");
    let again = put(&ours, file, TWO).await.expect(201);
    assert_ne!((&again["id"], &again["sha256"]), (&made["id"], &made["sha256"]));
    assert_eq!(theirs.get("/v1/wheels").await.expect(200)["data"], json!([foreign]), "nothing was touched");
    let trail = ours.get("/v1/audit?action=wheel.*").await.expect(200);
    let rows: Vec<_> =
        trail["data"].as_array().expect("rows").iter().map(|row| (&row["action"], &row["target"])).collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[..2], [(&json!("wheel.put"), &json!(file)), (&json!("wheel.delete"), &json!(file))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_wheel_is_refused() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let file = "tiny-1.0-py3-none-any.whl";
    for name in
        ["tiny.whl", "tiny-1.0.tar.gz", "tiny-x-py3-none-any.whl", "..%2Ftiny-1.0-py3-none-any.whl", "%00"]
    {
        put(&client, name, ONE).await.problem(400, "invalid_request");
        client.delete(&format!("/v1/wheels/{name}")).await.problem(404, "not_found");
    }
    for content in [&b""[..], b"PK", b"{}", b"\x1f\x8b\x08", b"PK\x05\x06"] {
        put(&client, file, content).await.problem(422, "invalid_archive");
    }
    let path = format!("/v1/wheels/{file}");
    let compressed = client.request("PUT", &path).header("content-encoding", "gzip").body(ONE);
    client.send(compressed).await.problem(415, "unsupported_media_type");
    client
        .send(client.request("PUT", &format!("{path}?force=true")).body(ONE))
        .await
        .problem(400, "invalid_request");

    // One that says that it is too large is not even waited for.
    let address = client.base.strip_prefix("http://").expect("http");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\nPK",
        client.key,
        WHEEL_BYTES + 1
    );
    stream.write_all(head.as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    let reading = async {
        let mut part = [0; 4096];
        while let Ok(1..) = stream.read(&mut part).await.inspect(|read| answer.extend(&part[..*read])) {
            if String::from_utf8_lossy(&answer).contains("body_too_large") {
                break;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), reading).await.expect("is answered");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"), "{answer}");

    // A client that breaks off leaves nothing, though what has come of it could be one.
    let under_way = async |count: f64| {
        let is = async || app.metric("toolhost_http_requests_in_flight") == count;
        store::testing::until("so many are under way", std::time::Duration::from_secs(30), is).await;
    };
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    let begun = head.replace(&(WHEEL_BYTES + 1).to_string(), "100") + "\x03\x04one";
    under_way(0.0).await;
    stream.write_all(begun.as_bytes()).await.expect("writes");
    under_way(1.0).await;
    drop(stream);
    under_way(0.0).await;
    assert_eq!(client.get("/v1/wheels").await.expect(200)["data"], json!([]));

    let limits = LimitRules { stored_bytes: Some(7), ..LimitRules::default() };
    let policy = Policy { limits, ..Policy::default() };
    app.store.set_tenant_policy(&app.operator, tenant, &policy).await.expect("is set");
    let (_, client) = app.key(tenant, domain::Scope::tenant_default()).await;
    put(&client, file, ONE).await.expect(201);
    let full = store::testing::until_some("it is refused", std::time::Duration::from_secs(30), async || {
        let reply = put(&client, "other-1.0-py3-none-any.whl", TWO).await;
        (reply.status == 429).then_some(reply)
    })
    .await;
    assert_eq!(full.problem(429, "quota_exceeded")["quota"], "stored_bytes");
}
