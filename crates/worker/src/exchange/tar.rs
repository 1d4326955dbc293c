//! The tar format, as far as files and directories go: headers read and written, with POSIX (pax) and GNU long names. No I/O.
//!
//! # Design notes
//!
//! An archive is hostile. Whatever two readers could understand differently (a size said twice, a link that claims to have
//! content, a header whose checksum is wrong) is refused, so that nothing is hidden in an archive from who looked at it before.

/// Everything in an archive is a multiple of it.
pub(super) const BLOCK: usize = 512;
/// Longest name, and all that is read of one extended header.
pub(super) const EXTENDED_BYTES: u64 = 64 * 1024;

/// One header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) mode: u32,
}

/// What a header is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, pipe or device, which has no content.
    Special(&'static str),
    /// Records about the next entry.
    Extended,
    /// Records about all entries that follow.
    Global,
    /// The next entry's name.
    LongName,
    /// The next entry's target.
    LongLink,
}

/// Why an archive is none that we take.
pub(super) type Malformed = &'static str;

/// Reads a header; `None` for a block of zeros, which ends an archive.
pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Option<Header>, Malformed> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let sum: u64 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { u64::from(b' ') } else { u64::from(*byte) })
        .sum();
    if octal(&block[148..156])? != sum {
        return Err("a header has a wrong checksum: this is no tar archive, or it is damaged");
    }
    let kind = match block[156] {
        b'0' | 0 | b'7' => Kind::File,
        b'5' => Kind::Directory,
        b'1' => Kind::Special("a hard link"),
        b'2' => Kind::Special("a symbolic link"),
        b'3' | b'4' => Kind::Special("a device"),
        b'6' => Kind::Special("a pipe"),
        b'x' => Kind::Extended,
        b'g' => Kind::Global,
        b'L' => Kind::LongName,
        b'K' => Kind::LongLink,
        _ => return Err("an entry is of a kind that is not taken"),
    };
    let mut name = text(&block[..100]).to_vec();
    // GNU writes other things there and says so in its magic.
    if &block[257..263] == b"ustar\0" && block[345] != 0 {
        name = [text(&block[345..500]), b"/", &name].concat();
    }
    let size = number(&block[124..136])?;
    if size > 0 && matches!(kind, Kind::Special(_) | Kind::Directory) {
        return Err("an entry that has no content claims to have some");
    }
    Ok(Some(Header { name, kind, size, mode: u32::try_from(octal(&block[100..108])?).unwrap_or(0) & 0o777 }))
}

/// What an entry is under its whole name, which may stand in headers of its own: before there was a kind for them, directories were files whose
/// names end in a slash.
pub(super) fn kind_of(kind: Kind, name: &[u8]) -> Kind {
    if kind == Kind::File && name.ends_with(b"/") { Kind::Directory } else { kind }
}

/// `path` and `size` of pax records.
pub(super) fn records(mut data: &[u8]) -> Result<(Option<Vec<u8>>, Option<u64>), Malformed> {
    const WRONG: Malformed = "an extended header is malformed";
    const TWICE: Malformed = "a name or size is said twice";
    let (mut path, mut size) = (None, None);
    while !data.is_empty() {
        let space = data.iter().position(|byte| *byte == b' ').ok_or(WRONG)?;
        let length: usize =
            std::str::from_utf8(&data[..space]).ok().and_then(|n| n.parse().ok()).ok_or(WRONG)?;
        let record = data.get(space + 1..length).ok_or(WRONG)?;
        let record = record.strip_suffix(b"\n").ok_or(WRONG)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or(WRONG)?;
        let value = &record[equals + 1..];
        match &record[..equals] {
            b"path" | b"size" if value.is_empty() => return Err(WRONG),
            b"path" if path.is_some() => return Err(TWICE),
            b"size" if size.is_some() => return Err(TWICE),
            b"path" => path = Some(value.to_vec()),
            b"size" => {
                let value = std::str::from_utf8(value).ok().and_then(|n| n.parse().ok());
                size = Some(value.ok_or(WRONG)?);
            }
            key if key.starts_with(b"GNU.sparse") => return Err("sparse files are not taken"),
            _ => {}
        }
        data = &data[length..];
    }
    Ok((path, size))
}

/// Headers of an entry, an extended one before it where the plain one has no room.
pub(super) fn write(name: &str, is_directory: bool, size: u64, mode: u32, modified_s: u64) -> Vec<u8> {
    const PLAIN_SIZE: u64 = 0o77_777_777_777;
    let name = if is_directory { format!("{name}/") } else { name.to_owned() };
    let mut out = Vec::with_capacity(3 * BLOCK);
    let mut extended = Vec::new();
    if name.len() > 100 || !name.is_ascii() {
        record(&mut extended, "path", &name);
    }
    if size > PLAIN_SIZE {
        record(&mut extended, "size", &size.to_string());
    }
    if !extended.is_empty() {
        out.extend_from_slice(&block(b"pax-header", b'x', extended.len() as u64, 0o644, modified_s));
        let padding = padding(extended.len() as u64);
        out.extend_from_slice(&extended);
        out.resize(out.len() + padding, 0);
    }
    // Who knows no extended headers sees the beginning of a long name, which must not look like that of a directory.
    let plain = &name.as_bytes()[..name.len().min(100)];
    let plain = if is_directory { plain } else { plain.strip_suffix(b"/").unwrap_or(plain) };
    let kind = if is_directory { b'5' } else { b'0' };
    out.extend_from_slice(&block(plain, kind, size.min(PLAIN_SIZE), mode, modified_s));
    out
}

/// Zeros behind so many bytes of content.
pub(super) fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

fn record(into: &mut Vec<u8>, key: &str, value: &str) {
    let rest = format!(" {key}={value}\n");
    // The length counts its own digits.
    let mut length = rest.len() + 1;
    while length.to_string().len() + rest.len() != length {
        length = length.to_string().len() + rest.len();
    }
    into.extend_from_slice(length.to_string().as_bytes());
    into.extend_from_slice(rest.as_bytes());
}

fn block(name: &[u8], kind: u8, size: u64, mode: u32, modified_s: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    put(&mut block, 100, &format!("{mode:07o}"));
    put(&mut block, 108, "0000000");
    put(&mut block, 116, "0000000");
    put(&mut block, 124, &format!("{size:011o}"));
    put(&mut block, 136, &format!("{:011o}", modified_s.min(0o77_777_777_777)));
    block[148..156].fill(b' ');
    block[156] = kind;
    put(&mut block, 257, "ustar\u{0}00");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut block, 148, &format!("{sum:06o}\u{0} "));
    block
}

fn put(block: &mut [u8; BLOCK], at: usize, text: &str) {
    block[at..at + text.len()].copy_from_slice(text.as_bytes());
}

fn text(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

fn octal(field: &[u8]) -> Result<u64, Malformed> {
    const WRONG: Malformed = "a header has a malformed number: this is no tar archive, or it is damaged";
    let digits = text(field);
    let digits = std::str::from_utf8(digits).map_err(|_| WRONG)?.trim_matches(' ');
    if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, 8).map_err(|_| WRONG) }
}

/// Octal, or what GNU writes when that is too short: the first bit set, then the number itself.
fn number(field: &[u8]) -> Result<u64, Malformed> {
    if field[0] & 0x80 == 0 {
        return octal(field);
    }
    let high = &field[..field.len() - 8];
    if high[0] != 0x80 || high[1..].iter().any(|byte| *byte != 0) {
        return Err("a header has a number that is too large");
    }
    let low: [u8; 8] = field[field.len() - 8..].try_into().map_err(|_| "a header is too short")?;
    Ok(u64::from_be_bytes(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn first(bytes: &[u8]) -> Header {
        let block: &[u8; BLOCK] = bytes[..BLOCK].try_into().expect("a block");
        parse(block).expect("well formed").expect("a header")
    }

    #[test]
    fn what_is_written_is_read() {
        let header = first(&write("a/b.txt", false, 7, 0o750, 1));
        assert_eq!(header, Header { name: b"a/b.txt".to_vec(), kind: Kind::File, size: 7, mode: 0o750 });
        assert_eq!(first(&write("d", true, 0, 0o755, 1)).kind, Kind::Directory);
        let cut = "d/".repeat(63) + "file";
        let written = write(&cut, false, 7, 0o644, 1);
        let plain = first(&written[written.len() - BLOCK..]);
        assert_eq!(
            (kind_of(plain.kind, cut.as_bytes()), kind_of(plain.kind, &plain.name)),
            (Kind::File, Kind::File)
        );
        assert_eq!(kind_of(Kind::File, b"old/"), Kind::Directory);
        let long = format!("{}/é", "x".repeat(300));
        let written = write(&long, false, 1 << 40, 0o644, 1);
        let extended = first(&written);
        assert_eq!(extended.kind, Kind::Extended);
        let end = BLOCK + extended.size as usize;
        assert_eq!(records(&written[BLOCK..end]), Ok((Some(long.into_bytes()), Some(1 << 40))));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let mut link = block(b"x", b'2', 9, 0o777, 0);
        assert!(parse(&link).is_err(), "a link with content");
        link[0] = b'y';
        assert!(parse(&link).is_err(), "a wrong checksum");
        assert!(parse(&block(b"x", b'S', 0, 0o644, 0)).is_err(), "a sparse file");
        for data in [
            &b"9 path=x"[..],
            b"5 x=y\n",
            b"99 path=x\n",
            b"path=x\n",
            b"0 \n",
            b"10 size=1\n10 size=9\n",
            b"10 size=1\n10 size=1\n",
            b"10 path=a\n10 path=b\n",
            b"8 size=\n",
        ] {
            assert!(records(data).is_err(), "{data:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), BLOCK), data in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(bytes.as_slice().try_into().expect("a block"));
            let _ = records(&data);
        }
    }
}
