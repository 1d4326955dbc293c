//! A tenant's own image, made of the default one: with packages that are built where they are installed, or do not build.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{Host, engine};

/// What builds a wheel by hand, as nothing is there to build with.
const BUILDS: &str = r#"
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "fine_one-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("fine_one.py", "built = 'here'\n")
        wheel.writestr("fine_one-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fine-one\nVersion: 1.0\n")
        wheel.writestr("fine_one-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("fine_one-1.0.dist-info/RECORD", "fine_one.py,,\n")
    return name
"#;
const BREAKS: &str = "def build_wheel(*arguments, **settings): raise RuntimeError('no compiler of ours')\n";

/// An image that is removed with this value.
struct Image(String);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = engine::docker(&["image", "rm", "-f", &self.0]);
    }
}

impl Image {
    /// The default image with these files beside its wheels.
    fn with_wheels(tag: &str, files: &[String]) -> Result<Self> {
        let container = engine::docker(&["create", "--network", "none", "toolhost/sandbox:latest", "true"])?;
        let copied = files.iter().try_for_each(|file| {
            engine::docker(&["cp", file, &format!("{container}:/opt/toolhost/wheels/")]).map(drop)
        });
        let image = copied.and_then(|()| engine::docker(&["commit", &container, tag]));
        engine::docker(&["rm", "-f", "-v", &container])?;
        image.map(|_| Self(tag.to_owned()))
    }
}

/// An archive of a package's source; where it is.
fn source(folder: &TempDir, name: &str, requires: &str, backend: &str) -> Result<String> {
    let top = format!("{name}-1.0");
    let inside = folder.path().join(&top);
    std::fs::create_dir(&inside)?;
    let project = format!(
        "[build-system]\nrequires = [{requires}]\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"
    );
    let metadata = format!("Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n", name.replace('_', "-"));
    for (file, text) in
        [("pyproject.toml", project.as_str()), ("PKG-INFO", &metadata), ("backend.py", backend)]
    {
        std::fs::write(inside.join(file), text)?;
    }
    let archive = folder.path().join(format!("{top}.tar.gz"));
    let packed =
        Command::new("tar").arg("-C").arg(folder.path()).arg("-czf").arg(&archive).arg(&top).status()?;
    ensure!(packed.success(), "tar: {packed}");
    archive.to_str().map(str::to_owned).context("a path")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_that_does_not_build_is_said_to_and_leaves_nothing() {
    Host::test(&[], async |host| {
        let folder = tempfile::tempdir()?;
        let sources = [
            source(&folder, "fine_one", "", BUILDS)?,
            source(&folder, "broken_one", "", BREAKS)?,
            source(&folder, "needy_one", "\"no-such-backend>=7\"", BUILDS)?,
        ];
        let image =
            Image::with_wheels(&format!("toolhost/{}:own", host.installation.to_lowercase()), &sources)?;
        let client = &host.tenant("acme")?.client;
        let session = &client.session(json!({"image": image.0})).await?;
        let run = async |packages: Value, code: &str| {
            client.run(session, "python_execute", json!({"code": code, "packages": packages})).await
        };
        let places = async || -> Result<String> {
            let call = client
                .bash(
                    session,
                    "find /workspace -printf '%p %y %m %s\\n' | sort; ls -A /tmp | grep toolhost-packages-",
                )
                .await?;
            Ok(call["result"]["structured"]["stdout"].as_str().context("stdout")?.to_owned())
        };
        let refused = async |package: &str, said: &str| -> Result<()> {
            let before = places().await?;
            let call = run(json!([package]), "open('ran', 'w')").await?;
            ensure!(call["status"] == "failed" && call["error"]["code"] == "package_failed", "{call:#}");
            let message = call["error"]["message"].as_str().context("a message")?;
            ensure!(message.contains("did not build") && !call["error"]["hint"].is_null(), "{call:#}");
            ensure!(
                call["error"]["details"]["said"].as_str().is_some_and(|text| text.contains(said)),
                "{call:#}"
            );
            let after = places().await?;
            ensure!(after == before, "{before}\n{after}");
            Ok(())
        };
        refused("broken-one", "no compiler of ours").await?;
        refused("needy-one", "no-such-backend").await?;
        // One that builds is built, and those that do not take nothing of it away.
        let call = run(json!(["fine-one", "humanize"]), "import fine_one, humanize\nfine_one.built").await?;
        ensure!(call["result"]["structured"]["result"] == "'here'", "{call:#}");
        refused("broken-one==1.0", "no compiler of ours").await?;
        let call = client.bash(session, "python3 -c 'import fine_one; print(fine_one.built)'").await?;
        ensure!(call["result"]["structured"]["stdout"] == "here\n", "{call:#}");
        // The image has to outlive what runs on it.
        client.delete(&format!("/v1/sessions/{session}")).await?.expect(202)?;
        tests::wait::session(client, session, |session| session["status"] == "ended").await?;
        Ok(())
    })
    .await;
}
