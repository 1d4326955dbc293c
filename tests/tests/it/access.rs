//! Who may do what: keys, scopes, tenants that do not see each other, policy, limits, and the record of it all.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};
use tests::client::id_of;
use tests::{Client, Follower, Host, wait};

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_not_valid_open_nothing() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let good = &tenant.client;
        ensure!(good.get("/v1/me").await?.status == 200);
        let mut wrong = good.key().to_owned();
        let last = if wrong.pop() == Some('0') { '1' } else { '0' };
        wrong.push(last);
        for key in ["", "th_", "nonsense", &wrong, &"x".repeat(5_000), "th_é"] {
            let client = good.with_key(key);
            let reply = client.get("/v1/sessions").await;
            // A header that is no text cannot even be sent.
            if let Ok(reply) = reply {
                ensure!(!reply.header("www-authenticate").is_empty(), "{key}");
                reply.problem(401, "unauthenticated")?;
            }
        }
        good.with_key("")
            .get(&format!("/v1/sessions?key={}", good.key()))
            .await?
            .problem(401, "unauthenticated")?;

        let revoked =
            host.cli(&["admin", "key", "create", "--tenant", &tenant.id, "--name", "short-lived"])?;
        let client = good.with_key(&revoked);
        let key_id = client.get("/v1/me").await?.expect(200)?["key"]["id"].as_str().map(str::to_owned);
        let key_id = match key_id {
            Some(id) => id,
            None => host
                .cli(&["admin", "key", "list", "--tenant", &tenant.id])?
                .lines()
                .find(|line| line.contains("short-lived"))
                .and_then(|line| line.split('\t').next())
                .context("is listed")?
                .to_owned(),
        };
        host.cli(&["admin", "key", "revoke", &key_id])?;
        wait::until("a revoked key is refused", || async { Ok(client.get("/v1/me").await?.status == 401) })
            .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_does_what_its_scopes_say() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let key = host.cli(&[
            "admin",
            "key",
            "create",
            "--tenant",
            &tenant.id,
            "--name",
            "reader",
            "--scope",
            "sessions:read",
        ])?;
        let reader = tenant.client.with_key(&key);
        ensure!(reader.get("/v1/sessions").await?.status == 200);
        reader.post("/v1/sessions", &json!({})).await?.problem(403, "insufficient_scope")?;
        reader.get("/v1/tools").await?.problem(403, "insufficient_scope")?;
        tenant.client.get("/v1/admin/tenants").await?.problem(403, "insufficient_scope")?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_each_other() {
    Host::test(&[], async |host| {
        let (ours, theirs) = (host.tenant("ours")?.client, host.tenant("theirs")?.client);
        let session = theirs.session(json!({})).await?;
        let call = id_of(&theirs.bash(&session, "echo secret").await?)?;
        let nobody = "sess_06b2m8j0v5x3t9q7k1h4c8n2rg";
        let mine = ours.get(&format!("/v1/sessions/{session}")).await?.problem(404, "not_found")?;
        let none = ours.get(&format!("/v1/sessions/{nobody}")).await?.problem(404, "not_found")?;
        let without = |mut problem: Value| {
            for field in ["instance", "request_id"] {
                problem[field].take();
            }
            problem.to_string().replace(&session, nobody)
        };
        ensure!(without(mine) == without(none), "another's looks like nobody's");
        for path in [
            format!("/v1/calls/{call}"),
            format!("/v1/calls/{call}/events"),
            format!("/v1/calls/{call}/output?stream=stdout"),
            format!("/v1/sessions/{session}/calls"),
        ] {
            ours.get(&path).await?.problem(404, "not_found")?;
        }
        for path in [
            format!("/v1/calls/{call}/cancel"),
            format!("/v1/calls/{call}/stream_url"),
            format!("/v1/sessions/{session}/reset"),
        ] {
            ours.post(&path, &json!({})).await?.problem(404, "not_found")?;
        }
        let body = json!({"tool": "bash", "arguments": {"command": "id"}});
        ours.post(&format!("/v1/sessions/{session}/calls"), &body).await?.problem(404, "not_found")?;
        ours.delete(&format!("/v1/sessions/{session}")).await?.problem(404, "not_found")?;
        ensure!(ours.get("/v1/sessions").await?.expect(200)?["data"] == json!([]));
        ensure!(ours.get("/v1/calls").await?.expect(200)?["data"] == json!([]));
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_denies_with_a_call_that_says_which_rule() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        host.policy(
            &tenant,
            &json!({"tools": {"disabled": ["python_execute"]}, "limits": {"timeout_ms": 5000}}),
        )?;
        let client = &tenant.client;
        let session =
            client.session(json!({"policy": {"tools": {"enabled": ["bash", "python_execute"]}}})).await?;
        let denied = async |tool: &str, arguments: Value| -> Result<Value> {
            let body = json!({"tool": tool, "arguments": arguments, "wait_ms": 30_000});
            client.post(&format!("/v1/sessions/{session}/calls"), &body).await?.expect(200)
        };
        wait::until("the tenant's policy holds", || async {
            Ok(denied("python_execute", json!({"code": "1"})).await?["status"] == "denied")
        })
        .await?;
        let call = denied("python_execute", json!({"code": "1"})).await?;
        ensure!(
            call["error"]["code"] == "policy_denied" && call.to_string().contains("/tools/disabled/0"),
            "{call:#}"
        );
        let call = denied("read_file", json!({"path": "x"})).await?;
        ensure!(call["status"] == "denied" && call.to_string().contains("/tools/enabled"), "{call:#}");
        let body = json!({"tool": "bash", "arguments": {"command": "true"}, "timeout_ms": 6000});
        client.post(&format!("/v1/sessions/{session}/calls"), &body).await?.problem(422, "limit_exceeded")?;
        let explained =
            client.post("/v1/policies/explain", &json!({"tool": "python_execute"})).await?.expect(200)?;
        ensure!(
            explained["allowed"] == false && explained.to_string().contains("/tools/disabled/0"),
            "{explained:#}"
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_and_waiting_calls_know_their_place() {
    Host::test(
        &[
            ("policy.limits.session_running_calls", "1"),
            ("policy.limits.queued_calls", "3"),
            ("policy.limits.sessions", "2"),
        ],
        async |host| {
            let client = host.tenant("acme")?.client;
            let session = client.session(json!({})).await?;
            client.session(json!({})).await?;
            client.post("/v1/sessions", &json!({})).await?.problem(429, "quota_exceeded")?;

            let running =
                client.submit(&session, "bash", json!({"command": "echo begun; sleep 4250"})).await?;
            Follower::new(&client, &running).until(|event| event.event == "call.output").await?;
            let mut waiting = Vec::new();
            for _ in 0..3 {
                waiting.push(client.submit(&session, "bash", json!({"command": "echo next"})).await?);
            }
            let body = json!({"tool": "bash", "arguments": {"command": "true"}});
            let full = client.post(&format!("/v1/sessions/{session}/calls"), &body).await?;
            ensure!(!full.header("retry-after").is_empty(), "{full:?}");
            full.problem(429, "queue_full")?;
            let second = client.call(&waiting[1]).await?;
            ensure!(second["status"] == "queued" && second["queue"]["position"] == 2, "{second:#}");
            let place =
                Follower::new(&client, &waiting[2]).until(|event| event.event == "call.queued").await?;
            ensure!(place.data["position"] == 3, "{place:?}");
            client.post(&format!("/v1/calls/{running}/cancel"), &json!({})).await?;
            for call in &waiting {
                ensure!(client.ended(call).await?["status"] == "succeeded");
            }
            Ok(())
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_in_the_background_uses_up_the_tenant_s_cpu_hours() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        // 0.72 seconds.
        host.policy(&tenant, &json!({"limits": {"cpu_hours_per_day": 0.0002}}))?;
        let client = &tenant.client;
        let session = client.session(json!({})).await?;
        let shells = format!("/v1/sessions/{session}/shells");
        let spin = json!({"command": "while :; do :; done"});
        let shell = id_of(&client.post(&shells, &spin).await?.expect(201)?)?;
        let body = json!({"tool": "bash", "arguments": {"command": "true"}});
        let calls = format!("/v1/sessions/{session}/calls");
        wait::until("a new call is refused", || async {
            let reply = client.post(&calls, &body).await?;
            Ok(reply.status == 429 && reply.problem(429, "quota_exceeded")?["quota"] == "cpu_hours_per_day")
        })
        .await?;
        let running = client.get(&format!("{shells}/{shell}")).await?.expect(200)?;
        ensure!(running["status"] == "running", "it counts while it runs: {running:#}");
        client.delete(&format!("{shells}/{shell}")).await?.expect(200)?;
        let used = client.get(&format!("/v1/sessions/{session}/usage")).await?.expect(200)?;
        ensure!(used["total"]["cpu_seconds"].as_f64().is_some_and(|seconds| seconds > 0.7), "{used:#}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_decision_is_on_record() {
    Host::test(&[], async |host| {
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({"policy": {"tools": {"disabled": ["read_file"]}}})).await?;
        let allowed = id_of(&client.bash(&session, "echo canary-argument").await?)?;
        let denied = id_of(&client.run(&session, "read_file", json!({"path": "x"})).await?)?;
        client.delete(&format!("/v1/sessions/{session}")).await?;
        wait::session(&client, &session, |session| session["status"] == "ended").await?;
        let audit = client.get("/v1/audit?limit=100").await?.expect(200)?.to_string();
        for id in [&session, &allowed, &denied] {
            ensure!(audit.contains(id.as_str()), "{id} is not in {audit}");
        }
        ensure!(!audit.contains("canary-argument"), "arguments are kept as a hash");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_manage_tenants_over_the_api() {
    Host::test(&[], async |host| {
        let operator = host.operator()?;
        let tenant =
            operator.post("/v1/admin/tenants", &json!({"name": "made by api"})).await?.expect(201)?;
        let id = id_of(&tenant)?;
        let key = operator
            .post(&format!("/v1/admin/tenants/{id}/keys"), &json!({"name": "first"}))
            .await?
            .expect(201)?;
        let text = ["key", "secret", "token"]
            .iter()
            .find_map(|name| key[*name].as_str())
            .context("the key's text")?
            .to_owned();
        let client = Client::new(&host.base, &text);
        ensure!(client.get("/v1/me").await?.status == 200, "{key:#}");
        operator.get("/v1/sessions").await?.problem(403, "insufficient_scope")?;
        let listed = operator.get(&format!("/v1/admin/tenants/{id}/keys")).await?.expect(200)?;
        ensure!(!listed.to_string().contains(&text), "a key is shown once");

        let path = format!("/v1/admin/tenants/{id}");
        let keep =
            |arguments: &[&str]| host.cli(&[&["admin", "tenant", "retention", &id], arguments].concat());
        keep(&["--calls-days", "10", "--output-days", "1"])?;
        let kept = operator.get(&path).await?.expect(200)?["retention"].clone();
        ensure!(kept == json!({"calls_days": 10, "events_days": null, "output_days": 1}), "{kept}");
        ensure!(keep(&["--events-days", "0"]).is_err(), "nothing is kept for no day");
        keep(&[])?;
        let kept = operator.get(&path).await?.expect(200)?["retention"].clone();
        ensure!(kept["calls_days"].is_null() && kept["output_days"].is_null(), "{kept}");

        host.cli(&["admin", "tenant", "suspend", &id])?;
        wait::until("a suspended tenant is refused", || async {
            Ok(client.get("/v1/me").await?.status == 403)
        })
        .await?;
        host.cli(&["admin", "tenant", "activate", &id])?;
        wait::until("an active tenant is served", || async { Ok(client.get("/v1/me").await?.status == 200) })
            .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trail_is_sealed_while_the_service_works_and_verified_by_command() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let session = tenant.client.session(json!({})).await?;
        tenant.client.bash(&session, "echo hi").await?;
        let sealed = || async {
            let trail = tenant.client.get("/v1/audit?limit=100").await?.expect(200)?;
            let rows = trail["data"].as_array().cloned().unwrap_or_default();
            Ok(rows.len() > 4 && rows.iter().all(|row| row["seal"]["sequence"].is_u64()))
        };
        wait::until("every row is sealed", sealed).await?;
        let verified = host.cli(&["audit", "verify", "--tenant", &tenant.id])?;
        ensure!(verified.contains("\tok\t"), "{verified}");
        let checkpoint = host.folder().join("checkpoint.jsonl");
        std::fs::write(&checkpoint, host.cli(&["audit", "checkpoint"])? + "\n")?;
        let checkpoint = checkpoint.display().to_string();
        let verified = host.cli(&["audit", "verify", "--checkpoint", &checkpoint])?;
        ensure!(!verified.contains("TAMPERED"), "{verified}");
        let lines = std::fs::read_to_string(&checkpoint)?.replace("\"sequence\":", "\"sequence\":9");
        std::fs::write(&checkpoint, lines)?;
        ensure!(
            host.cli(&["audit", "verify", "--checkpoint", &checkpoint]).is_err(),
            "a forged checkpoint is told"
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_row_is_told_by_command_and_trails_are_read_by_it() {
    Host::test(&[], async |host| {
        let (tenant, other) = (host.tenant("acme")?, host.tenant("other")?);
        let session = tenant.client.session(json!({})).await?;
        other.client.session(json!({})).await?;
        tenant.client.with_key("th_guessed").get("/v1/me").await?.problem(401, "unauthenticated")?;
        let of = |tenant: &str| host.cli(&["audit", "list", "--json", "--tenant", tenant]);
        for id in [&tenant.id, &other.id] {
            wait::until("every row is sealed", || async {
                let rows = of(id)?.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
                Ok(rows.len() > 2 && rows.iter().all(|row| row["seal"]["sequence"].is_u64()))
            })
            .await?;
        }

        let made = host.cli(&["audit", "list", "--tenant", &tenant.id, "--action", "session.create"])?;
        let fields: Vec<_> = made.split('\t').collect();
        ensure!(fields[1..3] == ["allowed", "session.create"] && fields[5] == session, "{made}");
        let guessed = host.cli(&["audit", "list", "--action", "auth.*", "--allowed", "false"])?;
        ensure!(guessed.contains("\trefused\tauth.refuse\tunauthenticated\t127.0.0.1\t"), "{guessed}");
        ensure!(!guessed.contains(&session) && guessed.lines().count() == 1, "{guessed}");
        let all = of(&tenant.id)?;
        let first = host.cli(&["audit", "list", "--json", "--tenant", &tenant.id, "--limit", "1"])?;
        ensure!(all.lines().next() == Some(&first) && all.lines().count() > 1, "newest first: {all}");

        // As whoever has the database can.
        let mut intruder = PgConnection::connect(&host.postgres.url()).await?;
        intruder.execute("SET session_replication_role = replica").await?;
        let change = sqlx::query("UPDATE audit_log SET target = 'sess_another' WHERE target = $1");
        let changed = change.bind(&session).execute(&mut intruder).await?.rows_affected();
        ensure!(changed > 0, "nothing was changed");
        let verified = host.run(&["audit", "verify"])?;
        let said = String::from_utf8_lossy(&verified.stdout).into_owned();
        ensure!(verified.status.code() == Some(1), "{}: {said}", verified.status);
        let told = |id: &str, word: &str| said.contains(&format!("{id}\t{word}\t"));
        ensure!(
            told(&tenant.id, "TAMPERED") && told(&other.id, "ok") && told("installation", "ok"),
            "{said}"
        );
        ensure!(host.run(&["audit", "verify", "--tenant", &tenant.id])?.status.code() == Some(1));
        host.cli(&["audit", "verify", "--tenant", &other.id])?;
        intruder.close().await?;
        Ok(())
    })
    .await;
}

/// That it is so within five seconds (docs/security.md) is held against the periods of those who look, where these are: by a clock the machine would be
/// tried as well.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_revoked_key_or_a_suspended_tenant_runs_is_ended_and_says_why() {
    Host::test(&[], async |host| {
        let tenant = host.tenant("acme")?;
        let owner = &tenant.client;
        let created =
            owner.post("/v1/keys", &json!({"name": "worker", "role": "developer"})).await?.expect(201)?;
        let worker = owner.with_key(created["key"].as_str().context("a key")?);
        let session = worker.session(json!({})).await?;
        let begin = async |client: &Client| -> Result<String> {
            let call = client.submit(&session, "bash", json!({"command": "echo begun; sleep 4251"})).await?;
            Follower::new(client, &call).until(|event| event.event == "call.output").await?;
            Ok(call)
        };
        let shells = format!("/v1/sessions/{session}/shells");
        let shell = async |client: &Client| -> Result<String> {
            let command = json!({"command": "trap '' TERM HUP; setsid sleep 4252 & sleep 4252"});
            id_of(&client.post(&shells, &command).await?.expect(201)?)
        };
        let (theirs, ours) = (begin(&worker).await?, begin(owner).await?);
        let (their_shell, our_shell) = (shell(&worker).await?, shell(owner).await?);
        owner.delete(&format!("/v1/keys/{}", id_of(&created)?)).await?.expect(200)?;
        let ended = owner.ended(&theirs).await?;
        ensure!(
            ended["status"] == "cancelled" && ended["ended"]["evidence"]["cause"] == "key_revoked",
            "{ended:#}"
        );
        let path = format!("{shells}/{their_shell}");
        wait::until("the key's shell has ended", || async {
            Ok(owner.get(&path).await?.expect(200)?["status"] == "exited")
        })
        .await?;
        let ended = owner.get(&path).await?.expect(200)?;
        ensure!(ended["end_reason"] == "key_revoked", "{ended:#}");
        ensure!(owner.call(&ours).await?["status"] == "running", "the tenant's other calls go on");
        let running = owner.get(&format!("{shells}/{our_shell}")).await?.expect(200)?;
        ensure!(running["status"] == "running", "and its other shells: {running:#}");

        host.cli(&["admin", "tenant", "suspend", &tenant.id])?;
        wait::until("a suspended tenant is refused", || async {
            Ok(owner.get("/v1/me").await?.status == 403)
        })
        .await?;
        host.cli(&["admin", "tenant", "activate", &tenant.id])?;
        wait::until("an active tenant is served", || async { Ok(owner.get("/v1/me").await?.status == 200) })
            .await?;
        let ended = owner.ended(&ours).await?;
        ensure!(
            ended["status"] == "cancelled" && ended["ended"]["evidence"]["cause"] == "tenant_suspended",
            "{ended:#}"
        );
        wait::session(owner, &session, |session| session["status"] == "ended").await?;
        let shell = owner.get(&format!("{shells}/{our_shell}")).await?.expect(200)?;
        ensure!(shell["end_reason"] == "session_ended", "{shell:#}");
        let trail = owner.get("/v1/audit?action=tenant.status").await?.expect(200)?;
        let mut rows = trail["data"].as_array().context("rows")?.iter();
        ensure!(rows.any(|row| row["details"]["status"] == "suspended"), "it is recorded: {trail:#}");
        Ok(())
    })
    .await;
}
