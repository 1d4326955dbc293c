//! What no path gets out of the files of a session, and what is no file.

use anyhow::{Context, ensure};
use reqwest::Body;
use tests::Host;

use super::Files;

/// What a tenant's own code may prepare for its host.
const PREPARE: &str = "mkfifo pipe; mkdir -p dir/deep; echo x > dir/file; ln -s /etc/passwd out; ln -s /etc outdir; \
    ln -s loop loop; ln -s dir in; ln -s /proc/self/root root; ln -s ../../../../etc/passwd up; ln -s /workspace/dir/file inside; \
    ln -s nothing dangling; truncate -s 1G sparse; touch closed; chmod 000 closed; mkdir shut; chmod 000 shut; \
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; touch \"$(printf 'bad\\377name')\"; echo made";

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leaves_the_sandbox_and_nothing_hangs() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        ensure!(files.printed(PREPARE).await? == "made\n");
        let long = "x".repeat(300);
        let far = "d/".repeat(2_000);
        let too_far = "d/".repeat(2_100);
        let outside = "path_outside_workspace";
        for (method, path, status, code) in [
            ("GET", "pipe", 422, "not_regular_file"),
            ("GET", "sock", 422, "not_regular_file"),
            ("GET", "dir", 422, "is_directory"),
            ("GET", ".", 422, "is_directory"),
            ("GET", "out", 403, outside),
            ("GET", "up", 403, outside),
            ("GET", "outdir/passwd", 403, outside),
            ("GET", "root/etc/passwd", 403, outside),
            ("GET", "loop", 422, "invalid_path"),
            ("GET", "dangling", 404, "path_not_found"),
            ("GET", "closed", 403, "permission_denied"),
            ("GET", "shut/x", 403, "permission_denied"),
            ("GET", "dir/file/x", 422, "not_directory"),
            ("GET", "../etc/passwd", 403, outside),
            ("GET", "/etc/passwd", 403, outside),
            ("GET", "//etc//passwd", 403, outside),
            ("GET", "/proc/self/environ", 403, outside),
            ("GET", "/proc/1/environ", 403, outside),
            ("GET", "/dev/zero", 403, outside),
            ("GET", "/workspace/../proc/1/environ", 403, outside),
            ("GET", "/workspacex", 403, outside),
            ("GET", "..%2f..%2fetc%2fpasswd", 403, outside),
            ("GET", "%2e%2e/%2e%2e/etc/passwd", 403, outside),
            ("GET", "..%252f..%252fetc%252fpasswd", 404, "path_not_found"),
            ("GET", "..%5c..%5cetc", 404, "path_not_found"),
            ("GET", "file:///etc/passwd", 404, "path_not_found"),
            ("GET", "~/x", 404, "path_not_found"),
            ("GET", "$HOME", 404, "path_not_found"),
            ("GET", "a%00b", 400, "invalid_request"),
            ("GET", "", 400, "invalid_request"),
            ("GET", &long, 422, "invalid_path"),
            ("GET", &far, 404, "path_not_found"),
            ("GET", &too_far, 422, "invalid_path"),
            ("PUT", "pipe", 422, "not_regular_file"),
            ("PUT", "sock", 422, "not_regular_file"),
            ("PUT", "dir", 422, "is_directory"),
            ("PUT", ".", 422, "is_directory"),
            ("PUT", "out", 403, outside),
            ("PUT", "up", 403, outside),
            ("PUT", "outdir/new", 403, outside),
            ("PUT", "root/tmp/new", 403, outside),
            ("PUT", "loop", 422, "invalid_path"),
            ("PUT", "loop/x", 422, "invalid_path"),
            ("PUT", "shut/x", 403, "permission_denied"),
            ("PUT", "dir/file/x", 422, "not_directory"),
            ("PUT", "../etc/x", 403, outside),
            ("PUT", "/dev/shm/x", 403, outside),
            ("PUT", "/.toolhost/agent", 403, outside),
            ("PUT", &long, 422, "invalid_path"),
            ("PUT", "a%00b", 400, "invalid_request"),
            ("DELETE", ".", 403, "permission_denied"),
            ("DELETE", "/tmp", 403, "permission_denied"),
            ("DELETE", "outdir/passwd", 403, outside),
            ("DELETE", "root/etc/passwd", 403, outside),
            ("DELETE", "../etc", 403, outside),
            ("DELETE", "nothing", 404, "path_not_found"),
            ("DELETE", "dir", 409, "not_empty"),
        ] {
            let body = (method == "PUT").then(|| Body::from("x"));
            let reply = files.ask(method, &format!("?path={path}"), &[], body).await?;
            let shown: String = path.chars().take(60).collect();
            reply.problem(status, code).with_context(|| format!("{method} {shown}"))?;
        }
        for (path, status, code) in [
            ("dir/file", 422, "not_directory"),
            ("outdir", 403, outside),
            ("root", 403, outside),
            ("../etc", 403, outside),
            ("/proc", 403, outside),
            ("shut", 403, "permission_denied"),
            ("nothing", 404, "path_not_found"),
        ] {
            let reply = files.ask("GET", &format!("/list?path={path}"), &[], None).await?;
            reply.problem(status, code).with_context(|| format!("list {path}"))?;
        }
        // Links that stay inside are followed, a link is removed and not what it points to, holes are read by range.
        files.put("in/through.txt", "x").await?;
        ensure!(files.get("inside").await?.bytes == b"x\n");
        for link in ["out", "outdir", "root", "dangling", "pipe"] {
            files.ask("DELETE", &format!("?path={link}"), &[], None).await?.expect(200).context(link)?;
        }
        let left = "cat dir/through.txt; test -s /etc/passwd && test ! -e /etc/x && test ! -e /etc/new && echo ' whole'";
        ensure!(files.printed(left).await? == "x whole\n");
        let hole = files.ask("GET", "?path=sparse", &[("range", "bytes=1000000000-1000000009")], None).await?;
        ensure!(hole.status == 206 && hole.bytes == [0; 10]);
        // A name that is not UTF-8 is shown as far as it can be, and stands in nobody's way.
        let list = files.ask("GET", "/list", &[], None).await?.expect(200)?;
        ensure!(list["data"].to_string().contains("bad\u{fffd}name"), "{list}");
        Ok(())
    })
    .await;
}
