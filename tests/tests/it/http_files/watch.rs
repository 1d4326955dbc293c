//! Changes of files as they happen: told whole or said to be lost, by any process, until there is a reason to end.

use std::cell::RefCell;

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Response;
use serde_json::{Value, json};
use tests::client::{PATIENCE, id_of};
use tests::host::runtime;
use tests::sse::Parser;
use tests::{Client, Host, SseEvent, wait};

use super::Files;
use crate::gvisor;

/// An open watch.
struct Watch {
    body: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    parser: Parser,
    events: std::collections::VecDeque<SseEvent>,
}

impl Watch {
    async fn ask(client: &Client, url: &str) -> Result<Response> {
        Ok(client.request("GET", url).header("accept", "text/event-stream").send().await?)
    }

    /// Opens one that has begun.
    async fn open(client: &Client, url: &str) -> Result<Self> {
        Self::begun(Self::ask(client, url).await?).await
    }

    /// Opens one as soon as there is room for it in the session.
    async fn open_in_turn(client: &Client, url: &str) -> Result<Self> {
        let answer = RefCell::new(None);
        wait::until("there is room for a watch", async || {
            let response = Self::ask(client, url).await?;
            if response.status() == 429 {
                let problem: Value = response.json().await?;
                ensure!(problem["code"] == "sandbox_limit", "{problem:#}");
                return Ok(false);
            }
            answer.replace(Some(response));
            Ok(true)
        })
        .await?;
        Self::begun(answer.take().context("an answer")?).await
    }

    async fn begun(response: Response) -> Result<Self> {
        ensure!(response.status() == 200, "{}: {}", response.status(), response.text().await?);
        ensure!(response.headers()["content-type"] == "text/event-stream");
        let body = response.bytes_stream().boxed();
        let mut watch = Self { body, parser: Parser::default(), events: Default::default() };
        let first = watch.next().await?;
        ensure!(first.event == "watching" && first.id.is_none(), "{first:?}");
        Ok(watch)
    }

    async fn next(&mut self) -> Result<SseEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let piece = tokio::time::timeout(PATIENCE, self.body.next()).await.context("nothing comes")?;
            self.events.extend(self.parser.push(&piece.context("the stream ended")??)?);
        }
    }

    /// Everything up to this.
    async fn until(&mut self, event: &str, path: &str) -> Result<Vec<SseEvent>> {
        self.until_one_of(&[(event, path)]).await
    }

    /// Everything up to the first of these.
    async fn until_one_of(&mut self, wanted: &[(&str, &str)]) -> Result<Vec<SseEvent>> {
        // A watch that tells nothing more says so for ever: its heartbeat is no event.
        let (mut seen, deadline) = (Vec::new(), tokio::time::Instant::now() + 2 * PATIENCE);
        loop {
            let next = tokio::time::timeout_at(deadline, self.next()).await;
            let last = || {
                format!("{wanted:?} does not come after {} events, the last: {:?}", seen.len(), seen.last())
            };
            let next = next.with_context(last)??;
            let is_it = wanted.iter().any(|(event, path)| next.event == *event && next.data["path"] == *path);
            let is_end = next.event == "end";
            seen.push(next);
            if is_it {
                return Ok(seen);
            }
            if is_end {
                bail!("ended before {wanted:?}: {seen:?}");
            }
        }
    }

    /// Makes files of this name until one is told, and no loss in its place: what happens during a loss is not told by itself.
    async fn tells_again(&mut self, files: &Files<'_>, name: &str) -> Result<()> {
        for n in 0.. {
            files.printed(&format!("touch {name}-{n}")).await?;
            let path = format!("/workspace/{name}-{n}");
            let told = self.until_one_of(&[("created", &path), ("overflow", "/workspace/data")]).await?;
            if told.last().is_some_and(|last| last.event == "created") {
                break;
            }
        }
        Ok(())
    }

    /// The reason of the end, and that nothing follows.
    async fn end(&mut self) -> Result<String> {
        loop {
            let next = self.next().await?;
            if next.event == "end" {
                let rest = tokio::time::timeout(PATIENCE, self.body.next()).await.context("it stays open")?;
                ensure!(rest.is_none(), "something follows the end");
                return Ok(next.data["reason"].as_str().context("a reason")?.to_owned());
            }
        }
    }
}

fn short(events: &[SseEvent]) -> Vec<String> {
    events
        .iter()
        .map(|event| format!("{} {}", event.event, event.data["path"].as_str().unwrap_or("-")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_files_are_told_by_any_process() {
    Host::test_apart(async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        files.printed("mkdir -p data/old; touch beside").await?;
        let head = files.ask("HEAD", "/watch?path=data", &[], None).await?;
        ensure!(head.status == 200 && head.header("content-type") == "text/event-stream");
        let mut deep = Watch::open(&tenant.client, &files.url("/watch?path=data&recursive=true")).await?;
        let mut flat = Watch::open(&tenant.client, &files.url("/watch?path=data")).await?;

        files.put("data/new/deep/a.txt", "hello").await?;
        let told = deep.until("created", "/workspace/data/new/deep/a.txt").await?;
        let last = &told[told.len() - 1].data;
        ensure!(last["kind"] == "file" && last["size_bytes"] == 5, "{last}");
        ensure!(
            short(&told) == ["created /workspace/data/new", "created /workspace/data/new/deep", "created /workspace/data/new/deep/a.txt"],
            "{told:?}"
        );
        files.put("data/new/deep/a.txt", "hello again").await?;
        let told = deep.until("modified", "/workspace/data/new/deep/a.txt").await?;
        ensure!(told.len() == 1 && told[0].data["size_bytes"] == 11, "{told:?}");
        // What a model's tools and the session's programs do is seen as well, and what lies beside is not.
        let write = json!({"path": "data/b.txt", "content": "b"});
        tenant.client.run(&files.session, "write_file", write).await?;
        files.printed("echo x >> beside; mv data/b.txt data/new/c.txt; rm -r data/new/deep; ln -s /etc data/out; touch data/end").await?;
        let told = deep.until("created", "/workspace/data/end").await?;
        // The halves of a move are told as one unless the machine stands still between them.
        let halves = ["deleted /workspace/data/b.txt", "created /workspace/data/new/c.txt"];
        let whole = "moved /workspace/data/new/c.txt";
        let (moved, others): (Vec<String>, Vec<String>) =
            short(&told).into_iter().partition(|event| event == whole || halves.contains(&event.as_str()));
        ensure!(moved == [whole] || moved == halves, "{told:#?}");
        ensure!(
            others
                == [
                    "created /workspace/data/b.txt",
                    "deleted /workspace/data/new/deep/a.txt",
                    "deleted /workspace/data/new/deep",
                    "created /workspace/data/out",
                    "created /workspace/data/end"
                ],
            "{told:#?}"
        );
        for event in &told {
            let from = if event.event == "moved" { json!("/workspace/data/b.txt") } else { Value::Null };
            ensure!(event.data["from"] == from, "{event:?}");
        }
        ensure!(told[told.len() - 2].data["kind"] == "symlink", "{told:?}");
        let told = flat.until("created", "/workspace/data/end").await?;
        ensure!(!short(&told).iter().any(|event| event.contains("deep/")), "{told:?}");

        // More than anybody keeps: a loss is said, and what comes after it is told again. What keeps everything needs no such flood.
        let many = if runtime() == "runsc" { 2_000 } else { 100_000 };
        let flood = format!(
            "python3 -c \"import os\nfor i in range({many}):\n    os.close(os.open(f'data/{{i}}', os.O_CREAT)); os.unlink(f'data/{{i}}')\"; \
             mkdir data/late; echo done"
        );
        ensure!(files.printed(&flood).await? == "done\n");
        let late = ("created", "/workspace/data/late");
        let told = deep.until_one_of(&[("overflow", "/workspace/data"), late]).await?;
        let is_whole = told.iter().any(|event| event.data["path"] == late.1);
        gvisor::check("changes_of_files_are_told_by_any_process", is_whole.then_some("whole"))?;
        deep.tells_again(&files, "data/late/after").await?;

        // The worker goes and another takes the session over: the stream goes on, and says that something may be missing.
        drop(flat);
        host.processes[0].signal(nix::sys::signal::Signal::SIGKILL);
        host.worker()?;
        deep.until("overflow", "/workspace/data").await?;
        deep.tells_again(&files, "data/taken-over").await?;
        drop(deep);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_says_why_it_does_not_begin_and_why_it_ends() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let prepare = "mkdir -p d/e shut; touch file; ln -s /etc out; ln -s loop loop; chmod 000 shut; mkfifo pipe; echo made";
        ensure!(files.printed(prepare).await? == "made\n");
        let outside = "path_outside_workspace";
        for (path, status, code) in [
            ("none", 404, "path_not_found"),
            ("file", 422, "not_directory"),
            ("pipe", 422, "not_directory"),
            ("out", 403, outside),
            ("../etc", 403, outside),
            ("/proc", 403, outside),
            ("loop", 422, "invalid_path"),
            ("shut", 403, "permission_denied"),
            ("a%00b", 400, "invalid_request"),
        ] {
            let reply = files.ask("GET", &format!("/watch?path={path}"), &[], None).await?;
            reply.problem(status, code).with_context(|| path.to_owned())?;
        }
        files.ask("GET", "/watch?recursive=perhaps", &[], None).await?.problem(400, "invalid_request")?;
        files.ask("GET", "/watch?deep=true", &[], None).await?.problem(400, "invalid_request")?;
        for (path, status) in [("none", 404), ("file", 422), ("out", 403)] {
            let head = files.ask("HEAD", &format!("/watch?path={path}"), &[], None).await?;
            ensure!(head.status == status && head.bytes.is_empty(), "{path}: {}", head.status);
        }
        for accept in ["image/png", "application/json"] {
            let reply = files.ask("GET", "/watch", &[("accept", accept)], None).await?;
            reply.problem(406, "not_acceptable").context(accept)?;
        }
        let other = host.tenant("other")?.client;
        let theirs = Files { client: &other, session: files.session.clone() };
        theirs.ask("GET", "/watch", &[], None).await?.problem(404, "not_found")?;

        // As many as a session may have; one that is left makes room.
        let url = files.url("/watch?recursive=true");
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(Watch::open(&tenant.client, &url).await?);
        }
        files.ask("GET", "/watch", &[], None).await?.problem(429, "sandbox_limit")?;
        open.pop();
        open.push(Watch::open_in_turn(&tenant.client, &url).await?);
        open.truncate(1);

        let mut gone = Watch::open_in_turn(&tenant.client, &files.url("/watch?path=d/e")).await?;
        files.ask("DELETE", "?path=d&recursive=true", &[], None).await?.expect(200)?;
        ensure!(gone.end().await? == "directory_gone");

        // A key that is revoked watches no more, and the others go on.
        let created = tenant.client.post("/v1/keys", &json!({"name": "brief", "role": "developer"})).await?.expect(201)?;
        let brief = tenant.client.with_key(created["key"].as_str().context("a key")?);
        let mut revoked = Watch::open(&brief, &url).await?;
        tenant.client.delete(&format!("/v1/keys/{}", id_of(&created)?)).await?.expect(200)?;
        ensure!(revoked.end().await? == "access_revoked");
        files.put("still", "x").await?;
        open[0].until("created", "/workspace/still").await?;

        tenant.client.delete(&format!("/v1/sessions/{}", files.session)).await?.expect(202)?;
        let reason = open[0].end().await?;
        ensure!(reason == "session_ended", "{reason}");
        Ok(())
    })
    .await;
}
