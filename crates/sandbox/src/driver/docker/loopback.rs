//! Workspaces as files of the host with a file system in each, so that the kernel holds their size.
//!
//! # Design notes
//!
//! *The engine mounts.* A loop device over the file is given to the engine as a `local` volume, so that a worker
//! in a container needs no mounts of its own and no path of a tenant's tree is ever resolved on the host.
//!
//! *Released by the kernel.* Once the container has mounted the device, it is marked to go away with its last
//! user (`losetup -d` on a busy device). So a crash of the worker, the engine or the container leaves no
//! device behind; a crash between attaching and mounting does, and [`Loopback::remove`] releases those.
//!
//! *A volume names a device, and devices are used again.* A container that somebody starts again by hand must not
//! mount what its device has become meanwhile: another tenant's workspace. So the volume names a symbolic link
//! that exists only while the container is started, and a second start fails.
//!
//! *No journal.* Nothing survives a reboot of the host anyway, and the journal would cost writes and room.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::{EngineError, Workspace, WorkspaceName};

/// Time for one of the small programs below.
const PROGRAM_LIMIT: Duration = Duration::from_secs(20);
/// Where those programs are; a service's own `PATH` may leave the system ones out.
const PROGRAM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of disk for each file of a workspace (its share of inodes): room for trees of small files.
const BYTES_PER_INODE: &str = "8192";
/// Mount options of a workspace. Inode tables are zero already, as the file is sparse; freed blocks go back to the host.
pub(super) const MOUNT_OPTIONS: &str = "nosuid,nodev,noatime,discard,noinit_itable";

/// The folder with the files.
#[derive(Debug)]
pub(super) struct Loopback {
    folder: PathBuf,
}

/// A loop device on its way into a container.
#[derive(Debug)]
pub(super) struct Attached {
    device: String,
    /// What the volume names instead of the device.
    pub(super) link: PathBuf,
}

impl Loopback {
    /// Whether this process can make them: root, programs, and loop devices that it may really open. A container has the file and may not, and
    /// a kernel may have the file and no devices.
    pub(super) fn is_possible() -> bool {
        let root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let program =
            |name: &str| PROGRAM_PATH.split(':').any(|folder| Path::new(folder).join(name).is_file());
        root && ["losetup", "mkfs.ext4", "debugfs"].into_iter().all(program) && has_free_device()
    }

    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn image(&self, name: &WorkspaceName) -> PathBuf {
        self.folder.join(format!("{name}.img"))
    }

    /// What an image is called until it is whole.
    fn unfinished(&self, name: &WorkspaceName) -> PathBuf {
        self.folder.join(format!("{name}.new"))
    }

    /// A sparse file with an empty file system whose root belongs to the workspace's uid: about 15 ms whatever
    /// the size.
    pub(super) async fn create(&self, workspace: &Workspace, size_mb: u32) -> Result<(), EngineError> {
        const OPERATION: &str = "make a workspace";
        let uid = workspace.tool_uid;
        let unfinished = self.unfinished(&workspace.name);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .and_then(|()| std::fs::File::create(&unfinished))
            .and_then(|file| file.set_len(u64::from(size_mb) * 1024 * 1024))
            .map_err(EngineError::host(OPERATION))?;
        let path = unfinished.to_string_lossy();
        let owner = format!("root_owner={uid}:{uid},lazy_itable_init=1,nodiscard");
        let features = "^has_journal,^resize_inode";
        let format = ["-q", "-F", "-m", "0", "-i", BYTES_PER_INODE, "-O", features, "-E", &owner, &path];
        run("mkfs.ext4", &format).await.map_err(EngineError::host(OPERATION))?;
        run("debugfs", &["-w", "-R", "rmdir lost+found", &path])
            .await
            .map_err(EngineError::host(OPERATION))?;
        tokio::fs::rename(&unfinished, self.image(&workspace.name))
            .await
            .map_err(EngineError::host(OPERATION))
    }

    /// The name under which the engine finds the device while it starts the container.
    fn device_link(&self, name: &WorkspaceName) -> PathBuf {
        self.folder.join(format!("{name}.dev"))
    }

    /// A loop device over the workspace's file.
    pub(super) async fn attach(&self, name: &WorkspaceName) -> Result<Attached, EngineError> {
        const OPERATION: &str = "attach a loop device";
        let image = self.image(name);
        let device = run("losetup", &["--find", "--show", "--nooverlap", &image.to_string_lossy()])
            .await
            .map_err(EngineError::host(OPERATION))?;
        let attached = Attached { device: device.trim().to_owned(), link: self.device_link(name) };
        let linked = match remove_file(&attached.link).await {
            Ok(()) => tokio::fs::symlink(&attached.device, &attached.link).await,
            Err(error) => Err(error),
        };
        match linked {
            Ok(()) => Ok(attached),
            Err(error) => {
                self.detach(&attached).await?;
                Err(EngineError::host(OPERATION)(error))
            }
        }
    }

    /// Lets a device go: at once when nothing has mounted it, else with its last user.
    pub(super) async fn detach(&self, attached: &Attached) -> Result<(), EngineError> {
        const OPERATION: &str = "detach a loop device";
        let unlinked = remove_file(&attached.link).await;
        run("losetup", &["--detach", &attached.device]).await.map_err(EngineError::host(OPERATION))?;
        unlinked.map_err(EngineError::host(OPERATION))
    }

    pub(super) async fn remove(&self, name: &WorkspaceName) -> Result<(), EngineError> {
        const OPERATION: &str = "remove a workspace";
        remove_file(&self.device_link(name)).await.map_err(EngineError::host(OPERATION))?;
        for file in [self.image(name), self.unfinished(name)] {
            if !tokio::fs::try_exists(&file).await.map_err(EngineError::host(OPERATION))? {
                continue;
            }
            let devices = run(
                "losetup",
                &["--noheadings", "--output", "NAME", "--associated", &file.to_string_lossy()],
            )
            .await
            .map_err(EngineError::host(OPERATION))?;
            for device in devices.lines().map(str::trim).filter(|device| !device.is_empty()) {
                if let Err(error) = run("losetup", &["--detach", device]).await {
                    tracing::debug!(%error, device, "the device went away by itself");
                }
            }
            remove_file(&file).await.map_err(EngineError::host(OPERATION))?;
        }
        Ok(())
    }

    pub(super) async fn list(&self) -> Result<Vec<WorkspaceName>, EngineError> {
        const OPERATION: &str = "list workspaces";
        let mut folder = match tokio::fs::read_dir(&self.folder).await {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(EngineError::host(OPERATION)(error)),
        };
        let mut names = Vec::new();
        while let Some(entry) = folder.next_entry().await.map_err(EngineError::host(OPERATION))? {
            let file = entry.file_name();
            let file = file.to_string_lossy();
            let name = file
                .strip_suffix(".img")
                .or_else(|| file.strip_suffix(".new"))
                .or_else(|| file.strip_suffix(".dev"));
            names.extend(name.and_then(|name| name.parse().ok()));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// Whether the kernel names a loop device that is free, and it can be opened. Nothing is attached to it.
fn has_free_device() -> bool {
    let found =
        std::process::Command::new("losetup").arg("--find").env_clear().env("PATH", PROGRAM_PATH).output();
    let device = found.ok().filter(|found| found.status.success());
    device.is_some_and(|device| {
        let path = String::from_utf8_lossy(&device.stdout).trim().to_owned();
        !path.is_empty() && std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok()
    })
}

/// Nothing to remove is success.
async fn remove_file(path: &Path) -> io::Result<()> {
    match tokio::fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Runs a program to its end; its standard output.
async fn run(program: &str, arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PROGRAM_PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(PROGRAM_LIMIT, command.output())
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("{program} did not end")))??;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} ended with {}: {}", output.status, said.trim())))
}
