//! The examples of the documentation, run as printed and in order, on a live installation.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::Host;

/// The fenced examples of a page as one script: `bash` as it stands, `python` through an interpreter. Other fences
/// (`console`, `json`, none) are for reading.
pub(crate) fn script(page: &str) -> String {
    let mut script = String::from("set -euo pipefail\n");
    let mut fence: Option<&str> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), fence) {
            (Some(_), Some(kind)) => {
                if kind == "python" {
                    script.push_str("END_OF_PYTHON\n");
                }
                fence = None;
            }
            (Some(kind), None) => {
                if kind == "python" {
                    script.push_str("python3 - <<'END_OF_PYTHON'\n");
                }
                fence = Some(kind);
            }
            (None, Some("bash" | "python")) => {
                script.push_str(line);
                script.push('\n');
            }
            (None, _) => {}
        }
    }
    script
}

async fn run(host: &Host, page: &str) -> Result<()> {
    let path = format!("{}/../{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
    let script = script(&text);
    ensure!(script.lines().count() > 3, "{page} has no examples");
    let tenant = host.tenant(page)?;
    let output = Command::new("bash")
        .args(["-x", "-c", &script])
        .current_dir(host.folder())
        .env("TOOLHOST_URL", &host.base)
        .env("TOOLHOST_KEY", tenant.client.key())
        .env("no_proxy", "*")
        .output()?;
    ensure!(
        output.status.success(),
        "{page}: {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_works_as_printed() {
    Host::test(&[], async |host| run(host, "README.md").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_page_works_as_printed() {
    Host::test(&[], async |host| run(host, "docs/api.md").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_agent_guide_works_as_printed() {
    Host::test(&[], async |host| run(host, "docs/guides/data-agent.md").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_files_works_as_printed() {
    Host::test(&[], async |host| run(host, "docs/guides/files.md").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_code_works_as_printed() {
    Host::test(&[], async |host| run(host, "docs/guides/code.md").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_shells_works_as_printed() {
    Host::test(&[], async |host| run(host, "docs/guides/shell.md").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_artifacts_works_as_printed() {
    Host::test(&[], async |host| run(host, "docs/guides/artifacts.md").await).await;
}

#[test]
fn every_toolkit_has_a_guide_in_curl_and_python_that_is_run() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let table = std::fs::read_to_string(format!("{folder}/tools.md")).expect("the table of tools");
    let toolkits: std::collections::BTreeSet<&str> = table
        .lines()
        .skip_while(|line| !line.starts_with("| tool | toolkit |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.split('|').nth(2))
        .map(|toolkit| toolkit.trim().trim_matches('`'))
        .collect();
    assert!(toolkits.len() >= 4, "{toolkits:?}");
    for toolkit in toolkits {
        let page = format!("docs/guides/{toolkit}.md");
        let text = std::fs::read_to_string(format!("{folder}/../{page}"));
        let text = text.unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(
            text.contains("\n```bash\n") && text.contains("curl") && text.contains("\n```python\n"),
            "{page}"
        );
        assert!(
            include_str!("docs.rs").contains(&format!("run(host, \"{page}\")")),
            "{page} is run by no test"
        );
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut pages = vec![root.join("README.md"), root.join("ARCHITECTURE.md"), root.join("CONTRIBUTING.md")];
    let docs = std::fs::read_dir(root.join("docs")).expect("there is a folder");
    pages.extend(
        docs.flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "md")),
    );
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("can be read");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let full = page.parent().expect("has a folder").join(path);
            assert!(full.exists(), "{} links to {target}", page.display());
        }
    }
}
