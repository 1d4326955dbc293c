//! Named shells: commands one after the other, each in a fresh process that begins as the one before ended.
//!
//! # Design notes
//!
//! *No process waits between commands.* A bash that lives on can be stopped, killed, replaced (`exec`) or left inside an open
//! here-document, and then every later command suffers. So a named shell is what it *is*: directory, variables, functions,
//! aliases, options, arguments. The last thing that a command's bash does, however it ends, is to write that down as a script;
//! the next begins by running it. Timeouts, cancels and output are those of any command, and a worker that takes over
//! finds everything in the agent's journal and in Postgres.
//!
//! *When nothing was written down* (SIGKILL, `exec`, a full disk), the shell is as it was before that command, and the result
//! says so. Not carried over: jobs in the background (they end with their command, as always), open descriptors, and traps.
//!
//! *The script is the tool's own word*, run as the tool in its own sandbox, as its `.bashrc` would be.
//!
//! *One call after another*, by admission, as in contexts: a call waits for its turn here, and for earlier ones that have not come here yet.

use domain::limits::NAMED_SHELL_BYTES;
use domain::{CallId, Code, ShellName};
use sandbox::LinkError;
use sandbox::protocol::{
    ErrorCode, ExecSpec, ReadRequest, RemoveRequest, RemoveTarget, StdinMode, WORKSPACE_DIR,
};
use store::{KeptShell, StoreError};
use tokio::sync::OwnedMutexGuard;
use tools::ToolError;
use tools::port::{Background, Command, CommandEnd, CommandOutcome, Named, NamedEnd, Program};

use super::line::Line;
use super::{CallPorts, abandoned, context_of};
use crate::tenure::Unwritten;

/// Where a command writes its shell down. Not the workspace, where the file would be seen.
const FOLDER: &str = "/tmp";
/// What the rows take; more of either is no directory and are no options that bash would write.
const CWD_BYTES: usize = 4_096;
const OPTIONS_BYTES: usize = 8_192;

impl CallPorts {
    pub(super) async fn run_in_named_shell(
        &self,
        named: Named,
        command: Command,
    ) -> Result<(CommandEnd, NamedEnd), ToolError> {
        let facts = &self.facts;
        let key = self.next_key();
        let (before, _turn) = self.as_it_is(&named).await?;
        // A run of this call before came as far as keeping what the command had left.
        let is_kept = before.left_by == Some(facts.call.id);
        let file = format!(".toolhost-shell-{}", facts.call.id);
        let command = in_shell(command, &before, &named, Some(&format!("{FOLDER}/{file}")))?;
        let spec = self.spec(&command, StdinMode::Null, Some(self.remaining()));
        let end = match self.in_foreground(key, spec, &command, None).await? {
            CommandOutcome::Ended(end) => end,
            CommandOutcome::Shell { .. } => return Err(abandoned()),
        };
        let is_new = before.state.is_none();
        let mut lost = None;
        let cwd = if is_kept {
            before.cwd
        } else if let Some(after) = self.written_down(&before, &file).await? {
            if !self.keep(&after).await? {
                lost = Some("it was deleted while the command ran; its next command begins anew".to_owned());
            }
            after.cwd
        } else {
            lost = Some(why_lost(&end));
            before.cwd
        };
        // Only now: a run after this one would find neither.
        self.clear_away(&file).await;
        let cwd = cwd.unwrap_or_else(|| WORKSPACE_DIR.to_owned());
        Ok((end, NamedEnd { cwd, is_new, lost }))
    }

    /// Starts a command in the background as it would begin in the shell, which it leaves as it is.
    pub(super) async fn start_as_named_shell(
        &self,
        named: Named,
        command: Command,
    ) -> Result<CommandOutcome, ToolError> {
        let key = self.next_key();
        let (before, _turn) = self.as_it_is(&named).await?;
        let command = in_shell(command, &before, &named, None)?;
        let Background::Now { shell_timeout } = command.background else { return Err(abandoned()) };
        let spec = ExecSpec { detached: true, ..self.spec(&command, StdinMode::Open, shell_timeout) };
        self.in_background(key, spec, &command, Some(named.name)).await
    }

    /// The shell, when it is this call's turn, forgotten before if that is asked for.
    async fn as_it_is(&self, named: &Named) -> Result<(KeptShell, OwnedMutexGuard<()>), ToolError> {
        let (mut before, turn) = self.shell_turn(&named.name).await?;
        if named.restart && before.left_by != Some(self.facts.call.id) && before.state.is_some() {
            before = KeptShell { cwd: None, state: None, options: String::new(), left_by: None, ..before };
            self.keep(&before).await?;
        }
        Ok((before, turn))
    }

    /// Waits until nothing else runs in the shell and no earlier call is to.
    async fn shell_turn(&self, name: &ShellName) -> Result<(KeptShell, OwnedMutexGuard<()>), ToolError> {
        let facts = &self.facts;
        let mut line = Line::default();
        loop {
            if let (_, Some(earlier)) = self.find_named_shell(name).await? {
                self.behind(&mut line, earlier).await?;
                continue;
            }
            self.at_the_front().await?;
            let lock = facts.session.named_lock(name);
            // Whoever has it and came later notices this call, and a resumed one may have begun in a worker before.
            let turn = tokio::select! {
                turn = lock.lock_owned() => turn,
                () = facts.running.cancel.cancelled(), if !self.is_resumed() => return Err(self.ended_before()),
            };
            if let (shell, None) = self.find_named_shell(name).await? {
                return Ok((shell, turn));
            }
        }
    }

    async fn find_named_shell(&self, name: &ShellName) -> Result<(KeptShell, Option<CallId>), ToolError> {
        let facts = &self.facts;
        let (store, fence) = (facts.tenure.store(), &facts.session.fence);
        let found = facts.tenure.write(|| store.named_shell_for_call(fence, name, facts.call.id)).await;
        match found {
            Ok(found) => Ok(found),
            Err(Unwritten::Refused(StoreError::Conflict { message, .. })) => {
                let context = context_of(facts.call.tenant_id);
                let listed = facts.tenure.write(|| store.list_named_shells(&context, facts.session.id)).await;
                let names = listed.unwrap_or_default().into_iter().map(|shell| shell.name.to_string());
                let names = names.collect::<Vec<_>>().join(", ");
                Err(ToolError::new(
                    Code::LimitExceeded,
                    format!("The shell {name} could not be made: {message}."),
                )
                .hint(format!(
                    "Use one of {names}, with `restart` to begin anew, or delete one with DELETE \
                         /v1/sessions/{{id}}/named_shells/{{name}}."
                )))
            }
            Err(unwritten) => Err(self.unwritten(unwritten)),
        }
    }

    /// False when the shell was deleted meanwhile.
    async fn keep(&self, shell: &KeptShell) -> Result<bool, ToolError> {
        let (store, fence) = (self.facts.tenure.store(), &self.facts.session.fence);
        let kept = self.facts.tenure.write(|| store.keep_named_shell(fence, shell)).await;
        kept.map_err(|unwritten| self.unwritten(unwritten))
    }

    /// What the command's bash has written down, if it came to that. Also asked after a cancel.
    async fn written_down(&self, before: &KeptShell, file: &str) -> Result<Option<KeptShell>, ToolError> {
        let request = ReadRequest {
            root: FOLDER.to_owned(),
            path: file.to_owned(),
            offset: 0,
            max_bytes: NAMED_SHELL_BYTES + 1,
        };
        let agent = self.serving.sandbox.agent();
        let content = match self.ask_on(|| agent.read(request.clone())).await {
            Ok(content) => content.bytes,
            Err(error) if error.fate != tools::Fate::Failed => return Err(error),
            Err(error) => {
                tracing::debug!(call = %self.facts.call.id, %error, "a named shell left nothing");
                return Ok(None);
            }
        };
        if content.len() as u64 > NAMED_SHELL_BYTES {
            return Ok(None);
        }
        Ok(parse(&content).map(|(cwd, state, options)| KeptShell {
            id: before.id,
            cwd: Some(cwd),
            state: Some(state),
            options,
            left_by: Some(self.facts.call.id),
        }))
    }

    async fn clear_away(&self, file: &str) {
        let request = RemoveRequest {
            key: self.next_key(),
            root: FOLDER.to_owned(),
            path: file.to_owned(),
            target: RemoveTarget::File,
            expected_sha256: None,
        };
        match self.serving.sandbox.agent().remove(request).await {
            Ok(_) => {}
            Err(LinkError::Agent(error)) if error.code == ErrorCode::NotFound => {}
            Err(error) => {
                tracing::debug!(call = %self.facts.call.id, %error, "a file of a named shell stays");
            }
        }
    }
}

/// Directory, state and options from what a shell wrote down: each ends with a NUL, and without the last one it was cut off.
/// Options that would be heard while the next shell is made are set last.
fn parse(content: &[u8]) -> Option<(String, String, String)> {
    let text = String::from_utf8_lossy(content.strip_suffix(b"\0")?).into_owned();
    let mut parts = text.split('\0');
    let (cwd, state, options) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some()
        || !cwd.starts_with('/')
        || cwd.len() > CWD_BYTES
        || options.len() > OPTIONS_BYTES
    {
        return None;
    }
    let is_heard = |line: &&str| matches!(*line, "set -o xtrace" | "set -o verbose");
    let (heard, quiet): (Vec<&str>, Vec<&str>) = options.lines().partition(is_heard);
    let state = format!("{state}\n{}\n", quiet.join("\n"));
    Some((cwd.to_owned(), state, heard.join("; ")))
}

/// Why a shell could not be kept as the command left it.
fn why_lost(end: &CommandEnd) -> String {
    let cause = if end.timed_out {
        "the command timed out and did not yield"
    } else if end.cancelled {
        "the command was cancelled and did not yield"
    } else if end.oom_killed {
        "it was ended for want of memory"
    } else if end.signal.is_some() {
        "it was killed"
    } else {
        "the command replaced it by another program (exec), exited with an EXIT trap of its own, or what the shell holds could \
         not be written to /tmp (at most 256 KiB)"
    };
    format!("{cause}; its directory, variables, functions and options are as they were before this command")
}

/// The command as one of the shell.
fn in_shell(
    command: Command,
    before: &KeptShell,
    named: &Named,
    file: Option<&str>,
) -> Result<Command, ToolError> {
    let Program::Shell(text) = &command.program else { return Err(abandoned()) };
    let script = script(text, before, named.cwd.as_deref(), file);
    let cwd = named.cwd.clone().unwrap_or_else(|| WORKSPACE_DIR.to_owned());
    Ok(Command { program: Program::Shell(script), cwd, ..command })
}

/// The command with what makes the shell before it and, where there is a file for it, what writes it down after it. What comes before is one line, so
/// that the command's own lines are counted from 1; each part works under whatever options the shell has. The last line is a
/// plain command, because after a syntax error in the `eval` bash's parser sees nothing else.
fn script(command: &str, before: &KeptShell, cwd: Option<&str>, file: Option<&str>) -> String {
    let keep = |file: &str| {
        format!(
            "_toolhost_keep() {{ {{ builtin local _toolhost_status=$?; builtin trap - DEBUG; [[ -s {file} ]] || {{ \
         builtin printf '%s\\0' \"$PWD\" && builtin declare -p && builtin declare -f && builtin export -pf && \
         builtin alias -p && builtin umask -p && builtin printf 'builtin set --' && \
         {{ [[ $# -eq 0 ]] || builtin printf ' %q' \"$@\"; }} && {{ builtin printf '\\n'; builtin shopt -p; \
         builtin printf '\\0'; builtin set +o; builtin printf '\\0'; }}; }} >|{file}; \
         builtin return \"$_toolhost_status\"; }} 2>/dev/null; }}; "
        )
    };
    let mut script = String::from("builtin unset BASH_EXECUTION_STRING; ");
    if let (Some(home), Some(state)) = (&before.cwd, &before.state) {
        // The exported variables that this process has begun with are those of any command, and the shell may have unset some.
        let state =
            format!("builtin unset -v $(builtin compgen -e)\n{state}\nbuiltin unset -v _toolhost_status");
        script.push_str(&format!("builtin cd -- {} 2>/dev/null; ", quote(home)));
        script.push_str(&format!("builtin eval {} 2>/dev/null; ", quote(&state)));
        if cwd.is_none() {
            let gone =
                format!("bash: {home}: there is no such directory (any more); going to {WORKSPACE_DIR}");
            script.push_str(&format!(
                "[[ . -ef {} ]] || {{ builtin cd {WORKSPACE_DIR}; builtin printf '%s\\n' {} >&2; }}; ",
                quote(home),
                quote(&gone)
            ));
        }
    }
    if let Some(cwd) = cwd {
        script.push_str(&format!("builtin cd -- {}; ", quote(cwd)));
    }
    let options = if before.options.is_empty() { String::new() } else { format!("{}; ", before.options) };
    let command = format!("builtin eval {}\n", quote(&format!("{options}{command}")));
    let Some(file) = file else { return script + &command };
    script.push_str(&keep(file));
    script.push_str("builtin trap '_toolhost_keep \"$@\"' EXIT; ");
    script.push_str(&command);
    script.push_str("_toolhost_keep \"$@\"\n");
    script
}

/// A text as one word on one line.
fn quote(text: &str) -> String {
    format!("$'{}'", text.replace('\\', r"\\").replace('\'', r"\'").replace('\n', r"\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_off_is_not_taken_for_a_shell() {
        let whole = b"/tmp\0A=1\nbuiltin set --\n\0set +o errexit\nset -o xtrace\n\0";
        let (cwd, state, options) = parse(whole).expect("it is whole");
        assert_eq!((cwd.as_str(), options.as_str()), ("/tmp", "set -o xtrace"));
        assert!(
            state.contains("A=1") && state.contains("set +o errexit") && !state.contains("xtrace"),
            "{state}"
        );
        for cut in [&whole[..whole.len() - 1], b"/tmp\0A=1\0", b"", b"\0", b"x\0\0\0"] {
            assert_eq!(parse(cut), None, "{cut:?}");
        }
        let long = format!("/{}\0A=1\0\0", "0".repeat(20_000));
        assert_eq!(parse(long.as_bytes()), None, "no row takes it");
    }

    #[test]
    fn what_is_quoted_stays_one_line() {
        assert_eq!(quote("it's a\n\\n"), r"$'it\'s a\n\\n'");
    }
}
