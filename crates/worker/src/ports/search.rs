//! Trees of the sandbox: found by name, searched in contents, and removed by the agent as the tool's uid.

use sandbox::protocol::{self, GlobRequest, GlobSort, GrepRequest, RemoveRequest};
use tools::ToolError;
use tools::port::{
    FileRemoval, FilesRemoved, GlobQuery, Globbed, GlobbedEntry, GrepMode, GrepQuery, Grepped, GreppedFile,
    GreppedLine, RemoveTarget,
};

use super::CallPorts;

impl CallPorts {
    pub(super) async fn remove_files(&self, removal: FileRemoval) -> Result<FilesRemoved, ToolError> {
        let key = self.next_key();
        self.begin().await?;
        let request = RemoveRequest {
            key,
            root: removal.path.root.to_owned(),
            path: removal.path.relative.clone(),
            target: match removal.target {
                RemoveTarget::File => protocol::RemoveTarget::File,
                RemoveTarget::EmptyDirectory => protocol::RemoveTarget::EmptyDirectory,
                RemoveTarget::Tree => protocol::RemoveTarget::Tree,
            },
            expected_sha256: removal.expected_sha256.clone(),
        };
        let agent = self.serving.sandbox.agent();
        let removed = self.ask(|| agent.remove(request.clone())).await?;
        Ok(FilesRemoved { files: removed.files, directories: removed.directories })
    }

    pub(super) async fn glob_files(&self, query: GlobQuery) -> Result<Globbed, ToolError> {
        let request = GlobRequest {
            root: query.path.root.to_owned(),
            path: query.path.relative.clone(),
            pattern: query.pattern.clone(),
            include_hidden: query.include_hidden,
            respect_ignore: query.respect_ignore,
            sort: if query.by_path { GlobSort::Path } else { GlobSort::Modified },
            limit: query.limit.min(domain::limits::GLOB_ENTRIES),
        };
        let agent = self.serving.sandbox.agent();
        let found = self.ask(|| agent.glob(request.clone())).await?;
        let entries = found.entries.into_iter().map(|entry| GlobbedEntry {
            path: entry.path,
            size_bytes: entry.size_bytes,
            modified_ms: entry.modified_ms,
        });
        Ok(Globbed { entries: entries.collect(), total: found.total, truncated: found.truncated })
    }

    pub(super) async fn grep_files(&self, query: GrepQuery) -> Result<Grepped, ToolError> {
        let request = GrepRequest {
            root: query.path.root.to_owned(),
            path: query.path.relative.clone(),
            pattern: query.pattern.clone(),
            ignore_case: query.ignore_case,
            multiline: query.multiline,
            globs: query.globs.clone(),
            include_hidden: query.include_hidden,
            respect_ignore: query.respect_ignore,
            mode: match query.mode {
                GrepMode::Content => protocol::GrepMode::Content,
                GrepMode::Files => protocol::GrepMode::Files,
                GrepMode::Count => protocol::GrepMode::Count,
            },
            before: query.before,
            after: query.after,
            skip: query.skip,
            limit: query.limit.min(domain::limits::GREP_RESULTS),
            max_bytes: query.max_bytes,
        };
        let agent = self.serving.sandbox.agent();
        let found = self.ask(|| agent.grep(request.clone())).await?;
        Ok(Grepped {
            files: found.files.into_iter().map(file).collect(),
            searched_files: found.searched_files,
            binary_files: found.binary_files,
            large_files: found.large_files,
            truncated: found.truncated,
            timed_out: found.timed_out,
        })
    }
}

fn file(file: protocol::GrepFile) -> GreppedFile {
    let line = |line: protocol::GrepLine| GreppedLine {
        number: line.number,
        text: line.text,
        is_match: line.is_match,
        is_cut: line.is_cut,
    };
    GreppedFile { path: file.path, matches: file.matches, lines: file.lines.into_iter().map(line).collect() }
}
