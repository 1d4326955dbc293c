//! The one prelude: how a command's text reaches a shell, the same for one that has waited and one that is new.
//!
//! # Design notes
//!
//! *Source, then eval.* The shell is `bash -c WAIT`, so that `$0`, `$-`, `$#` and line numbers are those of `bash -c`.
//! It waits for a line on descriptor 4, sources the memory file on descriptor 3 (one read, however long the command;
//! through a pipe 128 KiB cost 71 ms), and evaluates the command at top level, where `return`, `exit`, traps and
//! `set -e` mean what they mean in `bash -c`. The text travels in `BASH_EXECUTION_STRING`, which `bash -c` sets to
//! the same value: no helper variable exists that would have to be hidden.
//! *What differs from `bash -c`*: syntax errors are prefixed `bash: eval: line 1:` for `bash: -c: line 1:`, `set -x`
//! starts with `++` for `+`, and the last command is not executed in the shell's own process.
//! *At most once.* The shell writes one byte to descriptor 4 right before it closes it and evaluates. Without that
//! byte the command has certainly not begun, and the agent may take another shell.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What a bash is started with. `: bash` leaves `$_` as `bash -c` has it.
pub(crate) const WAIT: &str =
    r#"read -ru4 _||exit;. /proc/self/fd/3||exit;: bash;eval "$BASH_EXECUTION_STRING""#;

/// What `sh` is started with where there is no bash; it has no descriptor 4 and the agent counts it as begun.
pub(crate) const PLAIN: &str = r#". /proc/self/fd/3;eval "$BASH_EXECUTION_STRING""#;

/// Says that the command begins, and leaves descriptors 0, 1 and 2. In `sh`, descriptor 4 is closed, which is ignored.
const BEGIN: &str = "{ printf s>&4; } 2>/dev/null\nexec 3<&- 4<&-\n";

/// Variables that bash looks at when it starts or refuses to assign: a command that sets one gets a new shell.
const STARTUP_VARIABLES: [&str; 25] = [
    "COMP_WORDBREAKS",
    "DIRSTACK",
    "ENV",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "IFS",
    "LINENO",
    "MACHTYPE",
    "OLDPWD",
    "OPTIND",
    "PIPESTATUS",
    "POSIXLY_CORRECT",
    "PPID",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "SRANDOM",
    "UID",
    "_",
];

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The memory file of a shell that was started for this command: directory and environment are its own already.
pub(crate) fn command_text(command: &str) -> String {
    format!("BASH_EXECUTION_STRING={}\n{BEGIN}", quote(command))
}

/// The memory file for a shell that has waited.
pub(crate) fn release_text(
    command: &str,
    cwd: &str,
    env: &BTreeMap<String, String>,
    null_stdin: bool,
) -> String {
    let mut text = String::with_capacity(command.len() + 512);
    // Without the confirming byte the agent starts a new shell, which says what is wrong with the directory.
    let _ = writeln!(text, "cd -P -- {} 2>/dev/null||exit\nunset OLDPWD;export OLDPWD", quote(cwd));
    for (name, value) in env {
        let _ = writeln!(text, "export {name}={}", quote(value));
    }
    if null_stdin {
        text.push_str("exec </dev/null\n");
    }
    text.push_str(&command_text(command));
    text
}

/// Whether a shell that has already started can take on this environment and still behave as a new one would.
pub(crate) fn fits_started_shell(env: &BTreeMap<String, String>) -> bool {
    env.keys().all(|name| {
        let mut letters = name.bytes();
        letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && letters.all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !name.starts_with("BASH")
            && !STARTUP_VARIABLES.contains(&name.as_str())
    })
}

/// The same for an interpreter: what the loader, the C library and the interpreters look at when they start.
pub(crate) fn fits_started_interpreter(env: &BTreeMap<String, String>) -> bool {
    const PREFIXES: [&str; 7] = ["PYTHON", "NODE_", "LD_", "LC_", "MALLOC_", "GLIBC_", "GCONV_"];
    env.keys().all(|name| {
        !PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            && !["HOME", "LANG", "PATH", "TZ", "LOCPATH"].contains(&name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_the_way_into_the_shell() {
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    #[test]
    fn variables_that_bash_reads_at_start_need_a_new_shell() {
        let with = |name: &str| BTreeMap::from([(name.to_owned(), String::new())]);
        assert!(fits_started_shell(&with("FOO_1")));
        for name in ["BASH_ENV", "SHELLOPTS", "1X", "A-B", "BASH_FUNC_f%%", ""] {
            assert!(!fits_started_shell(&with(name)), "{name}");
        }
    }
}
