//! docs/metrics.md: every metric of the service, as its own registry names them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use prometheus::Registry;
use prometheus::proto::{MetricFamily, MetricType};
use tools::Catalog;

/// Labels whose values depend on the installation or the catalogue, and what they are.
const OPEN_LABELS: &[(&str, &str)] = &[
    ("code", "a code of the [error registry](api.md#errors)"),
    ("image", "an image of `sandbox.pool`"),
    ("method", "`GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE` or `other`"),
    ("route", "a route as the OpenAPI document writes it, or `unmatched`"),
    ("size", "a size class"),
    ("tool", "a tool of the catalogue, or `other`"),
    ("version", "the binary\'s version"),
];

/// Parts of the page: beginnings of names, and titles.
const PARTS: &[(&str, &str)] = &[
    ("toolhost_call", "Calls"),
    ("toolhost_queue", "Calls"),
    ("toolhost_output", "Calls"),
    ("toolhost_tool", "Calls"),
    ("toolhost_session", "Sessions and workers"),
    ("toolhost_worker", "Sessions and workers"),
    ("toolhost_sweep", "Sessions and workers"),
    ("toolhost_installation", "Sessions and workers"),
    ("toolhost_sandbox", "Sandboxes"),
    ("toolhost_http", "HTTP"),
    ("toolhost_sse", "HTTP"),
    ("toolhost_store", "Database"),
    ("toolhost_audit", "Audit"),
    ("toolhost_trace", "Telemetry"),
    ("toolhost_log", "Telemetry"),
    ("", "Process"),
];

/// Every metric that a process with API and worker exposes.
///
/// # Errors
/// When two rooms use one name.
pub fn families() -> Result<Vec<MetricFamily>> {
    let (registry, catalog) = (Registry::new(), Catalog::standard());
    crate::process_metrics::register(&registry)?;
    crate::telemetry::describe_metrics(&registry)?;
    store::describe_metrics(&registry)?;
    api::describe_metrics(&registry, &catalog)?;
    worker::Metrics::register(&registry)?.show_tools(&catalog);
    let sandboxes = sandbox::Metrics::register(&registry)?;
    for gauge in [&sandboxes.pool_size, &sandboxes.pool_filling] {
        gauge.with_label_values(&["", ""]);
    }
    Ok(registry.gather())
}

/// The page.
///
/// # Errors
/// When two rooms use one name.
pub fn markdown() -> Result<String> {
    let mut parts: BTreeMap<usize, Vec<MetricFamily>> = BTreeMap::new();
    for family in families()? {
        let place = PARTS.iter().position(|(prefix, _)| family.name().starts_with(prefix));
        let title = PARTS[place.unwrap_or(PARTS.len() - 1)].1;
        let first = PARTS.iter().position(|(_, other)| *other == title).unwrap_or_default();
        parts.entry(first).or_default().push(family);
    }
    let mut page = String::from(HEAD);
    for (place, families) in parts {
        let _ = write!(
            page,
            "\n## {}\n\n| metric | kind | labels | what it tells |\n|---|---|---|---|\n",
            PARTS[place].1
        );
        for family in families {
            let help = family.help().trim_end_matches('.');
            let _ =
                writeln!(page, "| `{}` | {} | {} | {help}. |", family.name(), kind(&family), labels(&family));
        }
    }
    page.push_str(
        "\n## Labels\n\nNo label ever has a value that a client chose.\n\n| label | values |\n|---|---|\n",
    );
    for (label, values) in OPEN_LABELS {
        let _ = writeln!(page, "| `{label}` | {values} |");
    }
    Ok(page)
}

const HEAD: &str = "# Metrics

Made from the code (`UPDATE_DOCS=1 cargo nextest run -p server the_page_of_metrics`); a test compares. Every process
serves them for Prometheus at `/metrics` of `metrics.listen`, beside `/healthz` and `/readyz`; a process that serves only the API has no
metrics of workers and sandboxes. Closed labels are shown from the start, at zero. Alerts and dashboard over them:
[operations](operations.md#monitoring).
";

fn kind(family: &MetricFamily) -> &'static str {
    match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        MetricType::UNTYPED => "untyped",
    }
}

fn labels(family: &MetricFamily) -> String {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for label in family.get_metric().iter().flat_map(|metric| metric.get_label()) {
        values.entry(label.name()).or_default().insert(label.value());
    }
    let shown = values.into_iter().map(|(label, values)| {
        if OPEN_LABELS.iter().any(|(open, _)| *open == label) {
            return format!("`{label}`");
        }
        let values: Vec<_> = values.into_iter().map(|value| format!("`{value}`")).collect();
        format!("`{label}`: {}", values.join(" "))
    });
    let shown: Vec<_> = shown.collect();
    if shown.is_empty() { "–".to_owned() } else { shown.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_metrics_is_what_the_code_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let page = markdown().expect("a page");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &page).expect("writes");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, page, "run `UPDATE_DOCS=1 cargo nextest run -p server the_page_of_metrics`");
    }

    /// A metric that is registered without a child is on no page: whoever adds one shows its labels too.
    #[test]
    fn every_name_in_the_code_is_on_the_page() {
        let page = markdown().expect("a page");
        let crates = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut files = vec![];
        for room in std::fs::read_dir(crates).expect("crates").flatten() {
            files.push(room.path().join("src/metrics.rs"));
        }
        let mut names = 0;
        for file in files {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            for name in text.split('"').filter(|part| part.starts_with("toolhost_")) {
                assert!(page.contains(&format!("`{name}`")), "{name} has no children when it is registered");
                names += 1;
            }
        }
        assert!(names > 40, "{names}");
    }
}
