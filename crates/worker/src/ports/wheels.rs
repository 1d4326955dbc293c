//! The tenant's wheels, on their way from the object store into a sandbox that installs them.
//!
//! # Design notes
//!
//! They go in as files of the sandbox's user, piece by piece, and by the hash that the agent tells they are what was put. The tool's user
//! could change its copies: what it then installs is what it could have installed by itself. Nothing comes back the other way: what a
//! session has built could be anything, and would run in others.

use async_trait::async_trait;
use domain::limits::WHEELS_AT_ONCE;
use domain::{Code, Wheel, WheelName};
use futures_util::StreamExt;
use sandbox::LinkError;
use sandbox::protocol::{FileWritten, OperationKey, WriteMode, WriteRequest};
use std::sync::atomic::Ordering;
use store::StoreError;
use tools::ToolError;
use tools::port::{SandboxPath, WheelFile, Wheels};

use super::{CallPorts, context_of};
use crate::tenure::Unwritten;

/// What a copy in a sandbox may be: read.
const READ_ONLY: u32 = 0o444;

#[async_trait]
impl Wheels for CallPorts {
    async fn list(&self) -> Result<Vec<WheelFile>, ToolError> {
        let (tenure, context) = (&self.facts.tenure, context_of(self.facts.call.tenant_id));
        let listed = tenure.write(|| tenure.store().wheel_names(&context)).await;
        let listed = listed.map_err(|error| self.not_stored(error))?;
        let file = |(name, size_bytes): (WheelName, u64)| WheelFile { name: name.to_string(), size_bytes };
        Ok(listed.into_iter().map(file).collect())
    }

    async fn copy(&self, names: &[String], folder: &SandboxPath) -> Result<(), ToolError> {
        let first = self.next_operation.fetch_add(WHEELS_AT_ONCE, Ordering::Relaxed);
        let (tenure, context) = (&self.facts.tenure, context_of(self.facts.call.tenant_id));
        let mut copied = Vec::new();
        for (operation, name) in (first..first + WHEELS_AT_ONCE).zip(names) {
            let Ok(name) = name.parse::<WheelName>() else { continue };
            let wheel = match tenure.write(|| tenure.store().get_wheel(&context, &name)).await {
                Ok(wheel) => wheel,
                Err(Unwritten::Refused(StoreError::NotFound { .. })) => continue,
                Err(error) => return Err(self.not_stored(error)),
            };
            let key = OperationKey { owner: self.facts.call.id.to_string(), operation };
            self.copy_wheel(key, &wheel, folder).await?;
            copied.push(wheel.id);
        }
        // When it was used is for people; nothing depends on it.
        if let Err(error) = tenure.store().wheels_used(&context, &copied).await {
            tracing::debug!(call = %self.facts.call.id, %error, "the use of wheels is not noted");
        }
        Ok(())
    }
}

impl CallPorts {
    async fn copy_wheel(
        &self,
        key: OperationKey,
        wheel: &Wheel,
        folder: &SandboxPath,
    ) -> Result<(), ToolError> {
        self.begin().await?;
        let request = WriteRequest {
            key,
            root: folder.root.to_owned(),
            path: format!("{}/{}", folder.relative, wheel.name),
            mode: WriteMode::Overwrite,
            size_bytes: wheel.size_bytes,
            permissions: Some(READ_ONLY),
            expected_sha256: None,
            expected_version: None,
            open_ended: false,
        };
        let written = self.ask(|| self.send_wheel(request.clone(), wheel)).await?;
        let written = written.map_err(|error| self.not_stored(Unwritten::Refused(error)))?;
        if written.sha256 == wheel.sha256 {
            return Ok(());
        }
        tracing::error!(call = %self.facts.call.id, wheel = %wheel.id, "the object store has other bytes than were put");
        let message =
            format!("The platform's copy of {} is damaged: delete it, and put it again.", wheel.name);
        Err(ToolError::new(Code::PlatformError, message))
    }

    /// The inner error is the store's: asking the agent again does not help then.
    async fn send_wheel(
        &self,
        request: WriteRequest,
        wheel: &Wheel,
    ) -> Result<Result<FileWritten, StoreError>, LinkError> {
        let mut content = match self.facts.tenure.store().wheel_content(wheel).await {
            Ok(content) => content,
            Err(error) => return Ok(Err(error)),
        };
        let mut upload = self.serving.sandbox.agent().upload(request).await?;
        let mut sent_bytes = 0;
        while let Some(piece) = content.next().await {
            match piece {
                Ok(piece) => {
                    sent_bytes += piece.len() as u64;
                    upload.push(piece).await?;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        if sent_bytes < wheel.size_bytes {
            let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Ok(Err(StoreError::Storage { operation: "read wheel", source: Box::new(source) }));
        }
        upload.finish().await.map(Ok)
    }
}
