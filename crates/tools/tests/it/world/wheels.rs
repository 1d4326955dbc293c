//! The tenant's wheels, copied under numbers as the worker gives them.
#![expect(clippy::unwrap_used, reason = "a poisoned lock means that a test has failed already")]

use async_trait::async_trait;
use bytes::Bytes;
use domain::limits::WHEELS_AT_ONCE;
use tools::ToolError;
use tools::port::{SandboxPath, WheelFile, Wheels};

use super::{World, place};

#[async_trait]
impl Wheels for World {
    async fn list(&self) -> Result<Vec<WheelFile>, ToolError> {
        let wheels = self.wheels.lock().unwrap();
        let file = |(name, content): &(String, Bytes)| WheelFile {
            name: name.clone(),
            size_bytes: content.len() as u64,
        };
        Ok(wheels.iter().map(file).collect())
    }

    async fn copy(&self, names: &[String], folder: &SandboxPath) -> Result<Vec<String>, ToolError> {
        let mut next = self.next_operation.lock().unwrap();
        let first = *next;
        *next += WHEELS_AT_ONCE;
        let (mut came, mut is_news) = (Vec::new(), false);
        for (operation, name) in (first..*next).zip(names) {
            let wheels = self.wheels.lock().unwrap();
            let Some((_, content)) = wheels.iter().find(|(known, _)| known == name) else { continue };
            let mut copied = self.copied.lock().unwrap();
            match copied.get(&operation) {
                Some(before) => assert_eq!(before, name, "the number of another wheel"),
                None => {
                    let relative = format!("{}/{name}", folder.relative);
                    let path = SandboxPath { root: folder.root, relative };
                    self.files.lock().unwrap().insert(place(&path), content.to_vec());
                    copied.insert(operation, name.clone());
                    is_news = true;
                }
            }
            came.push(name.clone());
        }
        let came = if is_news { came } else { Vec::new() };
        self.copies.lock().unwrap().push(came.clone());
        Ok(came)
    }
}
