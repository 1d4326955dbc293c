//! Moving files and making directories.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::Host;

use super::Files;

#[tokio::test(flavor = "multi_thread")]
async fn files_are_moved_and_directories_made() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let files = Files::new(&tenant.client).await?;
        let post = async |what: &str, body: Value| tenant.client.post(&files.url(what), &body).await;
        let moved = async |path: &str, to: &str, replace: bool| {
            post("/move", json!({"path": path, "to": to, "replace": replace})).await
        };
        let made = post("/mkdir", json!({"path": "a/b"})).await?.expect(201)?;
        ensure!(made["path"] == "/workspace/a/b" && made["created"] == true, "{made}");
        ensure!(post("/mkdir", json!({"path": "a/b/"})).await?.expect(200)?["created"] == false);

        files.put("one", "1").await?;
        files.put("two", "2").await?;
        let there = moved("one", "new/deep/one", false).await?.expect(200)?;
        ensure!(there["from"] == "/workspace/one" && there["path"] == "/workspace/new/deep/one", "{there}");
        moved("two", "new/deep/one", false).await?.problem(409, "already_exists")?;
        moved("two", "new/deep/one", true).await?.expect(200)?;
        moved("new", "a/b/new", false).await?.expect(200)?;
        ensure!(files.printed("cat a/b/new/deep/one; ls").await? == "2a\n");

        let prepare = "ln -s /etc out; ln -s /etc/passwd link; ln -s loop loop; echo f > f; mkdir shut full; touch full/x; chmod 000 shut; echo made";
        ensure!(files.printed(prepare).await? == "made\n");
        let outside = "path_outside_workspace";
        for (path, to, replace, status, code) in [
            ("none", "x/y", false, 404, "path_not_found"),
            ("f", "../etc/f", false, 403, outside),
            ("../etc/passwd", "f2", false, 403, outside),
            ("out/passwd", "f2", false, 403, outside),
            ("f", "out/f", false, 403, outside),
            ("f", "out/new/f", false, 403, outside),
            ("f", "/tmp/f", false, 422, "invalid_path"),
            ("f", "shut/f", false, 403, "permission_denied"),
            ("f", "f/below", false, 422, "not_directory"),
            ("f", "full", true, 422, "is_directory"),
            ("a", "full", true, 409, "not_empty"),
            ("a", "f", true, 422, "not_directory"),
            ("a", "a/b/c", false, 422, "invalid_path"),
            (".", "x", false, 422, "invalid_path"),
            ("f", "loop/f", false, 422, "invalid_path"),
            ("f", "", false, 422, "invalid_arguments"),
            ("f", &"x".repeat(300), false, 422, "invalid_path"),
        ] {
            let reply = moved(path, to, replace).await?;
            reply.problem(status, code).with_context(|| format!("{path} to {to}"))?;
        }
        for (path, status, code) in [
            ("f", 409, "already_exists"),
            ("f/below", 422, "not_directory"),
            ("out/new", 403, outside),
            ("../etc/new", 403, outside),
            ("shut/x", 403, "permission_denied"),
            ("loop", 422, "invalid_path"),
        ] {
            post("/mkdir", json!({"path": path})).await?.problem(status, code).with_context(|| path.to_owned())?;
        }
        post("/mkdir", json!({"path": "g", "mode": 7})).await?.problem(422, "invalid_arguments")?;
        // A link is moved as the link that it is, and a link in the way is replaced and not followed.
        moved("link", "linked", false).await?.expect(200)?;
        moved("f", "linked", true).await?.expect(200)?;
        let left = files.printed("cat linked; test -s /etc/passwd && ls -A . full; test -e x || echo whole").await?;
        ensure!(left == "f\n.:\na\nfull\nlinked\nloop\nout\nshut\n\nfull:\nx\nwhole\n", "{left}");
        Ok(())
    })
    .await;
}
