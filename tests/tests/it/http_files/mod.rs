//! Files of a session over plain HTTP, on real sandboxes: up, down and by range, from processes that are not their worker.

mod archives;
mod arrange;
mod forms;
mod limits;
mod paths;
mod streams;
mod watch;

pub(crate) use archives::archive_of;
pub(crate) use forms::form_of;
pub(crate) use streams::peak_bytes;

use anyhow::{Context, Result, ensure};
use reqwest::Body;
use serde_json::{Value, json};
use tests::{Client, Host, Reply, wait};

/// The files of one session.
pub(crate) struct Files<'a> {
    pub(crate) client: &'a Client,
    pub(crate) session: String,
}

impl<'a> Files<'a> {
    /// Those of a new session.
    pub(crate) async fn new(client: &'a Client) -> Result<Self> {
        Ok(Self { session: client.session(json!({})).await?, client })
    }

    pub(crate) fn url(&self, rest: &str) -> String {
        format!("/v1/sessions/{}/files{rest}", self.session)
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        rest: &str,
        headers: &[(&str, &str)],
        body: Option<Body>,
    ) -> Result<Reply> {
        let mut request = self.client.request(method, &self.url(rest));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        self.client.send(request).await
    }

    pub(crate) async fn put(&self, path: &str, content: impl Into<Body>) -> Result<Value> {
        let reply = self.ask("PUT", &format!("?path={path}"), &[], Some(content.into())).await?;
        ensure!(matches!(reply.status, 200 | 201), "{path}: {}", String::from_utf8_lossy(&reply.bytes));
        Ok(reply.json())
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Reply> {
        self.ask("GET", &format!("?path={path}"), &[], None).await
    }

    /// What a command prints.
    pub(crate) async fn printed(&self, command: &str) -> Result<String> {
        self.client.stdout(&self.session, command).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_up_and_down_over_http() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let made = files.ask("PUT", "?path=a/b.txt&permissions=0750", &[], Some("hello".into())).await?;
        let first = made.header("etag").to_owned();
        let made = made.expect(201)?;
        let sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        ensure!(made["created"] == true && made["permissions"] == "0750" && made["sha256"] == sum, "{made}");
        ensure!(made["path"] == "/workspace/a/b.txt" && made["etag"] == first.as_str(), "{made}");
        ensure!(files.printed("cat a/b.txt; stat -c ' %a' a/b.txt").await? == "hello 750\n");

        let whole = files.get("a/b.txt").await?;
        ensure!(whole.status == 200 && whole.bytes == b"hello" && whole.header("content-length") == "5");
        ensure!(whole.header("x-file-permissions") == "0750" && whole.header("x-file-kind") == "file");
        ensure!(whole.header("etag") == first, "what an upload says is what a download says");
        let disposition = whole.header("content-disposition");
        ensure!(disposition.starts_with("attachment; filename=\"b.txt\""), "{disposition}");
        let part = files.ask("GET", "?path=a/b.txt", &[("range", "bytes=1-2")], None).await?;
        ensure!(part.status == 206 && part.bytes == b"el" && part.header("content-range") == "bytes 1-2/5");
        let beyond = files.ask("GET", "?path=a/b.txt", &[("range", "bytes=5-")], None).await?;
        beyond.problem(416, "range_not_satisfiable")?;
        let same = files.ask("GET", "?path=a/b.txt", &[("if-none-match", &first)], None).await?;
        ensure!(same.status == 304 && same.bytes.is_empty());
        let head = files.ask("HEAD", "?path=a/b.txt", &[], None).await?;
        ensure!(head.status == 200 && head.bytes.is_empty() && head.header("content-length") == "5");
        let head = files.ask("HEAD", "?path=a", &[], None).await?;
        ensure!(
            head.status == 200 && head.header("x-file-kind") == "directory" && head.header("etag").is_empty()
        );
        files.put("empty", "").await?;
        let empty = files.get("empty").await?;
        ensure!(empty.status == 200 && empty.bytes.is_empty() && empty.header("content-length") == "0");

        // Only over what was meant to be there; permissions are kept.
        let over = async |headers: &[(&str, &str)], content: &'static str| {
            files.ask("PUT", "?path=a/b.txt", headers, Some(content.into())).await
        };
        over(&[("if-none-match", "*")], "x").await?.problem(412, "precondition_failed")?;
        over(&[("if-match", "\"other\"")], "x").await?.problem(400, "invalid_request")?;
        let second = over(&[("if-match", &first)], "again").await?;
        ensure!(second.status == 200 && second.header("etag") != first);
        let second = second.header("etag").to_owned();
        over(&[("if-match", &first)], "lost").await?.problem(412, "precondition_failed")?;
        // The same size and the same time of last change make no other file the same.
        files.printed("cp -p a/b.txt keep && printf AGAIN > a/b.txt && touch -r keep a/b.txt").await?;
        over(&[("if-match", &second)], "lost").await?.problem(412, "precondition_failed")?;
        let gone = files.ask("PUT", "?path=none", &[("if-match", &second)], Some("x".into())).await?;
        gone.problem(412, "precondition_failed")?;
        ensure!(
            files.printed("cat a/b.txt; stat -c ' %a' a/b.txt; ls -A . a").await?
                == "AGAIN 750\n.:\na\nempty\nkeep\n\na:\nb.txt\n"
        );

        // Without a length as well; two at a time leave one of both.
        let pieces = futures_util::stream::iter(["1", "2", "3"].map(Ok::<_, std::io::Error>));
        let saved = files.put("chunked", Body::wrap_stream(pieces)).await?;
        ensure!(saved["size_bytes"] == 3 && files.get("chunked").await?.bytes == b"123", "{saved}");
        let (one, two) = tokio::join!(
            files.ask("PUT", "?path=once", &[("if-none-match", "*")], Some("one".into())),
            files.ask("PUT", "?path=once", &[("if-none-match", "*")], Some("two".into())),
        );
        let mut statuses = [one?.status, two?.status];
        statuses.sort_unstable();
        ensure!(statuses == [201, 412], "{statuses:?}");

        let list = files.ask("GET", "/list?max_depth=2", &[], None).await?.expect(200)?;
        let of =
            |path: &str| list["data"].as_array().and_then(|all| all.iter().find(|one| one["path"] == path));
        ensure!(of("a/b.txt").is_some_and(|one| one["size_bytes"] == 5 && one["kind"] == "file"), "{list}");
        ensure!(of("a").is_some_and(|one| one["kind"] == "directory") && list["has_more"] == false, "{list}");
        let cut = files.ask("GET", "/list?path=/workspace&limit=2", &[], None).await?.expect(200)?;
        ensure!(cut["data"].as_array().is_some_and(|all| all.len() == 2) && cut["has_more"] == true, "{cut}");

        files.ask("DELETE", "?path=a", &[], None).await?.problem(409, "not_empty")?;
        let gone = files.ask("DELETE", "?path=a&recursive=true", &[], None).await?.expect(200)?;
        ensure!(gone["files"] == 1 && gone["directories"] == 1, "{gone}");
        files.get("a/b.txt").await?.problem(404, "path_not_found")?;

        // An upload is seen by a model as a change of somebody else's.
        files.put("notes.txt", "one").await?;
        let write = json!({"path": "notes.txt", "content": "two"});
        let call = tenant.client.run(&files.session, "write_file", write).await?;
        ensure!(call["error"]["code"] == "not_read", "{call:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_reached_by_who_may_and_recorded() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let other = host.tenant("other")?.client;
        let files = Files::new(&tenant.client).await?;
        files.put("a", "secret").await?;
        let theirs = Files { client: &other, session: files.session.clone() };
        for (method, rest) in [
            ("GET", "?path=a"),
            ("PUT", "?path=a"),
            ("DELETE", "?path=a"),
            ("GET", "/list"),
            ("GET", "?path=../etc"),
        ] {
            let body = (method == "PUT").then(|| Body::from("x"));
            theirs.ask(method, rest, &[], body).await?.problem(404, "not_found").context(rest)?;
        }
        // What policy forbids a model to do, it forbids here as well.
        host.policy(&tenant, &json!({"tools": {"disabled": ["write_file"]}}))?;
        wait::until("policy forbids it", async || {
            let reply = files.ask("PUT", "?path=a", &[], Some("x".into())).await?;
            if reply.status == 200 {
                return Ok(false);
            }
            reply.problem(403, "policy_denied")?;
            Ok(true)
        })
        .await?;
        ensure!(files.get("a").await?.status == 200);
        let trail = tenant.client.get("/v1/audit?limit=100").await?.expect(200)?;
        let rows = trail["data"].as_array().context("rows")?;
        let seen = |action: &str, allowed: bool| {
            rows.iter().any(|row| {
                row["action"] == action
                    && row["allowed"] == allowed
                    && row["details"]["path"] == "/workspace/a"
            })
        };
        ensure!(
            seen("file.write", true) && seen("file.write", false) && seen("file.read", true),
            "{trail:#}"
        );

        tenant.client.delete(&format!("/v1/sessions/{}", files.session)).await?.expect(202)?;
        wait::session(&tenant.client, &files.session, |session| session["status"] == "ended").await?;
        files.get("a").await?.problem(409, "session_ended")?;
        files.ask("GET", "/list", &[], None).await?.problem(409, "session_ended")?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_transfers_are_bounded_and_others_go_on() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let others = Files::new(&tenant.client).await?;
        files.printed("truncate -s 1G large").await?;
        let mut open = Vec::new();
        for _ in 0..32 {
            let response = tenant.client.request("GET", &files.url("?path=large")).send().await?;
            ensure!(response.status() == 200);
            open.push(response);
        }
        files.get("large").await?.problem(429, "sandbox_limit")?;
        files.ask("PUT", "?path=x", &[], Some("x".into())).await?.problem(429, "sandbox_limit")?;
        files.ask("GET", "/archive", &[], None).await?.problem(429, "sandbox_limit")?;
        // What is no transfer goes on, and so do other sessions.
        files.ask("GET", "/list", &[], None).await?.expect(200)?;
        others.put("x", "x").await?;
        drop(open);
        wait::until("there is room again", async || {
            let reply = files.ask("PUT", "?path=x", &[], Some("x".into())).await?;
            if reply.status == 429 {
                reply.problem(429, "sandbox_limit")?;
                return Ok(false);
            }
            reply.expect(201)?;
            Ok(true)
        })
        .await
    })
    .await;
}
