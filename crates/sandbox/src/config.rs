//! Settings of this room. The server nests them in its configuration tree.

use std::path::PathBuf;

use domain::SizeClass;
use serde::{Deserialize, Serialize};

/// How sandboxes are made on this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder for the sockets of running sandboxes. Its sandboxes' folders are mounted into containers, so the
    /// engine must see the same path. Cleared by a reboot like the sandboxes themselves. Default `/run/toolhost`.
    pub runtime_dir: PathBuf,
    /// Folder for workspaces that are files of the host (see `workspaces`). Default `/var/lib/toolhost`.
    pub state_dir: PathBuf,
    /// The agent's static binary. Default `target/toolhost-agent`.
    pub agent_path: PathBuf,
    /// Newest version of the protocol that agents of new sandboxes speak; `None` for that of this build. Only to rehearse an
    /// upgrade from the version before, or the way back.
    pub agent_protocol: Option<u32>,
    /// Address of the engine; `None` takes `DOCKER_HOST`, else the usual socket.
    pub engine: Option<String>,
    /// Image of sessions that name none. Default `toolhost/sandbox:latest`.
    pub image: String,
    /// Container runtime of sessions that name none. Default `runc`.
    pub runtime: String,
    /// Runtimes that sessions may name. Default `runc` alone.
    pub runtimes: Vec<String>,
    /// Runtimes that are gVisor, by the names that the engine has for them: their sandboxes share no unix socket
    /// with this host, so that their agents are reached over the engine. Default `runsc`.
    pub gvisor_runtimes: Vec<String>,
    /// Sandboxes that wait for a claim. Default: one small one of the default image.
    pub pool: Vec<PoolEntry>,
    /// Creations at a time that refill the pool. Default 1.
    pub refill_parallel: usize,
    /// Creations at a time on the path of a request. Default 4.
    pub create_parallel: usize,
    /// Time within which a new container's agent must connect, in milliseconds. Default 20,000.
    pub agent_connect_ms: u64,
    /// How a workspace's size is held. Default `auto`.
    pub workspaces: WorkspaceMode,
    /// A seccomp profile (the engine's JSON) instead of the built-in one.
    pub seccomp: Option<PathBuf>,
    /// Start in spite of an engine, runtime or kernel that is known to be bad. Default true; `false` is strict.
    pub allow_known_bad: bool,
    /// Shells that wait pre-started in an idle sandbox. Default 1.
    pub warm_shells: u32,
    /// How often what runs is compared with what should, in seconds. Default 30.
    pub reconcile_s: u64,
    /// Age from which a container without a row is removed, in seconds. Default 60.
    pub orphan_grace_s: u64,
}

/// Sandboxes of one kind that wait for a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolEntry {
    /// Their image; the default image when left out.
    #[serde(default)]
    pub image: Option<String>,
    /// Their size class.
    pub size: SizeClass,
    /// Their runtime; the default runtime when left out.
    #[serde(default)]
    pub runtime: Option<String>,
    /// How many.
    pub count: usize,
}

/// How a workspace's size is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceMode {
    /// A loopback file system where this process is root and the host has loop devices, else a volume.
    Auto,
    /// A loopback file system, or no start.
    Loopback,
    /// A volume of the engine, whose size is not held by the kernel.
    Volume,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            runtime_dir: PathBuf::from("/run/toolhost"),
            state_dir: PathBuf::from("/var/lib/toolhost"),
            agent_path: PathBuf::from("target/toolhost-agent"),
            agent_protocol: None,
            engine: None,
            image: "toolhost/sandbox:latest".to_owned(),
            runtime: "runc".to_owned(),
            runtimes: vec!["runc".to_owned()],
            gvisor_runtimes: vec!["runsc".to_owned()],
            pool: vec![PoolEntry { image: None, size: SizeClass::Small, runtime: None, count: 1 }],
            refill_parallel: 1,
            create_parallel: 4,
            agent_connect_ms: 20_000,
            workspaces: WorkspaceMode::Auto,
            seccomp: None,
            allow_known_bad: true,
            warm_shells: 1,
            reconcile_s: 30,
            orphan_grace_s: 60,
        }
    }
}
