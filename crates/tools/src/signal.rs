//! Signals by name, as people and the source systems write them.

/// Names and Linux numbers of the signals that a caller may send.
const SIGNALS: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("WINCH", 28),
];

/// The signal that a key combination means.
const KEYS: &[(&str, &str)] = &[("ctrl+c", "INT"), ("ctrl+\\", "QUIT"), ("ctrl+z", "TSTP")];

/// Number and full name of a signal written as `INT`, `SIGINT`, `sigint`, or `ctrl+c`.
#[must_use]
pub fn parse(text: &str) -> Option<(i32, String)> {
    let lower = text.trim().to_ascii_lowercase().replace('-', "+").replace('^', "ctrl+");
    let key = KEYS.iter().find(|(key, _)| *key == lower).map(|(_, name)| (*name).to_owned());
    let name = key.unwrap_or_else(|| lower.to_ascii_uppercase());
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let (name, number) = SIGNALS.iter().find(|(known, _)| *known == name)?;
    Some((*number, format!("SIG{name}")))
}

/// Every name, for messages.
#[must_use]
pub fn names() -> String {
    SIGNALS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_as_people_write_them() {
        for (text, number) in [
            ("INT", 2),
            ("SIGINT", 2),
            ("sigterm", 15),
            ("ctrl+c", 2),
            ("Ctrl-C", 2),
            ("^C", 2),
            (" KILL ", 9),
            ("WINCH", 28),
        ] {
            assert_eq!(parse(text).map(|signal| signal.0), Some(number), "{text}");
        }
        for text in ["", "SIG", "SIGSIGINT", "2", "RT1", "ctrl+x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
