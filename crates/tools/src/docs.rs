//! The reference of all tools, written from what the catalogue knows, so that it cannot say anything else.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::Catalog;
use crate::alias::{Alias, ArgumentAlias, Dialect, PresetValue, Target, Unit, When};
use crate::catalog::Entry;

const INTRODUCTION: &str = "# Tools

<!-- Generated from the catalogue. Do not edit: change the tool, then run `UPDATE_DOCS=1 cargo nextest run -p tools docs`. -->

Every tool of the catalogue with its arguments, its result and its other names. The same facts are served by `GET /v1/tools`
(`?format=openai|anthropic|mcp` for a provider's own form).

* An argument of null counts as not given. Unknown arguments are refused, with the nearest name.
* Any tool takes `timeout_ms` and `description` among its arguments too; they are then those of the call.
* *effect*: `pure` and `idempotent` calls may be run again after a fault, `effectful` ones never are.
* Paths lie under `/workspace` (where relative ones start) or `/tmp`; `..` is resolved as text. A path elsewhere is a failed
  call with the code `path_outside_workspace`.
* `result.structured` has the fields under *Result*; `result.output` is the text for a model.
";

/// Everything, as Markdown.
pub(crate) fn markdown(catalog: &Catalog) -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str(
        "\n| tool | toolkit | effect | timeout (largest) | what it does |\n|---|---|---|---|---|\n",
    );
    for entry in catalog.entries() {
        let spec = entry.spec;
        let _ = writeln!(
            text,
            "| [`{0}`](#{0}) | {1} | {2} | {3} ({4}) | {5} |",
            spec.name,
            spec.toolkit,
            spec.effect.as_str(),
            seconds(spec.default_timeout_ms),
            seconds(spec.max_timeout_ms),
            spec.title,
        );
    }
    for entry in catalog.entries() {
        tool(&mut text, entry);
    }
    text
}

fn seconds(ms: u64) -> String {
    format!("{} s", ms as f64 / 1_000.0)
}

fn tool(text: &mut String, entry: &Entry) {
    let spec = entry.spec;
    let _ = writeln!(
        text,
        "\n## {}\n\n**{}** (version {}). {}\n",
        spec.name, spec.title, spec.version, spec.description
    );
    let permissions: Vec<&str> = [
        (spec.permissions.files, "files"),
        (spec.permissions.network, "network"),
        (spec.permissions.exec, "exec"),
        (spec.permissions.human, "human"),
        (spec.permissions.provider, "provider"),
    ]
    .into_iter()
    .filter_map(|(granted, name)| granted.then_some(name))
    .collect();
    let _ = writeln!(
        text,
        "Effect `{}`; timeout {}, at most {}; may touch: {}.",
        spec.effect.as_str(),
        seconds(spec.default_timeout_ms),
        seconds(spec.max_timeout_ms),
        permissions.join(", ")
    );
    let input = &entry.descriptor.input_schema;
    let required: Vec<&str> =
        input["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    text.push_str("\n| argument | type | default | |\n|---|---|---|---|\n");
    for (name, schema) in fields(input) {
        let default = if required.contains(&name.as_str()) {
            "required".to_owned()
        } else {
            schema.get("default").map_or_else(String::new, |value| format!("`{value}`"))
        };
        let _ = writeln!(text, "| `{name}` | {} | {default} | {} |", kind(schema), described(schema));
    }
    text.push_str("\nResult:\n\n| field | type | |\n|---|---|---|\n");
    for (name, schema) in fields(&entry.descriptor.output_schema) {
        let _ = writeln!(text, "| `{name}` | {} | {} |", kind(schema), described(schema));
    }
    other_names(text, spec.aliases, spec.arguments);
}

fn fields(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn described(schema: &Value) -> String {
    schema.get("description").and_then(Value::as_str).unwrap_or_default().replace('|', "\\|")
}

fn kind(schema: &Value) -> String {
    let mut kind = match schema.get("type") {
        Some(Value::String(one)) if one == "array" => format!("array of {}", kind_of_items(schema)),
        Some(Value::String(one)) => one.clone(),
        Some(Value::Array(several)) => {
            several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
        }
        _ => schema.get("anyOf").and_then(Value::as_array).map_or_else(String::new, |choices| {
            choices.iter().map(self::kind).collect::<Vec<_>>().join(" or ")
        }),
    };
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        kind = values.join(", ");
    }
    let limits: Vec<String> =
        [("minimum", "≥ "), ("maximum", "≤ "), ("maxLength", "characters ≤ "), ("maxItems", "items ≤ ")]
            .into_iter()
            .filter_map(|(keyword, sign)| {
                Some(format!("{sign}{}", schema.get(keyword).filter(|value| **value != 0)?))
            })
            .collect();
    if !limits.is_empty() {
        let _ = write!(kind, " ({})", limits.join(", "));
    }
    kind
}

fn kind_of_items(schema: &Value) -> String {
    match schema
        .get("items")
        .map(|items| (items, fields(items).map(|(name, _)| name.as_str()).collect::<Vec<_>>()))
    {
        Some((_, names)) if !names.is_empty() => format!("{{{}}}", names.join(", ")),
        Some((items, _)) => kind(items),
        None => String::new(),
    }
}

fn other_names(text: &mut String, aliases: &[Alias], arguments: &[ArgumentAlias]) {
    if !arguments.is_empty() {
        let _ = writeln!(
            text,
            "\nOther argument names: {}.",
            arguments.iter().map(argument).collect::<Vec<_>>().join("; ")
        );
    }
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n| also called | by | what differs |\n|---|---|---|\n");
    for alias in aliases {
        let mut differs: Vec<String> = alias.arguments.iter().map(argument).collect();
        for preset in alias.presets {
            let value = match preset.value {
                PresetValue::Flag(flag) => flag.to_string(),
                PresetValue::Number(number) => number.to_string(),
                PresetValue::Text(text) => text.to_owned(),
            };
            differs.push(format!("`{}` is {value} by default", preset.field));
        }
        differs.extend(alias.default_timeout_ms.map(|ms| format!("timeout {} by default", seconds(ms))));
        if let Some(otherwise) = alias.otherwise {
            match otherwise.when {
                When::NoneOf(names) => {
                    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                    differs.push(format!("without {} it means `{}`", names.join(" and "), otherwise.tool));
                }
                When::Says(_) => differs.push(format!("some of its arguments mean `{}`", otherwise.tool)),
            }
        }
        let _ = writeln!(text, "| `{}` | {} | {} |", alias.name, system(alias.dialect), differs.join("; "));
    }
}

fn system(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Toolhost => "Toolhost",
        Dialect::OpenCowork => "Open CoWork",
        Dialect::Mycoder => "MyCoder",
        Dialect::OpenManus => "OpenManus",
        Dialect::CoworkForge => "Cowork Forge",
    }
}

fn argument(alias: &ArgumentAlias) -> String {
    let name = alias.name;
    match alias.target {
        Target::Field(field) => format!("`{name}` is `{field}`"),
        Target::Not(field) => format!("`{name}` is the opposite of `{field}`"),
        Target::Timeout(Unit::Milliseconds) => format!("`{name}` is the call's timeout in milliseconds"),
        Target::Timeout(Unit::Seconds) => format!("`{name}` is the call's timeout in seconds"),
        Target::Convert([], convert) => match convert(&Value::Bool(true)) {
            Ok(_) => format!("`{name}` has no effect"),
            Err(message) => format!("`{name}: true` {message}"),
        },
        Target::Convert(fields, _) => {
            let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
            format!("`{name}` becomes {}", fields.join(" and "))
        }
        Target::Ignored(why) => format!("`{name}` has no effect ({why})"),
        Target::Refused(instead) => format!("`{name}` is refused ({instead})"),
    }
}
