//! The committed document is the served one, and it says what it must.

use std::path::PathBuf;

use serde_json::Value;

fn committed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../openapi/toolhost.json")
}

/// `UPDATE=1 cargo nextest run -p api the_committed_document` writes it anew.
#[test]
fn the_committed_document_is_the_one_of_this_build() {
    let written = serde_json::to_string_pretty(&api::openapi()).expect("JSON") + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(committed(), &written).expect("writes");
    }
    let found = std::fs::read_to_string(committed()).unwrap_or_default();
    assert!(
        found == written,
        "openapi/toolhost.json is not of this build; run with UPDATE=1 and read the diff"
    );
}

#[test]
fn every_reference_leads_somewhere() {
    let document = api::openapi();
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 100);
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("a reference within the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn nothing_in_the_document_is_null() {
    fn look(value: &Value, at: &str) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, field)| look(field, &format!("{at}/{name}")))
            }
            Value::Array(items) => items.iter().for_each(|item| look(item, at)),
            other => assert!(!other.is_null() || at.contains("/default") || at.contains("/example"), "{at}"),
        }
    }
    look(&api::openapi(), "");
}

fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            into.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| collect(field, into));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_operation_is_described_and_answers_with_problems() {
    let document = api::openapi();
    let mut ids = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let name = format!("{method} {path}");
            assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{name}");
            assert!(operation["responses"]["500"].is_object(), "{name}");
            let placeholders = path.matches('{').count();
            let declared = operation["parameters"].as_array().into_iter().flatten();
            assert_eq!(
                declared.filter(|parameter| parameter["in"] == "path").count(),
                placeholders,
                "{name}"
            );
            ids.push(operation["operationId"].as_str().expect("an id").to_owned());
        }
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn every_schema_is_described() {
    let document = api::openapi();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for (name, schema) in schemas {
        assert!(schema["description"].is_string(), "{name}");
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let described = [property, &property["oneOf"][0]].iter().any(|at| at["description"].is_string());
            assert!(described || name.starts_with("tool."), "{name}.{field}");
        }
    }
    for tool in ["bash", "python_execute", "read_file"] {
        assert!(schemas.contains_key(&format!("tool.{tool}.input")), "{tool}");
        assert!(schemas.contains_key(&format!("tool.{tool}.output")), "{tool}");
    }
}
