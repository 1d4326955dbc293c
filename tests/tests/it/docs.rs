//! The examples of the documentation, run as printed and in order, on a live installation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
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
    let toolkits: BTreeSet<&str> = table
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

/// Every page of a folder and of those in it.
fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages.extend(pages_in(&path));
        } else if path.extension().is_some_and(|kind| kind == "md") {
            pages.push(path);
        }
    }
    pages
}

/// The lines of a page that are no example.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_example = false;
    page.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        is_example ^= is_fence;
        !is_example && !is_fence
    })
}

/// What the headings of a page are linked to by, as forges make it of their text.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(page).filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|one| !anchors.contains(one));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn links_between_pages_lead_somewhere() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root.join(page)).to_vec();
    pages.extend(pages_in(&root.join("docs")));
    assert!(pages.len() >= 15, "{pages:?}");
    let (mut wrong, mut to_headings) = (Vec::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("can be read");
        let prose: Vec<&str> = prose(&text).collect();
        for target in prose.join("\n").split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let full =
                if path.is_empty() { page.clone() } else { page.parent().expect("has a folder").join(path) };
            let is_there = full.exists()
                && (anchor.is_empty()
                    || std::fs::read_to_string(&full).is_ok_and(|text| anchors(&text).contains(anchor)));
            to_headings += usize::from(!anchor.is_empty());
            if !is_there {
                wrong.push(format!("{} links to {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(to_headings >= 20, "{to_headings} links to headings");
}

#[test]
fn headings_are_linked_to_as_forges_do() {
    let page = "# A `b`, c-d\n## What: is it?\n```bash\n# no heading\n```\n## Same\n### Same\n";
    assert_eq!(anchors(page), ["a-b-c-d", "what-is-it", "same", "same-1"].map(str::to_owned).into());
}

/// Programs of the sandbox image that its lists pin; the others are the distribution's, which mends them as it sees fit.
const PINNED: &[&str] = &["uv", "esbuild", "pytest", "ruff"];

/// The page with as much of each version as a rebuilt image keeps.
fn as_pinned(page: &str) -> Vec<String> {
    let is_program = |line: &str| !PINNED.iter().any(|name| line.starts_with(&format!("| {name} |")));
    let mut section = "";
    page.lines()
        .map(|line| {
            section = line.strip_prefix("## ").unwrap_or(section);
            let numbers = if line.starts_with("| operating system |") { 1 } else { 2 };
            if section == "Programs" && is_program(line) { shortened(line, numbers) } else { line.to_owned() }
        })
        .collect()
}

/// Versions in a line, only so many numbers of each.
fn shortened(line: &str, numbers: usize) -> String {
    let is_version = |c: char| c.is_ascii_digit() || c == '.';
    let mut short = String::new();
    let mut dots = 0;
    for c in line.chars() {
        dots = if is_version(c) { dots + usize::from(c == '.') } else { 0 };
        if dots < numbers {
            short.push(c);
        }
    }
    short
}

#[test]
fn the_page_of_the_sandbox_image_says_what_is_in_it() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let said = Command::new(root.join("deploy/sandbox/versions.sh")).output().expect("the script runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).expect("text");
    let page = std::fs::read_to_string(root.join("docs/sandbox-image.md")).expect("the page");
    let (said, page) = (as_pinned(&said), as_pinned(&page));
    let wrong = page.iter().zip(&said).find(|(page, said)| page != said);
    assert!(
        wrong.is_none() && page.len() == said.len(),
        "{wrong:?}: print the page anew with deploy/sandbox/versions.sh > docs/sandbox-image.md"
    );
    assert!(page.len() > 80 && page.contains(&"| bash | 5.2 |".to_owned()), "{page:?}");
}
