//! The catalogue itself: complete, consistent, and documented as it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tools::{Catalog, Filter};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

#[test]
fn every_file_of_a_toolkit_is_a_tool_of_the_catalogue() {
    let mut files = BTreeSet::new();
    for toolkit in Catalog::standard().toolkits() {
        for entry in
            std::fs::read_dir(root().join("src").join(toolkit.name)).expect("a folder for each toolkit")
        {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
            if path.extension().is_some_and(|extension| extension == "rs") && name != "mod" {
                files.insert((toolkit.name, name));
            }
        }
    }
    let catalog = Catalog::standard();
    let listed: BTreeSet<_> = catalog
        .list(&Filter::default())
        .into_iter()
        .map(|descriptor| (descriptor.toolkit, descriptor.name.to_owned()))
        .collect();
    assert_eq!(files, listed);
}

#[test]
fn names_are_unique_and_fit_every_provider() {
    let mut names = BTreeSet::new();
    for descriptor in Catalog::standard().list(&Filter::default()) {
        for name in std::iter::once(descriptor.name).chain(descriptor.aliases.iter().map(|alias| alias.name))
        {
            assert!(names.insert(name.to_owned()), "{name} is given twice");
            assert!(
                name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            );
        }
        assert!(descriptor.default_timeout_ms <= descriptor.max_timeout_ms);
        assert!((50..=1_024).contains(&descriptor.description.len()), "{}", descriptor.name);
        assert!(!descriptor.description.contains("  "), "{}", descriptor.name);
    }
}

#[test]
fn aliases_translate_into_arguments_that_exist() {
    use tools::alias::Target;
    for descriptor in Catalog::standard().list(&Filter::default()) {
        let own = descriptor.input_schema["properties"].as_object().expect("properties");
        for alias in &descriptor.aliases {
            for argument in alias.arguments {
                let fields: &[&str] = match &argument.target {
                    Target::Field(field) | Target::Not(field) => std::slice::from_ref(field),
                    Target::Convert(fields, _) => fields,
                    Target::Timeout(_) | Target::Ignored(_) | Target::Refused(_) => &[],
                };
                assert!(
                    fields.iter().all(|field| own.contains_key(*field)),
                    "{} {}",
                    alias.name,
                    argument.name
                );
            }
            for preset in alias.presets {
                assert!(own.contains_key(preset.field), "{} {}", alias.name, preset.field);
            }
        }
    }
}

#[test]
fn every_argument_is_described_and_nothing_else_is_accepted() {
    for descriptor in Catalog::standard().list(&Filter::default()) {
        let schema = &descriptor.input_schema;
        assert_eq!(schema["additionalProperties"], json!(false), "{}", descriptor.name);
        assert_eq!(schema["type"], "object");
        for (name, field) in schema["properties"].as_object().expect("properties") {
            assert!(
                field["description"].as_str().is_some_and(|text| text.len() > 5),
                "{} {name}",
                descriptor.name
            );
        }
        assert!(!schema.to_string().contains("$ref"), "{} refers", descriptor.name);
    }
}

#[test]
fn schemas_are_as_published() {
    for descriptor in Catalog::standard().list(&Filter::default()) {
        insta::assert_json_snapshot!(format!("{}.input", descriptor.name), descriptor.input_schema);
        insta::assert_json_snapshot!(format!("{}.output", descriptor.name), descriptor.output_schema);
    }
}

#[test]
fn native_forms_have_the_shape_that_providers_want() {
    let catalog = Catalog::standard();
    let descriptor = catalog.get("bash").expect("bash").descriptor;
    let openai = descriptor.to_openai();
    assert_eq!((&openai["type"], &openai["function"]["name"]), (&json!("function"), &json!("bash")));
    assert_eq!(openai["function"]["parameters"]["required"], json!(["command"]));
    let anthropic = descriptor.to_anthropic();
    assert_eq!(anthropic["input_schema"]["type"], "object");
    assert_eq!(anthropic["input_schema"].get("$schema"), None::<&Value>);
    let mcp = descriptor.to_mcp();
    assert_eq!(mcp["annotations"]["readOnlyHint"], json!(false));
    assert_eq!(mcp["outputSchema"]["type"], "object");
}

#[test]
fn tools_are_found_by_toolkit_and_words() {
    let catalog = Catalog::standard();
    let names = |toolkit: Option<&str>, q: Option<&str>| -> Vec<&str> {
        let filter = Filter { toolkit: toolkit.map(str::to_owned), q: q.map(str::to_owned) };
        catalog.list(&filter).into_iter().map(|descriptor| descriptor.name).collect()
    };
    assert_eq!(names(Some("code"), None), ["node_execute", "python_execute", "run_lint", "run_tests"]);
    assert_eq!(names(None, Some("SHELLSTART")), ["bash"]);
    assert_eq!(names(Some("files"), Some("write atomic")), ["write_file"]);
    assert_eq!(names(Some("none"), None), Vec::<&str>::new());
    assert_eq!(names(None, None).len(), 25);
}

#[test]
fn docs_are_as_the_catalogue_says() {
    let path = root().join("../../docs/tools.md");
    let text = Catalog::standard().docs_markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("docs/tools.md can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/tools.md is not what the catalogue says; run: UPDATE_DOCS=1 cargo nextest run -p tools docs"
    );
}
