//! The hardened profile: what a container of ours is allowed to be. A pure function of its spec.
//!
//! # Design notes
//!
//! *Nothing secret.* Whatever is in here can be read by `docker inspect`, and on an old gVisor by a tool. Secrets
//! and the environment of commands go over the link.
//!
//! *CPU by quota and period*, as the engine refuses `NanoCpus` above the host's count, and a size class must
//! not depend on the host.
//!
//! *Terminals are the host's.* `kernel.pty.max` counts those of all containers together, so that one could take them all. Each sandbox has
//! a file system of terminals of its own with a limit, as an anonymous volume, which goes with its container.
//!
//! *tmpfs is memory.* Its sizes are shares of the sandbox's memory, so that filling one is at worst an
//! out-of-memory kill inside.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use domain::Resources;

use super::labels::{self, Kind};
use crate::{Identity, LinkPlace, SandboxSpec};

/// What the agent itself needs: to take the tools' uid, to end them, to give them their pipes.
const CAPABILITIES: [&str; 4] = ["SETUID", "SETGID", "KILL", "CHOWN"];
/// Open files of one process. Enough for any tool; 100,000 descriptors are an attack.
const OPEN_FILES: i64 = 16_384;
/// Length of the scheduler's period, in microseconds.
const CPU_PERIOD_US: i64 = 100_000;
/// Terminals of one sandbox: those of its shells, and as many of its programs' own.
const TERMINALS: u32 = 64;
/// Files of one tmpfs; their inodes are memory too.
const TMPFS_INODES: u32 = 65_536;

/// The volumes that a container mounts.
pub(super) struct Volumes {
    pub(super) agent: String,
    pub(super) workspace: String,
}

/// Whose system calls a sandbox makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// The host's, filtered.
    Host,
    /// gVisor's own, a program on the host.
    Gvisor,
}

/// Tasks of the host that a process inside gVisor takes on the average: one for each thread of gVisor's that has run it.
/// At the limit gVisor ends, and the sandbox with it.
const GVISOR_TASKS: i64 = 2;
/// Threads of gVisor itself, and processes of the host that it keeps for later.
const GVISOR_THREADS: i64 = 256;

/// The request that creates a sandbox's container.
pub(super) fn body(
    identity: &Identity,
    spec: &SandboxSpec,
    volumes: Volumes,
    kernel: Kernel,
    seccomp: &str,
    agent_protocol: Option<u32>,
) -> ContainerCreateBody {
    let mut labels = identity.labels(Kind::Sandbox);
    labels.insert(labels::SANDBOX.to_owned(), spec.sandbox_id.to_string());
    labels.insert(labels::WORKSPACE.to_owned(), spec.workspace.to_string());
    // A name without `=` removes the variable: neither the image's environment nor the engine's own reaches
    // the agent. Commands get the image's over the link.
    let env = spec.resolved.env.keys().map(String::as_str).chain(["PATH", "HOSTNAME"]).map(str::to_owned);
    ContainerCreateBody {
        image: Some(spec.resolved.id.clone()),
        entrypoint: Some(vec![protocol::AGENT_PATH.to_owned()]),
        cmd: Some(
            agent_protocol
                .map_or_else(Vec::new, |version| vec!["--protocol".to_owned(), version.to_string()]),
        ),
        env: Some(env.collect()),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        hostname: Some("sandbox".to_owned()),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        labels: Some(labels),
        host_config: Some(host_config(spec, volumes, kernel, seccomp)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(spec: &SandboxSpec, volumes: Volumes, kernel: Kernel, seccomp: &str) -> HostConfig {
    let Resources { cpus, memory_mb, disk_mb, pids } = spec.resources;
    let memory = i64::from(memory_mb) * 1024 * 1024;
    let disk = i64::from(disk_mb) * 1024 * 1024;
    HostConfig {
        runtime: Some(spec.runtime.clone()),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
        security_opt: Some(vec!["no-new-privileges".to_owned(), format!("seccomp={seccomp}")]),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        init: Some(false),
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            ..RestartPolicy::default()
        }),
        memory: Some(memory),
        memory_swap: Some(memory),
        cpu_period: Some(CPU_PERIOD_US),
        cpu_quota: Some((cpus * CPU_PERIOD_US as f64) as i64),
        pids_limit: Some(pids_limit(pids, kernel)),
        ulimits: Some(vec![
            ulimit("nofile", OPEN_FILES),
            ulimit("core", 0),
            ulimit("fsize", disk.max(memory)),
        ]),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        shm_size: Some(memory / 8),
        tmpfs: Some(tmpfs(memory_mb, &spec.link)),
        mounts: Some(mounts(spec, volumes, kernel)),
        ..HostConfig::default()
    }
}

fn pids_limit(pids: u32, kernel: Kernel) -> i64 {
    match kernel {
        Kernel::Host => pids.into(),
        Kernel::Gvisor => i64::from(pids) * GVISOR_TASKS + GVISOR_THREADS,
    }
}

fn ulimit(name: &str, value: i64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(value), hard: Some(value) }
}

fn tmpfs(memory_mb: u32, link: &LinkPlace) -> HashMap<String, String> {
    let options = |exec: &str, mode: &str, size_mb: u32| {
        format!("rw,{exec},nosuid,nodev,mode={mode},size={}m,nr_inodes={TMPFS_INODES}", size_mb.max(1))
    };
    let mut folders = HashMap::from([
        ("/tmp".to_owned(), options("exec", "1777", memory_mb / 2)),
        ("/var/tmp".to_owned(), options("exec", "1777", memory_mb / 8)),
        ("/run".to_owned(), options("noexec", "755", 8)),
        ("/run/lock".to_owned(), options("noexec", "1777", 4)),
    ]);
    match link {
        LinkPlace::Folder(_) => {}
        LinkPlace::Inside => {
            folders.insert(protocol::LINK_DIR.to_owned(), options("noexec", "700", 1));
        }
    }
    folders
}

fn mounts(spec: &SandboxSpec, volumes: Volumes, kernel: Kernel) -> Vec<Mount> {
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut mounts = vec![
        volume(volumes.workspace, protocol::WORKSPACE_DIR, false),
        volume(volumes.agent, AGENT_DIR, true),
        bind(path(&spec.passwd), "/etc/passwd"),
        bind(path(&spec.group), "/etc/group"),
    ];
    match &spec.link {
        LinkPlace::Folder(folder) => mounts.push(bind(path(folder), protocol::LINK_DIR)),
        LinkPlace::Inside => {}
    }
    match kernel {
        Kernel::Host => mounts.push(terminals()),
        // Its terminals are its own.
        Kernel::Gvisor => {}
    }
    mounts
}

/// A file system of terminals, made by the engine for this container alone.
fn terminals() -> Mount {
    let options = format!("newinstance,nosuid,noexec,mode=0620,ptmxmode=0666,gid=5,max={TERMINALS}");
    let options = [("type", "devpts".to_owned()), ("device", "devpts".to_owned()), ("o", options)];
    let driver = MountVolumeOptionsDriverConfig {
        name: Some("local".to_owned()),
        options: Some(options.map(|(name, value)| (name.to_owned(), value)).into()),
    };
    Mount {
        typ: Some(MountType::VOLUME),
        target: Some("/dev/pts".to_owned()),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            driver_config: Some(driver),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Where the agent's volume is mounted.
pub(super) const AGENT_DIR: &str = "/.toolhost";

pub(super) fn volume(source: String, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(source),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

fn bind(source: String, target: &str) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source),
        target: Some(target.to_owned()),
        read_only: Some(true),
        ..Mount::default()
    }
}
