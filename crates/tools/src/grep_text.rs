//! What a search found, as text for a model, and the types of files that it can be narrowed to.

use crate::clean;
use crate::port::{GrepMode, Grepped};

/// The types, for messages.
pub(crate) const TYPES: &str = "c, cpp, css, csv, go, html, java, js, json, kotlin, md, php, py, ruby, rust, sh, sql, swift, toml, ts, txt, xml, yaml";

/// The globs of a type of files.
pub(crate) fn file_types(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "c" => &["*.c", "*.h"],
        "cpp" | "c++" => &["*.cpp", "*.cc", "*.cxx", "*.hpp", "*.hh", "*.hxx", "*.h"],
        "css" => &["*.css", "*.scss", "*.less"],
        "csv" => &["*.csv", "*.tsv"],
        "go" => &["*.go"],
        "html" => &["*.html", "*.htm"],
        "java" => &["*.java"],
        "js" | "javascript" => &["*.js", "*.jsx", "*.mjs", "*.cjs", "*.vue"],
        "json" => &["*.json", "*.jsonl"],
        "kotlin" => &["*.kt", "*.kts"],
        "md" | "markdown" => &["*.md", "*.markdown", "*.mdx"],
        "php" => &["*.php"],
        "py" | "python" => &["*.py", "*.pyi"],
        "ruby" | "rb" => &["*.rb"],
        "rust" | "rs" => &["*.rs"],
        "sh" | "shell" => &["*.sh", "*.bash", "*.zsh"],
        "sql" => &["*.sql"],
        "swift" => &["*.swift"],
        "toml" => &["*.toml"],
        "ts" | "typescript" => &["*.ts", "*.tsx", "*.mts", "*.cts"],
        "txt" => &["*.txt"],
        "xml" => &["*.xml", "*.xsd", "*.xslt", "*.svg"],
        "yaml" | "yml" => &["*.yaml", "*.yml"],
        _ => return None,
    })
}

/// As `grep` and `rg` show it: `path:12:text`, lines around with dashes, `--` between parts that do not touch.
pub(crate) fn text(
    found: &Grepped,
    mode: GrepMode,
    line_numbers: bool,
    next_offset: Option<u64>,
    base: &str,
) -> String {
    let mut text = String::new();
    let mut last_line: Option<u64> = None;
    for file in &found.files {
        let path = clean::one_line(&file.path);
        match mode {
            GrepMode::Files => text.push_str(&format!("{path}\n")),
            GrepMode::Count => text.push_str(&format!("{path}:{}\n", file.matches)),
            GrepMode::Content => {
                let has_context = file.lines.iter().any(|line| !line.is_match);
                for line in &file.lines {
                    if has_context && last_line.is_some_and(|last| last + 1 != line.number) {
                        text.push_str("--\n");
                    }
                    last_line = Some(line.number);
                    let mark = if line.is_match { ':' } else { '-' };
                    let number = if line_numbers { format!("{}{mark}", line.number) } else { String::new() };
                    let cut = if line.is_cut { " [line cut]" } else { "" };
                    text.push_str(&format!("{path}{mark}{number}{}{cut}\n", clean::plain(&line.text)));
                }
                last_line = last_line.map(|_| 0);
            }
        }
    }
    if found.files.is_empty() {
        text.push_str(&format!(
            "[no match in {} ({} files searched)]",
            clean::one_line(base),
            found.searched_files
        ));
    }
    if let Some(offset) = next_offset {
        text.push_str(&format!("[there may be more; go on with offset {offset}]"));
    }
    if found.timed_out {
        text.push_str("\n[the search took too long and ended early; narrow path, glob or type]");
    }
    if found.large_files > 0 {
        text.push_str(&format!(
            "\n[{} files are too large for multiline and were not searched]",
            found.large_files
        ));
    }
    text.truncate(text.trim_end_matches('\n').len());
    text
}
