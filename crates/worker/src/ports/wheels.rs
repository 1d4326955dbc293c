//! The tenant's wheels, on their way from the object store into a sandbox that installs them.
//!
//! # Design notes
//!
//! They go in as files of the sandbox's user, piece by piece, and by the hash that the agent tells they are what was put. The tool's user
//! could change its copies: what it then installs is what it could have installed by itself. Nothing comes back the other way: what a
//! session has built could be anything, and would run in others.
//!
//! In a call that is run again the agent's journal answers for what was copied before. That answer is of the wheel that had the name then, and is not
//! compared with the row of today: the tenant may have put another one since. So whoever runs a call again asks before anything is read.

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

    async fn copy(&self, names: &[String], folder: &SandboxPath) -> Result<Vec<String>, ToolError> {
        let first = self.next_operation.fetch_add(WHEELS_AT_ONCE, Ordering::Relaxed);
        let (tenure, context) = (&self.facts.tenure, context_of(self.facts.call.tenant_id));
        // What came in this run is news: of a round that came in one before this, that one has told.
        let (mut came, mut used, mut is_news) = (Vec::new(), Vec::new(), !self.is_run_again());
        for (operation, text) in (first..first + WHEELS_AT_ONCE).zip(names) {
            let Ok(name) = text.parse::<WheelName>() else { continue };
            // Only by the name that was told: another spelling is another number for the same file.
            if name.as_str() != text {
                continue;
            }
            let wheel = match tenure.write(|| tenure.store().get_wheel(&context, &name)).await {
                Ok(wheel) => wheel,
                Err(Unwritten::Refused(StoreError::NotFound { .. })) => continue,
                Err(error) => return Err(self.not_stored(error)),
            };
            let key = OperationKey { owner: self.facts.call.id.to_string(), operation };
            match self.copy_wheel(key, &wheel, folder).await? {
                Sent::Now(_) => is_news = true,
                // Another wheel of this name was copied, and this one is not used.
                Sent::Before(before) if before.sha256 != wheel.sha256 => {
                    came.push(name.to_string());
                    continue;
                }
                Sent::Before(_) => {}
            }
            came.push(name.to_string());
            used.push(wheel.id);
        }
        if came.is_empty() || !is_news {
            return Ok(Vec::new());
        }
        // When it was used is for people; nothing depends on it.
        if let Err(error) = tenure.store().wheels_used(&context, &used).await {
            tracing::debug!(call = %self.facts.call.id, %error, "the use of wheels is not noted");
        }
        Ok(came)
    }
}

/// A copy that is in its place.
enum Sent {
    Now(FileWritten),
    /// It was there, mostly by a run of the call before this one: of the wheel that had the name then.
    Before(FileWritten),
}

impl CallPorts {
    async fn copy_wheel(
        &self,
        key: OperationKey,
        wheel: &Wheel,
        folder: &SandboxPath,
    ) -> Result<Sent, ToolError> {
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
        let sent = self.ask(|| self.send_wheel(request.clone(), wheel)).await?;
        let sent = sent.map_err(|error| self.not_stored(Unwritten::Refused(error)))?;
        match &sent {
            Sent::Now(written) if written.sha256 != wheel.sha256 => {}
            Sent::Now(_) | Sent::Before(_) => return Ok(sent),
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
    ) -> Result<Result<Sent, StoreError>, LinkError> {
        let agent = self.serving.sandbox.agent();
        let mut upload = if self.is_run_again() {
            agent.upload_again(request).await?
        } else {
            agent.upload(request).await?
        };
        if upload.is_known() {
            return upload.finish().await.map(|written| Ok(Sent::Before(written)));
        }
        let mut content = match self.facts.tenure.store().wheel_content(wheel).await {
            Ok(content) => content,
            Err(error) => return Ok(Err(error)),
        };
        let mut sent_bytes = 0;
        while let Some(piece) = content.next().await {
            match piece {
                Ok(piece) => {
                    sent_bytes += piece.len() as u64;
                    upload.push(piece).await?;
                }
                Err(error) => return Ok(Err(error)),
            }
            if upload.is_known() {
                return upload.finish().await.map(|written| Ok(Sent::Before(written)));
            }
        }
        if sent_bytes < wheel.size_bytes {
            let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Ok(Err(StoreError::Storage { operation: "read wheel", source: Box::new(source) }));
        }
        upload.finish().await.map(|written| Ok(Sent::Now(written)))
    }
}
