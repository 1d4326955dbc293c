//! Artifacts over HTTP: lists, downloads by range, links.

use std::collections::BTreeMap;

use domain::{ArtifactKind, Principal, TenantContext};
use serde_json::{Value, json};
use store::testing::until;
use store::{Draft, NewArtifact, SessionFence};

use crate::app::{App, Running, ids};
use crate::client::Client;

/// Something that a call has kept.
pub(crate) async fn kept(app: &App, running: &Running, name: &str, content: &[u8]) -> String {
    let call = &running.call;
    let context = TenantContext::verified(
        call.tenant_id,
        Principal::system(),
        domain::Scope::tenant_default(),
        Vec::new(),
    );
    let session = app.store.get_session(&context, call.session_id).await.expect("a session");
    let fence = SessionFence::of(&session).expect("has a worker");
    let mut draft = Draft::default();
    draft.push(content).await.expect("gathered");
    let content = draft.seal().await.expect("gathered");
    let new = NewArtifact {
        call_id: call.id,
        origin: name.to_owned() + &content.size_bytes().to_string(),
        name: name.to_owned(),
        kind: ArtifactKind::Summary,
        mime_type: "text/html".to_owned(),
        metadata: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
    };
    app.store.announce_artifact(&fence, &content).await.expect("announced");
    app.store.send_artifact(call.tenant_id, &content).await.expect("sent");
    app.store.save_artifact(&fence, &new, &content).await.expect("saved").id.to_string()
}

async fn get(client: &Client, path: &str, headers: &[(&str, &str)]) -> crate::client::Reply {
    let mut request = client.request("GET", path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_listed_and_found() {
    let app = App::start().await;
    let client = app.client().await;
    let running = app.running(&client).await;
    let first = kept(&app, &running, "report.md", b"one").await;
    let second = kept(&app, &running, "report.md", b"three").await;
    let list = async |query: &str| client.get(&format!("/v1/artifacts{query}")).await.expect(200);
    assert_eq!(ids(&list("").await), [second.clone(), first.clone()]);
    assert_eq!(ids(&list("?versions=latest").await), std::slice::from_ref(&second));
    let session = running.call.session_id;
    for query in [
        format!("?session_id={session}"),
        format!("?call_id={}", running.id()),
        "?name=report.md".to_owned(),
        "?kind=summary".to_owned(),
        "?metadata.team=a".to_owned(),
    ] {
        assert_eq!(ids(&list(&query).await).len(), 2, "{query}");
    }
    for query in ["?name=x", "?kind=image", "?metadata.team=b"] {
        assert_eq!(list(query).await["data"], json!([]), "{query}");
    }
    let page = list("?limit=1").await;
    let cursor = page["next_cursor"].as_str().expect("a cursor");
    assert_eq!(ids(&list(&format!("?limit=1&cursor={cursor}")).await), std::slice::from_ref(&first));
    client.get(&format!("/v1/artifacts?limit=1&name=x&cursor={cursor}")).await.problem(400, "invalid_cursor");
    for query in ["?kind=poem", "?versions=some", "?session_id=x", "?x=1"] {
        client.get(&format!("/v1/artifacts{query}")).await.problem(400, "invalid_request");
    }
    let about = client.get(&format!("/v1/artifacts/{second}")).await.expect(200);
    assert_eq!(
        (&about["object"], &about["version"], &about["size_bytes"]),
        (&json!("artifact"), &json!(2), &json!(5))
    );
    assert_eq!(client.delete(&format!("/v1/artifacts/{second}")).await.status, 204);
    client.delete(&format!("/v1/artifacts/{second}")).await.problem(404, "not_found");
    assert_eq!(ids(&list("").await), [first]);
    let trail = client.get("/v1/audit?action=artifact.delete").await.expect(200);
    assert_eq!(trail["data"][0]["target"], second);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_comes_whole_or_by_range_and_harms_no_browser() {
    let app = App::start().await;
    let client = app.client().await;
    let running = app.running(&client).await;
    let page = b"<script>alert(1)</script>";
    let path = format!("/v1/artifacts/{}/content", kept(&app, &running, "réport.html", page).await);
    let whole = client.get(&path).await;
    assert_eq!((whole.status, whole.bytes.as_slice()), (200, page.as_slice()));
    for (name, value) in [
        ("content-type", "text/html"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("content-disposition", "attachment; filename=\"r_port.html\"; filename*=UTF-8''r%C3%A9port.html"),
        ("accept-ranges", "bytes"),
        ("content-length", "25"),
    ] {
        assert_eq!(whole.header(name), value, "{name}");
    }
    let etag = whole.header("etag").to_owned();
    for (headers, status, bytes) in [
        (vec![("range", "bytes=1-6")], 206, &page[1..7]),
        (vec![("range", "bytes=-9")], 206, &page[16..]),
        (vec![("range", "bytes=1-"), ("if-range", &etag)], 206, &page[1..]),
        (vec![("range", "bytes=1-"), ("if-range", "\"x\"")], 200, &page[..]),
        (vec![("if-none-match", &etag)], 304, &[]),
        (vec![("if-none-match", "\"x\", *")], 304, &[]),
    ] {
        let reply = get(&client, &path, &headers).await;
        assert_eq!((reply.status, reply.bytes.as_slice()), (status, bytes), "{headers:?}");
    }
    let reply = get(&client, &path, &[("range", "bytes=25-")]).await;
    reply.problem(416, "range_not_satisfiable");
    assert_eq!(reply.header("content-range"), "bytes */25");
    let head = client.send(client.request("HEAD", &path)).await;
    assert_eq!((head.status, head.header("content-length"), head.bytes.len()), (200, "25", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_opens_one_artifact_until_it_is_over() {
    let app = App::start().await;
    let (tenant, client) = app.tenant("acme").await;
    let (maker, other) = app.key(tenant, domain::Scope::tenant_default()).await;
    let running = app.running(&client).await;
    let (one, two) = (kept(&app, &running, "one", b"1").await, kept(&app, &running, "two", b"2").await);
    let link = async |client: &Client, id: &str, body: &Value| {
        let created = client.post(&format!("/v1/artifacts/{id}/links"), body).await.expect(201);
        created["url"].as_str().expect("a URL").to_owned()
    };
    let nobody = client.with_key("");
    let url = link(&client, &one, &json!({"expires_in_s": 60})).await;
    assert_eq!(nobody.get(&url).await.bytes, b"1");
    let token = url.split_once("token=").expect("a token").1;
    for path in [
        format!("/v1/artifacts/{two}/content?token={token}"),
        format!("/v1/artifacts/{one}?token={token}"),
        format!("/v1/calls/{}/events?token={token}", running.id()),
        format!("{url}x"),
        format!("/v1/artifacts/{one}/content"),
    ] {
        nobody.get(&path).await.problem(401, "unauthenticated");
    }
    let stream = client.post(&format!("/v1/calls/{}/stream_url", running.id()), &json!({})).await.expect(201);
    let stream_token = stream["url"].as_str().and_then(|url| url.split_once("token=")).expect("a token").1;
    nobody
        .get(&format!("/v1/artifacts/{one}/content?token={stream_token}"))
        .await
        .problem(401, "unauthenticated");
    client
        .post(&format!("/v1/artifacts/{one}/links"), &json!({"expires_in_s": 0}))
        .await
        .problem(422, "invalid_arguments");

    let short = link(&client, &one, &json!({"expires_in_s": 1})).await;
    let expired = async || nobody.get(&short).await.status == 401;
    until("it expires", std::time::Duration::from_secs(30), expired).await;
    let revoked = link(&other, &one, &json!({})).await;
    app.store.revoke_key(&app.operator, maker).await.expect("revokes");
    nobody.get(&revoked).await.problem(401, "unauthenticated");
    assert_eq!(client.delete(&format!("/v1/artifacts/{one}")).await.status, 204);
    nobody.get(&url).await.problem(404, "not_found");
}
