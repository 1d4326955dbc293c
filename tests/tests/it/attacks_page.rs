//! `docs/attacks.md` names tests that exist, and its groups have no attack without one.

use std::collections::BTreeSet;
use std::path::Path;

fn tests_under(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            tests_under(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let mut is_test = false;
            for line in text.lines().map(str::trim_start) {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
                if let Some(name) = name.filter(|_| std::mem::take(&mut is_test)) {
                    into.insert(name.split('(').next().unwrap_or_default().to_owned());
                }
            }
        }
    }
}

#[test]
fn every_attack_on_the_page_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut known = BTreeSet::new();
    tests_under(&root.join("crates"), &mut known);
    tests_under(&root.join("tests/tests"), &mut known);
    let page = std::fs::read_to_string(root.join("docs/attacks.md")).expect("the page");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| group"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let mut groups = BTreeSet::new();
    for row in &rows {
        let [group, attack, shown_by] = row[..] else { panic!("a row has three columns: {row:?}") };
        groups.insert(group);
        let tests: Vec<&str> = shown_by.split(", ").map(|name| name.trim_matches('`')).collect();
        for test in tests {
            assert!(known.contains(test), "{attack}: there is no test `{test}`");
        }
    }
    assert_eq!(groups, ["container", "files", "output", "processes", "resources"].into());
    assert!(rows.len() >= 35, "{} attacks", rows.len());
}
