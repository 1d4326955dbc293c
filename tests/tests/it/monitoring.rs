//! What operators see: a real Prometheus scrapes a running installation, and its rules and the dashboard speak of what there is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use prometheus::proto::MetricType;
use serde_json::{Value, json};
use tests::{Client, Host, Process, host, wait};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_scrapes_a_running_installation() {
    let pool = r#"[{size = "small", count = 1}]"#;
    Host::test(&[("sandbox.pool", pool)], async |host| {
        let metrics = host.processes[0].wait_for(|line| host::address(line, "metrics are served"))?;
        let client = host.tenant("acme")?.client;
        let session = client.session(json!({})).await?;
        client.bash(&session, "printf 12345").await?;
        let unknown = json!({"tool": "made_up_by_a_client", "arguments": {}});
        let reply = client.post(&format!("/v1/sessions/{session}/calls"), &unknown).await?;
        ensure!(reply.status == 422, "{reply:?}");
        client.get("/made/up/by/a/client").await?.problem(404, "not_found")?;

        let of_metrics = Client::new(&metrics, "");
        let page = of_metrics.get("/metrics").await?;
        let page = String::from_utf8(page.bytes)?;
        ensure!(!page.contains("made_up_by") && !page.contains("made/up/by"), "{page}");
        lint(&page)?;
        ensure!(of_metrics.get("/healthz").await?.status == 200);
        // A check that is late on a busy machine is not ok for that once.
        wait::until("every check is ok", || async {
            let reply = of_metrics.get("/readyz").await?;
            let ready = reply.json();
            let names = ["database", "engine", "image", "migrations", "shutdown"];
            Ok(reply.status == 200 && names.iter().all(|check| ready["checks"][*check] == "ok"))
        })
        .await?;

        let (_prometheus, prometheus) = start_prometheus(host, &metrics)?;
        for (query, least) in [
            (r#"toolhost_calls_ended_total{tool="bash",status="succeeded"}"#, 1.0),
            (r#"toolhost_calls_submitted_total{tool="bash",outcome="started"} + ignoring(outcome) toolhost_calls_submitted_total{tool="bash",outcome="queued"}"#, 1.0),
            (r#"toolhost_call_duration_seconds_count{tool="bash"}"#, 1.0),
            ("toolhost_call_queue_seconds_count", 1.0),
            ("toolhost_output_bytes_total", 5.0),
            (r#"toolhost_store_events_total{type="call.ended"}"#, 1.0),
            (r#"toolhost_http_requests_total{route="/v1/sessions/{session_id}/calls",method="POST",status="2xx"}"#, 1.0),
            (r#"toolhost_http_problems_total{code="unknown_tool"}"#, 1.0),
            (r#"sum(toolhost_sandbox_claims_total)"#, 1.0),
            ("toolhost_sessions_owned", 1.0),
            (r#"toolhost_installation{kind="workers"}"#, 1.0),
            ("process_resident_memory_bytes > 1e6", 1.0),
        ] {
            wait::until(query, || async { Ok(ask(&prometheus, query).await?.is_some_and(|value| value >= least)) }).await?;
        }
        // The committed rules are loaded, and each of them can be evaluated over what is there.
        wait::until("every rule was evaluated", || async {
            let rules = prometheus.get("/api/v1/rules").await?.expect(200)?;
            let rules = rules["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
            ensure!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:#?}");
            Ok(rules.len() > 10 && rules.iter().all(|rule| rule["health"] == "ok"))
        })
        .await
    })
    .await;
}

/// A Prometheus over one process, with the committed rules.
fn start_prometheus(host: &Host, metrics: &str) -> Result<(Process, Client)> {
    let folder = host.folder().join("prometheus");
    std::fs::create_dir_all(&folder)?;
    let config = folder.join("prometheus.yml");
    let target = metrics.trim_start_matches("http://");
    let rules = root().join("deploy/prometheus/alerts.yml").canonicalize()?;
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n\
         - {{job_name: toolhost, static_configs: [{{targets: ['{target}']}}]}}\n",
        rules.display()
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg("--web.listen-address=127.0.0.1:0");
    let mut process = Process::start("prometheus", &mut command)?;
    let address = process.wait_for(|line| {
        let (_, address) = line.split_once("msg=\"Listening on\" address=")?;
        Some(format!("http://{}", address.trim()))
    })?;
    Ok((process, Client::new(&address, "")))
}

/// The first value of an instant query.
async fn ask(prometheus: &Client, query: &str) -> Result<Option<f64>> {
    let request = prometheus.request("GET", "/api/v1/query").query(&[("query", query)]);
    let reply = prometheus.send(request).await?;
    if reply.status == 503 {
        return Ok(None);
    }
    let answer = reply.expect(200)?;
    let value = answer["data"]["result"][0]["value"][1].as_str();
    Ok(value.and_then(|value| value.parse().ok()))
}

fn lint(page: &str) -> Result<()> {
    use std::io::Write as _;
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("promtool is missing: make setup")?;
    promtool.stdin.take().context("a pipe")?.write_all(page.as_bytes())?;
    let output = promtool.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.trim().is_empty(), "promtool check metrics: {said}");
    Ok(())
}

#[test]
fn alert_rules_pass_their_unit_tests_and_every_alert_has_both_cases() {
    let output = Command::new("promtool")
        .args(["test", "rules", "alerts_test.yml"])
        .current_dir(root().join("deploy/prometheus"))
        .output()
        .expect("promtool is there: make setup");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let (rules, tests) = (read("deploy/prometheus/alerts.yml"), read("deploy/prometheus/alerts_test.yml"));
    let operations = read("docs/operations.md");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10);
    for alert in alerts {
        for case in ["fires", "keeps quiet"] {
            assert!(
                tests.contains(&format!("- name: {alert} {case}\n")),
                "{alert} has no case in which it {case}"
            );
        }
        let runbook = format!("runbook_url: docs/operations.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&runbook), "{alert} has no runbook");
        assert!(operations.contains(&format!("\n### {alert}\n")), "docs/operations.md has no part {alert}");
    }
}

#[test]
fn rules_and_dashboard_name_only_metrics_and_labels_that_exist() {
    let families = server::metrics_reference::families().expect("metrics");
    let mut expressions: Vec<String> = read("deploy/prometheus/alerts.yml")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: ").map(str::to_owned))
        .collect();
    let dashboard: Value =
        serde_json::from_str(&read("deploy/grafana/dashboards/toolhost.json")).expect("JSON");
    collect(&dashboard, &mut expressions);
    assert!(expressions.len() > 50, "{}", expressions.len());
    for expression in &expressions {
        for (name, labels) in selectors(expression) {
            let family = families.iter().find(|family| {
                let histogram = family.get_field_type() == MetricType::HISTOGRAM;
                let parts = ["_bucket", "_sum", "_count"].map(|part| format!("{}{part}", family.name()));
                if histogram { parts.contains(&name.to_string()) } else { family.name() == name }
            });
            let Some(family) = family else { panic!("there is no metric {name}: {expression}") };
            let known: BTreeSet<&str> =
                family.get_metric()[0].get_label().iter().map(|label| label.name()).collect();
            for label in labels {
                let of_scrape = matches!(label.as_str(), "instance" | "job");
                assert!(
                    of_scrape || known.contains(label.as_str()),
                    "{name} has no label {label}: {expression}"
                );
            }
        }
    }
}

/// Grafana is in no test (its image cannot be had without a network), so what it is given is held against what it will find there.
#[test]
fn what_grafana_is_given_fits_together() {
    let compose = read("docker-compose.yml");
    let service = |name: &str| {
        let from =
            compose.split(&format!("\n  {name}:\n")).nth(1).unwrap_or_else(|| panic!("no service {name}"));
        from.split("\n\n").next().expect("a part").to_owned()
    };
    let grafana = service("grafana");
    for hardened in [
        "cap_drop: [ALL]",
        "read_only: true",
        "no-new-privileges:true",
        "secrets: [grafana_password]",
        "GF_SECURITY_ADMIN_PASSWORD__FILE: /run/secrets/grafana_password",
    ] {
        assert!(grafana.contains(hardened), "grafana is without {hardened}: {grafana}");
    }
    assert!(read("deploy/compose/secrets.sh").contains("> \"$folder/grafana_password\""));
    let provisioning = "- ./deploy/grafana/provisioning:/etc/grafana/provisioning:ro";
    assert!(grafana.contains(provisioning), "{grafana}");

    let dashboards = read("deploy/grafana/provisioning/dashboards/toolhost.yml");
    let path = dashboards.split("path: ").nth(1).and_then(|rest| rest.split('}').next()).expect("a path");
    assert!(grafana.contains(&format!("- ./deploy/grafana/dashboards:{path}:ro")), "{path}: {grafana}");
    let source = read("deploy/grafana/provisioning/datasources/toolhost.yml");
    let url = source.split("url: http://").nth(1).and_then(|rest| rest.lines().next()).expect("a URL");
    let (name, port) = url.split_once(':').expect("a port");
    assert!(service(name).contains(&format!(":{port}\"]")), "{name} has no port {port}: {}", service(name));
    assert!(source.contains("type: prometheus") && source.contains("isDefault: true"), "{source}");

    let text = read("deploy/grafana/dashboards/toolhost.json");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let declared: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|variable| variable["name"].as_str().expect("a name"))
        .collect();
    let used = text.split("${").skip(1).filter_map(|rest| rest.split(['}', ':']).next());
    let used: BTreeSet<&str> = used.chain(plain_variables(&text)).collect();
    assert!(used.contains("datasource") && used.contains("instance"), "{used:?}");
    let unknown: Vec<_> = used.difference(&declared).collect();
    assert!(unknown.is_empty(), "the dashboard declares no {unknown:?}");
    let mut ids: Vec<_> =
        dashboard["panels"].as_array().expect("panels").iter().map(|panel| &panel["id"]).collect();
    let panels = ids.len();
    ids.sort_by_key(|id| id.as_u64());
    ids.dedup();
    assert_eq!(ids.len(), panels, "two panels have one id");
}

/// Variables written as `$name`; those of Grafana itself begin with two underscores.
fn plain_variables(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some(&rest[..end]).filter(|name| !name.is_empty() && !name.starts_with("__"))
    })
}

fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            into.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| collect(field, into));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Names of ours in an expression, each with the labels that it is selected by.
fn selectors(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        rest = &rest[at..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if word.starts_with("toolhost_") || word.starts_with("process_") {
            let inside = after
                .strip_prefix('{')
                .and_then(|after| after.split_once('}'))
                .map_or("", |(inside, _)| inside);
            let labels = inside
                .split(',')
                .filter_map(|pair| pair.split(['=', '!']).next())
                .map(|label| label.trim().to_owned());
            found.push((word.to_owned(), labels.filter(|label| !label.is_empty()).collect()));
            rest = after
                .strip_prefix('{')
                .and_then(|after| after.split_once('}'))
                .map_or(after, |(_, after)| after);
        }
    }
    found
}
