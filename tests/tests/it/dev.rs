//! `toolhost dev` as a new user meets it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use server::postgres::{Cluster, Durability};
use sqlx::{Connection, PgConnection};
use tests::process::built;
use tests::{Client, Process, engine, host};

fn dev(folder: &Path, state: &str) -> Result<Process> {
    dev_on(folder, state, None)
}

/// The same on somebody else's database, when its URL is given.
fn dev_on(folder: &Path, state: &str, database: Option<&str>) -> Result<Process> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let agent = std::env::var("TOOLHOST_AGENT_PATH")
        .map_or_else(|_| root.join("target/toolhost-agent"), std::path::PathBuf::from);
    let mut command = Command::new(built("toolhost")?);
    command
        .args(["dev", "--listen", "127.0.0.1:0", "--state-dir", state])
        .current_dir(folder)
        .env_remove("DATABASE_URL")
        .env("TOOLHOST_METRICS__LISTEN", "127.0.0.1:0")
        .env("TOOLHOST_SANDBOX__AGENT_PATH", agent)
        .envs(database.map(|url| ("DATABASE_URL", url)));
    Process::start("toolhost dev", &mut command)
}

fn quoted<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(&format!("{name}="))?.1.split_whitespace().next()
}

/// Waits until it is ready; where it is, and the demo key.
fn ready(process: &mut Process) -> Result<(String, String)> {
    process.wait_for(|line| {
        let url = quoted(line, "TOOLHOST_URL")?;
        let key = quoted(line, "TOOLHOST_KEY")?;
        Some((url.to_owned(), key.to_owned()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_a_call_serves_and_leaves_nothing() -> Result<()> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let folder = tempfile::Builder::new().prefix("th-").permissions(mode).tempdir_in("/tmp")?;
    let mut process = dev(folder.path(), "state")?;
    let (url, key) = ready(&mut process)?;
    process.wait_for(|line| line.contains("Ctrl-C").then_some(()))?;
    let said = process.said().join("\n");
    ensure!(said.contains("call.started") || said.contains("started"), "{said}");
    ensure!(said.contains("call.ended") || said.contains("succeeded"), "{said}");
    ensure!(said.contains("curl"), "{said}");

    let client = Client::new(&url, &key);
    let session = client.session(json!({})).await?;
    let call = client.bash(&session, "echo from a user").await?;
    ensure!(call["result"]["structured"]["stdout"] == "from a user\n", "{call:#}");

    let mut second = dev(folder.path(), "state")?;
    ensure!(!second.wait()?.success(), "two at once in one folder");
    ensure!(second.end_of_said().contains("another `toolhost dev`"), "{}", second.end_of_said());

    process.signal(Signal::SIGINT);
    let status = process.wait()?;
    ensure!(status.success(), "{status}: {}", process.end_of_said());
    nothing_is_left(folder.path())?;

    // After a crash the next one starts all the same, with the same key, and clears away what was left.
    let mut process = dev(folder.path(), "state")?;
    ready(&mut process)?;
    process.kill();
    let mut process = dev(folder.path(), "state")?;
    let (url, again) = ready(&mut process)?;
    ensure!(again == key, "the demo key is kept");
    process.wait_for(|line| line.contains("Ctrl-C").then_some(()))?;
    ensure!(Client::new(&url, &again).get("/v1/me").await?.status == 200);
    process.signal(Signal::SIGTERM);
    ensure!(process.wait()?.success(), "{}", process.end_of_said());
    nothing_is_left(folder.path())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_user_s_own_is_used_and_left_as_it_is() -> Result<()> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let folder = tempfile::Builder::new().prefix("th-").permissions(mode).tempdir_in("/tmp")?;
    let elsewhere = tempfile::Builder::new().prefix("th-").tempdir_in("/tmp")?;
    std::fs::set_permissions(elsewhere.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut outside = Cluster::start(&elsewhere.path().join("postgres"), Durability::Relaxed).await?;
    let server = outside.pid().context("it runs")?;
    let mut database = PgConnection::connect(&outside.url()).await?;
    sqlx::raw_sql("CREATE TABLE theirs (note text); INSERT INTO theirs VALUES ('kept')")
        .execute(&mut database)
        .await?;

    let mut process = dev_on(folder.path(), "state", Some(&outside.url()))?;
    let (url, key) = ready(&mut process)?;
    process.wait_for(|line| line.contains("Ctrl-C").then_some(()))?;
    let client = Client::new(&url, &key);
    let session = client.session(json!({})).await?;
    let call = client.bash(&session, "echo from a user").await?;
    ensure!(call["result"]["structured"]["stdout"] == "from a user\n", "{call:#}");
    // No other server was started, and the state has none of its data.
    let state = folder.path().join("state");
    ensure!(!state.join("postgres").exists(), "there is a private cluster");
    let servers = engine::processes_with(state.to_str().context("a path")?);
    ensure!(!servers.iter().any(|line| line.contains("postgres")), "{servers:#?}");
    let id: domain::CallId = call["id"].as_str().context("an id")?.parse()?;
    let calls = "SELECT count(*) FROM calls WHERE id = $1 AND status = 'succeeded'";
    let found: i64 = sqlx::query_scalar(calls).bind(id.uuid()).fetch_one(&mut database).await?;
    ensure!(found == 1, "the call is in the user's database");

    process.signal(Signal::SIGINT);
    let status = process.wait()?;
    ensure!(status.success(), "{status}: {}", process.end_of_said());
    nothing_is_left(folder.path())?;
    ensure!(outside.pid() == Some(server), "it runs on");
    let kept: String = sqlx::query_scalar("SELECT note FROM theirs").fetch_one(&mut database).await?;
    ensure!(kept == "kept", "what else was in it is there");

    // The next run finds what the one before left in it.
    let mut process = dev_on(folder.path(), "state", Some(&outside.url()))?;
    let (url, again) = ready(&mut process)?;
    ensure!(again == key, "the demo key is kept");
    let found = Client::new(&url, &again).call(call["id"].as_str().context("an id")?).await?;
    ensure!(found["result"]["structured"]["stdout"] == "from a user\n", "{found:#}");
    process.wait_for(|line| line.contains("Ctrl-C").then_some(()))?;
    process.signal(Signal::SIGTERM);
    ensure!(process.wait()?.success(), "{}", process.end_of_said());
    nothing_is_left(folder.path())?;
    database.close().await?;
    outside.stop().await
}

fn nothing_is_left(folder: &Path) -> Result<()> {
    let path = folder.to_str().context("a path")?;
    let left = host::still_there(path, path);
    ensure!(left.is_empty(), "{left:#?}");
    let installation = format!("dev-{}", server::place::short_hash(&folder.canonicalize()?.join("state")));
    let containers = engine::containers(&installation)?;
    ensure!(containers.is_empty(), "{containers:#?}");
    // The agent's volume is kept for the next run on purpose; this folder has none.
    for volume in engine::volumes(&installation)? {
        ensure!(volume.contains("-agent-"), "{volume}");
        engine::docker(&["volume", "rm", &volume])?;
    }
    Ok(())
}
