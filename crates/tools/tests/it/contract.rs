//! The contract with the source systems: every tool, parameter, field, rule and extension of their documents has a place here.
//!
//! `contract/*.psv` has a row for each, with the line of the document that it is in. A place names what exists (a tool, an argument,
//! a field, an operation, a code, a test), the issue that brings it (`later`), or why we differ. This test looks whether it is there.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tools::alias::ArgumentAlias;
use tools::{Catalog, Dialect, Filter};

const SOURCES: &[(&str, &str)] = &[
    ("open_cowork", "Open CoWork"),
    ("mycoder", "MyCoder"),
    ("open_manus", "OpenManus"),
    ("cowork_forge", "Cowork Forge"),
    ("catalogue", "Our catalogue"),
];

/// What a row may be left for, and who brings it.
const LATER: &[&str] = &[
    "web",
    "browser",
    "data",
    "media",
    "human",
    "planning",
    "memory",
    "project",
    "catalogue",
    "governance",
    "network",
    "operation",
];

const KINDS: &[&str] =
    &["tool", "parameter", "field", "rule", "error", "context", "mechanism", "flow", "extension"];

struct Row {
    place: String,
    line: String,
    kind: String,
    element: String,
    landings: Vec<(String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rows(source: &str) -> Vec<Row> {
    let file = format!("contract/{source}.psv");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
    let text = std::fs::read_to_string(path).expect("an inventory for each source");
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|(index, line)| {
            let place = format!("{file}:{}", index + 1);
            let columns: Vec<&str> = line.splitn(4, " | ").collect();
            let [line, kind, element, landing] = columns[..] else { panic!("{place}: is unmapped") };
            let landings = landing.split("; ").map(|one| {
                let (word, rest) = one.trim().split_once(' ').unwrap_or((one.trim(), ""));
                assert!(!rest.is_empty(), "{place}: `{one}` names nothing");
                (word.to_owned(), rest.to_owned())
            });
            Row {
                landings: landings.collect(),
                place,
                line: line.trim().to_owned(),
                kind: kind.to_owned(),
                element: element.to_owned(),
            }
        })
        .collect()
}

/// What there is, to compare with.
struct World {
    catalog: Catalog,
    document: Value,
    tests: BTreeSet<String>,
}

impl World {
    fn new() -> Self {
        let document = std::fs::read(root().join("openapi/toolhost.json")).expect("the document");
        let mut tests = BTreeSet::new();
        tests_under(&root().join("crates"), &mut tests);
        tests_under(&root().join("tests"), &mut tests);
        Self {
            catalog: Catalog::standard(),
            document: serde_json::from_slice(&document).expect("JSON"),
            tests,
        }
    }

    fn has(&self, word: &str, what: &str) -> bool {
        match word {
            "tool" => self.catalog.get(what).is_some_and(|found| found.requested_alias.is_none()),
            "alias" => self.catalog.get(what).is_some_and(|found| found.requested_alias.is_some()),
            "arg" => what.split_once('.').is_some_and(|(tool, argument)| self.takes(tool, argument)),
            "out" => what.split_once('.').is_some_and(|(tool, field)| {
                self.catalog
                    .get(tool)
                    .is_some_and(|found| found.descriptor.output_schema["properties"].get(field).is_some())
            }),
            "wire" => what.split_once('.').is_some_and(|(object, field)| {
                self.document["components"]["schemas"][object]["properties"].get(field).is_some()
            }),
            "api" => what.split_once(' ').is_some_and(|(method, path)| {
                self.document["paths"][path].get(method.to_lowercase()).is_some()
            }),
            "code" => domain::Code::ALL.iter().any(|code| code.as_str() == what),
            "test" => self.tests.contains(what),
            "doc" => root().join(what).is_file(),
            "later" => LATER.contains(&what),
            "differs" => what.len() > 20,
            _ => false,
        }
    }

    /// Whether a name of a tool takes an argument, under whatever name.
    fn takes(&self, name: &str, argument: &str) -> bool {
        let Some(found) = self.catalog.get(name) else { return false };
        let named = |aliases: &[ArgumentAlias]| aliases.iter().any(|alias| alias.name == argument);
        let own = |tool: &str| {
            let found = self.catalog.get(tool).expect("an own name");
            found.descriptor.input_schema["properties"].get(argument).is_some()
                || named(self.catalog.argument_aliases(tool))
        };
        let otherwise = found.requested_alias.and_then(|alias| alias.otherwise);
        matches!(argument, "description" | "timeout_ms")
            || found.requested_alias.is_some_and(|alias| named(alias.arguments))
            || own(found.descriptor.name)
            || otherwise.is_some_and(|otherwise| own(otherwise.tool))
    }
}

/// Names of test functions below a folder.
fn tests_under(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            tests_under(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
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
fn every_row_of_the_source_systems_has_a_place_that_exists() {
    let world = World::new();
    let mut wrong = Vec::new();
    for (source, _) in SOURCES {
        for row in rows(source) {
            if !KINDS.contains(&row.kind.as_str()) {
                wrong.push(format!("{}: `{}` is no kind of row", row.place, row.kind));
            }
            for (word, what) in row.landings.iter().filter(|(word, what)| !world.has(word, what)) {
                wrong.push(format!("{}: {}: there is no {word} `{what}`", row.place, row.element));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_name_of_a_source_system_is_in_the_contract() {
    let listed: BTreeSet<String> = SOURCES
        .iter()
        .flat_map(|(source, _)| rows(source))
        .flat_map(|row| row.landings)
        .filter(|(word, _)| word == "alias" || word == "arg")
        .map(|(_, what)| what.split('.').next().unwrap_or_default().to_owned())
        .collect();
    let catalog = Catalog::standard();
    for descriptor in catalog.list(&Filter::default()) {
        assert!(
            listed.contains(descriptor.name)
                || rows("catalogue").iter().any(|row| row.element == descriptor.name),
            "`{}` is in no row of contract/catalogue.psv",
            descriptor.name
        );
        for alias in &descriptor.aliases {
            assert!(listed.contains(alias.name), "`{}` is in no row of contract/*.psv", alias.name);
            assert_ne!(alias.dialect, Dialect::Toolhost, "`{}` is nobody's name", alias.name);
        }
    }
}

#[test]
fn the_contract_page_is_what_the_tables_say() {
    let path = root().join("docs/contract.md");
    let text = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("docs/contract.md can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/contract.md is old; run: UPDATE_DOCS=1 cargo nextest run -p tools contract"
    );
}

fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (source, title) in SOURCES {
        let _ =
            write!(text, "\n## {title}\n\n| line | kind | what | where it is here |\n|---|---|---|---|\n");
        for row in rows(source) {
            let places: Vec<String> = row.landings.iter().map(|(word, what)| shown(word, what)).collect();
            let _ =
                writeln!(text, "| {} | {} | {} | {} |", row.line, row.kind, row.element, places.join("; "));
        }
    }
    text
}

fn shown(word: &str, what: &str) -> String {
    match word {
        "tool" => format!("[`{what}`](tools.md#{what})"),
        "alias" => format!("`{what}`"),
        "arg" => format!("argument `{what}`"),
        "out" => format!("result `{what}`"),
        "wire" => format!("`{what}`"),
        "api" => format!("`{what}`"),
        "code" => format!("error `{what}`"),
        "test" => format!("test `{what}`"),
        "doc" => format!(
            "[{what}]({})",
            what.strip_prefix("docs/").map_or_else(|| format!("../{what}"), str::to_owned)
        ),
        "later" => format!("*later: {what}*"),
        _ => format!("differs: {what}"),
    }
}

const INTRODUCTION: &str = "# The contract with the source systems

<!-- Generated from crates/tools/contract/*.psv. Do not edit: change a row, then run `UPDATE_DOCS=1 cargo nextest run -p tools contract`. -->

Toolhost does what four systems do whose tools models were taught: Open CoWork, MyCoder, OpenManus and Cowork Forge. This page lists
what their documents say, line by line in our own words, and where each thing is here. A test fails when a row names nothing that
exists, and when a name of theirs that is registered has no row.

A place is a tool, one of its names, an argument, a field of a result or of an object of the API, an operation, an error code, a test that
shows it, *later* with the toolkit that brings it, or the reason why we differ. `CATALOGUE` instead of a line: the name is not in the
system's document but in its code, and in our catalogue.
";
