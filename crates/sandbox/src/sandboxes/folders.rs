//! The folders of sandboxes on the host: the socket's, the generated account files, and a card for whoever takes over.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use domain::SandboxId;
use serde::{Deserialize, Serialize};

use crate::Config;
use crate::driver::Identity;

/// The folder of all sandboxes of one installation.
#[derive(Debug)]
pub(super) struct Folders {
    root: PathBuf,
}

/// One sandbox's folder.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
}

/// What a worker that takes the sandbox over cannot learn elsewhere. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    /// Ownership epoch of the worker that has the sandbox. A worker with a lower one must not remove it.
    pub(super) epoch: u64,
    /// Boot id of the agent: another one means that its journal is gone.
    pub(super) boot_id: Option<String>,
    /// What the image was resolved to.
    pub(super) image_id: String,
    /// The image's environment, handed to commands.
    pub(super) env: BTreeMap<String, String>,
}

const CARD: &str = "card.json";

impl Folders {
    pub(super) fn new(config: &Config, identity: &Identity) -> Self {
        Self { root: config.runtime_dir.join(&identity.installation) }
    }

    pub(super) fn of(&self, sandbox_id: SandboxId) -> Folder {
        Folder { path: self.root.join(sandbox_id.to_string()) }
    }

    /// Makes a sandbox's folder with everything that its container mounts.
    pub(super) fn create(&self, sandbox_id: SandboxId, tool_uid: u32) -> io::Result<Folder> {
        private_folder(&self.root)?;
        let folder = self.of(sandbox_id);
        // Root's agent enters as the owner. For a worker that is not root the folder must let others pass; the
        // installation's folder above keeps everybody on the host away.
        let mode = if std::fs::metadata(&self.root)?.uid() == 0 { 0o700 } else { 0o711 };
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&folder.path)?;
        std::fs::DirBuilder::new().recursive(true).mode(mode).create(folder.link())?;
        write(&folder.passwd(), &passwd(tool_uid))?;
        write(&folder.group(), &group(tool_uid))?;
        Ok(folder)
    }

    /// Nothing to remove is success.
    pub(super) fn remove(&self, sandbox_id: SandboxId) -> io::Result<()> {
        match std::fs::remove_dir_all(self.of(sandbox_id).path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(super) fn list(&self) -> io::Result<Vec<SandboxId>> {
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut ids = Vec::new();
        for entry in entries {
            ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()));
        }
        Ok(ids)
    }
}

impl Folder {
    pub(super) fn link(&self) -> PathBuf {
        self.path.join("link")
    }

    pub(super) fn passwd(&self) -> PathBuf {
        self.path.join("passwd")
    }

    pub(super) fn group(&self) -> PathBuf {
        self.path.join("group")
    }

    /// Replaces the card as a whole, so that a crash leaves the old one or the new one.
    pub(super) fn write_card(&self, card: &Card) -> io::Result<()> {
        let text = serde_json::to_vec(card)?;
        let unfinished = self.path.join("card.new");
        std::fs::write(&unfinished, text)?;
        std::fs::rename(unfinished, self.path.join(CARD))
    }

    /// The card, if there is one that can be read.
    pub(super) fn card(&self) -> Option<Card> {
        serde_json::from_slice(&std::fs::read(self.path.join(CARD)).ok()?).ok()
    }
}

fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // Whoever made it before may have been less careful.
    if std::fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

fn passwd(uid: u32) -> String {
    format!(
        "root:x:0:0:root:/root:/usr/sbin/nologin\ntool:x:{uid}:{uid}:tool:{home}:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        home = protocol::WORKSPACE_DIR
    )
}

fn group(uid: u32) -> String {
    format!("root:x:0:\ntool:x:{uid}:\nnogroup:x:65534:\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_listed_and_removed() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let config = Config { runtime_dir: place.path().join("run"), ..Config::default() };
        let host_id = domain::HostId::from_uuid(uuid::Uuid::from_u128(1));
        let folders = Folders::new(&config, &Identity { installation: "test".to_owned(), host_id });
        assert_eq!(folders.list()?, []);
        let id = SandboxId::from_uuid(uuid::Uuid::from_u128(7));
        let folder = folders.create(id, 1_048_577)?;
        let card = Card {
            epoch: 1,
            boot_id: Some("b".to_owned()),
            image_id: "i".to_owned(),
            env: BTreeMap::default(),
        };
        folder.write_card(&card)?;
        assert_eq!(folders.of(id).card(), Some(card));
        assert!(std::fs::read_to_string(folder.passwd())?.contains("\ntool:x:1048577:1048577:"));
        let root = place.path().join("run/test");
        assert_eq!(std::fs::metadata(root)?.permissions().mode() & 0o777, 0o700);
        assert_eq!(folders.list()?, [id]);
        folders.remove(id)?;
        folders.remove(id)?;
        assert_eq!(folders.list()?, []);
        Ok(())
    }
}
