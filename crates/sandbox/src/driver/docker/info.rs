//! What the engine is, and which versions of it are known to be bad.

use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};

use crate::{EngineInfo, WorkspaceKind};

/// Three numbers of a version; what follows them is a distribution's own.
type Version = (u32, u32, u32);

pub(super) fn describe(version: SystemVersion, info: SystemInfo, workspaces: WorkspaceKind) -> EngineInfo {
    let runc_version = version
        .components
        .unwrap_or_default()
        .into_iter()
        .find(|component| component.name == "runc")
        .map(|component| component.version);
    let mut runtimes: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
    runtimes.sort();
    let mut described = EngineInfo {
        version: version.version.unwrap_or_default(),
        api_version: version.api_version.unwrap_or_default(),
        kernel: version.kernel_version.or(info.kernel_version).unwrap_or_default(),
        runc_version,
        cgroup_version: match info.cgroup_version {
            Some(SystemInfoCgroupVersionEnum::_2) => 2,
            Some(SystemInfoCgroupVersionEnum::_1 | SystemInfoCgroupVersionEnum::EMPTY) | None => 1,
        },
        runtimes,
        security_options: info.security_options.unwrap_or_default(),
        workspaces,
        cpus: info.ncpu.and_then(|cpus| u64::try_from(cpus).ok()).unwrap_or(0),
        memory_bytes: info.mem_total.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
        warnings: Vec::new(),
    };
    described.warnings = warnings(&described);
    described
}

fn warnings(engine: &EngineInfo) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(runc) = &engine.runc_version {
        let version = parse(runc);
        if version < (1, 1, 12) {
            warnings.push(format!(
                "runc {runc} lets a container out through a leaked descriptor (CVE-2024-21626) unless the distribution has mended it: use 1.1.12 or newer"
            ));
        }
        if version < (1, 2, 8) || ((1, 3, 0)..(1, 3, 3)).contains(&version) {
            warnings.push(format!(
                "runc {runc} can be made to write outside of a container (CVE-2025-31133, -52565, -52881) unless the distribution has mended it: use 1.2.8, 1.3.3 or newer"
            ));
        }
    }
    let kernel = parse(&engine.kernel);
    let dirty_pipe = ((5, 8, 0)..(5, 16, 11)).contains(&kernel)
        && !((5, 10, 102)..(5, 11, 0)).contains(&kernel)
        && !((5, 15, 25)..(5, 16, 0)).contains(&kernel);
    if dirty_pipe {
        warnings.push(format!(
            "Linux {} lets anyone write to files that can only be read (CVE-2022-0847) unless the distribution has mended it",
            engine.kernel
        ));
    }
    if !engine.security_options.iter().any(|option| option.contains("seccomp")) {
        warnings.push("the engine has no seccomp: system calls of sandboxes are not filtered".to_owned());
    }
    if engine.workspaces == WorkspaceKind::Volume {
        warnings.push(
            "workspaces are volumes of the engine: their size is not held (root and loop devices are needed for that)"
                .to_owned(),
        );
    }
    warnings
}

fn parse(version: &str) -> Version {
    let mut numbers = version
        .trim_start_matches('v')
        .split(|character: char| !character.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(runc: &str, kernel: &str) -> EngineInfo {
        EngineInfo {
            version: "28.2.2".to_owned(),
            api_version: "1.50".to_owned(),
            kernel: kernel.to_owned(),
            runc_version: Some(runc.to_owned()),
            cgroup_version: 2,
            runtimes: vec!["runc".to_owned()],
            security_options: vec!["name=seccomp,profile=default".to_owned()],
            workspaces: WorkspaceKind::Loopback,
            cpus: 2,
            memory_bytes: 1 << 30,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn versions_with_a_distribution_s_tail_are_read() {
        assert_eq!(parse("1.1.5+ds1"), (1, 1, 5));
        assert_eq!(parse("v1.3.3"), (1, 3, 3));
        assert_eq!(parse("6.18.44-fc-v657"), (6, 18, 44));
        assert_eq!(parse(""), (0, 0, 0));
    }

    #[test]
    fn known_bad_versions_warn_and_good_ones_do_not() {
        assert_eq!(warnings(&engine("1.3.3", "6.18.44")), Vec::<String>::new());
        assert_eq!(warnings(&engine("1.1.5+ds1", "6.18.44")).len(), 2);
        assert_eq!(warnings(&engine("1.2.7", "5.15.24")).len(), 2);
        assert_eq!(warnings(&engine("1.2.8", "5.10.102")).len(), 0);
    }
}
