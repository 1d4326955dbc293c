//! A tenant's wheels: installed in its own sessions by `packages`, whatever they need with them, and in nobody else's.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::client::structured;
use tests::{Client, Follower, Host, Reply};

/// Makes wheels in the workspace, as their authors would anywhere.
const MAKE: &str = r#"
import os, zipfile
def wheel(project, version, requires=(), tag="py3-none-any", text=None):
    name = project.lower().replace("-", "_").replace(".", "_")
    info = f"{project.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n" + "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {f"{name}.py": text or f"version = '{version}'\n", f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"}
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path
wheel("Tiny.One", "1.0", ["tiny-two>=1; python_version >= '3.0'", "numpy", "tiny-never; extra == 'more'", "tiny-gone; python_version < '3'"])
wheel("tiny-two", "0.9")
wheel("tiny-two", "1.0", text=f"version = '1.0'\ndata = '{os.urandom(2_000_000).hex()}'\n")
wheel("tiny-two", "3.0", tag="cp27-cp27m-win32")
wheel("tiny-four", "1.0")
wheel("tiny-four", "2.0", ["no-such-package-here"])
wheel("humanize", "99.0")
wheel("tiny-odd", "1.0", ["tiny-four; os_name ~= 'posix'", "tiny-four<2"])
wheel("python-dateutil", "99.0")
content = bytearray(open(wheel("tiny-lie", "1.0", text="text = 'the truth'\n"), "rb").read())
at = content.index(b"the truth")
content[at:at + 9] = b"the liars"
open("tiny_lie-1.0-py3-none-any.whl", "wb").write(content)
print(*sorted(name for name in os.listdir() if name.endswith(".whl")), sep="\n")
"#;

async fn put(client: &Client, name: &str, content: Vec<u8>) -> Result<Reply> {
    client.send(client.request("PUT", &format!("/v1/wheels/{name}")).body(content)).await
}

/// Installs packages in a session and runs code.
async fn run(client: &Client, session: &str, packages: Value, code: &str) -> Result<Value> {
    client.run(session, "python_execute", json!({"code": code, "packages": packages})).await
}

/// All that is in the workspace, and what installations have left in /tmp.
async fn places(client: &Client, session: &str) -> Result<Value> {
    let call = client
        .bash(session, "find /workspace -printf '%p %y %m %s\\n' | sort; ls -d /tmp/.toolhost-wheels-* 2>&1")
        .await?;
    Ok(structured(&call, "stdout").clone())
}

/// A tenant whose wheels are those of [`MAKE`].
async fn with_wheels(host: &Host) -> Result<Client> {
    let client = host.tenant("acme")?.client;
    let session = client.session(json!({})).await?;
    let made = client.run(&session, "python_execute", json!({"code": MAKE})).await?;
    let names = structured(&made, "stdout").as_str().context("names")?;
    ensure!(names.lines().count() == 10, "{made:#}");
    for name in names.lines() {
        let saved = client.run(&session, "save_artifact", json!({"path": name})).await?;
        let id = structured(&saved, "artifact_id").as_str().context("an artifact")?;
        let content = client.get(&format!("/v1/artifacts/{id}/content")).await?;
        put(&client, &name.replace("tiny_one", "Tiny.One"), content.bytes).await?.expect(201)?;
    }
    client.delete(&format!("/v1/sessions/{session}")).await?.expect(202)?;
    Ok(client)
}

#[tokio::test(flavor = "multi_thread")]
async fn wheels_of_a_tenant_are_installed_in_its_sessions_alone() {
    Host::test(&[], async |host| {
        let client = &with_wheels(host).await?;
        let code = "import tiny_one, tiny_two\n(tiny_one.version, tiny_two.version)";
        for _ in 0..2 {
            let session = client.session(json!({})).await?;
            let call = run(client, &session, json!(["tiny-one"]), code).await?;
            ensure!(structured(&call, "result") == "('1.0', '1.0')", "{call:#}");
            let events = events(client, &call).await?;
            ensure!(
                told(&events)
                    == [
                        "1 of the tenant's wheels: tiny_one-1.0-py3-none-any.whl",
                        "1 of the tenant's wheels: tiny_two-1.0-py3-none-any.whl"
                    ],
                "{events:#}"
            );
            ensure!(!events.to_string().contains("call.output"), "no trace of attempts: {events:#}");
            let left = places(client, &session).await?;
            ensure!(
                left.as_str().is_some_and(|left| left.contains("No such file") && !left.contains(".whl")),
                "{left}"
            );
            // It is there for later calls and for programs.
            let call = client.bash(&session, "python3 -c 'import tiny_one; print(tiny_one.version)'").await?;
            ensure!(structured(&call, "stdout") == "1.0\n", "{call:#}");
        }
        let session = &client.session(json!({})).await?;
        // Versions decide, and what cannot be installed gives way to what is older.
        let call = run(client, session, json!(["tiny-two<1"]), "import tiny_two\ntiny_two.version").await?;
        ensure!(structured(&call, "result") == "'0.9'", "{call:#}");
        let call = run(client, session, json!(["tiny-four"]), "import tiny_four\ntiny_four.version").await?;
        ensure!(structured(&call, "result") == "'1.0'", "{call:#}");
        // What nobody can evaluate is uv's to judge.
        let call =
            run(client, session, json!(["tiny-odd"]), "import tiny_odd, tiny_four\ntiny_odd.version").await?;
        ensure!(structured(&call, "result") == "'1.0'", "{call:#}");
        // However a project is spelt that the image has in another version.
        let code = "import python_dateutil\npython_dateutil.version";
        let call = run(client, session, json!(["Python__DateUtil==99"]), code).await?;
        ensure!(structured(&call, "result") == "'99.0'", "{call:#}");
        // What the image has comes first.
        let call =
            run(client, session, json!(["humanize>=4"]), "import humanize\nhumanize.__version__").await?;
        ensure!(
            structured(&call, "result").as_str().is_some_and(|version| version.starts_with("'4.")),
            "{call:#}"
        );
        let wheels = client.get("/v1/wheels?limit=100").await?.expect(200)?;
        for wheel in wheels["data"].as_array().context("wheels")? {
            let name = wheel["file_name"].as_str().context("a name")?;
            let is_used =
                ["tiny_one-", "tiny_two-0", "tiny_two-1", "tiny_four-", "tiny_odd-", "python_dateutil-"]
                    .iter()
                    .any(|start| name.starts_with(start));
            ensure!(wheel["last_used_at"].is_string() == is_used, "{wheel:#}");
        }
        // Nobody else has them, and a tenant no longer what it has deleted.
        let rival = host.tenant("rival")?.client;
        let theirs = rival.session(json!({})).await?;
        let call = run(&rival, &theirs, json!(["tiny-one"]), "1").await?;
        ensure!(call["error"]["code"] == "network_required", "{call:#}");
        ensure!(client.delete("/v1/wheels/tiny_two-1.0-py3-none-any.whl").await?.status == 204);
        let session = &client.session(json!({})).await?;
        let before = places(client, session).await?;
        let call = run(client, session, json!(["tiny-one"]), "print('not run')").await?;
        ensure!(call["status"] == "failed" && call["error"]["code"] == "network_required", "{call:#}");
        ensure!(
            call["error"]["details"]["said"].as_str().is_some_and(|said| said.contains("tiny-two")),
            "{call:#}"
        );
        ensure!(places(client, session).await? == before, "{before}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_wheel_is_named_and_leaves_the_workspace_as_it_was() {
    Host::test(&[], async |host| {
        let client = &with_wheels(host).await?;
        put(client, "tiny_junk-1.0-py3-none-any.whl", b"PK\x03\x04 and no zip".to_vec()).await?.expect(201)?;
        let session = &client.session(json!({})).await?;
        let before = places(client, session).await?;
        for name in ["tiny-junk", "tiny-lie"] {
            let call = run(client, session, json!([name, "tiny-one"]), "print('not run')").await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == "package_failed", "{call:#}");
            ensure!(call["error"]["message"].as_str().is_some_and(|message| message.contains("damaged")), "{call:#}");
            let said = call["error"]["details"]["said"].as_str().context("what was said")?;
            ensure!(said.contains(&name.replace('-', "_")), "{call:#}");
            ensure!(places(client, session).await? == before, "{before}");
        }
        // Neither is the session spoiled by it.
        let call = run(client, session, json!(["tiny-one"]), "import tiny_one\ntiny_one.version").await?;
        ensure!(structured(&call, "result") == "'1.0'", "{call:#}");
        // Nor by a disk that fills half-way: what was put there until then is taken back.
        let fill = "df --output=avail -B1 /workspace | tail -n 1 | xargs -I{} bash -c 'head -c $(({} - 2000000)) /dev/zero > filler'; df --output=avail -B1 /workspace | tail -n 1";
        let full = &client.session(json!({})).await?;
        let filled = client.bash(full, fill).await?;
        let before = places(client, full).await?;
        let call = run(client, full, json!(["tiny-two==1.0", "tiny-four"]), "print('not run')").await?;
        ensure!(call["error"]["code"] == "package_failed", "{filled:#} {call:#}");
        ensure!(call["error"]["message"].as_str().is_some_and(|message| message.contains("no room")), "{call:#}");
        let after = places(client, full).await?;
        ensure!(after == before, "{before} {after}");
        client.bash(full, "rm filler").await?;
        let call = run(client, full, json!(["tiny-two==1.0"]), "import tiny_two\ntiny_two.version").await?;
        ensure!(structured(&call, "result") == "'1.0'", "{call:#}");
        // What does not fit into /tmp is not even fetched.
        for (script, text) in [
            ("install.py", include_str!("../../../crates/tools/src/code/install.py")),
            ("shelf.py", include_str!("../../../crates/tools/src/code/shelf.py")),
        ] {
            client.run(session, "write_file", json!({"path": script, "content": text})).await?;
        }
        let install = async |packages: Value, cache: Value| {
            let request = json!({
                "packages": packages, "names": packages, "wheels": "/opt/toolhost/wheels", "turn": 0, "most": 64,
                "copies": "/tmp/.toolhost-wheels-x", "cache": cache,
            });
            let command = format!("python3 -X utf8 -c \"$(cat install.py)\" \"$(cat shelf.py)\" 3<<< '{request}'; echo \"exit $?\"; cat /tmp/.toolhost-wheels-*/*");
            client.bash(session, &command).await
        };
        let call = install(json!(["tiny-huge"]), json!([["tiny_huge-1.0-py3-none-any.whl", 1_u64 << 40]])).await?;
        ensure!(structured(&call, "stdout") == "exit 16\n", "{call:#}");
        // Where older ones are only tried, it is as if there were none: what uv has said is told.
        let unwanted = json!(["humanize-3.0-py3-none-any.whl", 1_u64 << 40]);
        let call = install(json!(["humanize", "tiny-nowhere"]), json!([unwanted])).await?;
        ensure!(structured(&call, "stdout") == "exit 10\n", "{call:#}");
        ensure!(structured(&call, "stderr").as_str().is_some_and(|said| said.contains("tiny-nowhere")), "{call:#}");
        let older = json!([unwanted, ["humanize-2.0-py3-none-any.whl", 1_000]]);
        let call = install(json!(["humanize", "tiny-nowhere"]), older).await?;
        ensure!(structured(&call, "stdout") == "exit 14\n[\"humanize-2.0-py3-none-any.whl\"]", "{call:#}");
        Ok(())
    })
    .await;
}

async fn events(client: &Client, call: &Value) -> Result<Value> {
    let path = format!("/v1/calls/{}/events", call["id"].as_str().context("an id")?);
    client.get(&path).await?.expect(200)
}

/// What a call has told of the wheels that came.
fn told(events: &Value) -> Vec<&str> {
    let events = events["data"].as_array();
    events.into_iter().flatten().filter_map(|event| event["message"].as_str()).collect()
}

/// Code that says when it has begun, and ends when it is told to.
const WAITS: &str = "import tiny_one, os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\ntiny_one.version";

/// What [`WAITS`] waits for comes, and its second run ends it as if it had been the only one.
async fn goes_on_under_another_worker(client: &Client, session: &str, call: &str) -> Result<Value> {
    let freed = json!({"tool": "write_file", "arguments": {"path": "go", "content": ""}});
    client.post(&format!("/v1/sessions/{session}/calls"), &freed).await?.expect(202)?;
    let call = client.ended(call).await?;
    ensure!(call["status"] == "succeeded" && call["attempt"].as_u64() >= Some(2), "{call:#}");
    ensure!(structured(&call, "result") == "'1.0'" && structured(&call, "stdout") == "begun\n", "{call:#}");
    Ok(call)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_outlives_its_worker() {
    Host::test_prepared(async |host| {
        host.serve(&[])?;
        host.worker()?;
        let client = &with_wheels(host).await?;
        // The worker is killed while wheels are being copied, and when the folder of the copies is gone again.
        for sign in ["of the tenant's wheels", "begun"] {
            let session = &client.session(json!({})).await?;
            let arguments = json!({"code": WAITS, "packages": ["tiny-one"]});
            let call = client.submit(session, "python_execute", arguments).await?;
            Follower::new(client, &call).until(|event| event.data.to_string().contains(sign)).await?;
            host.worker()?;
            let last = host.processes.len() - 2;
            host.processes[last].kill();
            goes_on_under_another_worker(client, session, &call).await?;
            let left = places(client, session).await?;
            ensure!(left.as_str().is_some_and(|left| left.contains("No such file")), "{left}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenant_does_to_its_wheels_does_not_reach_those_that_a_session_has() {
    Host::test_prepared(async |host| {
        host.serve(&[])?;
        host.worker()?;
        let client = &with_wheels(host).await?;
        let session = &client.session(json!({})).await?;
        let arguments = json!({"code": WAITS, "packages": ["tiny-one"]});
        let call = client.submit(session, "python_execute", arguments).await?;
        // Both have been copied, and are about to be installed.
        Follower::new(client, &call).until(|event| event.data.to_string().contains("tiny_two-")).await?;
        let last = host.processes.len() - 1;
        host.processes[last].kill();
        let (one, two) = ("tiny_one-1.0-py3-none-any.whl", "tiny_two-1.0-py3-none-any.whl");
        ensure!(client.delete(&format!("/v1/wheels/{one}")).await?.status == 204);
        put(client, one, b"PK\x03\x04 and another".to_vec()).await?.expect(201)?;
        let wheels = client.get("/v1/wheels?project=tiny-two").await?.expect(200)?;
        let wheels = wheels["data"].as_array().context("wheels")?;
        let wheel = wheels.iter().find(|wheel| wheel["file_name"] == two).context("tiny-two")?;
        // Nothing is read for them either: there are no bytes any more.
        let sha256 = wheel["sha256"].as_str().context("a hash")?;
        ensure!(empty(&host.folder().join("artifacts"), sha256)? == 1);
        host.worker()?;
        let call = goes_on_under_another_worker(client, session, &call).await?;
        let events = events(client, &call).await?;
        let expected = [one, two].map(|name| format!("1 of the tenant's wheels: {name}"));
        ensure!(told(&events) == expected, "{events:#}");
        let wheels = client.get("/v1/wheels?project=tiny-one").await?.expect(200)?;
        ensure!(wheels["data"][0]["last_used_at"].is_null(), "nobody has used that one: {wheels:#}");
        Ok(())
    })
    .await;
}

/// Empties the files of an object; how many there were.
fn empty(folder: &std::path::Path, sha256: &str) -> Result<usize> {
    let mut emptied = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            emptied += empty(&entry.path(), sha256)?;
        } else if entry.file_name().to_string_lossy().contains(sha256) {
            std::fs::write(entry.path(), "")?;
            emptied += 1;
        }
    }
    Ok(emptied)
}
