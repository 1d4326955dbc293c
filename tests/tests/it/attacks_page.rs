//! `docs/attacks.md` names tests that exist, and its groups have no attack without one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn tests_under(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            tests_under(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            tests_in(&path, into);
        }
    }
}

fn tests_in(path: &Path, into: &mut BTreeSet<String>) {
    let text = std::fs::read_to_string(path).expect("a source file");
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(name) = name.filter(|_| std::mem::take(&mut is_test)) {
            into.insert(name.split('(').next().unwrap_or_default().to_owned());
        }
    }
}

/// Rows of the page: group, attack, and the tests that show it.
fn rows(page: &str) -> Vec<(&str, &str, Vec<&str>)> {
    page.lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| group"))
        .map(|line| {
            let columns: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [group, attack, shown_by] = columns[..] else { panic!("a row has three columns: {line}") };
            (group, attack, shown_by.split(", ").map(|name| name.trim_matches('`')).collect())
        })
        .collect()
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_attack_on_the_page_has_a_test() {
    let mut known = BTreeSet::new();
    tests_under(&root().join("crates"), &mut known);
    tests_under(&root().join("tests/tests"), &mut known);
    let page = std::fs::read_to_string(root().join("docs/attacks.md")).expect("the page");
    let rows = rows(&page);
    for (_, attack, tests) in &rows {
        for test in tests {
            assert!(known.contains(*test), "{attack}: there is no test `{test}`");
        }
    }
    let groups: BTreeSet<&str> = rows.iter().map(|(group, ..)| *group).collect();
    assert_eq!(groups, ["container", "files", "output", "processes", "resources"].into());
    assert!(rows.len() >= 35, "{} attacks", rows.len());
}

/// Tests of the whole house, by their module.
fn of_the_house() -> BTreeMap<String, BTreeSet<String>> {
    let mut modules = BTreeMap::new();
    let it = root().join("tests/tests/it");
    for folder in ["", "http_files"] {
        for entry in std::fs::read_dir(it.join(folder)).expect("a folder").flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|kind| kind != "rs") {
                continue;
            }
            let stem = path.file_stem().and_then(|name| name.to_str()).expect("a name");
            let module = match (folder, stem) {
                ("", stem) => stem.to_owned(),
                (folder, "mod") => folder.to_owned(),
                (folder, stem) => format!("{folder}::{stem}"),
            };
            let mut tests = BTreeSet::new();
            tests_in(&path, &mut tests);
            modules.insert(module, tests);
        }
    }
    modules
}

/// A list of the Makefile, of which a filter for tests is made.
fn listed(name: &str) -> Vec<String> {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let line = makefile.lines().find_map(|line| line.strip_prefix(&format!("{name} := ")));
    line.unwrap_or_else(|| panic!("no {name}")).split('|').map(str::to_owned).collect()
}

#[test]
fn the_page_of_attacks_says_which_are_not_tried_on_gvisor() {
    let (modules, left_out) = (listed("gvisor_modules"), listed("gvisor_left_out"));
    let house = of_the_house();
    for module in &modules {
        assert!(house.get(module).is_some_and(|tests| !tests.is_empty()), "there is no {module}");
    }
    let is_tried = |module: &str, test: &str| {
        modules.iter().any(|tried| tried == module) && !left_out.iter().any(|part| test.contains(part))
    };
    let page = std::fs::read_to_string(root().join("docs/attacks.md")).expect("the page");
    let named: BTreeSet<&str> = rows(&page).into_iter().flat_map(|(.., tests)| tests).collect();
    let not_tried: BTreeSet<&str> = house
        .iter()
        .flat_map(|(module, tests)| tests.iter().map(move |test| (module, test.as_str())))
        .filter(|(module, test)| named.contains(test) && !is_tried(module, test))
        .map(|(_, test)| test)
        .collect();
    let sentence = page.split("Not tried there: ").nth(1).and_then(|rest| rest.split(".\n").next());
    let said: BTreeSet<&str> =
        sentence.expect("a list").split('`').filter(|part| part.contains('_')).collect();
    assert_eq!(said, not_tried);
}
