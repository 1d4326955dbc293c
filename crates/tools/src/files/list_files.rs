//! `list_files`: what is in a directory, as lists and as a tree.

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::port::{EntryKind, ListQuery, ListedEntry};
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct ListFiles;

const DEPTH_DEFAULT: u32 = 3;
const DEPTH: u32 = 64;
const ENTRIES_DEFAULT: u32 = 1_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The directory, under /workspace (relative paths start there) or /tmp.
    #[serde(default = "here")]
    path: String,
    /// List directories within it too.
    #[serde(default)]
    recursive: bool,
    /// With recursive: how deep (1 is the directory alone).
    #[serde(default = "depth")]
    #[schemars(range(min = 1, max = DEPTH))]
    max_depth: u32,
    /// Include names that start with a dot.
    #[serde(default)]
    include_hidden: bool,
    /// Leave out what .gitignore excludes.
    #[serde(default = "yes")]
    respect_ignore: bool,
    /// Most entries to return.
    #[serde(default = "entries")]
    #[schemars(range(min = 1, max = limits::LIST_ENTRIES))]
    limit: u32,
}

impl Input {
    /// A directory and what lies in it, so deep.
    pub(crate) fn tree(path: &str, max_depth: u32) -> Self {
        let (path, limit) = (path.to_owned(), ENTRIES_DEFAULT);
        Self { path, recursive: true, max_depth, include_hidden: false, respect_ignore: true, limit }
    }
}

fn here() -> String {
    ".".to_owned()
}

fn depth() -> u32 {
    DEPTH_DEFAULT
}

fn yes() -> bool {
    true
}

fn entries() -> u32 {
    ENTRIES_DEFAULT
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The directory, absolute.
    path: String,
    /// Regular files, beneath the directory.
    files: Vec<ListedFile>,
    /// Directories, beneath the directory.
    directories: Vec<String>,
    /// Symbolic links, pipes, sockets and devices, beneath the directory.
    others: Vec<String>,
    /// Entries found in all.
    total: u64,
    /// There are more than were returned.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedFile {
    /// Beneath the directory.
    path: String,
    /// Its size.
    size_bytes: u64,
}

#[async_trait]
impl Tool for ListFiles {
    const SPEC: Spec = Spec {
        name: "list_files",
        aliases: &[Alias::new("ListFilesTool", Dialect::CoworkForge)
            .results(&[("total", "total_count")])
            .success("Successfully listed files")],
        arguments: &[
            renamed("directory", "path"),
            renamed("dir", "path"),
            renamed("maxDepth", "max_depth"),
            renamed("show_hidden", "include_hidden"),
        ],
        title: "List files",
        description: "Lists a directory as a tree with file sizes: the directory alone, or with `recursive` what lies within it, \
            `max_depth` levels deep (default 3). Names that start with a dot are left out unless `include_hidden`, \
            what .gitignore excludes is left out unless `respect_ignore` is false. At most `limit` entries (default \
            1000, at most 10000). Symbolic links are listed, not followed.",
        toolkit: "files",
        version: "1.0.0",
        effect: Effect::Pure,
        permissions: Permissions { files: true, network: false, exec: false, human: false, provider: false },
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        default_timeout_ms: 30_000,
        max_timeout_ms: limits::TIMEOUT_MS,
    };
    type Input = Input;
    type Output = Output;

    fn check(&self, input: &Input) -> Vec<ArgumentProblem> {
        path::check("path", &input.path).into_iter().collect()
    }

    async fn run(&self, cx: &Context, input: Input) -> Result<ToolOutput<Output>, ToolError> {
        let place = path::resolve("list_files", &input.path)?;
        let shown_path = path::absolute(&place);
        let mut listing = cx
            .sandbox
            .list(ListQuery {
                path: place,
                max_depth: if input.recursive { input.max_depth } else { 1 },
                include_hidden: input.include_hidden,
                respect_ignore: input.respect_ignore,
                limit: input.limit,
            })
            .await?;
        // By components, so that what is in a directory follows it.
        listing.entries.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
        let text = tree(&shown_path, &listing.entries, listing.total, cx.output_budget_bytes);
        let mut output = Output {
            path: shown_path,
            files: Vec::new(),
            directories: Vec::new(),
            others: Vec::new(),
            total: listing.total,
            truncated: listing.truncated,
        };
        for entry in listing.entries {
            match entry.kind {
                EntryKind::File => {
                    output.files.push(ListedFile { path: entry.path, size_bytes: entry.size_bytes });
                }
                EntryKind::Directory => output.directories.push(entry.path),
                EntryKind::Symlink | EntryKind::Other => output.others.push(entry.path),
            }
        }
        Ok(ToolOutput::new(output, text))
    }
}

fn tree(root: &str, entries: &[ListedEntry], total: u64, budget_bytes: u64) -> String {
    let budget = usize::try_from(budget_bytes).unwrap_or(usize::MAX);
    let root = clean::one_line(root);
    if entries.is_empty() {
        return format!("{root}/\n[empty]");
    }
    let mut text = format!("{root}/");
    let mut shown = 0u64;
    for entry in entries {
        let line = line(entry);
        if text.len() + line.len() + 1 > budget {
            break;
        }
        text.push('\n');
        text.push_str(&line);
        shown += 1;
    }
    let left_out = total.max(entries.len() as u64) - shown;
    if left_out > 0 {
        text.push_str(&format!(
            "\n[{left_out} more of {total} entries; list a directory within, or raise limit and the output budget]"
        ));
    }
    text
}

fn line(entry: &ListedEntry) -> String {
    let depth = entry.path.matches('/').count() + 1;
    let name = clean::one_line(entry.path.rsplit('/').next().unwrap_or(&entry.path));
    let indent = "  ".repeat(depth);
    match entry.kind {
        EntryKind::File => format!("{indent}{name} ({} bytes)", entry.size_bytes),
        EntryKind::Directory => format!("{indent}{name}/"),
        EntryKind::Symlink => format!("{indent}{name} (symbolic link)"),
        EntryKind::Other => format!("{indent}{name} (pipe, socket or device)"),
    }
}
