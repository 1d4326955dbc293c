//! `glob`: files by name.

use async_trait::async_trait;
use domain::{Effect, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alias::{Alias, Dialect, renamed};
use crate::port::GlobQuery;
use crate::{
    Annotations, ArgumentProblem, Context, Permissions, Spec, Tool, ToolError, ToolOutput, clean, path,
};

pub(crate) struct Glob;

const LIMIT: u32 = 200;
const PATTERN_BYTES: usize = 1_024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// The pattern: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of directories, as in `src/**/*.rs`. Without a slash it
    /// finds names at any depth.
    #[schemars(length(min = 1, max = PATTERN_BYTES))]
    pattern: String,
    /// The directory to look in, under /workspace (relative paths start there) or /tmp.
    #[serde(default = "here")]
    path: String,
    /// Most files to return.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = limits::GLOB_ENTRIES))]
    limit: u32,
    /// mtime: last changed first. path: by path.
    #[serde(default)]
    sort: Sort,
    /// Include names that start with a dot. A pattern that names one includes them anyway.
    #[serde(default)]
    include_hidden: bool,
    /// Leave out what .gitignore excludes.
    #[serde(default = "yes")]
    respect_ignore: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    #[default]
    Mtime,
    Path,
}

fn here() -> String {
    ".".to_owned()
}

fn limit() -> u32 {
    LIMIT
}

fn yes() -> bool {
    true
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The directory that was looked in, absolute.
    path: String,
    /// The files, absolute, in the order asked for.
    paths: Vec<String>,
    /// Files found in all.
    total: u64,
    /// There are more than were returned.
    truncated: bool,
}

#[async_trait]
impl Tool for Glob {
    const SPEC: Spec = Spec {
        name: "glob",
        aliases: &[Alias::new("Glob", Dialect::OpenCowork)],
        arguments: &[renamed("directory", "path"), renamed("dir", "path")],
        title: "Find files by name",
        description: "Finds files whose path matches a pattern such as `**/*.py` or `src/{a,b}/*.ts`, last changed first unless `sort` is \
            path. Directories are not returned; symbolic links are, and are not followed. What starts with a dot and \
            what .gitignore excludes is left out unless asked for. At most `limit` files (default 200, at most 1000). \
            For contents use grep.",
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
        let (mut base, mut pattern) = (input.path.clone(), input.pattern.clone());
        // An absolute pattern says itself where to look: as far as its first special character.
        if pattern.starts_with('/') {
            let special = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
            let slash = pattern[..special].rfind('/').unwrap_or(0);
            (base, pattern) = (pattern[..slash.max(1)].to_owned(), format!(".{}", &pattern[slash..]));
        }
        let place = path::resolve("glob", &base)?;
        let directory = path::absolute(&place);
        let found = cx
            .sandbox
            .glob(GlobQuery {
                path: place,
                pattern,
                include_hidden: input.include_hidden,
                respect_ignore: input.respect_ignore,
                by_path: input.sort == Sort::Path,
                limit: input.limit,
            })
            .await?;
        let paths: Vec<String> =
            found.entries.iter().map(|entry| format!("{directory}/{}", entry.path)).collect();
        let budget = usize::try_from(cx.output_budget_bytes).unwrap_or(usize::MAX);
        let mut output = String::new();
        let mut shown = 0u64;
        for path in &paths {
            let line = clean::one_line(path);
            if output.len() + line.len() + 1 > budget {
                break;
            }
            if !output.is_empty() {
                output.push('\n');
            }
            output.push_str(&line);
            shown += 1;
        }
        if found.total == 0 {
            output = format!("[no file in {} matches]", clean::one_line(&directory));
        } else if found.total > shown || found.truncated {
            output.push_str(&format!(
                "\n[{shown} of {}{} files; narrow the pattern or raise limit]",
                if found.truncated && found.total <= shown { "more than " } else { "" },
                found.total
            ));
        }
        let structured = Output { path: directory, paths, total: found.total, truncated: found.truncated };
        Ok(ToolOutput::new(structured, output))
    }
}
