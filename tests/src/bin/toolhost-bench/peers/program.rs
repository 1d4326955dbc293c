//! A program of somebody else: started under a guard, talked to by lines, ended by its process id.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// How long it may take to say something: kernels and containers are started, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long it may take to end.
const END: Duration = Duration::from_secs(30);

/// Ends a server, which does not look at its input, when the guard's own input ends: with the bench at the latest, however that ends.
const GUARD: &str = r#"trap '' INT HUP TERM; "$@" </dev/null >&2 & pid=$!; cat >/dev/null; kill "$pid" 2>/dev/null
    for (( i = 0; i < 100; i++ )); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null; wait"#;

/// A script of ours that ends when its input does. It keeps what it writes of its own in its peer's folder.
pub(super) fn script(program: &str, folder: &Path) -> Command {
    // By its full path, as a relative one would be looked for from where the bench is.
    let path = folder.join(program);
    let mut command = Command::new(if path.exists() { path.as_os_str() } else { program.as_ref() });
    command.current_dir(folder).env("HOME", folder).process_group(0);
    command
}

/// A server, under a guard. It keeps what it writes of its own in its folder.
pub(super) fn server(program: &str, folder: &Path) -> Command {
    let mut command = Command::new("bash");
    command
        .args(["-c", GUARD, "guard"])
        .arg(folder.join(program))
        .current_dir(folder)
        .env("HOME", folder)
        .process_group(0);
    command
}

/// A running one.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts it. What it says on standard error is dropped, if nobody asks for it.
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::env::var_os("BENCH_PEERS_SAY").map_or_else(Stdio::null, |_| Stdio::inherit()))
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { name: name.to_owned(), child, input, output })
    }

    /// Says a line to it.
    pub(super) async fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// The next line that it says.
    pub(super) async fn line(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.output.next_line()).await;
        let line = line.with_context(|| format!("{} says nothing", self.name))??;
        line.with_context(|| format!("{} has ended (BENCH_PEERS_SAY=1 shows what it says)", self.name))
    }

    /// Ends it.
    pub(super) async fn stop(self) -> Result<()> {
        let Self { name, mut child, input, output } = self;
        drop(input);
        drop(output);
        let status = timeout(END, child.wait()).await.with_context(|| format!("{name} does not end"))??;
        ensure!(status.code().is_some(), "the guard of {name} was killed");
        Ok(())
    }
}
