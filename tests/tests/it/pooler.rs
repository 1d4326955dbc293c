//! The main job with PgBouncer in transaction mode between the processes and Postgres.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, Executor, PgConnection};
use tests::sse::output_of;
use tests::{Follower, Host, wait};

/// A running PgBouncer; it ends with this value.
struct Pooler {
    child: Child,
    url: String,
}

impl Pooler {
    /// Three connections to Postgres, as a role that may do nothing but take ours.
    async fn before(host: &Host) -> Result<Self> {
        let options: PgConnectOptions = host.postgres.url().parse()?;
        let mut superuser = PgConnection::connect_with(&options).await?;
        let role = "CREATE ROLE login LOGIN NOINHERIT; GRANT toolhost_app, toolhost_system TO login";
        superuser.execute(sqlx::raw_sql(role)).await?;
        superuser.close().await?;
        let folder = host.folder().join("pooler");
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        let (here, postgres) = (folder.display(), options.get_socket().context("a socket")?.display());
        let settings = format!(
            "[databases]\n* = host={postgres} user=login\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {here}\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nlogfile = {here}/log\n"
        );
        fs::write(folder.join("ini"), settings)?;
        let mut command = match nix::unistd::Uid::effective().is_root() {
            // It refuses to run as root, as Postgres does.
            true => {
                let mut command = Command::new("setpriv");
                command.args([
                    "--reuid=postgres",
                    "--regid=postgres",
                    "--clear-groups",
                    "/usr/sbin/pgbouncer",
                ]);
                command
            }
            false => Command::new("/usr/sbin/pgbouncer"),
        };
        command.arg("-q").arg(folder.join("ini")).stdin(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("start pgbouncer (is it installed?)")?;
        let url = format!("postgres://login@localhost:6432/postgres?host={here}");
        let options: PgConnectOptions = url.parse()?;
        let pooler = Self { child, url };
        wait::until("the pooler answers", || async {
            let connected = PgConnection::connect_with(&options.clone().extra_float_digits(None)).await;
            Ok(connected.is_ok())
        })
        .await?;
        Ok(pooler)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_job_runs_behind_a_pooler_in_transaction_mode() {
    // The installation needs it until its processes have ended.
    let mut kept = None;
    Host::test_prepared(async |host| {
        let pooler = kept.insert(Pooler::before(host).await?);
        host.set("database.url", &pooler.url);
        host.set("database.direct_url", &host.postgres.url());
        // Takes a lock of its session, which must not be a pooler's.
        host.cli(&["migrate"])?;
        host.serve(&[])?;
        host.worker()?;
        let (acme, other) = (host.tenant("acme")?.client, host.tenant("other")?.client);

        let session = acme.session(json!({})).await?;
        let call =
            acme.submit(&session, "bash", json!({"command": "echo out; echo err >&2; exit 3"})).await?;
        let events = acme.follow(&call).await?;
        ensure!(output_of(&events, "stdout") == "out\n" && output_of(&events, "stderr") == "err\n");
        let ended = acme.call(&call).await?;
        ensure!(ended["status"] == "succeeded" && ended["result"]["exit_code"] == 3, "{ended:#}");
        other.get(&format!("/v1/calls/{call}")).await?.problem(404, "not_found")?;

        // Three connections to Postgres; more calls than that at once, of two tenants.
        let theirs = other.session(json!({})).await?;
        let runs = (0..16).map(async |n| {
            let (client, session) = if n % 2 == 0 { (&acme, &session) } else { (&other, &theirs) };
            let call = client.bash(session, &format!("echo {n}")).await?;
            ensure!(call["result"]["structured"]["stdout"] == format!("{n}\n"), "{call:#}");
            anyhow::Ok(())
        });
        futures_util::future::try_join_all(runs).await?;

        // A cancel reaches the worker's process, and the code of a context and a shell work.
        let call = acme.submit(&session, "bash", json!({"command": "sleep 1000"})).await?;
        Follower::new(&acme, &call).until(|event| event.event == "call.started").await?;
        acme.post(&format!("/v1/calls/{call}/cancel"), &json!({})).await?;
        wait::until("it is cancelled", async || Ok(acme.call(&call).await?["status"] == "cancelled")).await?;
        for code in ["x = 41", "print(x + 1)"] {
            let arguments = json!({"code": code, "context": "main"});
            let call = acme.run(&session, "python_execute", arguments).await?;
            ensure!(call["status"] == "succeeded", "{call:#}");
        }
        let shell = acme.run(&session, "bash", json!({"command": "sleep 1000", "background": true})).await?;
        ensure!(shell["status"] == "succeeded", "{shell:#}");
        acme.delete(&format!("/v1/sessions/{session}")).await?;
        wait::session(&acme, &session, |session| session["status"] == "ended").await?;

        wait::until("it is ready", async || Ok(acme.get("/readyz").await?.status == 200)).await?;
        let said = host.cli(&["audit", "verify"])?;
        ensure!(!said.is_empty());
        let worker = host.processes.last_mut().context("a worker")?;
        ensure!(!worker.end_of_said().contains("prepared statement"), "{}", worker.end_of_said());
        Ok(())
    })
    .await;
}
