//! Who may import whom: `cargo metadata` compared with the table in ARCHITECTURE.md, so that the picture cannot drift.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// Dependencies that only these rooms may name (STYLE: a crate boundary that forbids nothing is decoration).
const ONLY_IN: &[(&str, &[&str])] = &[
    ("bollard", &["sandbox", "tests"]),
    ("sqlx", &["store", "tests"]),
    ("axum", &["api", "server"]),
    ("tower", &["api"]),
    ("tower-http", &["api"]),
    ("utoipa", &["api"]),
    ("schemars", &["tools"]),
    ("clap", &["server", "tests"]),
    ("toml", &["server"]),
    ("nix", &["agent", "sandbox", "server", "tests"]),
    ("libc", &["agent", "sandbox"]),
    ("reqwest", &["server", "tests"]),
    ("anyhow", &["server", "tests"]),
];

/// Rooms without async and without I/O.
const PURE: &[&str] = &["domain", "protocol"];
const ASYNC: &[&str] = &["tokio", "tokio-util", "futures-util", "async-trait", "hyper", "reqwest"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn rooms() -> BTreeMap<String, Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata answers");
    metadata.packages.into_iter().map(|package| (package.name.to_string(), package)).collect()
}

/// Names that a room's production code depends on.
fn dependencies(room: &Package) -> BTreeSet<String> {
    room.dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development && !dependency.optional)
        .map(|dependency| dependency.name.clone())
        .collect()
}

/// The block in ARCHITECTURE.md: `rooms → what they may import`.
fn table(all: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    let block = page
        .split("Who may import whom")
        .nth(1)
        .and_then(|rest| rest.split("```").nth(1))
        .expect("the block is there");
    let mut table = BTreeMap::new();
    for line in block.lines().filter(|line| line.contains('→')) {
        let (importers, imported) = line.split_once('→').expect("was looked for");
        let imported: BTreeSet<String> = match imported.trim() {
            "nothing of ours" => BTreeSet::new(),
            "all" => all.clone(),
            names => names.split(',').map(|name| name.trim().to_owned()).collect(),
        };
        for importer in importers.split(',') {
            table.insert(importer.trim().to_owned(), imported.clone());
        }
    }
    table
}

#[test]
fn rooms_import_what_the_table_says_and_nothing_else() {
    let rooms = rooms();
    let all: BTreeSet<String> = rooms.keys().cloned().collect();
    let table = table(&all);
    assert_eq!(
        table.keys().cloned().collect::<BTreeSet<_>>(),
        all,
        "every room is in the table, and nothing else"
    );
    for (name, room) in &rooms {
        let ours: BTreeSet<_> = dependencies(room).intersection(&all).cloned().collect();
        let beyond: Vec<_> = ours.difference(&table[name]).collect();
        assert!(beyond.is_empty(), "{name} imports {beyond:?}, which ARCHITECTURE.md does not allow");
        if table[name] != all {
            assert_eq!(ours, table[name], "{name} does not import all that ARCHITECTURE.md says");
        }
    }
}

#[test]
fn heavy_dependencies_live_in_their_rooms_only() {
    for (name, room) in &rooms() {
        for dependency in dependencies(room) {
            if let Some((_, allowed)) = ONLY_IN.iter().find(|(heavy, _)| *heavy == dependency) {
                assert!(allowed.contains(&name.as_str()), "{name} must not depend on {dependency}");
            }
        }
    }
}

#[test]
fn the_pure_rooms_know_no_runtime() {
    let rooms = rooms();
    for name in PURE {
        let found: Vec<_> = dependencies(&rooms[*name])
            .into_iter()
            .filter(|dependency| ASYNC.contains(&dependency.as_str()))
            .collect();
        assert!(found.is_empty(), "{name} must not depend on {found:?}");
    }
}

#[test]
fn folders_are_named_as_their_packages() {
    for (name, package) in rooms() {
        let folder = package.manifest_path.parent().and_then(|folder| folder.file_name());
        assert_eq!(folder, Some(name.as_str()));
    }
}

#[test]
fn every_room_takes_the_workspace_lints() {
    for (name, package) in rooms() {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("is there");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name}");
    }
}
