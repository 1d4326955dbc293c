//! The OpenAPI document: what the handlers declare, the problems that any operation may answer with, and the catalogue's schemas.

use serde_json::{Map, Value, json};
use tools::Catalog;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Components, Info, License, OpenApi, OpenApiBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::wire::events::CallEvent;
use crate::wire::problems::ProblemView;
use crate::wire::tools::{ToolFormat, ToolView};

/// The document of this build: what `toolhost openapi` prints and `/openapi.json` serves.
#[must_use]
pub fn openapi() -> Value {
    with_catalog(&Catalog::standard())
}

/// The document as it is served.
pub(crate) fn document(catalog: &Catalog) -> String {
    with_catalog(catalog).to_string()
}

fn with_catalog(catalog: &Catalog) -> Value {
    let (_, written) = crate::http::operations().split_for_parts();
    let mut document = serde_json::to_value(written).unwrap_or_default();
    tighten_parameters(&mut document);
    require_what_is_always_there(&mut document);
    add_problems(&mut document);
    add_tools(&mut document, catalog);
    document
}

/// What is the same for all operations.
pub(crate) fn base() -> OpenApi {
    let mut info = Info::new("Toolhost", env!("CARGO_PKG_VERSION"));
    info.description = Some(ABOUT.to_owned());
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    info.license = Some(license);
    let mut components = Components::new();
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some(
        "An API key: `Authorization: Bearer th_…`. The scopes of an operation are those that the key needs."
            .to_owned(),
    );
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let token = ApiKeyValue::with_description(
        "token",
        "The token of a signed URL; good for the events of one call, or for the content of one artifact.",
    );
    components.add_security_scheme("stream_token", SecurityScheme::ApiKey(ApiKey::Query(token)));
    let mut schemas: Vec<(String, RefOr<Schema>)> = Vec::new();
    add::<ProblemView>(&mut schemas);
    add::<CallEvent>(&mut schemas);
    add::<ToolView>(&mut schemas);
    add::<ToolFormat>(&mut schemas);
    components.schemas.extend(schemas);
    OpenApiBuilder::new().info(info).components(Some(components)).build()
}

fn add<T: ToSchema + PartialSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

const ABOUT: &str = "Runs tool calls for AI agents: each session has a sandbox of its own, each call is durable once accepted, and every event of \
a call is numbered, stored and can be read again.\n\nRefusals are problems (RFC 9457) with a `code` from a closed list; see `/problems`. \
Unknown fields are refused. Lists have `limit` and `cursor`. Every response has `X-Request-Id`.";

/// Operations whose body may be left out.
const OPTIONAL_BODY: &[&str] = &[
    "create_session",
    "reset_session",
    "cancel_call",
    "create_stream_url",
    "create_artifact_link",
    "rotate_key",
    "rotate_own_key",
    "cordon_host",
    "uncordon_host",
    "drain_host",
];

/// Prefixes of the ids that parameters are.
const IDS: &[(&str, &str)] = &[
    ("session_id", "sess"),
    ("call_id", "call"),
    ("shell_id", "shell"),
    ("artifact_id", "art"),
    ("tenant_id", "ten"),
    ("key_id", "key"),
    ("host_id", "host"),
];

/// A parameter that is not given is left out, none is null; ids have their form; and some bodies may be left out.
fn tighten_parameters(document: &mut Value) {
    let null = Value::from("null");
    for operation in operations(document) {
        let optional = operation["operationId"].as_str().is_some_and(|id| OPTIONAL_BODY.contains(&id));
        if optional && let Some(body) = operation.get_mut("requestBody") {
            body["required"] = false.into();
        }
        for parameter in parts(operation, "parameters") {
            let prefix = IDS.iter().find(|(name, _)| parameter["name"] == *name).map(|(_, prefix)| *prefix);
            let Some(schema) = parameter.get_mut("schema") else { continue };
            let only =
                parts(schema, "oneOf").find(|choice| choice.get("type") != Some(&null)).map(std::mem::take);
            if let Some(only) = only {
                *schema = only;
            }
            let kind = parts(schema, "type").find(|kind| **kind != null).map(std::mem::take);
            if let Some(kind) = kind {
                schema["type"] = kind;
            }
            if let Some(prefix) = prefix {
                schema["pattern"] = format!("^{prefix}_[0-9a-hjkmnp-tv-z]{{25}}[048cgmrw]$").into();
            }
        }
    }
}

/// The items of a field that may be absent. (Indexing a mutable value would put a null there.)
fn parts<'a>(value: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let items = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    items.flat_map(|item| item.as_object_mut().into_iter().flat_map(Map::values_mut))
}

/// What may be null in an answer is still always there: only requests leave fields out.
fn require_what_is_always_there(document: &mut Value) {
    let mut asked = Vec::new();
    for operation in operations(document) {
        if let Some(body) = operation.get("requestBody") {
            references(body, &mut asked);
        }
    }
    let schemas = document["components"]["schemas"].clone();
    let mut seen = 0;
    while seen < asked.len() {
        references(&schemas[asked[seen].as_str()].clone(), &mut asked);
        seen += 1;
    }
    let answered = document["components"]["schemas"].as_object_mut().into_iter().flatten();
    for (_, schema) in answered.filter(|(name, _)| !asked.contains(name) && *name != "CallEvent") {
        require_nullable(schema);
        for part in parts(schema, "allOf") {
            require_nullable(part);
        }
    }
}

fn require_nullable(schema: &mut Value) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    let null = Value::from("null");
    let nullable = |property: &Value| {
        let kinds = property["type"].as_array().is_some_and(|kinds| kinds.contains(&null));
        kinds || property["oneOf"].as_array().into_iter().flatten().any(|choice| choice["type"] == null)
    };
    let mut required: Vec<Value> =
        schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    for (name, _) in properties.iter().filter(|(_, property)| nullable(property)) {
        if !required.contains(&name.as_str().into()) {
            required.push(name.as_str().into());
        }
    }
    if !required.is_empty() {
        schema["required"] = required.into();
    }
}

/// Names of the components that a part of the document refers to, each once.
fn references(part: &Value, into: &mut Vec<String>) {
    match part {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
            if let Some(name) = name.filter(|name| !into.iter().any(|known| known == name)) {
                into.push(name.to_owned());
            }
            fields.values().for_each(|field| references(field, into));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Statuses that any operation may answer with, by what it takes.
fn add_problems(document: &mut Value) {
    document["components"]["responses"] = json!({
        "Problem": {
            "description": "Why the request was refused.",
            "headers": {
                "X-Request-Id": {"description": "The id under which the request is logged.", "schema": {"type": "string"}},
                "Retry-After": {"description": "Seconds to wait, with 429 and 503.", "schema": {"type": "integer"}},
            },
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    });
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, item) in paths {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            let statuses = problem_statuses(path, method, operation);
            let Some(responses) = operation["responses"].as_object_mut() else { continue };
            for status in statuses {
                let problem = json!({"$ref": "#/components/responses/Problem"});
                responses.entry(status).or_insert(problem);
            }
        }
    }
}

fn problem_statuses(path: &str, method: &str, operation: &Value) -> Vec<&'static str> {
    let mut statuses = vec!["400", "408", "429", "500", "503"];
    if operation.get("security").is_some() {
        statuses.extend(["401", "403"]);
    }
    if path.contains('{') {
        statuses.push("404");
    }
    if operation.get("requestBody").is_some() {
        statuses.extend(["413", "415", "422"]);
    }
    if method != "get" {
        statuses.push("409");
    }
    if path.ends_with("/events") || path.ends_with("/output") {
        statuses.extend(["406", "410"]);
    }
    if path.ends_with("/calls") && method == "post" {
        statuses.push("406");
    }
    if path.contains("/files") {
        statuses.extend(["409", "422"]);
    }
    if path.contains("/files") && method != "get" {
        statuses.push("507");
    }
    if path.ends_with("/files") && method == "put" {
        statuses.push("412");
    }
    let has_ranges = [
        "/v1/calls/{call_id}/output",
        "/v1/artifacts/{artifact_id}/content",
        "/v1/sessions/{session_id}/files",
    ];
    if method == "get" && has_ranges.contains(&path) {
        statuses.push("416");
    }
    statuses
}

/// `tool.<name>.input` and `tool.<name>.output`: what `arguments` and `result.structured` of a call are.
fn add_tools(document: &mut Value, catalog: &Catalog) {
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else { return };
    for tool in catalog.list(&tools::Filter::default()) {
        for (side, schema) in [("input", &tool.input_schema), ("output", &tool.output_schema)] {
            let mut schema = schema.clone();
            if let Some(object) = schema.as_object_mut() {
                object.remove("$schema");
                let described = object.get("description").is_some();
                if !described {
                    object.insert("description".to_owned(), about_schema(tool.name, side).into());
                }
            }
            schemas.insert(format!("tool.{}.{side}", tool.name), schema);
        }
    }
    sort(schemas);
}

fn about_schema(tool: &str, side: &str) -> String {
    match side {
        "input" => format!("`arguments` of a call of `{tool}`."),
        _ => format!("`result.structured` of a call of `{tool}`."),
    }
}

fn sort(schemas: &mut Map<String, Value>) {
    let mut sorted: Vec<_> = std::mem::take(schemas).into_iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    schemas.extend(sorted);
}
