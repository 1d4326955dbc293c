//! `edit_file`: exact replacements in a text file, all of them or none.

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::alias::{Alias, ArgumentAlias, Dialect, Target, renamed};
use crate::edit::{self, Edit};
use crate::file_change::{self, Make};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct EditFile;

const EDITS: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The file, under /workspace (relative paths start there) or /tmp.
    path: String,
    /// Replacements, made in this order, each on what the one before left. Give this, or old_string and new_string.
    #[schemars(length(min = 1, max = EDITS))]
    edits: Option<Vec<Replacement>>,
    /// For a single replacement: the text to replace, exactly as it is in the file.
    old_string: Option<String>,
    /// For a single replacement: what to put in its place.
    new_string: Option<String>,
    /// For a single replacement: all occurrences rather than the only one.
    replace_all: Option<bool>,
    /// Fail unless the present content has this SHA-256. Stands for having read the file in this session.
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{64}$"))]
    expected_sha256: Option<String>,
    /// Show what would change, and change nothing.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Replacement {
    /// The text to replace, exactly as it is in the file. It must be there once, unless replace_all.
    old_string: String,
    /// What to put in its place, literally.
    new_string: String,
    /// All occurrences rather than the only one.
    #[serde(default)]
    replace_all: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The file, absolute.
    path: String,
    /// Places that were replaced.
    replacements: u64,
    /// The change as a unified diff.
    diff: String,
    /// The new lines with their numbers, and four lines around each change.
    snippet: String,
    /// SHA-256 of the file now; null for a dry run.
    sha256: Option<String>,
    /// Size of the file now; null for a dry run.
    size_bytes: Option<u64>,
    /// Nothing was changed.
    dry_run: bool,
}

#[async_trait]
impl Tool for EditFile {
    const SPEC: Spec = Spec {
        name: "edit_file",
        aliases: &[
            Alias::new("Edit", Dialect::OpenCowork),
            Alias::new("MultiEdit", Dialect::OpenCowork),
            Alias::new("updateFile", Dialect::Mycoder)
                .arguments(&[OPERATION])
                .otherwise_when(is_no_update, "write_file"),
            Alias::new("str_replace", Dialect::OpenManus),
        ],
        arguments: &[
            renamed("file_path", "path"),
            renamed("filePath", "path"),
            renamed("filename", "path"),
            renamed("old_str", "old_string"),
            renamed("new_str", "new_string"),
        ],
        title: "Edit a file",
        description: "Replaces exact text in a file: `old_string` by `new_string`, or several replacements as `edits`, made in order, \
            all or none. The text must be in the file exactly once (give more of the lines around it) unless \
            `replace_all`. Nothing is escaped or expanded; line ends, tabs and permissions stay as they are. The file \
            must have been read in this session in its present version, or be named by `expected_sha256`. Returns a \
            diff and the lines around each change. `dry_run` only shows it. undo_edit takes it back. New files: write_file.",
        toolkit: "files",
        version: "1.0.0",
        effect: Effect::Effectful,
        permissions: Permissions { files: true, network: false, exec: false, human: false, provider: false },
        annotations: Annotations {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: false,
        },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        let mut problems: Vec<ArgumentProblem> = path::check("path", &input.path).into_iter().collect();
        let is_single =
            input.old_string.is_some() || input.new_string.is_some() || input.replace_all.is_some();
        match (&input.edits, &input.old_string, &input.new_string) {
            (Some(_), ..) if is_single => problems.push(ArgumentProblem::new(
                "/edits",
                "cannot be combined with `old_string`, `new_string` and `replace_all`",
            )),
            (Some(edits), ..) => {
                for (index, edit) in edits.iter().enumerate() {
                    problems.extend(check(&format!("/edits/{index}"), &edit.old_string, &edit.new_string));
                }
            }
            (None, Some(old), Some(new)) => problems.extend(check("", old, new)),
            (None, None, None) => {
                problems.push(ArgumentProblem::new("", "give `old_string` and `new_string`, or `edits`"))
            }
            (None, None, Some(_)) => {
                problems.push(ArgumentProblem::new("/old_string", "`old_string` is missing"))
            }
            (None, Some(_), None) => {
                problems.push(ArgumentProblem::new("/new_string", "`new_string` is missing"))
            }
        }
        problems
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("edit_file", &input.path)?;
        let make = if input.dry_run { Make::Dry } else { Make::Now };
        let expected = input.expected_sha256.clone();
        let edits = edits(input);
        let edited = file_change::edit_text(cx, "edit_file", &place, expected.as_deref(), make, |text| {
            edit::apply("edit_file", text, &edits)
        })
        .await?;
        let path = path::absolute(&place);
        let places =
            if edited.replaced == 1 { "1 place".to_owned() } else { format!("{} places", edited.replaced) };
        let did = if make == Make::Dry { "would change" } else { "changed" };
        let output = format!("{did} {places} in {}:\n{}", clean::one_line(&path), edited.shown.snippet);
        let structured = Output {
            path,
            replacements: edited.replaced,
            diff: edited.shown.diff,
            snippet: edited.shown.snippet,
            sha256: edited.written.as_ref().map(|written| written.sha256.clone()),
            size_bytes: edited.written.as_ref().map(|written| written.size_bytes),
            dry_run: make == Make::Dry,
        };
        Ok(ToolOutput::new(structured, output))
    }
}

fn check(pointer: &str, old: &str, new: &str) -> Option<ArgumentProblem> {
    let message = if old.is_empty() {
        "must not be empty; write_file creates files, str_replace_editor inserts lines"
    } else if old == new {
        "is the same as `new_string`; nothing would change"
    } else {
        return None;
    };
    Some(ArgumentProblem::new(format!("{pointer}/old_string"), message))
}

fn edits(input: Input) -> Vec<Edit> {
    match (input.edits, input.old_string, input.new_string) {
        (Some(edits), ..) => edits
            .into_iter()
            .map(|edit| Edit { old: edit.old_string, new: edit.new_string, all: edit.replace_all })
            .collect(),
        (None, Some(old), Some(new)) => vec![Edit { old, new, all: input.replace_all.unwrap_or(false) }],
        (None, ..) => Vec::new(),
    }
}

/// MyCoder's `operation`: `update` is this tool, `rewrite` and `append` are `write_file`.
const OPERATION: ArgumentAlias =
    ArgumentAlias { name: "operation", target: Target::Convert(&["old_string", "new_string"], operation) };

fn is_no_update(arguments: &Value) -> bool {
    let command = arguments.pointer("/operation/command").and_then(Value::as_str);
    matches!(command, Some("rewrite" | "append")) || arguments.get("content").is_some()
}

fn operation(value: &Value) -> Result<Vec<(&'static str, Value)>, String> {
    let field = |name: &str| {
        value
            .get(name)
            .filter(|field| field.is_string())
            .cloned()
            .ok_or_else(|| format!("needs `{name}`, a text"))
    };
    match value.get("command").and_then(Value::as_str) {
        Some("update") => Ok(vec![("old_string", field("oldStr")?), ("new_string", field("newStr")?)]),
        Some("rewrite") => Ok(vec![("content", field("content")?), ("mode", "overwrite".into())]),
        Some("append") => Ok(vec![("content", field("content")?), ("mode", "append".into())]),
        _ => Err("needs `command`: update, rewrite or append".to_owned()),
    }
}
