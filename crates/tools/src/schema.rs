//! JSON Schema 2020-12 of tools' inputs and outputs. schemars is the only authority; this trims what only costs a model tokens.

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// Schema of what a tool is asked. Null for an optional argument is taken as absent at admission, so it is not in the schema.
pub(crate) fn input<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings
        .for_deserialize()
        .with_transform(Trim { null: Null::Left })
        .into_generator()
        .into_root_schema_for::<T>();
    schema.remove("title");
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    if schema.get("properties").is_none() {
        schema.insert("properties".to_owned(), Value::Object(serde_json::Map::new()));
    }
    schema.to_value()
}

/// Schema of what a tool answers.
pub(crate) fn output<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings
        .for_serialize()
        .with_transform(Trim { null: Null::Kept })
        .into_generator()
        .into_root_schema_for::<T>();
    schema.remove("title");
    schema.to_value()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Null {
    Kept,
    Left,
}

#[derive(Debug, Clone)]
struct Trim {
    null: Null,
}

impl Transform for Trim {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        if schema.get("format").and_then(Value::as_str).is_some_and(is_rust_width) {
            schema.remove("format");
        }
        if let Some(Value::String(description)) = schema.get_mut("description") {
            *description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        if self.null == Null::Left {
            leave_null_out(schema);
        }
    }
}

/// `uint64` and its like are no formats of JSON Schema; `minimum` says what a caller needs.
fn is_rust_width(format: &str) -> bool {
    format.starts_with("uint") || format.starts_with("int")
}

fn leave_null_out(schema: &mut Schema) {
    if schema.get("default") == Some(&Value::Null) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let choices = schema.get("anyOf").and_then(Value::as_array);
    if let Some([one, null]) = choices.map(Vec::as_slice)
        && null.get("type") == Some(&Value::String("null".to_owned()))
        && let Value::Object(one) = one.clone()
    {
        schema.remove("anyOf");
        for (keyword, value) in one {
            if schema.get(&keyword).is_none() {
                schema.insert(keyword, value);
            }
        }
    }
}
