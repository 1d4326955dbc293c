//! The catalogue: every tool, by its own name and by those of the source systems.

use std::collections::{BTreeMap, HashMap};

use jsonschema::Validator;
use serde::Serialize;
use serde_json::Value;

use crate::admission::{self, AdmitError, Admitted};
use crate::alias::{Alias, ArgumentAlias, Dialect};
use crate::erased::{Erased, Of};
use crate::{Context, Descriptor, Finished, Spec, ToolError};
use crate::{artifacts, code, docs, files, shell};

/// One line per tool, in the order in which they are listed.
fn standard() -> Vec<Box<dyn Erased>> {
    vec![
        Box::new(Of(shell::bash::Bash)),
        Box::new(Of(shell::bash_output::BashOutput)),
        Box::new(Of(shell::bash_input::BashInput)),
        Box::new(Of(shell::kill_bash::KillBash)),
        Box::new(Of(shell::list_bash::ListBash)),
        Box::new(Of(shell::read_output::ReadOutput)),
        Box::new(Of(shell::wait::Wait)),
        Box::new(Of(code::node_execute::NodeExecute)),
        Box::new(Of(code::python_execute::PythonExecute)),
        Box::new(Of(code::run_lint::RunLint)),
        Box::new(Of(code::run_tests::RunTests)),
        Box::new(Of(files::read_file::ReadFile)),
        Box::new(Of(files::read_document::ReadDocument)),
        Box::new(Of(files::write_file::WriteFile)),
        Box::new(Of(files::edit_file::EditFile)),
        Box::new(Of(files::str_replace_editor::StrReplaceEditor)),
        Box::new(Of(files::undo_edit::UndoEdit)),
        Box::new(Of(files::list_files::ListFiles)),
        Box::new(Of(files::glob::Glob)),
        Box::new(Of(files::grep::Grep)),
        Box::new(Of(files::delete_file::DeleteFile)),
        Box::new(Of(files::delete_directory::DeleteDirectory)),
        Box::new(Of(artifacts::save_artifact::SaveArtifact)),
        Box::new(Of(artifacts::load_artifact::LoadArtifact)),
        Box::new(Of(artifacts::list_artifacts::ListArtifacts)),
    ]
}

/// The alias of this name, if it is one.
pub(crate) fn alias(name: &str) -> Option<&'static Alias> {
    standard().iter().flat_map(|tool| tool.spec().aliases).find(|alias| alias.name == name)
}

/// Every tool that this installation has.
pub struct Catalog {
    entries: Vec<Entry>,
    names: HashMap<&'static str, Named>,
}

/// A tool and what is computed of it once.
pub(crate) struct Entry {
    pub(crate) spec: &'static Spec,
    pub(crate) descriptor: Descriptor,
    pub(crate) validator: Validator,
    pub(crate) tool: Box<dyn Erased>,
}

#[derive(Clone, Copy)]
struct Named {
    index: usize,
    alias: Option<&'static Alias>,
}

/// What a name means.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'a> {
    /// The tool.
    pub descriptor: &'a Descriptor,
    /// Set when the name is one of a source system.
    pub requested_alias: Option<&'static Alias>,
}

impl Resolved<'_> {
    /// Whose names and result form the caller uses.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.requested_alias.map_or(Dialect::Toolhost, |alias| alias.dialect)
    }
}

/// Which tools to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this toolkit.
    pub toolkit: Option<String>,
    /// Only tools that have all these words in their name, aliases, title or description.
    pub q: Option<String>,
}

/// Tools that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Toolkit {
    /// Its name.
    pub name: &'static str,
    /// The own names of its tools.
    pub tools: Vec<&'static str>,
}

impl Catalog {
    /// The catalogue of this build.
    #[must_use]
    pub fn standard() -> Self {
        let entries: Vec<Entry> = standard().into_iter().map(Entry::new).collect();
        let mut names = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            names.insert(entry.spec.name, Named { index, alias: None });
        }
        for (index, entry) in entries.iter().enumerate() {
            for alias in entry.spec.aliases {
                // An own name always means its own tool; a test keeps aliases from clashing.
                names.entry(alias.name).or_insert(Named { index, alias: Some(alias) });
            }
        }
        Self { entries, names }
    }

    /// The tool of a name. Names are case-sensitive.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Resolved<'_>> {
        let named = self.names.get(name)?;
        Some(Resolved { descriptor: &self.entries[named.index].descriptor, requested_alias: named.alias })
    }

    /// Whether admitting a call of the tool takes a core for milliseconds: see [`crate::heavy`].
    #[must_use]
    pub fn checks_a_pattern(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|named| self.entries[named.index].tool.checks_a_pattern())
    }

    /// Names that are close to one that does not exist, best first.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Vec<String> {
        const MOST: usize = 3;
        // Likeness is quadratic in the lengths.
        let name: String = name.chars().take(64).flat_map(char::to_lowercase).collect();
        let mut close: Vec<(f64, &'static str)> = self
            .names
            .iter()
            .map(|(known, named)| {
                let likeness = strsim::normalized_damerau_levenshtein(&name, &known.to_lowercase());
                (likeness, self.entries[named.index].spec.name)
            })
            .filter(|(likeness, _)| *likeness >= 0.45)
            .collect();
        close.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        let mut names: Vec<String> = Vec::new();
        for (_, known) in close {
            if !names.iter().any(|name| name == known) {
                names.push(known.to_owned());
            }
        }
        names.truncate(MOST);
        names
    }

    /// Tools in the catalogue's order.
    #[must_use]
    pub fn list(&self, filter: &Filter) -> Vec<&Descriptor> {
        self.entries
            .iter()
            .map(|entry| &entry.descriptor)
            .filter(|descriptor| filter.holds(descriptor))
            .collect()
    }

    /// Toolkits by name, with their tools.
    #[must_use]
    pub fn toolkits(&self) -> Vec<Toolkit> {
        let mut toolkits: BTreeMap<&'static str, Vec<&'static str>> = BTreeMap::new();
        for entry in &self.entries {
            toolkits.entry(entry.spec.toolkit).or_default().push(entry.spec.name);
        }
        toolkits.into_iter().map(|(name, tools)| Toolkit { name, tools }).collect()
    }

    /// Checks a call's tool and arguments, and turns them into the tool's own names and units.
    ///
    /// # Errors
    /// When there is no such tool, or the arguments are not its arguments; every problem is listed.
    pub fn admit(&self, tool: &str, arguments: Value) -> Result<Admitted, AdmitError> {
        let Some(named) = self.names.get(tool) else {
            return Err(AdmitError::UnknownTool { nearest: self.nearest(tool) });
        };
        let mut index = named.index;
        if let Some(otherwise) = named.alias.and_then(|alias| alias.otherwise)
            && otherwise.when.holds(&arguments)
            && let Some(other) = self.names.get(otherwise.tool)
        {
            index = other.index;
        }
        admission::admit(&self.entries[index], named.alias, arguments)
    }

    /// Runs a tool by its own name, with arguments as admitted.
    ///
    /// # Errors
    /// When the tool could not do it; see [`ToolError::fate`].
    pub async fn run(&self, name: &str, cx: &Context, arguments: Value) -> Result<Finished, ToolError> {
        let Some(named) = self.names.get(name) else {
            return Err(ToolError::new(
                domain::Code::UnknownTool,
                format!("This installation no longer has the tool `{name}`."),
            ));
        };
        self.entries[named.index].tool.run(cx, arguments).await
    }

    /// Other names of a tool's arguments, whatever name it is called by.
    #[must_use]
    pub fn argument_aliases(&self, tool: &str) -> &'static [ArgumentAlias] {
        self.names.get(tool).map_or(&[], |named| self.entries[named.index].spec.arguments)
    }

    /// The reference of all tools as Markdown; `docs/tools.md` is this text.
    #[must_use]
    pub fn docs_markdown(&self) -> String {
        docs::markdown(self)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| entry.spec.name)).finish()
    }
}

impl Entry {
    fn new(tool: Box<dyn Erased>) -> Self {
        let descriptor = tool.descriptor();
        let validator = jsonschema::draft202012::new(&descriptor.input_schema)
            .expect("a schema that schemars made is a schema");
        Self { spec: tool.spec(), descriptor, validator, tool }
    }
}

impl Filter {
    fn holds(&self, descriptor: &Descriptor) -> bool {
        if self.toolkit.as_ref().is_some_and(|toolkit| toolkit != descriptor.toolkit) {
            return false;
        }
        let Some(q) = &self.q else { return true };
        let mut text = format!("{} {} {}", descriptor.name, descriptor.title, descriptor.description);
        for alias in &descriptor.aliases {
            text.push(' ');
            text.push_str(alias.name);
        }
        let text = text.to_lowercase();
        q.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }
}
