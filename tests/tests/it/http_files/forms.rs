//! Several files in one form.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::stream;
use reqwest::Body;
use serde_json::{Value, json};
use tests::{Host, Reply};

use super::Files;

const TYPE: (&str, &str) = ("content-type", "multipart/form-data; boundary=XX");

fn part(name: &str, content: &[u8]) -> Vec<u8> {
    let head = format!(
        "--XX\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{name}\"\r\nContent-Type: text/plain\r\n\r\n"
    );
    [head.as_bytes(), content, b"\r\n"].concat()
}

fn form(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), b"--XX--\r\n".to_vec()].concat()
}

/// A form with one file.
pub(crate) fn form_of(name: &str) -> Vec<u8> {
    form(&[part(name, b"x")])
}

async fn post(files: &Files<'_>, query: &str, body: impl Into<Body>) -> Result<Reply> {
    files.ask("POST", query, &[TYPE], Some(body.into())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn several_files_go_up_in_one_form() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let prepare = "mkdir -p in/dir; echo old > in/there; ln -s /etc in/out; mkfifo in/pipe; mkdir in/shut; chmod 000 in/shut; echo made";
        ensure!(files.printed(prepare).await? == "made\n");
        let body = form(&[
            part("a.txt", b"one"),
            part("deep/er/b.bin", &[0, 13, 10, 45, 45, 88, 255]),
            part("empty", b""),
            part("there", b"new"),
            part("größe \u{202e}x", b"u"),
            part("../escape", b"x"),
            part("/etc/escape", b"x"),
            part("deep/../../escape", b"x"),
            part("out/escape", b"x"),
            part("dir", b"x"),
            part("there/below", b"x"),
            part("pipe", b"x"),
            part("shut/x", b"x"),
            part("a.txt", b"again"),
            part("./deep//er/b.bin", b"again"),
            part("", b"x"),
            part("deep/", b"x"),
            part(&"n".repeat(300), b"x"),
            part("last", b"z"),
        ]);
        let done = post(&files, "?path=in&permissions=0640", body).await?.expect(200)?;
        ensure!(done["written"] == 6 && done["failed"] == 13 && done["path"] == "/workspace/in", "{done:#}");
        let outcomes: Vec<(String, String)> = done["data"]
            .as_array()
            .context("outcomes")?
            .iter()
            .map(|item| {
                let outcome = item["error"]["code"].as_str().or(item["file"]["path"].as_str());
                (item["name"].as_str().unwrap_or_default().chars().take(20).collect(), outcome.unwrap_or_default().to_owned())
            })
            .collect();
        let outside = "path_outside_workspace";
        let wanted = [
            ("a.txt", "/workspace/in/a.txt"),
            ("deep/er/b.bin", "/workspace/in/deep/er/b.bin"),
            ("empty", "/workspace/in/empty"),
            ("there", "/workspace/in/there"),
            ("größe \u{202e}x", "/workspace/in/größe \u{202e}x"),
            ("../escape", outside),
            ("/etc/escape", outside),
            ("deep/../../escape", outside),
            ("out/escape", outside),
            ("dir", "is_directory"),
            ("there/below", "not_directory"),
            ("pipe", "not_regular_file"),
            ("shut/x", "permission_denied"),
            ("a.txt", "already_exists"),
            ("./deep//er/b.bin", "already_exists"),
            ("", "invalid_path"),
            ("deep/", "invalid_path"),
            ("nnnnnnnnnnnnnnnnnnnn", "invalid_path"),
            ("last", "/workspace/in/last"),
        ];
        ensure!(outcomes == wanted.map(|(name, outcome)| (name.to_owned(), outcome.to_owned())), "{outcomes:#?}");
        let first = &done["data"][0]["file"];
        ensure!(first["size_bytes"] == 3 && first["created"] == true && first["permissions"] == "0640", "{first}");
        let left = "cat in/a.txt in/there in/last; od -An -tx1 in/deep/er/b.bin; find in/there -printf '%m\\n'; find /workspace /tmp /etc -name '*escape' 2>/dev/null; cd in && ls -A";
        let left = files.printed(left).await?;
        ensure!(left.starts_with("onenewz 00 0d 0a 2d 2d 58 ff\n640\na.txt\n"), "{left}");
        ensure!(!left.contains(".toolhost-"), "{left}");

        let only_new = [TYPE, ("if-none-match", "*")];
        let again = files.ask("POST", "?path=in", &only_new, Some(form(&[part("a.txt", b"lost"), part("new", b"n")]).into())).await?;
        let again = again.expect(200)?;
        ensure!(again["data"][0]["error"]["code"] == "precondition_failed" && again["written"] == 1, "{again}");
        ensure!(files.get("in/a.txt").await?.bytes == b"one");
        ensure!(post(&files, "?path=in", "--XX--").await?.expect(200)?["data"] == json!([]));
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_is_none_leaves_what_came_before_whole() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let good = part("good", b"whole");
        let half = &part("half", b"half of it")[..90];
        let raw = |head: &str| format!("--XX\r\n{head}\r\n\r\nx\r\n--XX--\r\n").into_bytes();
        for (what, body) in [
            ("cut", [&good[..], half].concat()),
            ("no end", good.clone()),
            ("nothing", Vec::new()),
            ("no form", b"hello".to_vec()),
            ("text behind", [form(std::slice::from_ref(&good)), b"more".to_vec()].concat()),
            ("no file", raw("Content-Disposition: form-data; name=\"f\"")),
            ("two names", raw("Content-Disposition: form-data; filename=\"a\"; filename=\"b\"")),
            ("another name", raw("Content-Disposition: form-data; filename=\"a\"; filename*=UTF-8''..%2fb")),
            ("in a coding", raw("Content-Disposition: form-data; filename=\"a\"\r\nContent-Transfer-Encoding: base64")),
            ("a name that is not UTF-8", [&b"--XX\r\nContent-Disposition: form-data; filename=\""[..], b"\xff\"\r\n\r\nx\r\n--XX--"].concat()),
            ("headers without end", [&b"--XX\r\n"[..], &vec![b'a'; 1 << 20][..]].concat()),
        ] {
            let problem = post(&files, "?path=box", body).await?.problem(422, "invalid_form").context(what)?;
            if what == "cut" {
                ensure!(problem["data"][0]["file"]["path"] == "/workspace/box/good", "{problem:#}");
            }
        }
        let many: Vec<_> = (0..1_001).map(|n| part(&n.to_string(), b"")).collect();
        // The parts before it cost a round trip each; it is the count that is refused.
        let refused = post(&files, "?path=many", form(&many)).await?.problem(422, "limit_exceeded")?;
        ensure!(refused["data"].as_array().is_some_and(|data| data.len() == 1_000));
        for kind in ["text/plain", "multipart/form-data", "multipart/mixed; boundary=XX"] {
            let reply = files.ask("POST", "", &[("content-type", kind)], Some("x".into())).await?;
            reply.problem(415, "unsupported_media_type").context(kind)?;
        }
        let etag = [TYPE, ("if-match", "\"1-2-3\"")];
        files.ask("POST", "", &etag, Some("--XX--".into())).await?.problem(400, "invalid_request")?;
        ensure!(files.printed("cd box && ls -A && cat good").await? == "good\nwhole");

        // No room: what was written stays whole, nothing of the rest does, and the answer says which is which.
        files.printed("fallocate -l $(( $(df --output=avail -B1 . | tail -1) - 20 * 1024 * 1024 )) filler; ls").await?;
        let large = vec![7; 1 << 20];
        let more = form(&[part("more", &vec![7; 3 << 19])]);
        // What is left when it is refused is less than what the API reads of it.
        let parts = (0..22).map(move |n| part(&format!("large-{n}"), &large)).chain([b"--XX--\r\n".to_vec()]);
        let pieces = stream::iter(parts.map(|part| Ok::<_, std::io::Error>(Bytes::from(part))));
        // Who is held up while still sending may not see why.
        if let Ok(refused) = post(&files, "?path=full", Body::wrap_stream(pieces)).await {
            let problem: Value = refused.problem(507, "no_space")?;
            ensure!(problem["data"].as_array().is_some_and(|data| !data.is_empty()), "{problem:#}");
        }
        // One that a connection holds has been sent before anybody refuses it.
        post(&files, "?path=full", more).await?.problem(507, "no_space")?;
        let halves = files.printed("find full -type f -not -size 1048576c; find full -name '*toolhost*' | wc -l; rm -r full filler; echo ok").await?;
        ensure!(halves == "0\nok\n", "{halves}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_form_streams_in_constant_memory() {
    const PIECE: usize = 1024 * 1024;
    const PIECES: usize = 192;
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        files.put("warm", "x").await?;
        let pid = host.processes[0].pid();
        let before = super::peak_bytes(pid)?;
        // Full of what a boundary begins with.
        let piece = Bytes::from(b"\r\n--X\r\n--".repeat(PIECE / 9));
        let size = piece.len() * PIECES;
        let head = part("big", b"");
        let head = Bytes::from(head[..head.len() - 2].to_vec());
        let pieces = std::iter::once(head)
            .chain(std::iter::repeat_n(piece, PIECES))
            .chain([Bytes::from_static(b"\r\n--XX--\r\n")])
            .map(Ok::<_, std::io::Error>);
        let done = post(&files, "?path=d", Body::wrap_stream(stream::iter(pieces))).await?.expect(200)?;
        ensure!(done["data"][0]["file"]["size_bytes"] == size, "{done}");
        let sum = files.printed("sha256sum < d/big").await?;
        ensure!(sum.starts_with(done["data"][0]["file"]["sha256"].as_str().unwrap_or("-")), "{sum}");
        let grown = super::peak_bytes(pid)?.saturating_sub(before);
        ensure!(grown < size as u64 / 4, "grew by {grown} bytes");
        Ok(())
    })
    .await;
}
