//! What the sandbox's own control group tells: out-of-memory kills and memory in use. Version 1 and 2; where neither is
//! visible (or a foreign runtime shows nothing) there is no answer, and that is not an error.

use std::fs::File;
use std::os::unix::fs::FileExt;

const OOM_FILES: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
const USAGE_FILES: [&str; 2] =
    ["/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"];

/// The open files of the control group.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    oom: Option<File>,
    usage: Option<File>,
}

impl ControlGroup {
    /// Opens what is there.
    pub(crate) fn open() -> Self {
        let first = |paths: [&str; 2]| paths.iter().find_map(|path| File::open(path).ok());
        Self { oom: first(OOM_FILES), usage: first(USAGE_FILES) }
    }

    /// Out-of-memory kills so far; 0 where it is not known.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.oom.as_ref().and_then(read).and_then(|text| field(&text, "oom_kill")).unwrap_or(0)
    }

    /// Memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.usage.as_ref().and_then(read)?.trim().parse().ok()
    }
}

fn read(file: &File) -> Option<String> {
    let mut buffer = [0; 512];
    let length = file.read_at(&mut buffer, 0).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The agent's own resident memory, in bytes.
pub(crate) fn own_rss_bytes() -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return 0 };
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_versions() {
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let v2 = "low 0\nhigh 0\nmax 12\noom 5\noom_kill 4\noom_group_kill 1\n";
        assert_eq!((field(v1, "oom_kill"), field(v2, "oom_kill")), (Some(3), Some(4)));
    }
}
