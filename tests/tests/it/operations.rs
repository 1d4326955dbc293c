//! docs/operations.md as a new operator follows it: its script from nothing to two tenants, dashboards, backup, upgrade and TLS, and the
//! units of systemd.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rand::RngExt;
use sqlx::{Connection, Executor, PgConnection};
use tests::Host;
use tests::process::built;

use crate::docs::script;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Addresses that nobody listens on, with ports below those that the kernel gives out by itself: by chance nobody gets one before it is used.
fn free<const N: usize>() -> Result<[String; N]> {
    let ports = std::iter::repeat_with(|| rand::rng().random_range(20_000..32_000_u16)).take(1_000);
    // Held until all are chosen, so that they differ.
    let held: Vec<_> = ports.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).take(N).collect();
    ensure!(held.len() == N, "there are no free ports");
    let addresses = held.iter().map(TcpListener::local_addr).collect::<std::io::Result<Vec<_>>>()?;
    Ok(std::array::from_fn(|n| addresses[n].to_string()))
}

/// The programs that the page calls by name: ours, and those of the newest Postgres.
fn path() -> Result<String> {
    let ours = built("toolhost")?.parent().context("a folder")?.display().to_string();
    let mut postgres: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin").display().to_string())
        .collect();
    postgres.sort();
    let newest = postgres.pop().unwrap_or_default();
    Ok(format!("{ours}:{newest}:{}", std::env::var("PATH").unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_from_nothing_to_two_tenants_works_as_printed() {
    Host::test_prepared(async |host| {
        let mut postgres = PgConnection::connect(&host.postgres.url()).await?;
        for database in ["CREATE DATABASE toolhost", "CREATE DATABASE drill"] {
            postgres.execute(database).await?;
        }
        postgres.close().await?;
        let url = |name: &str| host.postgres.url().replace("/postgres?", &format!("/{name}?"));
        let page = std::fs::read_to_string(root().join("docs/operations.md"))?;
        let script = script(&page);
        ensure!(script.contains("toolhost migrate --check"), "{script}");
        let log = host.folder().join("walk.log");
        let (out, also) =
            (std::fs::File::create(&log)?, std::fs::OpenOptions::new().append(true).open(&log)?);
        let mut command = Command::new("bash");
        command
            .args(["-x", "-c", &script])
            .current_dir(host.folder())
            .stdin(Stdio::null())
            .stdout(also)
            .stderr(out);
        // What keeps this installation apart from others on the machine; everything else is the page's.
        command.envs(host.environment().into_iter().filter(|(name, _)| {
            let of_page = ["DATABASE", "KEYS", "STREAM_URL", "METRICS", "LOG"];
            let kept = name != "TOOLHOST_WORKER__END_SESSIONS_AT_EXIT";
            kept && !of_page.iter().any(|section| name.starts_with(&format!("TOOLHOST_{section}__")))
        }));
        let [api, others @ ..] = free::<5>()?;
        command
            .env_remove("TOOLHOST_DATABASE__URL")
            .env("TOOLHOST_SERVER__LISTEN", &api)
            .env("TOOLHOST_URL", format!("http://{api}"))
            .env("TOOLHOST_CONFIG", host.folder().join("etc/toolhost.toml"))
            .env("DATABASE_URL", url("toolhost"))
            .env("DRILL_URL", url("drill"))
            .env("SOURCE", root())
            .env("PATH", path()?)
            .env("no_proxy", "*");
        command.envs(["API_METRICS", "WORKER_METRICS", "NEW_METRICS", "PROMETHEUS"].into_iter().zip(others));
        let mut child = command.process_group(0).spawn()?;
        let group = Pid::from_raw(i32::try_from(child.id())?);
        let status = tokio::task::spawn_blocking(move || child.wait()).await??;
        if !status.success() {
            // What it started in the background is in its group.
            let _ = killpg(group, Signal::SIGKILL);
            let mut said = format!("{status}\n{}", std::fs::read_to_string(&log)?);
            for name in ["api.log", "worker.log", "new-worker.log", "new-api.log"] {
                let text = std::fs::read_to_string(host.folder().join(name)).unwrap_or_default();
                said.push_str(&format!("--- {name}\n{text}"));
            }
            anyhow::bail!("docs/operations.md: {said}");
        }
        Ok(())
    })
    .await;
}

/// The units are what the page says, and systemd takes them without a warning.
#[test]
fn systemd_accepts_the_units() {
    if Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("there is no systemd-analyze here");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = built("toolhost").expect("is built").display().to_string();
    for unit in ["toolhost-api.service", "toolhost-worker@.service"] {
        let text = std::fs::read_to_string(root().join("deploy/systemd").join(unit)).expect("is there");
        assert!(text.contains("ExecStart=/usr/local/bin/toolhost "), "{text}");
        // It looks for the program too.
        let text = text.replace("/usr/local/bin/toolhost", &program);
        let name = unit.replace('@', "@a");
        std::fs::write(folder.path().join(&name), text).expect("is written");
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(folder.path().join(&name))
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.trim().is_empty(), "{unit}: {said}");
    }
}
