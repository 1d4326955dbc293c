//! What any process tells Prometheus of itself, under the names that everybody uses, and which version this is.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntGaugeVec, Opts, Registry};

/// Registers them; they are read when somebody asks.
///
/// # Errors
/// When the registry has metrics of these names already.
pub(crate) fn register(registry: &Registry) -> prometheus::Result<()> {
    let build = IntGaugeVec::new(
        Opts::new("toolhost_build_info", "Always 1; the version of this binary is its label"),
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(build))?;
    registry.register(Box::new(Process::new()?))
}

struct Process {
    cpu: Counter,
    memory: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    threads: Gauge,
    started: Gauge,
}

impl Process {
    fn new() -> prometheus::Result<Self> {
        let process = Self {
            cpu: Counter::new("process_cpu_seconds_total", "CPU time of this process, in seconds")?,
            memory: Gauge::new("process_resident_memory_bytes", "Resident memory, in bytes")?,
            open_fds: Gauge::new("process_open_fds", "Open file descriptors")?,
            max_fds: Gauge::new("process_max_fds", "Most file descriptors that may be open")?,
            threads: Gauge::new("process_threads", "Threads")?,
            started: Gauge::new("process_start_time_seconds", "When it started, in seconds since 1970")?,
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        process.started.set(now.as_secs_f64());
        Ok(process)
    }

    fn parts(&self) -> [&dyn Collector; 6] {
        [&self.cpu, &self.memory, &self.open_fds, &self.max_fds, &self.threads, &self.started]
    }

    /// What cannot be read stays as it was.
    fn read(&self) {
        if let Ok(usage) = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF) {
            let seconds = [usage.user_time(), usage.system_time()]
                .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6);
            self.cpu.inc_by((seconds[0] + seconds[1] - self.cpu.get()).max(0.0));
        }
        if let Ok((soft, _)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
            self.max_fds.set(soft as f64);
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            self.open_fds.set(entries.count() as f64);
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for line in status.lines() {
            let number = || line.split_whitespace().nth(1).and_then(|text| text.parse::<f64>().ok());
            match line.split(':').next() {
                Some("VmRSS") => self.memory.set(number().unwrap_or_default() * 1024.0),
                Some("Threads") => self.threads.set(number().unwrap_or_default()),
                _ => {}
            }
        }
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}
