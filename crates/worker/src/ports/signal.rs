//! Names of signals.

/// The name of a signal's Linux number, such as `SIGKILL`.
pub(crate) fn name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let known = usize::try_from(number).ok().and_then(|number| NAMES.get(number.wrapping_sub(1)));
    known.map_or_else(|| format!("SIG{number}"), |name| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn numbers_have_their_names() {
        assert_eq!((name(9), name(15), name(31)), ("SIGKILL".into(), "SIGTERM".into(), "SIGSYS".into()));
        assert_eq!((name(0), name(64)), ("SIG0".into(), "SIG64".into()));
    }
}
