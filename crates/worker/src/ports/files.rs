//! Files of the sandbox: read, written and listed by the agent as the tool's uid.

use domain::Code;
use sandbox::protocol::{self, EntryKind, ListRequest, ReadRequest, WriteRequest};
use tools::ToolError;
use tools::port::{
    self, FileContent, FileStat, FileWrite, FileWritten, ListQuery, Listing, SandboxPath, WriteMode,
};

use super::CallPorts;

impl CallPorts {
    pub(super) async fn read_file(
        &self,
        path: &SandboxPath,
        offset: u64,
        max_bytes: u64,
    ) -> Result<FileContent, ToolError> {
        let request = ReadRequest {
            root: path.root.to_owned(),
            path: path.relative.clone(),
            offset,
            max_bytes: max_bytes.min(domain::limits::FILE_BYTES),
        };
        let agent = self.serving.sandbox.agent();
        let content = self.ask(|| agent.read(request.clone())).await?;
        self.facts.consumption.add(|usage| usage.bytes_out += content.bytes.len() as u64);
        Ok(FileContent { bytes: content.bytes, stat: stat(&content.file.stat), sha256: content.file.sha256 })
    }

    pub(super) async fn write_file(&self, write: FileWrite) -> Result<FileWritten, ToolError> {
        let key = self.next_key();
        let size_bytes = write.content.len() as u64;
        if size_bytes > domain::limits::FILE_BYTES {
            let most = domain::limits::FILE_BYTES;
            return Err(ToolError::new(Code::FileTooLarge, format!("A write has at most {most} bytes.")));
        }
        self.begin().await?;
        let request = WriteRequest {
            key,
            root: write.path.root.to_owned(),
            path: write.path.relative.clone(),
            mode: match write.mode {
                WriteMode::Overwrite => protocol::WriteMode::Overwrite,
                WriteMode::Append => protocol::WriteMode::Append,
                WriteMode::CreateNew => protocol::WriteMode::CreateNew,
            },
            size_bytes,
            permissions: write.permissions,
            expected_sha256: write.expected_sha256.clone(),
            expected_version: None,
            open_ended: false,
        };
        let agent = self.serving.sandbox.agent();
        let written = self.ask(|| agent.write(request.clone(), write.content.clone())).await?;
        Ok(FileWritten {
            created: written.created,
            size_bytes: written.size_bytes,
            sha256: written.sha256,
            permissions: written.permissions,
        })
    }

    pub(super) async fn list_files(&self, query: ListQuery) -> Result<Listing, ToolError> {
        let request = ListRequest {
            root: query.path.root.to_owned(),
            path: query.path.relative.clone(),
            max_depth: query.max_depth,
            include_hidden: query.include_hidden,
            respect_ignore: query.respect_ignore,
            limit: query.limit.min(domain::limits::LIST_ENTRIES),
        };
        let agent = self.serving.sandbox.agent();
        let listing = self.ask(|| agent.list(request.clone())).await?;
        let entries = listing.entries.into_iter().map(|entry| port::ListedEntry {
            path: entry.path,
            kind: kind(entry.kind),
            size_bytes: entry.size_bytes,
        });
        Ok(Listing { entries: entries.collect(), total: listing.total, truncated: listing.truncated })
    }
}

fn stat(stat: &protocol::FileStat) -> FileStat {
    FileStat {
        kind: kind(stat.kind),
        size_bytes: stat.size_bytes,
        permissions: stat.permissions,
        modified_ms: stat.modified_ms,
    }
}

fn kind(kind: EntryKind) -> port::EntryKind {
    match kind {
        EntryKind::File => port::EntryKind::File,
        EntryKind::Directory => port::EntryKind::Directory,
        EntryKind::Symlink => port::EntryKind::Symlink,
        EntryKind::Other => port::EntryKind::Other,
    }
}
